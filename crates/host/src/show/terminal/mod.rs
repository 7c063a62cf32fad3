// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live view.
//!
//! One screen lists the VMs, each with what an operator needs at a glance; another shows the vCPUs of one and who holds up its grace period. Drawing is a
//! function of a [`View`] and a frame, so tests draw into a buffer; [`session`] owns the terminal and gives it back, however the program ends.

mod bars;
mod colours;
mod guest;
mod input;
mod overview;
pub mod session;
mod view;

pub use session::{Outcome, run};
pub use view::View;

#[cfg(test)]
mod tests;
