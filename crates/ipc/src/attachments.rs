// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attachments of this process, and how a fork hands them on.
//!
//! A child's attachments must count from the moment of the fork, whoever of the two dies first. So
//! the parent reserves a name for its child before it forks and adds that name's attachments;
//! the child takes the name. Should it never live, or never come to that, the name goes with
//! the parent, or with the child's number once the parent has told it ([`forked`]). A child whose
//! parent died in between may have been taken for dead: it looks whether it counts. So does, at its
//! first call, a child of a fork that runs no handlers (`_Fork`, `clone`).

use crate::namespace::Namespace;
use crate::peers;
use crate::signals::Call;
use crate::sys::SignalsBlocked;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

/// A segment in this process's address space.
#[derive(Clone, Copy)]
pub(crate) struct Attachment {
    pub namespace: Namespace,
    pub id: i32,
    pub address: usize,
    pub length: usize,
    /// No other segment has been attached over a part of it.
    pub whole: bool,
}

pub(crate) struct Attachments {
    locked: AtomicBool,
    list: UnsafeCell<Vec<Attachment>>,
    /// The epoch of the process for which the list has been counted; 0: none yet.
    counted_for: AtomicU64,
    /// Names for a child, while a fork is under way, by namespace. Under the same lock.
    embryos: UnsafeCell<Names>,
    /// As long as a fork holds the lock: a handler may attach or detach. Under the same lock.
    signals: UnsafeCell<Option<SignalsBlocked>>,
}

// SAFETY: the cells are touched under the lock only.
unsafe impl Sync for Attachments {}

static ATTACHMENTS: Attachments = Attachments {
    locked: AtomicBool::new(false),
    list: UnsafeCell::new(Vec::new()),
    counted_for: AtomicU64::new(0),
    embryos: UnsafeCell::new(Vec::new()),
    signals: UnsafeCell::new(None),
};

/// The children of a fork: a name in each namespace.
type Names = Vec<(Namespace, u64)>;

thread_local! {
    /// The names of this thread's last child, for [`forked`].
    /// One word: a handler that forks between two would find a part of them.
    static LAST: Cell<Option<Box<Names>>> = const { Cell::new(None) };
}

fn lock() {
    while ATTACHMENTS.locked.swap(true, Acquire) {
        crate::sys::pause(Duration::from_micros(20));
    }
}

fn unlock() {
    ATTACHMENTS.locked.store(false, Release);
}

/// Hands attachments on from the next fork on. The preload library calls it before the program can
/// register handlers for forks, so that these run while the list is not locked: ours run last
/// before a fork and first after it.
pub fn watch_forks() {
    let own = crate::sys::process_id();
    loop {
        let at_it = WATCHING.load(Acquire);
        if at_it == WATCHED {
            return;
        }
        if at_it == own {
            crate::sys::pause(Duration::from_micros(20));
        } else if WATCHING.compare_exchange(at_it, own, AcqRel, Relaxed).is_ok() {
            break;
        }
    }
    // Its handler is to run before ours: a child's run in the order in which they were given.
    peers::watch_forks();
    // SAFETY: functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    WATCHING.store(WATCHED, Release);
}

/// The process a thread of which gives the handlers, 0: nobody yet. In the child of a fork that
/// thread is not there, and the handlers tell whether it had come to its end.
static WATCHING: AtomicU32 = AtomicU32::new(0);
const WATCHED: u32 = u32::MAX;

/// Runs `f` on the list, alone. In a call: a handler of this thread would wait for it.
pub(crate) fn with<R>(_call: &Call, f: impl FnOnce(&mut Vec<Attachment>) -> R) -> R {
    watch_forks();
    lock();
    // SAFETY: under the lock.
    let result = f(unsafe { &mut *ATTACHMENTS.list.get() });
    unlock();
    result
}

unsafe extern "C" fn before_fork() {
    // This thread's thread-local storage is made before the list is locked: making it
    // takes a lock of the dynamic loader, whose holder may wait for the list.
    let _ = LAST.try_with(|_| ());
    peers::make_local();
    let signals = SignalsBlocked::new();
    lock();
    // SAFETY: under the lock, which is held until after the fork.
    let (list, embryos) = unsafe {
        *ATTACHMENTS.signals.get() = Some(signals);
        (&*ATTACHMENTS.list.get(), &mut *ATTACHMENTS.embryos.get())
    };
    embryos.clear();
    count_once(&Call::begin(), list, peers::epoch());
    for attachment in list {
        let Ok((_call, local)) = attachment.namespace.begin() else { continue };
        let space = attachment.namespace.space;
        let known = embryos.iter().find(|(known, _)| std::ptr::eq(known.space, space));
        let embryo = match known {
            Some(&(_, embryo)) => embryo,
            None => {
                let Ok(embryo) = peers::embryo(space, local.process) else { continue };
                embryos.push((attachment.namespace, embryo));
                embryo
            }
        };
        let _ = attachment.namespace.attach_for(local, attachment.id, embryo);
    }
}

/// After a fork, in both: lets go of what [`before_fork`] has taken. `errno` is the fork's.
fn after_fork() {
    // SAFETY: under the lock, which the thread that forked holds.
    let signals = unsafe { (*ATTACHMENTS.signals.get()).take() };
    unlock();
    // SAFETY: this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        drop(signals);
        *libc::__errno_location() = errno;
    }
}

