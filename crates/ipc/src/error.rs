// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: those of the calls are the kernel's numbers, those of opening a namespace say more.

use std::fmt;
use std::path::PathBuf;

/// An error number, as the System V calls leave it in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// The result of a call.
pub type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    /// The number of an error of the standard library's.
    pub(crate) fn of(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// The mapped file holds what this library never writes.
pub(crate) const CORRUPT: Errno = Errno(libc::EIO);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

/// Why a namespace cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{path}: cannot {what}: {error}{}", remedy(*error), path = path.display())]
    Io { path: PathBuf, what: &'static str, error: Errno },
    #[error(
        "{path}: made by an incompatible version ({found}; this library is version {own}): \
         end its users and remove the directory, or set REPRIEVE_IPC_DIR to another",
        path = path.display()
    )]
    Version { path: PathBuf, found: u64, own: u64 },
    #[error("{path}: not a namespace of Reprieve's: set REPRIEVE_IPC_DIR to another directory", path = path.display())]
    Foreign { path: PathBuf },
    #[error(
        "{path}: belongs to another user, or others may write to it: set REPRIEVE_IPC_DIR to \
         a directory of your own",
        path = path.display()
    )]
    Unsafe { path: PathBuf },
}

fn remedy(error: Errno) -> &'static str {
    match error.0 {
        libc::EACCES => {
            ": this user may not use the namespace: give `reprieve ipc run --dir` \
             (REPRIEVE_IPC_DIR) a directory that all its users may write to"
        }
        _ => "",
    }
}

impl OpenError {
    /// The number that a System V call reports instead.
    pub fn errno(&self) -> Errno {
        match self {
            OpenError::Io { error, .. } => *error,
            OpenError::Unsafe { .. } => Errno(libc::EACCES),
            _ => Errno(libc::ENOSYS),
        }
    }
}
