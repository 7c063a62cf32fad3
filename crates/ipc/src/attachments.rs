// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process has attached, and how a fork hands it on.
//!
//! A child's attachments must count from the moment of the fork, whoever of the two dies first. So
//! the parent reserves a name for its child before it forks and adds that name's attachments;
//! the child takes the name. Should it never live, or never come to that, the name goes with
//! the parent, or with the child's number once the parent has told it ([`forked`]).

use crate::namespace::Namespace;
use crate::peers;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// A segment in this process's address space.
#[derive(Clone, Copy)]
pub(crate) struct Attachment {
    pub namespace: Namespace,
    pub id: i32,
    pub address: usize,
    pub length: usize,
}

pub(crate) struct Attachments {
    locked: AtomicBool,
    list: UnsafeCell<Vec<Attachment>>,
    /// Names for a child, while a fork is under way, by namespace. Under the same lock.
    embryos: UnsafeCell<Vec<(Namespace, u64)>>,
    /// The last embryo's name, for [`forked`]. Only one namespace can be told.
    last: AtomicU64,
}

// SAFETY: the cells are touched under the lock only.
unsafe impl Sync for Attachments {}

static ATTACHMENTS: Attachments = Attachments {
    locked: AtomicBool::new(false),
    list: UnsafeCell::new(Vec::new()),
    embryos: UnsafeCell::new(Vec::new()),
    last: AtomicU64::new(0),
};

fn lock() {
    while ATTACHMENTS.locked.swap(true, Acquire) {
        crate::sys::pause(Duration::from_micros(20));
    }
}

fn unlock() {
    ATTACHMENTS.locked.store(false, Release);
}

/// Runs `f` on the list, alone.
pub(crate) fn with<R>(f: impl FnOnce(&mut Vec<Attachment>) -> R) -> R {
    static HANDLERS: std::sync::Once = std::sync::Once::new();
    HANDLERS.call_once(|| {
        // Its handler is to run before ours: a child's run in the order in which they were given.
        peers::watch_forks();
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    lock();
    // SAFETY: under the lock.
    let result = f(unsafe { &mut *ATTACHMENTS.list.get() });
    unlock();
    result
}

unsafe extern "C" fn before_fork() {
    lock();
    // SAFETY: under the lock, which is held until after the fork.
    let (list, embryos) = unsafe { (&*ATTACHMENTS.list.get(), &mut *ATTACHMENTS.embryos.get()) };
    embryos.clear();
    ATTACHMENTS.last.store(0, Relaxed);
    for attachment in list {
        let space = attachment.namespace.space;
        let known = embryos.iter().find(|(known, _)| std::ptr::eq(known.space, space));
        let embryo = match known {
            Some(&(_, embryo)) => embryo,
            None => {
                let Ok((_call, local)) = attachment.namespace.begin() else { continue };
                let Ok(embryo) = peers::embryo(space, local.process) else { continue };
                embryos.push((attachment.namespace, embryo));
                ATTACHMENTS.last.store(embryo, Relaxed);
                embryo
            }
        };
        let _ = attachment.namespace.attach_for(attachment.id, embryo);
    }
}

unsafe extern "C" fn in_parent() {
    unlock();
}

unsafe extern "C" fn in_child() {
    // SAFETY: the lock is held, by the thread that forked.
    let (list, embryos) =
        unsafe { (&mut *ATTACHMENTS.list.get(), &mut *ATTACHMENTS.embryos.get()) };
    for (namespace, embryo) in embryos.drain(..) {
        if !peers::adopt(namespace.space, embryo) {
            // Our attachments were given up: register, and count them again.
            for attachment in
                list.iter().filter(|a| std::ptr::eq(a.namespace.space, namespace.space))
            {
                if let Ok((_call, local)) = namespace.begin() {
                    let _ = namespace.attach_for(attachment.id, local.process);
                }
            }
        }
    }
    unlock();
}

/// In the parent: tells what `fork` returned. The preload library does so. Without it a child that
/// dies in its first moments, before it could say who it is, counts as a user of its parent's
/// segments until the parent ends.
pub fn forked(pid: i32) {
    let embryo = ATTACHMENTS.last.swap(0, Relaxed);
    if embryo == 0 {
        return;
    }
    lock();
    // SAFETY: under the lock.
    let found = unsafe { &*ATTACHMENTS.embryos.get() }.iter().find(|e| e.1 == embryo).copied();
    unlock();
    let Some((namespace, embryo)) = found else { return };
    if pid < 0 {
        peers::remove_embryo(namespace.space, embryo);
    } else {
        peers::name_embryo(namespace.space, embryo, pid as u32);
    }
}