unsafe extern "C" fn in_parent() {
    // SAFETY: under the lock, which this thread holds.
    let embryos = unsafe { std::mem::take(&mut *ATTACHMENTS.embryos.get()) };
    let names = (!embryos.is_empty()).then(|| Box::new(embryos));
    let _ = LAST.try_with(|last| last.set(names));
    after_fork();
}

/// Has what is in the list, which may be its parent's still, count for the process of that epoch,
/// which this is. Under the list's lock.
fn count_once(call: &Call, list: &[Attachment], epoch: u64) {
    if ATTACHMENTS.counted_for.swap(epoch, SeqCst) == epoch {
        return;
    }
    let is = |a: &Attachment, b: &Attachment| {
        std::ptr::eq(a.namespace.space, b.namespace.space) && a.id == b.id
    };
    for (i, attachment) in list.iter().enumerate() {
        if list[..i].iter().any(|before| is(before, attachment)) {
            continue;
        }
        let times = list[i..].iter().filter(|other| is(other, attachment)).count();
        // Registers, if it is the first in its namespace.
        if let Ok(local) = attachment.namespace.begin_in(call) {
            let _ = attachment.namespace.inherit(local, attachment.id, times as u64);
        }
    }
}

/// At a thread's first call: counts what the process has attached, unless that was done.
pub(crate) fn count_for(call: &Call, epoch: u64) {
    match ATTACHMENTS.counted_for.compare_exchange(0, epoch, SeqCst, SeqCst) {
        Err(other) if other != epoch => {}
        _ => return,
    }
    // A thread of the parent's may have held the lock at the fork: then the list is not to be used.
    let is_free = |_| {
        let free = !ATTACHMENTS.locked.swap(true, Acquire);
        if !free {
            crate::sys::pause(Duration::from_micros(20));
        }
        free
    };
    if !(0..1000).any(is_free) {
        return;
    }
    // SAFETY: under the lock.
    count_once(call, unsafe { &*ATTACHMENTS.list.get() }, epoch);
    unlock();
}

unsafe extern "C" fn in_child() {
    WATCHING.store(WATCHED, Release);
    // SAFETY: the lock is held, by the thread that forked.
    let (list, embryos) = unsafe { (&*ATTACHMENTS.list.get(), &mut *ATTACHMENTS.embryos.get()) };
    for (namespace, embryo) in embryos.drain(..) {
        peers::adopt(namespace.space, embryo);
    }
    count_once(&Call::begin(), list, peers::epoch());
    after_fork();
}

/// In the parent, by the thread that forked: tells what `fork` returned. The preload library does
/// so. Without it a child that dies in its first moments, before it could say who it is, counts as
/// a user of its parent's segments until the parent ends.
pub fn forked(pid: i32) {
    let names = LAST.try_with(Cell::take).unwrap_or_default();
    for (namespace, embryo) in names.into_iter().flat_map(|names| *names) {
        if pid < 0 {
            peers::remove_embryo(namespace.space, embryo);
        } else {
            peers::name_embryo(namespace.space, embryo, pid as u32);
        }
    }
}

/// A fork, for the preload library. The thread may be in a handler that has interrupted another
/// fork: this one keeps the names of that one's child.
pub struct Fork(Option<Box<Names>>);

impl Fork {
    /// A fork is about to begin.
    pub fn begin() -> Fork {
        Fork(LAST.try_with(Cell::take).unwrap_or_default())
    }

    /// The fork has returned `pid`.
    pub fn end(self, pid: i32) {
        if pid == 0 {
            // The fork that this one interrupted may be about to take them, too.
            return std::mem::forget(self.0);
        }
        forked(pid);
        let _ = LAST.try_with(|last| last.set(self.0));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::space::layout::{EMBRYO, MAX_PROCESSES};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Held by tests that attach segments: what they have attached counts for children, too.
    pub fn one() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn each_thread_names_its_own_child() {
        let _one = one();
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.shmget(libc::IPC_PRIVATE, 4096, 0o600).unwrap();
        // SAFETY: nothing is remapped, and nothing used.
        let at = unsafe { n.shmat(id, 0, 0) }.unwrap();
        let children = || {
            let states = (0..MAX_PROCESSES.into()).map(|index| {
                let place = n.space.process_at(index).unwrap();
                place.generation_state.load(SeqCst) & 0xffff_ffff
            });
            states.filter(|&state| state == EMBRYO).count()
        };
        // Around a fork that makes no child.
        // SAFETY: in that order.
        let forks = || unsafe {
            before_fork();
            in_parent();
        };
        forks();
        assert_eq!(children(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                forks();
                assert_eq!(children(), 2);
                forked(-1);
                assert_eq!(children(), 1);
                // The child that is left is the other thread's.
                forked(-1);
                assert_eq!(children(), 1);
            });
        });
        forked(-1);
        assert_eq!(children(), 0);
        // A handler that interrupts a fork forks as well.
        let outer = Fork::begin();
        forks();
        let inner = Fork::begin();
        forks();
        assert_eq!(children(), 2);
        inner.end(-1);
        assert_eq!(children(), 1);
        outer.end(-1);
        assert_eq!(children(), 0);
        // SAFETY: nothing in it is used.
        unsafe { Namespace::shmdt(at as usize) }.unwrap();
    }
}
