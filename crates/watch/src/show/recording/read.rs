// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads recordings line by line, whatever their size, up to where a file was cut off.

use super::{Error, Header, Line, VERSION};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longer lines are not read: 16,384 vCPUs fit.
const LONGEST: u64 = 256 << 20;

/// A recording that is being read.
pub struct Reader {
    path: String,
    lines: BufReader<MultiGzDecoder<BufReader<File>>>,
    number: u64,
    /// Whether the end of the file is missing.
    cut_off: bool,
    done: bool,
}

impl Reader {
    /// # Errors
    /// When the file cannot be read, is no recording, or one of another version.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| Error::Io { path: name.clone(), source })?;
        let mut reader = Reader {
            path: name,
            lines: BufReader::new(MultiGzDecoder::new(BufReader::new(file))),
            number: 0,
            cut_off: false,
            done: false,
        };
        let Some(first) = reader.line()? else {
            return Err(reader.format("it is empty".into()));
        };
        let header: Header = serde_json::from_slice(&first)
            .map_err(|error| reader.format(format!("its first line: {error}")))?;
        if header.format != Header::FORMAT {
            return Err(reader.format("its first line does not say that it is one".into()));
        }
        if header.version != VERSION {
            let found = header.version;
            return Err(
                reader.format(format!("version {found}, and this program reads version {VERSION}"))
            );
        }
        Ok(reader)
    }

    /// Whether the end of the file is missing; known once everything was read.
    pub fn cut_off(&self) -> bool {
        self.cut_off
    }

    fn format(&self, why: String) -> Error {
        Error::Format { path: self.path.clone(), why }
    }

    fn record(&mut self) -> Result<Option<Line>, Error> {
        let Some(line) = self.line()? else { return Ok(None) };
        let parsed = serde_json::from_slice(&line);
        parsed.map_err(|error| self.format(format!("line {}: {error}", self.number))).map(Some)
    }

    /// A complete line without its end; a last one without an end was cut off.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.done {
            return Ok(None);
        }
        self.number += 1;
        let mut line = vec![];
        match self.lines.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(_) if line.last() == Some(&b'\n') => {
                line.pop();
                Ok(Some(line))
            }
            Ok(0) => {
                self.done = true;
                Ok(None)
            }
            Ok(_) if line.len() as u64 == LONGEST => {
                Err(self.format(format!("line {} is too long", self.number)))
            }
            Ok(_) => self.end(),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => self.end(),
            Err(error) if self.number == 1 => Err(self.format(error.to_string())),
            Err(source) => Err(Error::Io { path: self.path.clone(), source }),
        }
    }

    fn end<T>(&mut self) -> Result<Option<T>, Error> {
        (self.done, self.cut_off) = (true, true);
        Ok(None)
    }
}

impl Iterator for Reader {
    type Item = Result<Line, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.record().transpose();
        self.done |= matches!(record, Some(Err(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::super::Writer;
    use super::*;
    use crate::model::Event;
    use crate::show::testing::busy;

    fn written(events: u64, finish: bool) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        let mut writer = Writer::create(&path).unwrap();
        writer.snapshot(busy(1)).unwrap();
        for n in 0..events {
            writer
                .event(Event::On { time_ns: n, pid: 1, vcpu: 0, cpu: n as u32, was: None })
                .unwrap();
        }
        if finish {
            writer.finish().unwrap();
        } else {
            writer.complete().unwrap();
            // As after a crash: nothing is completed.
            std::mem::forget(writer);
        }
        (dir, path)
    }

    #[test]
    fn what_was_written_is_read() {
        let (_dir, path) = written(1000, true);
        let mut reader = Reader::open(&path).unwrap();
        let all: Vec<Line> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(all.len(), 1001);
        assert!(matches!(&all[0], Line::Snapshot(s) if s.vms.len() == 3));
        assert!(matches!(&all[1000], Line::Event(Event::On { time_ns: 999, .. })));
        assert!(!reader.cut_off());
    }

    #[test]
    fn a_recording_that_was_cut_off_is_read_up_to_there() {
        let (_dir, path) = written(1000, false);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.by_ref().map(Result::unwrap).count(), 1001);
        assert!(reader.cut_off());
        // Anywhere.
        let (_dir, path) = written(20, false);
        let all = std::fs::read(&path).unwrap();
        for length in 0..all.len() {
            std::fs::write(&path, &all[..length]).unwrap();
            if let Ok(mut reader) = Reader::open(&path) {
                assert!(reader.by_ref().all(|r| r.is_ok()), "{length} bytes");
                assert!(reader.cut_off());
            }
        }
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        for content in [&b""[..], b"plain text\n", b"\x1f\x8b\x08\x00"] {
            std::fs::write(&path, content).unwrap();
            let error = Reader::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("is not a recording"), "{content:?}: {error}");
        }
        assert!(matches!(Reader::open(&dir.path().join("none")), Err(Error::Io { .. })));
    }

    #[test]
    fn damage_is_an_error_and_no_panic() {
        let (_dir, path) = written(200, true);
        let all = std::fs::read(&path).unwrap();
        let mut failed = 0;
        for at in 0..all.len() {
            let mut damaged = all.clone();
            damaged[at] ^= 0x55;
            std::fs::write(&path, &damaged).unwrap();
            failed += match Reader::open(&path) {
                Ok(mut reader) => usize::from(reader.by_ref().any(|r| r.is_err())),
                Err(_) => 1,
            };
        }
        assert!(failed > all.len() / 2, "{failed} of {}", all.len());
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let (_dir, path) = written(1, true);
        assert!(Writer::create(&path).is_err());
    }
}
