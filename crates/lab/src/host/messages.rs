// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress and results of the program inside a lab host, as messages on standard output.

use super::lab_host::{Message, SIGN_OF_LIFE};
use crate::progress::Progress;
use anyhow::{Context as _, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Progress of the program inside a lab host: messages on standard output.
pub struct Messages;

impl Messages {
    /// Writes one message to standard output, which the outer program reads.
    pub fn send(message: &Message) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, message)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Says again and again that this program runs, as long as somebody reads it.
    pub fn show_life() {
        while Messages::send(&Message::Alive).is_ok() {
            std::thread::sleep(SIGN_OF_LIFE);
        }
    }

    /// Sends the end of a log to the program outside, and removes it here.
    pub fn send_log(log: &Path) -> std::io::Result<()> {
        let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read(log)?;
        let end = &text[text.len().saturating_sub(LOG_MAX)..];
        // An empty log is a file, too, which a message may name.
        Messages::send(&Message::Log { name: name.clone(), text: String::new() })?;
        for piece in pieces(&String::from_utf8_lossy(end), LOG_PIECE) {
            Messages::send(&Message::Log { name: name.clone(), text: piece.into() })?;
        }
        std::fs::remove_file(log)
    }
}

/// Most bytes of a guest's console that are sent, and bytes per message: a message is a line, and
/// the length of lines is bounded.
const LOG_MAX: usize = 64 << 10;
const LOG_PIECE: usize = 4 << 10;

/// `text` in pieces of at most `most` bytes, cut between characters.
fn pieces(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = (0..=most.min(rest.len())).rev().find(|&i| rest.is_char_boundary(i));
        let (piece, after) = rest.split_at(end.unwrap_or(0));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

impl Progress for Messages {
    fn step(&self, what: &str) {
        let _ = Messages::send(&Message::Step { what: what.into() });
    }

    fn timed(&self, what: &str, length: Duration) {
        let ms = length.as_millis() as u64;
        let _ = Messages::send(&Message::Timed { what: what.into(), ms });
    }

    fn notice(&self, text: &str) {
        let _ = Messages::send(&Message::Notice { text: text.into() });
    }

    fn keep_log(&self, log: &Path) {
        // With what QEMU itself said. Sent now: the lab host may die before the run ends.
        for log in [log.to_path_buf(), log.with_extension("qemu.log")] {
            let _ = Messages::send_log(&log);
        }
    }

    fn remaining(&self, left: Duration) {
        let _ = Messages::send(&Message::Remaining { ms: left.as_millis() as u64 });
    }
}

/// The console logs in a lab host. The program outside keeps them at the same path, so that errors
/// name files that are there afterwards.
pub struct Logs {
    pub dir: PathBuf,
    /// Relative paths are below it.
    _current: tempfile::TempDir,
}

impl Logs {
    /// Also lets the program outside know from now on that this one runs: it ends a lab host that
    /// is silent for long.
    pub fn at(dir: &Path) -> Result<Logs> {
        std::thread::spawn(Messages::show_life);
        let current = tempfile::tempdir().context("log directory")?;
        std::env::set_current_dir(current.path()).context("log directory")?;
        std::fs::create_dir_all(dir).with_context(|| format!("log directory {}", dir.display()))?;
        Ok(Logs { dir: dir.into(), _current: current })
    }

    /// Sends those that were not sent yet.
    pub fn send(&self) -> Result<()> {
        for entry in self.dir.read_dir()?.flatten() {
            Messages::send_log(&entry.path())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_hold_everything_and_cut_no_character() {
        let text = "aä€😀".repeat(1000);
        let all: Vec<&str> = pieces(&text, 10).collect();
        assert_eq!(all.concat(), text);
        assert!(all.iter().all(|piece| piece.len() <= 10));
        assert_eq!(pieces("", 10).count(), 0);
    }
}
