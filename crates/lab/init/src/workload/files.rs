// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that create and remove empty files on tmpfs, one file each, as fast as they can.
//!
//! Each removal leaves an inode, a dentry and a file structure to be freed through `call_rcu`.

use super::threads::Threads;
use super::{Directory, Load, Operation};
use crate::sys::{Result, cpus};
use std::fs;

pub fn prepare(workers: u32) -> Result<Box<dyn Load>> {
    let directory = Directory::mount("files")?;
    let work = (0..workers)
        .map(|i| {
            let path = directory.path().join(i.to_string());
            let operation: Operation = Box::new(move |slot| {
                fs::File::create(&path)?;
                fs::remove_file(&path)?;
                slot.operation();
                Ok(())
            });
            (Some(i % cpus()), operation)
        })
        .collect();
    Ok(Box::new(Threads::prepare("file", "file", work)?.keeping(directory)))
}
