// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a fork hands attachments on.
//!
//! A child's attachments must count from the moment of the fork, whoever of the two dies first. So
//! the parent has names for children, and before it forks it adds the attachments of such a name.
//! The child keeps that name in mind and registers with its first call, if it makes one: a fork
//! costs no system call for that. Both say the child's number in the name's place, the parent with
//! [`forked`]. A child whose parent died before that may have been taken for dead: at its first
//! call it looks whether its attachments count. So does a child of a fork that runs no handlers
//! (`_Fork`, `clone`).

use crate::attachments::{self, Attachment, list, lock, unlock};
use crate::namespace::{self, Namespace};
use crate::peers;
use crate::shm;
use crate::signals::Call;
use crate::sys::SignalsBlocked;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;

/// The children of a fork: a name in each namespace.
type Names = Vec<(Namespace, u64)>;

/// State under the lock of the list, which a fork holds.
struct Forks {
    /// Names that no child has yet.
    spare: UnsafeCell<Names>,
    /// Names of the child, while a fork is under way.
    embryos: UnsafeCell<Names>,
    /// As long as a fork holds the lock: a handler may attach or detach.
    signals: UnsafeCell<Option<SignalsBlocked>>,
    /// How many names were taken at a time.
    taken: Cell<usize>,
}

// SAFETY: the cells are touched under the lock only.
unsafe impl Sync for Forks {}

static FORKS: Forks = Forks {
    spare: UnsafeCell::new(Vec::new()),
    embryos: UnsafeCell::new(Vec::new()),
    signals: UnsafeCell::new(None),
    taken: Cell::new(0),
};

/// Names that a process takes at a time, at most: who forks often takes more of them.
const MOST_NAMES: usize = 16;

/// The epoch of the process for which the list has been counted; 0: none yet.
static COUNTED_FOR: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The names of this thread's last child, for [`forked`].
    /// One word: a handler that forks between two would find a part of them.
    static LAST: Cell<Option<Box<Names>>> = const { Cell::new(None) };
}

#[used]
#[unsafe(link_section = ".init_array.00100")]
static LOADED: extern "C" fn() = loaded;

/// When the library is loaded, before the program can register handlers for forks: these run while
/// the list is not locked. Ours run last before a fork and first after it.
extern "C" fn loaded() {
    // Some allocators register handlers for forks when they are first used. Before a fork these
    // must run after ours, which allocate.
    // SAFETY: frees what it has allocated.
    unsafe { libc::free(std::hint::black_box(libc::malloc(1))) };
    peers::prepare_forks();
    namespace::at_first_calls(count_for);
    // SAFETY: functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
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
        *FORKS.signals.get() = Some(signals);
        (list(), &mut *FORKS.embryos.get())
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
                let Some(embryo) = new_name(attachment.namespace, local.process) else { continue };
                embryos.push((attachment.namespace, embryo));
                embryo
            }
        };
        let _ = shm::attach_for(local, attachment.id, embryo);
    }
}

/// A name for a child. Under the lock.
fn new_name(namespace: Namespace, parent: u64) -> Option<u64> {
    // SAFETY: under the lock.
    let spare = unsafe { &mut *FORKS.spare.get() };
    let of_namespace =
        |spare: &Names| spare.iter().position(|(n, _)| std::ptr::eq(n.space, namespace.space));
    // A name that somebody has taken for a dead child's is none.
    spare.retain(|&(n, name)| peers::place(n.space, name).is_some());
    if of_namespace(spare).is_none() {
        FORKS.taken.set((FORKS.taken.get() * 2).clamp(1, MOST_NAMES));
        let names = peers::embryos(namespace.space, parent, FORKS.taken.get());
        spare.extend(names.into_iter().map(|name| (namespace, name)));
    }
    of_namespace(spare).map(|at| spare.swap_remove(at).1)
}

/// After a fork, in both: lets go of what [`before_fork`] has taken. `errno` is the fork's.
fn after_fork() {
    // SAFETY: under the lock, which the thread that forked holds.
    let signals = unsafe { (*FORKS.signals.get()).take() };
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
    let embryos = unsafe { std::mem::take(&mut *FORKS.embryos.get()) };
    let names = (!embryos.is_empty()).then(|| Box::new(embryos));
    let _ = LAST.try_with(|last| last.set(names));
    after_fork();
}

unsafe extern "C" fn in_child() {
    let number = peers::after_fork();
    // SAFETY: the lock is held, by the thread that forked.
    let (list, embryos, spare) =
        unsafe { (list(), &mut *FORKS.embryos.get(), &mut *FORKS.spare.get()) };
    // These are the parent's.
    spare.clear();
    FORKS.taken.set(0);
    for (namespace, embryo) in embryos.drain(..) {
        namespace.space.is_born(embryo, peers::epoch());
        // Unless the parent calls the child by another number.
        if peers::own_namespace() != 0 {
            peers::name_embryo(namespace.space, embryo, number);
        }
    }
    if peers::own_namespace() == 0 {
        // Nobody can ask for it by its number, so it registers, which tells of its death.
        count_once(&Call::begin(), list, peers::epoch());
    }
    after_fork();
}

/// Has what is in the list, which may be its parent's still, count for the process of that epoch,
/// which this is. Under the list's lock.
fn count_once(call: &Call, list: &[Attachment], epoch: u64) {
    if COUNTED_FOR.swap(epoch, SeqCst) == epoch {
        return;
    }
    for (i, attachment) in list.iter().enumerate() {
        let is = |other: &&Attachment| other.is_of_same_segment(attachment);
        if list[..i].iter().any(|before| is(&before)) {
            continue;
        }
        let times = list[i..].iter().filter(is).count();
        // Registers, if it is the first in its namespace.
        if let Ok(local) = attachment.namespace.begin_in(call) {
            let _ = shm::inherit(local, attachment.id, times as u64);
        }
    }
}

/// At a thread's first call: counts what the process has attached, unless that was done.
fn count_for(call: &Call, epoch: u64) {
    match COUNTED_FOR.compare_exchange(0, epoch, SeqCst, SeqCst) {
        Err(other) if other != epoch => {}
        _ => return,
    }
    // A thread of the parent's may have held the lock at the fork: then the list is not to be used.
    if !attachments::lock_soon() {
        return;
    }
    // SAFETY: under the lock.
    count_once(call, unsafe { list() }, epoch);
    unlock();
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
        let children = || n.shm_status(id).unwrap().attached - 1;
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
