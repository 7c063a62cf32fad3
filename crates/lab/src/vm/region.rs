// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a guest's programs share with its host, for hints (docs/hint.md). QEMU wants a
//! file for it, whose name is needed only until QEMU has mapped it.

use crate::error::{Error, Result};
use reprieve_hint::abi::region::{BYTES, create};
use std::path::{Path, PathBuf};

/// The file's name, until this is dropped.
pub struct Region(PathBuf);

impl Region {
    /// Beside the VM's `console`.
    pub fn create(console: &Path) -> Result<Region> {
        let path = console.with_extension("region");
        create(&path).map_err(Error::io(&path))?;
        Ok(Region(path))
    }

    /// QEMU's options.
    pub fn options(&self) -> [String; 4] {
        // A comma ends a value.
        let path = self.0.display().to_string().replace(',', ",,");
        let memory = format!("memory-backend-file,id=region,mem-path={path},size={BYTES},share=on");
        let device = "ivshmem-plain,memdev=region".to_string();
        ["-object".into(), memory, "-device".into(), device]
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
