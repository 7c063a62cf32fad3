// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of cache items: a hash of everything that they are made from.
//!
//! Every part is hashed with its length, so that different lists of parts never give the same
//! bytes.

use sha2::{Digest, Sha256};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Default)]
pub struct Key(Sha256);

impl Key {
    pub fn new() -> Key {
        Key::default()
    }

    pub fn bytes(mut self, part: &[u8]) -> Key {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    pub fn text(self, part: &str) -> Key {
        self.bytes(part.as_bytes())
    }

    pub fn path(self, part: &Path) -> Key {
        self.bytes(part.as_os_str().as_bytes())
    }

    /// Adds a file's size and time of change: for large files of the machine.
    pub fn metadata(self, meta: &Metadata) -> Key {
        self.text(&format!("{} {}.{}", meta.size(), meta.mtime(), meta.mtime_nsec()))
    }

    /// 16 hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let key = |a: &str, b: &str| Key::new().text(a).text(b).finish();
        assert_ne!(key("ab", "c"), key("a", "bc"));
        assert_eq!(key("a", "b"), key("a", "b"));
        assert_eq!(key("a", "b").len(), 16);
    }
}
