// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fresh tmpfs for a load's files: unmounting it frees them all at once.

use crate::boot::TMPFS;
use crate::sys::{self, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

pub struct Directory(PathBuf);

impl Directory {
    pub fn mount(name: &str) -> Result<Directory> {
        let path = Path::new("/run/load").join(name);
        fs::create_dir_all(&path).context(path.display())?;
        sys::mount("tmpfs", &path.to_string_lossy(), "tmpfs", TMPFS).context(path.display())?;
        Ok(Directory(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(e) = sys::unmount(&self.0.to_string_lossy()) {
            eprintln!("reprieve-init: unmounting {}: {e}", self.0.display());
        }
    }
}
