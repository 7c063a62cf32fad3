// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes recordings.

use super::{Error, Header, Line, VERSION};
use crate::model::{Event, Snapshot};
use crate::show::{Source, SourceError};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
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
    /// Half of a line may be written: nothing may follow it, or the rest cannot be read.
    failed: Option<Failure>,
}

/// Why nothing is written any more.
type Failure = (io::ErrorKind, String);

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
        let mut writer = Writer { path: name, out, completed: Instant::now(), failed: None };
        let first = |file: &str| {
            std::fs::read_to_string(file).unwrap_or_default().trim().chars().take(200).collect()
        };
        let header = Header {
            format: Header::FORMAT.into(),
            version: VERSION,
            by: concat!("reprieve ", env!("CARGO_PKG_VERSION")).into(),
            host: first("/proc/sys/kernel/hostname"),
            kernel: first("/proc/sys/kernel/osrelease"),
        };
        match writer.line(&header).and_then(|()| writer.complete()) {
            Ok(()) => Ok(writer),
            Err(error) => {
                // A file without a header is no recording.
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// # Errors
    /// When the file cannot be written, as for all of these; for good, once one of them failed.
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
        if self.completed.elapsed() >= BLOCK { self.complete() } else { self.check() }
    }

    /// Ends the file.
    pub fn finish(mut self) -> Result<(), Error> {
        self.write(|out| {
            out.flush()?;
            out.get_mut().try_finish()?;
            out.get_mut().get_mut().sync_all()
        })
    }

    pub(super) fn complete(&mut self) -> Result<(), Error> {
        self.completed = Instant::now();
        self.write(|out| out.flush())
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), Error> {
        self.write(|out| {
            serde_json::to_writer(&mut *out, line)?;
            out.write_all(b"\n")
        })
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<GzEncoder<File>>) -> io::Result<()>,
    ) -> Result<(), Error> {
        if self.failed.is_none() {
            let failure = |source: io::Error| (source.kind(), source.to_string());
            self.failed = write(&mut self.out).err().map(failure);
        }
        self.check()
    }

    /// The error that has ended it.
    fn check(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some((kind, text)) => {
                let source = io::Error::new(*kind, text.clone());
                Err(Error::Io { path: self.path.clone(), source })
            }
        }
    }
}

/// A source whose snapshots and events are recorded as they pass.
pub struct Recorded<S> {
    source: S,
    writer: Writer,
}

impl<S: Source> Recorded<S> {
    pub fn new(source: S, writer: Writer) -> Recorded<S> {
        Recorded { source, writer }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// When it is not complete.
    pub fn finish(self) -> Result<(), Error> {
        self.writer.finish()
    }
}

impl<S: Source> Source for Recorded<S> {
    fn snapshot(&mut self) -> Result<Snapshot, SourceError> {
        // An error of `events`, which cannot return it.
        self.writer.check()?;
        let snapshot = self.source.snapshot()?;
        self.writer.snapshot(snapshot.clone())?;
        Ok(snapshot)
    }

    fn events(&mut self) -> Vec<Event> {
        for event in self.source.events() {
            // The writer keeps its error, which the next snapshot returns.
            let _ = self.writer.event(event);
        }
        let _ = self.writer.tick();
        // A recording passes no events on.
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::recording::Reader;
    use crate::show::testing::busy;

    /// A source with as many events at once as fill every buffer.
    struct Many;

    impl Source for Many {
        fn snapshot(&mut self) -> Result<Snapshot, SourceError> {
            Ok(busy(1))
        }

        fn events(&mut self) -> Vec<Event> {
            let event =
                |n: u64| Event::Lost { time_ns: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), count: n };
            (0..50_000).map(event).collect()
        }
    }

    #[test]
    fn after_a_failure_nothing_more_is_written_and_the_end_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        let mut recorded = Recorded::new(Many, Writer::create(&path).unwrap());
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        // Whole until now.
        recorded.writer.complete().unwrap();
        let file = std::mem::replace(recorded.writer.out.get_mut().get_mut(), full);
        recorded.events();
        assert!(recorded.snapshot().is_err());
        // The file has room again.
        *recorded.writer.out.get_mut().get_mut() = file;
        recorded.events();
        assert!(recorded.snapshot().is_err() && recorded.snapshot().is_err());
        let error = recorded.finish().unwrap_err().to_string();
        assert!(error.contains("recording"), "{error}");
        let mut reader = Reader::open(&path).unwrap();
        assert!(reader.by_ref().all(|record| record.is_ok()));
    }
}
