// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live view.
//!
//! A screen lists the VMs, each with what an operator needs at a glance; another shows the vCPUs
//! of one VM and which of them hold up its grace period. Drawing is a function of a [`View`] and a
//! frame, so tests draw into a buffer. [`session`] owns the terminal and restores it, however the
//! program ends.

mod bars;
pub mod colours;
mod guest;
mod heading;
mod input;
mod overview;
mod session;
mod state;

pub use session::Outcome;
pub use state::{Request, View};

use super::{Source, SourceError};
use ratatui::Frame;
use std::time::Duration;

/// Shows what `source` sees until the user or a signal ends it.
pub fn run(
    source: &mut dyn Source,
    interval: Duration,
    colour: bool,
    named: &[String],
) -> Result<Outcome, SourceError> {
    session::run(source, View::new(interval, colour).of(named))
}

impl View {
    pub fn draw(&mut self, frame: &mut Frame) {
        if self.inside { guest::draw(self, frame) } else { overview::draw(self, frame) }
    }
}

#[cfg(test)]
mod tests;
