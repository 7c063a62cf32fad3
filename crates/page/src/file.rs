// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are there whole or not at all.

use std::fs::File;
use std::io::{Result, Write};
use std::path::Path;

/// Replaces the file `path` by `content`, whole or not at all.
///
/// The content is written beside `path` under a fixed name, then renamed. Because the name is
/// fixed, a crash leaves at most one such file, and the next write takes it over.
///
/// # Errors
/// When the file cannot be written or renamed. The old file stays, and nothing else is left.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let part = path.with_file_name(name);
    let put = || {
        let mut file = File::create(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    put().inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        std::fs::create_dir(file("taken")).unwrap();
        write(&file("file"), b"old").unwrap();
        write(&file("file"), b"new").unwrap();
        assert_eq!(std::fs::read(file("file")).unwrap(), b"new");
        // A directory cannot be replaced by a file.
        assert!(write(&file("taken"), b"x").is_err());
        let entries = std::fs::read_dir(dir.path()).unwrap();
        let mut left: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["file", "taken"]);
    }
}
