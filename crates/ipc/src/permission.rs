// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owner, mode, and who may do what: the kernel's rules (`ipcperms`).

use crate::error::{Errno, Result};
use crate::kernel::call;
use crate::object::Object;
use crate::sys;
use crate::users::{self, Kind};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicU32, AtomicU64};

pub(crate) const READ: u32 = 0o444;
pub(crate) const WRITE: u32 = 0o222;

pub(crate) const CAP_IPC_LOCK: u32 = 14;
const CAP_IPC_OWNER: u32 = 15;
const CAP_SYS_ADMIN: u32 = 21;
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;

const UNKNOWN: u64 = u64::MAX;
/// The effective user, as objects have it, known without a system call.
static USER: AtomicU64 = AtomicU64::new(UNKNOWN);
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// The process changes its credentials: the next check asks again.
pub fn credentials_changed() {
    users::forget();
    CHANGES.fetch_add(1, SeqCst);
    USER.store(UNKNOWN, SeqCst);
}

#[inline]
fn user() -> u32 {
    match USER.load(Relaxed) {
        UNKNOWN => ask_user(),
        user => user as u32,
    }
}

#[cold]
fn ask_user() -> u32 {
    let changes = CHANGES.load(SeqCst);
    let user = users::own(Kind::User, sys::user());
    if CHANGES.load(SeqCst) == changes {
        USER.store(user.into(), SeqCst);
    }
    user
}

/// The effective user and group, for a new object.
pub(crate) fn creator() -> u64 {
    u64::from(ask_user()) | u64::from(users::own(Kind::Group, sys::group())) << 32
}

fn in_group(groups: [u32; 2]) -> bool {
    let is = |group| groups.contains(&users::own(Kind::Group, group));
    if is(sys::group()) {
        return true;
    }
    // The kernel has no more.
    let mut list = vec![0u32; 65536];
    // SAFETY: a buffer that is valid for its length.
    let count = unsafe { call!(SYS_getgroups, list.len(), list.as_mut_ptr()) }.unwrap_or(0);
    list[..count].iter().any(|&group| is(group))
}

/// Whether this thread has an effective capability that counts for the IPC namespace.
pub(crate) fn capable(capability: u32) -> bool {
    #[repr(C)]
    struct Head {
        version: u32,
        pid: i32,
    }
    let head = Head { version: 0x2008_0522, pid: 0 };
    let mut data = [[0u32; 3]; 2];
    // SAFETY: this version's header and data.
    let told = unsafe { call!(SYS_capget, &raw const head, data.as_mut_ptr()) };
    let has = told.is_ok() && data[capability as usize / 32][0] >> (capability % 32) & 1 != 0;
    has && !users::is_foreign()
}

/// Whether the bits granted lack one that is wanted.
#[inline]
fn refused(wanted: u32, granted: u32) -> bool {
    (wanted >> 6 | wanted >> 3 | wanted) & !granted & 0o7 != 0
}

impl Object {
    #[inline]
    pub fn user(&self) -> u32 {
        self.owner.load(Relaxed) as u32
    }

    #[inline]
    fn users(&self) -> [u32; 2] {
        [self.user(), self.creator.load(Relaxed) as u32]
    }

    /// Whether the caller may do that: bits of [`READ`] and [`WRITE`], or of a mode.
    #[inline]
    pub fn permits(&self, wanted: u32) -> Result<()> {
        if self.clearly_permits(wanted) { Ok(()) } else { self.permits_slowly(wanted) }
    }

    /// As [`Object::permits`], without a system call: `false` may be a yes.
    #[inline]
    pub fn clearly_permits(&self, wanted: u32) -> bool {
        let mode = self.mode.load(Relaxed) as u32;
        if self.users().contains(&user()) {
            !refused(wanted, mode >> 6)
        } else {
            !refused(wanted, mode >> 3) && !refused(wanted, mode)
        }
    }

    #[cold]
    fn permits_slowly(&self, wanted: u32) -> Result<()> {
        let mode = self.mode.load(Relaxed) as u32;
        let granted = if self.users().contains(&ask_user()) {
            mode >> 6
        } else if in_group([&self.owner, &self.creator].map(|o| (o.load(Relaxed) >> 32) as u32)) {
            mode >> 3
        } else {
            mode
        };
        if refused(wanted, granted) && !capable(CAP_IPC_OWNER) {
            Err(Errno(libc::EACCES))
        } else {
            Ok(())
        }
    }

    /// Whether the caller may remove it or change its owner and mode.
    pub fn controls(&self) -> Result<()> {
        self.belongs_to_caller().or_else(|error| capable(CAP_SYS_ADMIN).then_some(()).ok_or(error))
    }

    /// Whether the caller is its owner or creator.
    pub fn belongs_to_caller(&self) -> Result<()> {
        if self.users().contains(&ask_user()) { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}
