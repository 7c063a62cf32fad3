// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a guest's init.
//!
//! A guest has two connections to the lab, a virtio-serial port and a serial line. Its init uses
//! one of them, and the lab answers on the one from which the first event came. Each is one end of
//! a socket pair that QEMU inherits, so no socket exists in the file system. A guest is not
//! trusted: the length of a line is bounded, and a line that is not an event is an error, not a
//! panic.

use crate::error::{Error, Result};
use crate::limit::scaled;
use reprieve_init::protocol::{Command, Event, LINE_MAX};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Events that are buffered; a guest that sends more has to wait.
const EVENTS_MAX: usize = 256;

/// How long a guest may take to read a command.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

pub struct Channel {
    lines: Vec<UnixStream>,
    /// The one in use: an index into `lines`.
    active: Option<usize>,
    /// Bytes of the events so far.
    received: u64,
    incoming: mpsc::Receiver<(usize, Incoming)>,
}

enum Incoming {
    /// With the length of its line.
    Event(Box<Event>, usize),
    Garbage(String),
    Closed,
}

impl Channel {
    /// `lines`: the lab's ends of the socket pairs.
    pub fn new(lines: Vec<UnixStream>) -> std::io::Result<Channel> {
        let (send, incoming) = mpsc::sync_channel(EVENTS_MAX);
        for (index, line) in lines.iter().enumerate() {
            // Reading ends when QEMU closes its end, at the latest when it is killed.
            let (reader, send) = (line.try_clone()?, send.clone());
            std::thread::spawn(move || read_events(index, reader, send));
            line.set_write_timeout(Some(scaled(WRITE_LIMIT)))?;
        }
        Ok(Channel { lines, active: None, received: 0, incoming })
    }

    /// Sends `command`; an error before the first event of the guest.
    pub fn send(&mut self, command: &Command) -> std::io::Result<()> {
        let Some(active) = self.active else {
            return Err(std::io::Error::other("the guest has not announced itself yet"));
        };
        let mut text = serde_json::to_vec(command)?;
        text.push(b'\n');
        self.lines[active].write_all(&text)
    }

    /// Forgets which line the guest uses: it is about to choose one again.
    pub fn restart(&mut self) {
        self.active = None;
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
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.incoming.recv_timeout(left) {
                Ok((index, Incoming::Event(event, length))) => {
                    self.active.get_or_insert(index);
                    self.received += length as u64;
                    return Ok(Some(*event));
                }
                // Firmware or kernel may print on the line that is not in use.
                Ok((index, Incoming::Garbage(line))) if self.active == Some(index) => {
                    return Err(Error::Other(format!(
                        "the guest sent a line that is not an event: {line:?}"
                    )));
                }
                Ok((_, Incoming::Garbage(_))) => {}
                Ok((_, Incoming::Closed)) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::Other("the guest closed the connection".into()));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            }
        }
    }
}

fn read_events(index: usize, line: UnixStream, send: mpsc::SyncSender<(usize, Incoming)>) {
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
        if send.send((index, incoming)).is_err() || closed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until the event comes: the limit of the whole test process ends a hang.
    const FOREVER: Duration = Duration::from_secs(24 * 3600);

    fn channel() -> (UnixStream, UnixStream, Channel) {
        let (a, lab_a) = UnixStream::pair().unwrap();
        let (b, lab_b) = UnixStream::pair().unwrap();
        (a, b, Channel::new(vec![lab_a, lab_b]).unwrap())
    }

    #[test]
    fn answers_on_the_line_the_guest_chose() {
        let (_virtio, mut serial, mut channel) = channel();
        assert!(channel.send(&Command::Start).is_err(), "the guest has not sent anything yet");
        serial.write_all(b"SeaBIOS\r\n{\"event\":\"ready\"}\n").unwrap();
        assert_eq!(channel.receive(FOREVER).unwrap(), Some(Event::Ready));
        channel.send(&Command::PowerOff).unwrap();
        let mut line = String::new();
        BufReader::new(serial).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"cmd\":\"power_off\"}\n");
    }

    #[test]
    fn garbage_and_hang_up_are_errors() {
        let (mut virtio, serial, mut channel) = channel();
        virtio.write_all(b"{\"event\":\"ready\"}\nOops: 0000\n").unwrap();
        assert!(channel.receive(FOREVER).unwrap().is_some());
        let error = channel.receive(FOREVER).unwrap_err().to_string();
        assert!(error.contains("Oops"), "{error}");
        drop((virtio, serial));
        assert!(channel.receive(FOREVER).is_err());
    }

    #[test]
    fn an_endless_line_is_cut() {
        let (mut virtio, _serial, mut channel) = channel();
        virtio.write_all(b"{\"event\":\"ready\"}\n").unwrap();
        assert!(channel.receive(FOREVER).unwrap().is_some());
        let writer = std::thread::spawn(move || {
            let _ = virtio.write_all(&vec![b'x'; LINE_MAX + 10]);
        });
        assert!(channel.receive(FOREVER).is_err());
        writer.join().unwrap();
    }

    #[test]
    fn silence_is_not_an_error() {
        let (_virtio, _serial, mut channel) = channel();
        assert_eq!(channel.receive(Duration::from_millis(10)).unwrap(), None);
    }
}
