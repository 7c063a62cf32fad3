// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that read a file on tmpfs from beginning to end, over and over, one per vCPU in turn.

use super::threads::Threads;
use super::{Directory, Load, Operation};
use crate::sys::{Context, Result, cpus};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Bytes of the file, and per operation.
const FILE: usize = 4 << 20;
const READ: usize = 64 << 10;

pub fn prepare(workers: u32) -> Result<Box<dyn Load>> {
    let directory = Directory::mount("reads")?;
    let path = directory.path().join("file");
    fs::write(&path, vec![1; FILE]).context(path.display())?;
    let mut work: Vec<(Option<u32>, Operation)> = Vec::new();
    for i in 0..workers {
        let file = File::open(&path).context(path.display())?;
        let mut buffer = vec![0; READ];
        let mut at = 0;
        let operation: Operation = Box::new(move |slot| {
            file.read_exact_at(&mut buffer, at)?;
            at = (at + READ as u64) % FILE as u64;
            slot.operation();
            Ok(())
        });
        work.push((Some(i % cpus()), operation));
    }
    Ok(Box::new(Threads::prepare("read", "read", work)?.keeping(directory)))
}
