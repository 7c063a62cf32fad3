// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results on standard output.

use anyhow::{Context as _, Result};
use reprieve_lab::report::plain;
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// `text`, some of which may come from a guest, made harmless for a terminal, line by line.
pub fn harmless(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Writes results. A reader that has gone away (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}

pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Columns of standard output.
pub fn width() -> usize {
    width_or(100)
}

/// Columns of standard output, or `otherwise` if it is no terminal.
pub fn width_or(otherwise: usize) -> usize {
    let columns = console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    columns.filter(|_| std::io::stdout().is_terminal()).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(
            harmless("VM a: died\n    \u{1b}]0;owned\u{7}\u{1b}[2J"),
            "VM a: died\n    ?]0;owned??[2J"
        );
    }
}
