// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of a namespace.

use crate::error::{Errno, OpenError};
use crate::file::{self, File};
use crate::{sys, users};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The user's namespace: `REPRIEVE_IPC_DIR`; else a directory per user in memory. No other variable
/// names one: a daemon and a login session of one user are to find the same. Below it, the
/// directory of this process's IPC namespace, if that is not the one of `REPRIEVE_IPC_NAMESPACE`.
pub fn default_directory() -> PathBuf {
    let directory = base_directory();
    match other_ipc_namespace() {
        Some(number) => directory.join(format!("{PREFIX}{number}")),
        None => directory,
    }
}

/// The beginning of the names of IPC namespaces' directories.
const PREFIX: &str = "ipc-";

fn base_directory() -> PathBuf {
    let named = std::env::var_os("REPRIEVE_IPC_DIR").filter(|named| !named.is_empty());
    let directory = named.map_or_else(directory_of_user, PathBuf::from);
    std::path::absolute(&directory).unwrap_or(directory)
}

fn directory_of_user() -> PathBuf {
    let is_directory = |path: &&str| file::about(path).is_ok_and(|found| found.is_directory());
    let parent = ["/dev/shm", "/tmp"].into_iter().find(is_directory).unwrap_or("/tmp");
    Path::new(parent).join(format!("reprieve-ipc-{}", users::outer_user()))
}

/// The number of this process's IPC namespace, for `REPRIEVE_IPC_NAMESPACE`.
pub fn ipc_namespace() -> Option<u64> {
    number_of("self".as_ref())
}

fn number_of(process: &OsStr) -> Option<u64> {
    file::about(Path::new("/proc").join(process).join("ns/ipc"))
        .ok()
        .map(|found| found.identity().1)
}

fn other_ipc_namespace() -> Option<u64> {
    let first: u64 = std::env::var("REPRIEVE_IPC_NAMESPACE").ok()?.parse().ok()?;
    ipc_namespace().filter(|&own| own != first)
}

/// This process has begun an IPC namespace, in which nothing is. Its number may have been that of
/// another one; and others may have ended.
pub fn begin_ipc_namespace() {
    let (Some(own), base) = (other_ipc_namespace(), base_directory()) else { return };
    let processes = file::names("/proc").unwrap_or_default();
    let in_use: Vec<u64> = processes.iter().filter_map(|process| number_of(process)).collect();
    let names = file::names(&base).unwrap_or_default();
    for name in names.iter().filter_map(|name| name.to_str()) {
        let Some(number) = name.strip_prefix(PREFIX).map(|number| number.parse().unwrap_or(0))
        else {
            continue;
        };
        let directory = base.join(name);
        if number == own || !in_use.contains(&number) {
            let files = file::names(&directory).unwrap_or_default();
            files.iter().for_each(|file| _ = file::remove(directory.join(&**file)));
            let _ = file::remove_directory(&directory);
        }
        if number == own {
            // Another user's, if it is still there: out of the way.
            let _ = file::rename(directory, base.join(format!("{name}.{}", sys::thread_id())));
        }
    }
}

/// Who may use a directory may use those of the IPC namespaces in it.
fn share_as(directory: &Path, base: &Path) -> Result<(), Errno> {
    let mode = file::about(base)?.mode() & 0o1777;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    File::open(directory, flags)?.set_mode(mode)
}

/// Makes the directory if there is none. One that is there must be ours, unless the user named it:
/// anybody can make one in `/tmp`.
pub(super) fn make_directory(directory: &Path) -> Result<(), OpenError> {
    let error = |what| move |error| OpenError::Io { path: directory.into(), what, error };
    let is_default = [Some(directory), directory.parent()].contains(&Some(&*directory_of_user()));
    match (file::make_directory(directory, 0o700), directory.parent()) {
        (Err(Errno(libc::EEXIST)), _) => {}
        (Err(Errno(libc::ENOENT)), Some(parent)) if directory == default_directory() => {
            make_directory(parent)?;
            return make_directory(directory);
        }
        (Ok(()), Some(base)) if base == base_directory() => {
            return share_as(directory, base).map_err(error("set the mode of"));
        }
        (other, _) => return other.map_err(error("make the directory")),
    }
    let named = std::env::var_os("REPRIEVE_IPC_DIR").is_some_and(|named| !named.is_empty());
    let found = file::about_link(directory).map_err(error("look at"))?;
    let ours = found.is_directory() && found.user() == sys::user();
    if !named && is_default && !(ours && found.mode() & 0o022 == 0) {
        return Err(OpenError::Unsafe { path: directory.into() });
    }
    Ok(())
}
