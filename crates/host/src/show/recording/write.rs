// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes recordings.

use super::{Error, Header, Line, VERSION};
use crate::show::{Source, SourceError};
use crate::watch::model::{Event, Snapshot};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time whose events a crash may lose.
const BLOCK: Duration = Duration::from_secs(1);

/// A recording that is being written. Dropping it completes the file, as far as that is possible;
/// [`finish`](Writer::finish) says whether it was.
pub struct Writer {
    path: String,
    out: BufWriter<GzEncoder<File>>,
    completed: Instant,
}

impl Writer {
    /// Begins a new file, readable by its owner only, for task names are in it; an existing one is
    /// left alone.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Path) -> Result<Writer, Error> {
        let name = path.display().to_string();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|source| Error::Io { path: name.clone(), source })?;
        // The fastest level: a busy host makes megabytes of text per second.
        let out = BufWriter::new(GzEncoder::new(file, Compression::fast()));
        let mut writer = Writer { path: name, out, completed: Instant::now() };
        let first = |file: &str| {
            std::fs::read_to_string(file).unwrap_or_default().trim().chars().take(200).collect()
        };
        writer.line(&Header {
            format: Header::FORMAT.into(),
            version: VERSION,
            by: concat!("reprieve ", env!("CARGO_PKG_VERSION")).into(),
            host: first("/proc/sys/kernel/hostname"),
            kernel: first("/proc/sys/kernel/osrelease"),
        })?;
        writer.complete()?;
        Ok(writer)
    }

    /// # Errors
    /// When the file cannot be written, as for all of these.
    pub fn event(&mut self, event: Event) -> Result<(), Error> {
        self.line(&Line::Event(event))?;
        self.tick()
    }

    pub fn snapshot(&mut self, snapshot: Snapshot) -> Result<(), Error> {
        self.line(&Line::Snapshot(Box::new(snapshot)))?;
        self.tick()
    }

    /// Completes the block when it is time to. Call it now and then when nothing happens.
    pub fn tick(&mut self) -> Result<(), Error> {
        if self.completed.elapsed() >= BLOCK { self.complete() } else { Ok(()) }
    }

    /// Ends the file.
    pub fn finish(mut self) -> Result<(), Error> {
        let end = |out: &mut BufWriter<GzEncoder<File>>| {
            out.flush()?;
            out.get_mut().try_finish()?;
            out.get_mut().get_mut().sync_all()
        };
        end(&mut self.out).map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    pub(super) fn complete(&mut self) -> Result<(), Error> {
        self.completed = Instant::now();
        self.out.flush().map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), Error> {
        let write = |out: &mut BufWriter<GzEncoder<File>>| {
            serde_json::to_writer(&mut *out, line)?;
            out.write_all(b"\n")
        };
        write(&mut self.out).map_err(|source| Error::Io { path: self.path.clone(), source })
    }
}

/// A source whose snapshots and events are recorded as they pass.
pub struct Recorded<S> {
    source: S,
    writer: Writer,
    /// An error of [`Source::events`], which cannot return it; the next snapshot does.
    failed: Option<Error>,
}

impl<S: Source> Recorded<S> {
    pub fn new(source: S, writer: Writer) -> Recorded<S> {
        Recorded { source, writer, failed: None }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// When it is not complete.
    pub fn finish(self) -> Result<(), Error> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.finish(),
        }
    }
}

impl<S: Source> Source for Recorded<S> {
    fn snapshot(&mut self) -> Result<Snapshot, SourceError> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        let snapshot = self.source.snapshot()?;
        self.writer.snapshot(snapshot.clone())?;
        Ok(snapshot)
    }

    fn events(&mut self) -> Vec<Event> {
        for event in self.source.events() {
            if self.failed.is_none() {
                self.failed = self.writer.event(event).err();
            }
        }
        if self.failed.is_none() {
            self.failed = self.writer.tick().err();
        }
        // A recording passes no events on.
        Vec::new()
    }
}
