// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are there whole or not at all.

use std::fs::Permissions;
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Replaces the file `path` by `content`, whole or not at all.
///
/// # Errors
/// When the file cannot be written or renamed. The old file stays, and nothing else is left.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut new = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    new.write_all(content)?;
    new.as_file().sync_all()?;
    new.persist(path).map(drop).map_err(|error| error.error)
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
