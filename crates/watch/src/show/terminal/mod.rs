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
pub mod session;
mod state;

pub use session::Outcome;
use state::{HELP, Mode};
pub use state::{Request, View};

use super::{Source, SourceError};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use session::Screen;
use std::time::Duration;

/// Shows what `source` sees until the user or a signal ends it.
pub fn run(
    source: &mut dyn Source,
    interval: Duration,
    colour: bool,
    named: &[String],
) -> Result<Outcome, SourceError> {
    let view = View::new(interval, colour).of(named);
    session::run(&mut Watching { source, view }, interval)
}

struct Watching<'a> {
    source: &'a mut dyn Source,
    view: View,
}

impl Screen for Watching<'_> {
    fn refresh(&mut self) {
        match self.source.snapshot() {
            Ok(snapshot) => self.view.update(snapshot),
            Err(error) => self.view.fail(error.to_string()),
        }
    }

    fn tick(&mut self) {
        self.source.events();
    }

    fn key(&mut self, key: KeyCode) -> Request {
        self.view.key(key)
    }

    fn draw(&mut self, frame: &mut Frame) {
        self.view.draw(frame);
    }
}

impl View {
    pub fn draw(&mut self, frame: &mut Frame) {
        match self.mode {
            Mode::Help => help(frame),
            _ if self.inside => guest::draw(self, frame),
            _ => overview::draw(self, frame),
        }
    }
}

fn help(frame: &mut Frame) {
    let lines = HELP.map(|(key, does)| Line::raw(format!("  {key:<8}{does}")));
    frame.render_widget(Paragraph::new(lines.to_vec()), frame.area());
}

#[cfg(test)]
mod tests;
