// SPDX-License-Identifier: MIT OR Apache-2.0
//! A new tmpfs for the files of a load; unmounting it frees them all at once.

use crate::boot::TMPFS;
use crate::sys::{self, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BUSY_LOOK: Duration = Duration::from_millis(20);
const BUSY_LOOKS: u32 = 250;

pub struct Directory(PathBuf);

impl Directory {
    pub fn mount(name: &str) -> Result<Directory> {
        let path = Directory::place(name);
        fs::create_dir_all(&path).context(path.display())?;
        sys::mount("tmpfs", &path.to_string_lossy(), "tmpfs", TMPFS).context(path.display())?;
        Ok(Directory(path))
    }

    /// Where the directory called `name` is.
    pub fn place(name: &str) -> PathBuf {
        Path::new("/run/load").join(name)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path = self.0.to_string_lossy();
        // Killed processes may take a moment to close their files.
        for _ in 0..BUSY_LOOKS {
            match sys::unmount(&path, false) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(BUSY_LOOK),
                _ => return,
            }
        }
        if let Err(e) = sys::unmount(&path, true) {
            eprintln!("reprieve-init: unmounting {path}: {e}");
        }
    }
}
