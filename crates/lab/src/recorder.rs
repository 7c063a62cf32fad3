// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the records of a run to `raw.jsonl` as they come.

use crate::error::{Error, Result};
use crate::record::Record;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;

pub struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    begun: bool,
    ended: bool,
    complete: bool,
    phases_done: u32,
}

impl Recorder {
    pub fn create(path: PathBuf) -> Result<Recorder> {
        let file = File::create_new(&path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Error::Usage(format!("{} is there already: give another --out", path.display()))
            }
            _ => Error::Io { path: path.clone(), source: error },
        })?;
        let file = BufWriter::new(file);
        Ok(Recorder { path, file, begun: false, ended: false, complete: false, phases_done: 0 })
    }

    /// Appends `record`. A run that was started again after a crash keeps its first
    /// [`Record::Run`]; records after [`Record::End`] are dropped.
    pub fn write(&mut self, record: Record) -> Result<()> {
        match &record {
            _ if self.ended => return Ok(()),
            Record::Run { .. } if self.begun => return Ok(()),
            Record::PhaseEnd { phase, .. } | Record::PhaseDied { phase, .. } => {
                self.phases_done = phase + 1;
            }
            Record::End { complete, .. } => (self.ended, self.complete) = (true, *complete),
            _ => {}
        }
        self.begun = true;
        let mut write = || {
            serde_json::to_writer(&mut self.file, &record)?;
            self.file.write_all(b"\n")?;
            // Samples come by the thousand: they are written with the next other record.
            if matches!(record, Record::Sample { .. }) { Ok(()) } else { self.file.flush() }
        };
        write().map_err(Error::io(&self.path))
    }

    /// Number of complete phases.
    pub fn phases_done(&self) -> u32 {
        self.phases_done
    }

    /// Whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the run has ended with everything measured.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Writes the end of a run that has begun and has none.
    pub fn end(&mut self, error: Option<&Error>) -> Result<()> {
        if !self.begun || self.ended {
            return Ok(());
        }
        let reason = error.map(ToString::to_string);
        self.write(Record::End { complete: reason.is_none(), reason })
    }
}
