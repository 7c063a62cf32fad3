// SPDX-License-Identifier: MIT OR Apache-2.0
//! Postmark's load (Katcher, "PostMark: A New File System Benchmark", 1997) on tmpfs: each process
//! has a directory of small files, and does transactions with them without end.
//!
//! A transaction reads a file or appends to one, then creates a file or removes one. All four are
//! equally likely, so that the number of files stays about the same. Sizes are Postmark's defaults.

use super::workers::Workers;
use super::{Directory, Load, Operation};
use crate::sys::{Context, Result};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const NAME: &str = "postmark";

/// Bytes of a file, uniformly at random.
const SMALLEST: usize = 500;
const LARGEST: usize = 9_770;

pub fn prepare(processes: u32, files: u32, seed: u64) -> Result<Box<dyn Load>> {
    let directory = Directory::mount(NAME)?;
    for index in 0..processes {
        let place = directory.path().join(index.to_string());
        fs::create_dir(&place).context(place.display())?;
        let mut pool = Pool::new(place, 0, seed.wrapping_add(index.into()));
        (0..files).try_for_each(|_| pool.create()).context("Postmark's files")?;
    }
    let arguments = [files.into(), seed];
    let workers = Workers::prepare(NAME, "transaction", processes, &arguments)?;
    Ok(Box::new(workers.keeping(directory)))
}

/// Transactions of the process `index` with the files that [`prepare`] has made.
pub fn operation(index: u64, files: u64, seed: u64) -> Operation {
    let place = Directory::place(NAME).join(index.to_string());
    let mut pool = Pool::new(place, files, seed ^ index.rotate_left(32));
    Box::new(move |slot| {
        pool.transaction()?;
        slot.operation();
        Ok(())
    })
}

/// The files of a process.
struct Pool {
    place: PathBuf,
    /// Their names.
    files: Vec<u64>,
    next: u64,
    random: fastrand::Rng,
    buffer: Vec<u8>,
}

impl Pool {
    fn new(place: PathBuf, files: u64, seed: u64) -> Pool {
        let random = fastrand::Rng::with_seed(seed);
        Pool { place, files: (0..files).collect(), next: files, random, buffer: vec![] }
    }

    fn transaction(&mut self) -> io::Result<()> {
        if let Some(path) = self.pick().map(|i| self.path(self.files[i])) {
            if self.random.bool() { self.read(&path)? } else { self.append(&path)? }
        }
        match self.pick() {
            Some(i) if self.random.bool() => {
                let file = self.files.swap_remove(i);
                fs::remove_file(self.path(file))
            }
            _ => self.create(),
        }
    }

    /// Any of the files, if there is one.
    fn pick(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.random.usize(..self.files.len()))
    }

    fn path(&self, file: u64) -> PathBuf {
        self.place.join(file.to_string())
    }

    fn create(&mut self) -> io::Result<()> {
        let file = self.next;
        self.next += 1;
        let size = self.random.usize(SMALLEST..=LARGEST);
        File::create(self.path(file))?.write_all(&[b'.'; LARGEST][..size])?;
        self.files.push(file);
        Ok(())
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        self.buffer.clear();
        File::open(path)?.read_to_end(&mut self.buffer).map(drop)
    }

    fn append(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::options().append(true).open(path)?;
        match LARGEST.saturating_sub(file.metadata()?.len() as usize) {
            0 => Ok(()),
            room => file.write_all(&[b'.'; LARGEST][..self.random.usize(1..=room)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_and_go_and_keep_their_sizes() {
        let place = std::env::temp_dir().join(format!("reprieve-pool-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let mut pool = Pool::new(place.clone(), 0, 7);
        (0..50).for_each(|_| pool.create().unwrap());
        (0..1_000).for_each(|_| pool.transaction().unwrap());
        let there = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        let sizes: Vec<usize> = there.map(|file| file.len() as usize).collect();
        fs::remove_dir_all(&place).unwrap();
        assert_eq!(sizes.len(), pool.files.len());
        assert!(sizes.iter().all(|size| (SMALLEST..=LARGEST).contains(size)), "{sizes:?}");
        // About as many were created as removed.
        assert!(pool.next > 400 && pool.files.len() < 250, "{} of {}", sizes.len(), pool.next);
    }
}
