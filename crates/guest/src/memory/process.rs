// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest RAM in the VMM's process, through `/proc/PID/mem`.
//!
//! The open file stands for the address space, not for the number of the process: after the VMM's
//! end it reads as empty, and a later process of the same number is never read by mistake. It is
//! opened for reading only.

use super::{Physical, by_segment};
use crate::error::{Error, Result};
use crate::vmm::{Segment, Vm};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// RAM of a VM.
pub struct ProcessRam {
    pid: u32,
    file: File,
    segments: Vec<Segment>,
}

impl ProcessRam {
    /// Opens the memory of `vm`, laid out as `segments`.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Gone`].
    pub fn open(vm: &Vm, segments: Vec<Segment>) -> Result<ProcessRam> {
        let path = format!("/proc/{}/mem", vm.pid);
        let file = match File::open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::Gone { pid: vm.pid });
            }
            other => other.map_err(Error::io(path))?,
        };
        // Checked after opening: the file is that of the process that had the number then.
        if !vm.exists() {
            return Err(Error::Gone { pid: vm.pid });
        }
        Ok(ProcessRam { pid: vm.pid, file, segments })
    }
}

impl Physical for ProcessRam {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        by_segment(&self.segments, address, buffer, |gpa, hva, part| {
            match self.file.read_exact_at(part, hva) {
                Ok(()) => Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    Err(Error::Gone { pid: self.pid })
                }
                Err(source) => Err(Error::Unreadable { address: gpa, source }),
            }
        })
    }

    fn segments(&self) -> &[Segment] {
        &self.segments
    }
}
