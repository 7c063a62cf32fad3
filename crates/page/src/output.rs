// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results on standard output.

use crate::text::plain_lines;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// Writes results. A reader that has gone away (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    print_to_reader(text).map(drop)
}

/// As [`print()`]; returns whether the reader is still there.
pub fn print_to_reader(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("standard output"),
    }
}

pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Says something beside the results, on standard error. Where that cannot be written, the program
/// goes on: `eprintln!` would panic.
pub fn tell(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "reprieve: {}", plain_lines(&text.to_string()));
}

/// An error and its causes. Some errors name their cause in their own text: that is enough.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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
    use super::with_causes;
    use std::io::{Error as IoError, ErrorKind};

    /// Names its cause in its own text.
    #[derive(Debug, thiserror::Error)]
    #[error("raw.jsonl: {0}")]
    struct Named(#[source] IoError);

    #[test]
    fn a_cause_is_named_once() {
        let full = || IoError::new(ErrorKind::StorageFull, "disk full");
        let error = anyhow::Error::from(Named(full())).context("the run");
        assert_eq!(with_causes(&error), "the run: raw.jsonl: disk full");
        let error = anyhow::Error::from(full()).context("the run");
        assert_eq!(with_causes(&error), "the run: disk full");
    }
}
