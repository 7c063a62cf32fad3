// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for keys on a terminal that may go away.
//!
//! crossterm reads again and again when its terminal is hung up, without end and without a look at its time limit; and no look beforehand helps
//! against a terminal that goes away in between. So a thread of its own reads, which nobody waits for, and who waits for keys looks for the
//! terminal's end itself.

use ratatui::crossterm::event::{self, Event};
use std::fs::File;
use std::io::{IsTerminal, Result, stdin};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The terminal that keys come from: standard input, else the controlling terminal (as crossterm chooses).
pub(super) struct Keys {
    terminal: Option<File>,
    events: Receiver<Result<Event>>,
}

/// What a wait ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Event(Event),
    Nothing,
    /// The terminal was hung up.
    Gone,
}

impl Keys {
    /// The thread that it starts ends with the process, or at the next key once this is dropped.
    pub(super) fn open() -> Result<Keys> {
        let terminal = if stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
        let (sender, events) = channel();
        let read = move || {
            loop {
                let event = event::read();
                let last = event.is_err();
                if sender.send(event).is_err() || last {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("keys".into()).spawn(read)?;
        Ok(Keys { terminal, events })
    }

    fn descriptor(&self) -> RawFd {
        self.terminal.as_ref().map_or_else(|| stdin().as_raw_fd(), AsRawFd::as_raw_fd)
    }

    fn gone(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.descriptor(), events: 0, revents: 0 };
        // SAFETY: one valid entry.
        let found = unsafe { libc::poll(&raw mut entry, 1, 0) };
        found > 0 && entry.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
    }

    /// Waits for at most `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Result<Ready> {
        if self.gone() {
            return Ok(Ready::Gone);
        }
        match self.events.recv_timeout(limit) {
            Ok(Err(_)) if self.gone() => Ok(Ready::Gone),
            Ok(event) => event.map(Ready::Event),
            Err(RecvTimeoutError::Timeout) => Ok(Ready::Nothing),
            // An error was the last that it sent.
            Err(RecvTimeoutError::Disconnected) => Ok(Ready::Gone),
        }
    }
}
