// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are there whole or not at all: written beside their place under a fixed name, then renamed. The fixed name means
//! that a crash leaves at most one such file, which the next write takes over.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;

pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let part = path.with_file_name(name);
    let put = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    put().map_err(|e| {
        let _ = std::fs::remove_file(&part);
        Error::io(path)(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("reprieve-atomic-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("taken")).unwrap();
        write(&dir.join("file"), b"old").unwrap();
        write(&dir.join("file"), b"new").unwrap();
        assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"new");
        // A directory cannot be replaced by a file.
        assert!(write(&dir.join("taken"), b"x").is_err());
        let mut left: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, ["file", "taken"]);
    }
}
