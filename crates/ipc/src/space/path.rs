// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which directory is a namespace.

use crate::error::{Errno, OpenError};
use crate::{file, sys};
use std::path::{Path, PathBuf};

/// The user's namespace: `REPRIEVE_IPC_DIR`; else the user's runtime directory; else a directory
/// per user in memory.
pub fn default_directory() -> PathBuf {
    let directory = chosen_directory();
    std::path::absolute(&directory).unwrap_or(directory)
}

fn chosen_directory() -> PathBuf {
    let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(directory) = named("REPRIEVE_IPC_DIR") {
        return directory;
    }
    let user = sys::user();
    let runtime = named("XDG_RUNTIME_DIR").unwrap_or_else(|| format!("/run/user/{user}").into());
    if file::about(&runtime).is_ok_and(|found| found.is_directory() && found.user() == user) {
        return runtime.join("reprieve-ipc");
    }
    let parent = ["/dev/shm", "/tmp"]
        .into_iter()
        .find(|path| file::about(path).is_ok_and(|found| found.is_directory()));
    Path::new(parent.unwrap_or("/tmp")).join(format!("reprieve-ipc-{user}"))
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
