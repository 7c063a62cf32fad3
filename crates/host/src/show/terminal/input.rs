// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for keys on a terminal that may go away.
//!
//! crossterm reads again and again when its terminal is hung up, without end and without a look at its time limit. So the wait is ours: a terminal
//! that is gone is never asked.

use ratatui::crossterm::event;
use std::fs::File;
use std::io::{Error, ErrorKind, IsTerminal, stdin};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// The terminal that keys come from: standard input, else the controlling terminal (as crossterm chooses).
pub(super) struct Keys {
    terminal: Option<File>,
}

/// What a wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// An event can be read.
    Event,
    Nothing,
    /// The terminal was hung up.
    Gone,
}

impl Keys {
    pub(super) fn open() -> std::io::Result<Keys> {
        let terminal = if stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
        Ok(Keys { terminal })
    }

    fn descriptor(&self) -> RawFd {
        self.terminal.as_ref().map_or_else(|| stdin().as_raw_fd(), AsRawFd::as_raw_fd)
    }

    /// Waits for at most `limit`; a signal (that of a changed size, too) ends it early.
    pub(super) fn wait(&self, limit: Duration) -> std::io::Result<Ready> {
        let mut entry = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        let milliseconds = limit.as_millis().try_into().unwrap_or(i32::MAX);
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&raw mut entry, 1, milliseconds) } < 0 {
            let error = Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if entry.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
            return Ok(Ready::Gone);
        }
        // A size that changed comes from a signal, not from the terminal: always ask.
        Ok(if event::poll(Duration::ZERO)? { Ready::Event } else { Ready::Nothing })
    }
}
