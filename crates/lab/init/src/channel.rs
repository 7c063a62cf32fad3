// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to the lab: a virtio-serial port named [`PORT`].
//!
//! Reading and writing are independent: one thread reads commands as long as the guest lives, and
//! executes at once those that must not wait for the current one (`PowerOff`, `Input`); every
//! thread may send events. As long as the other side has not opened the virtio-serial port, reads
//! return nothing and writes wait, so the first event is not lost.

use crate::protocol::{Event, LINE_MAX, PORT};
use crate::sys::{self, Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The port appears when its driver has talked to the device, shortly after the module is loaded.
const PORT_WAIT: Duration = Duration::from_secs(20);

/// The sending side; clones share the line.
#[derive(Clone)]
pub struct Sender(Arc<Mutex<BufWriter<Out>>>);

impl Sender {
    /// Sends one event. An error means that the lab has ended, and then the VM ends, too.
    pub fn send(&self, event: &Event) {
        self.send_all(std::iter::once(event));
    }

    /// Sends events in as few writes as possible.
    pub fn send_all<'a>(&self, events: impl Iterator<Item = &'a Event>) {
        let mut out = self.0.lock().unwrap_or_else(|e| e.into_inner());
        for event in events {
            // Into the buffer; flush reports an error again.
            let _ = serde_json::to_writer(&mut *out, event);
            let _ = out.write_all(b"\n");
        }
        if let Err(e) = out.flush() {
            eprintln!("reprieve-init: cannot send: {e}");
        }
    }

    /// Sends one event from a panicking thread, which may hold the lock itself.
    pub fn try_send(&self, event: &Event) {
        if let Ok(mut out) = self.0.try_lock() {
            let _ = serde_json::to_writer(&mut *out, event);
            let _ = out.write_all(b"\n");
            let _ = out.flush();
        }
    }
}

/// Opens the connection.
pub fn open() -> Result<(Receiver, Sender)> {
    let path = find_port()
        .ok_or("no virtio-serial port: the kernel needs virtio-pci and virtio-console")?;
    let file = OpenOptions::new().read(true).write(true).open(&path).context(path.display())?;
    let out = file.try_clone().context(path.display())?;
    let sender = Sender(Arc::new(Mutex::new(BufWriter::with_capacity(32 << 10, Out(out)))));
    Ok((Receiver { file, buffer: Vec::new() }, sender))
}

fn find_port() -> Option<PathBuf> {
    let deadline = Instant::now() + sys::scaled(PORT_WAIT);
    loop {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim_end() == PORT {
                return Some(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes only what there is room for. A write that waits for room in a virtio-serial port can miss
/// that the device made some, and then sleeps for as long as nothing else happens on the port.
struct Out(File);

/// How often room is looked for, ms, while no event says that there is some.
const LOOK_FOR_ROOM: u32 = 100;

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        while !sys::writable(self.0.as_fd(), LOOK_FOR_ROOM) {
            // Where the other side is not open, `poll` returns at once.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// The receiving side.
pub struct Receiver {
    file: File,
    buffer: Vec<u8>,
}

impl Receiver {
    /// The next line without its end; waits for it for as long as the guest lives.
    pub fn line(&mut self) -> Vec<u8> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(line) = take_line(&mut self.buffer) {
                return line;
            }
            // A port's `read` sleeps while it holds the lock of the file's position, which `write`
            // needs, too: so `read` is called only when it returns at once.
            if sys::readable(self.file.as_fd(), 1_000) {
                if let Ok(n @ 1..) = self.file.read(&mut chunk) {
                    self.buffer.extend_from_slice(&chunk[..n]);
                    continue;
                }
            }
            // Nothing to read, or the other side is not open (then `poll` returns at once).
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Takes the first whole line out of `buffer`. A line too long for a command is dropped.
fn take_line(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    if let Some(end) = buffer.iter().position(|b| *b == b'\n') {
        let mut line: Vec<u8> = buffer.drain(..=end).collect();
        line.pop();
        return Some(line);
    }
    if buffer.len() > LINE_MAX {
        buffer.clear();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_whole_and_in_order() {
        let mut buffer = b"one\ntwo\nthr".to_vec();
        assert_eq!(take_line(&mut buffer).unwrap(), b"one");
        assert_eq!(take_line(&mut buffer).unwrap(), b"two");
        assert_eq!(take_line(&mut buffer), None);
        buffer.extend_from_slice(b"ee\n");
        assert_eq!(take_line(&mut buffer).unwrap(), b"three");
    }

    #[test]
    fn what_there_is_no_room_for_is_written_later() {
        let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut out = Out(File::from(std::os::fd::OwnedFd::from(here)));
        let sent: Vec<u8> = (0..4 << 20).map(|n: u32| n.to_le_bytes()[n as usize % 4]).collect();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || out.write_all(&copy));
        let mut received = Vec::new();
        there.read_to_end(&mut received).unwrap();
        writer.join().unwrap().unwrap();
        assert!(received == sent);
    }

    #[test]
    fn a_write_to_nobody_fails() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut out = Out(File::from(std::os::fd::OwnedFd::from(here)));
        drop(there);
        assert!(out.write(b"x").is_err());
    }

    #[test]
    fn endless_line_does_not_eat_the_memory() {
        let mut buffer = vec![b'x'; LINE_MAX + 1];
        assert_eq!(take_line(&mut buffer), None);
        assert!(buffer.is_empty());
    }
}
