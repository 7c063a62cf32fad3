// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for keys on a terminal that may go away.
//!
//! When its terminal is hung up, crossterm reads again and again and ignores its time limit. A
//! check before the read does not help, as the terminal may go away in between. So a separate
//! thread reads, and nothing ever waits for that thread; the wait for keys checks for the end of
//! the terminal.

use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{IsTerminal, Result, stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The terminal that keys come from: standard input, else the controlling terminal (as crossterm
/// chooses).
pub(super) struct Keys {
    terminal: Option<File>,
    events: Receiver<Result<Event>>,
}

/// Result of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Event(Event),
    Nothing,
    /// The terminal was hung up.
    Gone,
}

impl Keys {
    /// Starts the thread, which ends with the process, or at the next key after this was dropped.
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

    fn gone(&self) -> bool {
        let stdin = stdin();
        let terminal: BorrowedFd<'_> =
            self.terminal.as_ref().map_or_else(|| stdin.as_fd(), AsFd::as_fd);
        // Hang-ups and errors are reported without being asked for.
        let mut entry = [PollFd::from_borrowed_fd(terminal, PollFlags::empty())];
        let found = poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let ends = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        found.is_ok_and(|n| n > 0) && entry[0].revents().intersects(ends)
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
            // The thread ended after it had sent an error.
            Err(RecvTimeoutError::Disconnected) => Ok(Ready::Gone),
        }
    }
}
