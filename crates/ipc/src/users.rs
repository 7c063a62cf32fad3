// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users and groups across user namespaces.
//!
//! The kernel compares users by numbers of its own, and counts a capability only if the user
//! namespace that owns the IPC namespace gives it. A process in another one is *foreign*. An object
//! has the numbers of the namespace's owner, so a foreign process translates: by its map, which
//! leads one user namespace up. A user without a number there is whom `REPRIEVE_IPC_USER` names:
//! the one that had begun the user namespace.

use crate::error::Errno;
use crate::file::{self, File};
use crate::helper::with_files;
use crate::kernel::call;
use crate::sys;
use std::ffi::{CStr, CString};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::*;

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
static FOREIGN: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The kernel's word for a number that there is not.
const NOBODY: u32 = 65534;

/// Users, or groups.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    User,
    Group,
}

/// The process may be in another user namespace from now on.
pub(crate) fn forget() {
    FOREIGN.store(UNKNOWN, SeqCst);
}

/// User and group of this process, for [`has_begun`] in itself or its child.
pub fn before() -> [u32; 2] {
    [own(Kind::User, sys::user()), own(Kind::Group, sys::group())]
}

/// The process has begun a user namespace, before which it was that user. A process that does so
/// has one thread.
pub fn has_begun([user, group]: [u32; 2]) {
    let value = CString::new(format!("{user} {group}")).unwrap_or_default();
    // SAFETY: strings; no other thread reads the environment.
    unsafe { libc::setenv(VARIABLE.as_ptr(), value.as_ptr(), 1) };
}

const VARIABLE: &CStr = c"REPRIEVE_IPC_USER";

fn named(kind: Kind) -> Option<u32> {
    let value = std::env::var(VARIABLE.to_str().ok()?).ok()?;
    value.split(' ').nth(kind as usize)?.parse().ok()
}

/// Whether the user namespace that owns this process's IPC namespace is neither its own nor below.
pub(crate) fn is_foreign() -> bool {
    /// `NS_GET_USERNS`.
    const GET_OWNER: usize = 0xb701;
    if FOREIGN.load(Relaxed) == UNKNOWN {
        let owner = with_files(|| {
            let file = File::open("/proc/self/ns/ipc", libc::O_RDONLY)?;
            // SAFETY: touches no memory.
            let owner = unsafe { call!(SYS_ioctl, file.number(), GET_OWNER, 0) }?;
            drop(File::of_number(owner as i32));
            Ok(())
        });
        let foreign = owner == Err(Errno(libc::EPERM));
        FOREIGN.store(if foreign { YES } else { NO }, Relaxed);
    }
    FOREIGN.load(Relaxed) == YES
}

/// The number that `from` has in a map: the first of `from`, the first of `to`, how many.
fn mapped(map: &[[u32; 3]], id: u32, (from, to): (usize, usize)) -> Option<u32> {
    let within = |line: &&[u32; 3]| id.checked_sub(line[from]).is_some_and(|at| at < line[2]);
    map.iter().find(within).map(|line| line[to] + (id - line[from]))
}

fn map(kind: Kind) -> Vec<[u32; 3]> {
    let text = file::read(match kind {
        Kind::User => "/proc/self/uid_map",
        Kind::Group => "/proc/self/gid_map",
    });
    let text = String::from_utf8(text.unwrap_or_default()).unwrap_or_default();
    let words: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    words.chunks_exact(3).map(|line| [line[0], line[1], line[2]]).collect()
}

/// The number that this user has one user namespace up, or had before.
pub(crate) fn outer_user() -> u32 {
    let user = sys::user();
    mapped(&map(Kind::User), user, (0, 1)).or_else(|| named(Kind::User)).unwrap_or(user)
}

/// A number of this process's as objects have it; `None`: it is no number.
pub(crate) fn to_objects(kind: Kind, id: u32) -> Option<u32> {
    if is_foreign() { mapped(&map(kind), id, (0, 1)) } else { Some(id) }
}

/// The same of a number that this process itself has.
pub(crate) fn own(kind: Kind, id: u32) -> u32 {
    to_objects(kind, id).or_else(|| named(kind)).unwrap_or(NOBODY)
}

/// A number of an object's as this process has it.
pub(crate) fn from_objects(kind: Kind, id: u32) -> u32 {
    if is_foreign() { mapped(&map(kind), id, (1, 0)).unwrap_or(NOBODY) } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_translated_both_ways() {
        let map = [[0, 1000, 1], [10, 100_000, 65536]];
        let out = |id| mapped(&map, id, (0, 1));
        assert_eq!(
            [0, 1, 10, 65545, 65546].map(out),
            [Some(1000), None, Some(100_000), Some(165_535), None]
        );
        let back = |id| mapped(&map, id, (1, 0));
        assert_eq!([1000, 999, 165_535, 0].map(back), [Some(0), None, Some(65545), None]);
    }
}
