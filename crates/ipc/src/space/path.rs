// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of a namespace.

use crate::error::{Errno, OpenError};
use crate::{file, sys};
use std::path::{Path, PathBuf};

/// The user's namespace: `REPRIEVE_IPC_DIR`; else a directory per user in memory. No other variable
/// decides: a daemon and a login session of one user are to find the same.
pub fn default_directory() -> PathBuf {
    let named = std::env::var_os("REPRIEVE_IPC_DIR").filter(|named| !named.is_empty());
    let directory = named.map_or_else(directory_of_user, PathBuf::from);
    std::path::absolute(&directory).unwrap_or(directory)
}

fn directory_of_user() -> PathBuf {
    let is_directory = |path: &&str| file::about(path).is_ok_and(|found| found.is_directory());
    let parent = ["/dev/shm", "/tmp"].into_iter().find(is_directory).unwrap_or("/tmp");
    Path::new(parent).join(format!("reprieve-ipc-{}", sys::user()))
}

/// Makes the directory if there is none. One that is there must be ours, unless the user named it:
/// anybody can make one in `/tmp`.
pub(super) fn make_directory(directory: &Path) -> Result<(), OpenError> {
    let error = |what| move |error| OpenError::Io { path: directory.into(), what, error };
    match file::make_directory(directory, 0o700) {
        Err(Errno(libc::EEXIST)) => {}
        other => return other.map_err(error("make the directory")),
    }
    let named = std::env::var_os("REPRIEVE_IPC_DIR").is_some_and(|named| !named.is_empty());
    let found = file::about_link(directory).map_err(error("look at"))?;
    let ours = found.is_directory() && found.user() == sys::user();
    if !named && directory == default_directory() && !(ours && found.mode() & 0o022 == 0) {
        return Err(OpenError::Unsafe { path: directory.into() });
    }
    Ok(())
}
