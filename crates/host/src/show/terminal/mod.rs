// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live view.
//!
//! One screen lists the VMs, each with what an operator needs at a glance; another shows the vCPUs
//! of one VM and which of them hold up its grace period. Drawing is a function of a [`View`] and a
//! frame, so tests draw into a buffer. [`session`] owns the terminal and restores it, however the
//! program ends.

mod bars;
mod colours;
mod guest;
mod heading;
mod input;
mod overview;
pub mod session;
mod state;

pub use session::{Outcome, run};
pub use state::View;

use ratatui::Frame;

impl View {
    pub fn draw(&mut self, frame: &mut Frame) {
        if self.inside { guest::draw(self, frame) } else { overview::draw(self, frame) }
    }
}

#[cfg(test)]
mod tests;
