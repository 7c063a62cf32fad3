// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a guest's init: a virtio-serial port. The lab's end is that of a socket pair
//! that QEMU inherits, so no socket exists in the file system. A guest is not trusted: the length
//! of a line is bounded, and a line that is not an event is an error, not a panic.

use crate::error::{Error, Result};
use crate::limit::scaled;
use reprieve_init::protocol::{Command, Event, LINE_MAX};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

/// Events that are buffered; a guest that sends more has to wait.
const EVENTS_MAX: usize = 256;

/// How long a guest may take to read a command.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

pub struct Channel {
    line: UnixStream,
    /// Bytes of the events so far.
    received: u64,
    incoming: mpsc::Receiver<Incoming>,
}

enum Incoming {
    /// With the length of its line.
    Event(Box<Event>, usize),
    Garbage(String),
    Closed,
}

impl Channel {
    /// `line`: the lab's end of the socket pair.
    pub fn new(line: UnixStream) -> std::io::Result<Channel> {
        let (send, incoming) = mpsc::sync_channel(EVENTS_MAX);
        // Reading ends when QEMU closes its end, at the latest when it is killed.
        let reader = line.try_clone()?;
        std::thread::spawn(move || read_events(reader, send));
        line.set_write_timeout(Some(scaled(WRITE_LIMIT)))?;
        Ok(Channel { line, received: 0, incoming })
    }

    pub fn send(&mut self, command: &Command) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(command)?;
        text.push(b'\n');
        self.line.write_all(&text)
    }

    /// Bytes of the events that [`Channel::receive`] has returned.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next event, or `None` when `wait` has passed.
    ///
    /// # Errors
    /// `Other` when the guest sent a line that is not an event, or closed the connection.
    pub fn receive(&mut self, wait: Duration) -> Result<Option<Event>> {
        match self.incoming.recv_timeout(wait) {
            Ok(Incoming::Event(event, length)) => {
                self.received += length as u64;
                Ok(Some(*event))
            }
            Ok(Incoming::Garbage(line)) => {
                Err(Error::Other(format!("the guest sent a line that is not an event: {line:?}")))
            }
            Ok(Incoming::Closed) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Error::Other("the guest closed the connection".into()))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
        }
    }
}

fn read_events(line: UnixStream, send: mpsc::SyncSender<Incoming>) {
    let mut reader = BufReader::new(line);
    loop {
        let mut text = Vec::new();
        let incoming = match (&mut reader).take(LINE_MAX as u64).read_until(b'\n', &mut text) {
            Ok(0) | Err(_) => Incoming::Closed,
            Ok(_) => match serde_json::from_slice(&text) {
                Ok(event) => Incoming::Event(Box::new(event), text.len()),
                Err(_) if text.trim_ascii().is_empty() => continue,
                Err(_) => {
                    let start = &text[..text.len().min(120)];
                    Incoming::Garbage(String::from_utf8_lossy(start).into_owned())
                }
            },
        };
        let closed = matches!(incoming, Incoming::Closed);
        if send.send(incoming).is_err() || closed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until the event comes: the limit of the whole test process ends a hang.
    const FOREVER: Duration = Duration::from_secs(24 * 3600);

    fn channel() -> (UnixStream, Channel) {
        let (guest, lab) = UnixStream::pair().unwrap();
        (guest, Channel::new(lab).unwrap())
    }

    #[test]
    fn commands_and_events_are_lines() {
        let (mut guest, mut channel) = channel();
        guest.write_all(b"\r\n{\"event\":\"ready\"}\n").unwrap();
        assert_eq!(channel.receive(FOREVER).unwrap(), Some(Event::Ready));
        channel.send(&Command::PowerOff).unwrap();
        let mut line = String::new();
        BufReader::new(guest).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"cmd\":\"power_off\"}\n");
    }

    #[test]
    fn garbage_and_hang_up_are_errors() {
        let (mut guest, mut channel) = channel();
        guest.write_all(b"{\"event\":\"ready\"}\nOops: 0000\n").unwrap();
        assert!(channel.receive(FOREVER).unwrap().is_some());
        let error = channel.receive(FOREVER).unwrap_err().to_string();
        assert!(error.contains("Oops"), "{error}");
        drop(guest);
        assert!(channel.receive(FOREVER).is_err());
    }

    #[test]
    fn an_endless_line_is_cut() {
        let (mut guest, mut channel) = channel();
        guest.write_all(b"{\"event\":\"ready\"}\n").unwrap();
        assert!(channel.receive(FOREVER).unwrap().is_some());
        let writer = std::thread::spawn(move || {
            let _ = guest.write_all(&vec![b'x'; LINE_MAX + 10]);
        });
        assert!(channel.receive(FOREVER).is_err());
        writer.join().unwrap();
    }

    #[test]
    fn silence_is_not_an_error() {
        let (_guest, mut channel) = channel();
        assert_eq!(channel.receive(Duration::from_millis(10)).unwrap(), None);
    }
}
