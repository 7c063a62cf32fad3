// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of this folder's tests.

use super::Context;
use crate::process::Cancel;
use crate::progress::Silent;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("reprieve-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A context that is never cancelled and shows no progress.
pub fn context() -> Context<'static> {
    static CANCEL: OnceLock<Cancel> = OnceLock::new();
    Context { cancel: CANCEL.get_or_init(Cancel::default), progress: &Silent }
}
