// SPDX-License-Identifier: MIT OR Apache-2.0
//! Colours of classes and states: the terminal's own sixteen, so that they fit its background.
//! Without colour, letters tell the classes apart.

use crate::model::Class;
use ratatui::style::{Color, Modifier, Style};

/// How to tell things apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    pub colour: bool,
}

impl Palette {
    pub fn class(self, class: Class) -> Style {
        self.foreground(match class {
            Class::User => Color::Blue,
            Class::Kernel => Color::Cyan,
            Class::Reader => Color::Red,
            Class::NoPreempt => Color::Magenta,
            Class::Spinning => Color::LightBlue,
            Class::IrqsOff => Color::LightMagenta,
            Class::Softirq => Color::Yellow,
            Class::Hardirq => Color::LightYellow,
            Class::Idle => Color::DarkGray,
            Class::Unknown => Color::Gray,
        })
    }

    pub fn running(self) -> Style {
        self.foreground(Color::Green)
    }

    pub fn preempted(self) -> Style {
        self.foreground(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Text that need not be read each time. Not a colour: grey on grey cannot be read on some
    /// backgrounds.
    pub fn soft(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub fn warning(self) -> Style {
        self.foreground(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn foreground(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

/// The letter for a class where there is no colour.
pub fn letter(class: Class) -> char {
    match class {
        Class::User => 'u',
        Class::Kernel => 'k',
        Class::Reader => 'R',
        Class::NoPreempt => 'P',
        Class::Spinning => 's',
        Class::IrqsOff => 'I',
        Class::Softirq => 'S',
        Class::Hardirq => 'H',
        Class::Idle => 'i',
        Class::Unknown => '?',
    }
}
