// SPDX-License-Identifier: MIT OR Apache-2.0
//! A namespace: a directory with what its processes share.

use crate::error::{CORRUPT, Errno, OpenError, Result};
use crate::grace;
use crate::helper::Helper;
use crate::ids;
use crate::limits::Limits;
use crate::object::{Is, Object};
use crate::peers::{self, Local};
use crate::permission;
use crate::queue::Queue;
use crate::signals::Call;
use crate::space::layout::{SLOTS, Thread};
use crate::space::{Space, default_directory};
use crate::sys;
use crate::users::{Kind, from_objects, to_objects};
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// An open namespace. It stays open as long as the process lives.
#[derive(Clone, Copy)]
pub struct Namespace {
    pub(crate) space: &'static Space,
    pub(crate) limits: Limits,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace").field("directory", &self.directory()).finish_non_exhaustive()
    }
}

/// The fields that the three kinds have in common in their `_ds` structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub id: i32,
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    pub cuid: u32,
    pub cgid: u32,
    pub mode: u32,
    pub sequence: u32,
    pub ctime: u64,
}

impl Status {
    pub(crate) fn of(object: &Object) -> Status {
        let (owner, creator) = (object.owner.load(Relaxed), object.creator.load(Relaxed));
        let id = object.id.load(Relaxed);
        Status {
            id: id as i32,
            key: object.key.load(Relaxed) as i32,
            uid: from_objects(Kind::User, owner as u32),
            gid: from_objects(Kind::Group, (owner >> 32) as u32),
            cuid: from_objects(Kind::User, creator as u32),
            cgid: from_objects(Kind::Group, (creator >> 32) as u32),
            mode: object.mode.load(Relaxed) as u32,
            sequence: (id / SLOTS) as u32,
            ctime: object.ctime.load(Relaxed),
        }
    }
}

/// The fields that `IPC_SET` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// A function that is called when a thread makes its first call, with its process's epoch.
type FirstCall = fn(&Call, u64);
static FIRST_CALL: AtomicUsize = AtomicUsize::new(0);

/// Has that function called from now on.
pub(crate) fn at_first_calls(first_call: FirstCall) {
    FIRST_CALL.store(first_call as usize, Release);
}

/// Places of the dead that one thread clears.
const MOST_MENDED: usize = 256;

/// The namespaces that this process has open; they stay so. Nobody waits for who opens one: in the
/// child of a fork that thread is not there.
static OPEN: AtomicPtr<Opened> = AtomicPtr::new(std::ptr::null_mut());

struct Opened {
    namespace: Namespace,
    next: *const Opened,
}

/// The one of that directory in a list.
fn known(list: *const Opened, directory: &Path) -> Option<Namespace> {
    // SAFETY: null, or an element of the list, which is never freed.
    let rest = |at: *const Opened| unsafe { at.as_ref() };
    std::iter::successors(rest(list), |opened| rest(opened.next))
        .map(|opened| opened.namespace)
        .find(|namespace| namespace.space.is_at(directory))
}

impl Namespace {
    /// Opens the namespace of a directory; makes it if there is none. One that this process has
    /// open is known by its file, and keeps the name by which it was opened first.
    ///
    /// # Errors
    /// The directory cannot be used: [`OpenError`] says why, and what to do.
    pub fn open(directory: impl AsRef<Path>) -> std::result::Result<Namespace, OpenError> {
        // The process may change its working directory.
        let directory =
            &std::path::absolute(directory.as_ref()).map_err(|error| OpenError::Io {
                path: directory.as_ref().into(),
                what: "find the directory",
                error: Errno::of(&error),
            })?;
        let mut list = OPEN.load(Acquire);
        if let Some(known) = known(list, directory) {
            return Ok(known);
        }
        let space = match Space::open(directory) {
            Err(OpenError::Io { error: Errno(libc::EMFILE), .. }) => {
                Helper::start(|| Space::open(directory))
                    .map_err(|error| OpenError::Io { path: directory.into(), what: "open", error })?
                    .1
            }
            opened => opened,
        };
        let space = Box::into_raw(Box::new(space?));
        // SAFETY: not freed, unless nobody gets the namespace.
        let namespace = Namespace { space: unsafe { &*space }, limits: Limits::of_this_system() };
        let opened = Box::leak(Box::new(Opened { namespace, next: list }));
        // A namespace that another thread has opened meanwhile is the one.
        while let Err(longer) = OPEN.compare_exchange(list, opened, AcqRel, Acquire) {
            if let Some(known) = known(longer, directory) {
                // SAFETY: leaked above, and nobody else has seen them.
                unsafe {
                    drop(Box::from_raw(opened));
                    drop(Box::from_raw(space));
                }
                return Ok(known);
            }
            (list, opened.next) = (longer, longer);
        }
        Ok(namespace)
    }

    /// Opens the user's namespace: that of `REPRIEVE_IPC_DIR`, or one in `/dev/shm`.
    ///
    /// # Errors
    /// As for [`Namespace::open`].
    pub fn open_default() -> std::result::Result<Namespace, OpenError> {
        Namespace::open(default_directory())
    }

    /// Whether there is a namespace in that directory.
    ///
    /// # Errors
    /// This process may not look.
    pub fn is_there(directory: impl AsRef<Path>) -> Result<bool> {
        Space::is_there(directory.as_ref())
    }

    /// Does what this thread may no longer do once it has given up being root, moved its own root,
    /// or (`filter`) set a seccomp filter: for the preload library.
    #[doc(hidden)]
    pub fn prepare(&self, filter: bool) {
        if let Ok((_call, _local)) = self.begin() {
            let _signals = sys::SignalsBlocked::new();
            // Keeps the lock's file.
            drop(self.space.registry());
            self.space.map_all();
            permission::creator();
        }
        if filter {
            sys::expect_a_filter();
        }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.space.directory
    }

    /// The limits of this system.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Begins a call: signals are put off, this thread is known. Fails in a handler that runs in
    /// the middle of another call.
    #[inline]
    pub(crate) fn begin(&self) -> Result<(Call, &'static Local)> {
        let call = Call::begin();
        let local = self.begin_in(&call)?;
        Ok((call, local))
    }

    /// This thread here, in a call that has begun.
    #[inline]
    pub(crate) fn begin_in(&self, call: &Call) -> Result<&'static Local> {
        let (local, new) = peers::local(call.here(), self.space)?;
        if new {
            // Before removed segments that nobody has attached are looked for.
            let first_call = FIRST_CALL.load(Acquire);
            if first_call != 0 {
                // SAFETY: stored from such a function only.
                unsafe { std::mem::transmute::<usize, FirstCall>(first_call)(call, local.epoch) };
            }
            self.mend_the_dead(local);
        }
        Ok(local)
    }

    /// Undoes what dead threads were in the middle of, and frees their places.
    #[cold]
    fn mend_the_dead(&self, local: &Local) {
        let mut mended = false;
        local.mark_the_unmarked();
        // Each looks at all threads. More places than the one that this thread has taken are
        // enough: they cannot all fill up.
        local.clear_the_dead(MOST_MENDED, |number, dead| {
            mended = true;
            self.mend_one(local, number, dead)
        });
        if mended {
            self.sweep(local);
            self.sweep_files(local);
        }
    }

    fn mend_one(&self, local: &Local, number: u64, dead: &Thread) -> bool {
        if local.mend(dead).is_err() {
            return false;
        }
        // Its queue's lock is that of an object which cannot be freed while we look: it is linked,
        // or it was removed since we began, and then the dead is in no queue.
        let _section = local.enter();
        let waited_on = dead.waits_on.load(Acquire);
        if waited_on == 0 {
            // The thread that takes the dead out of a queue may die as well, which puts it back.
            let waits_on = &dead.waits_on;
            return !local.in_a_transaction(waits_on) && waits_on.load(Acquire) == 0;
        }
        let object = match local.space.view::<Object>(waited_on) {
            Ok(object) => object,
            Err(error) => return error == CORRUPT,
        };
        let Ok(_held) = local.lock(&object.lock) else { return false };
        let queue = local.space.view::<Queue>(dead.queue.load(Relaxed));
        let queue = queue.ok().filter(|_| dead.waits_on.load(Relaxed) == waited_on);
        if queue.is_some_and(|queue| local.dequeue(queue, number).is_ok()) {
            local.commit();
        }
        true
    }

    /// `IPC_SET`; `more` sets what only this kind has.
    pub(crate) fn set_owner<T: Is + 'static>(
        &self,
        id: i32,
        owner: Owner,
        more: impl FnOnce(&Local, &T) -> Result<()>,
    ) -> Result<()> {
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        let (found, _, _held) = local.find_locked::<T>(id)?;
        let object = found.object();
        object.controls()?;
        more(local, found)?;
        // Nobody's; what is not committed is taken back.
        let number =
            |kind, id| Some(id).filter(|&id| id != u32::MAX).and_then(|id| to_objects(kind, id));
        let (user, group) = (number(Kind::User, owner.uid), number(Kind::Group, owner.gid));
        let (user, group) = user.zip(group).ok_or(Errno(libc::EINVAL))?;
        local.set(&object.owner, u64::from(user) | u64::from(group) << 32)?;
        let mode = object.mode.load(Relaxed) & !0o777 | u64::from(owner.mode & 0o777);
        local.set(&object.mode, mode)?;
        local.set(&object.ctime, sys::now())?;
        local.commit();
        Ok(())
    }

    /// `IPC_RMID`.
    pub(crate) fn remove<T: Is + 'static>(&self, id: i32) -> Result<()> {
        let (_call, local) = self.begin()?;
        {
            let _section = local.enter();
            ids::remove::<T>(local, id, |found| found.object().controls())?;
        }
        grace::reclaim(local);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a handler of a fault would make it.
    #[test]
    fn a_call_in_the_middle_of_another_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let inside = Err(Errno(libc::EDEADLK));
        let id = {
            let (_call, _) = n.begin().unwrap();
            assert_eq!(n.semget(libc::IPC_PRIVATE, 1, 0o600), inside);
            // SAFETY: nothing is attached.
            assert_eq!(unsafe { Namespace::shmdt(4096) }, Err(Errno(libc::EDEADLK)));
            assert_eq!(n.semget(libc::IPC_PRIVATE, 1, 0o600), inside);
            // Another thread is not in it.
            std::thread::spawn(move || n.semget(libc::IPC_PRIVATE, 1, 0o600)).join().unwrap()
        };
        assert_eq!(n.sem_value(id.unwrap(), 0), Ok(0));
    }

    #[test]
    fn a_directory_is_one_namespace_by_whatever_name() {
        let directory = tempfile::tempdir().unwrap();
        let (real, other) = (directory.path().join("real"), directory.path().join("other"));
        let n = Namespace::open(&real).unwrap();
        std::os::unix::fs::symlink(&real, &other).unwrap();
        assert!(std::ptr::eq(n.space, Namespace::open(&other).unwrap().space));
    }

    /// A program that has the library linked in, and is run with the preload library.
    #[test]
    fn two_copies_of_the_library_are_one_process() {
        let _one = crate::forks::tests::one();
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        if n.begin().unwrap().1.thread.robust.load(Relaxed) == 0 {
            println!("SKIPPED: the kernel keeps no robust lists");
            return;
        }
        let space = Box::leak(Box::new(Space::open(directory.path()).unwrap()));
        let copy = Namespace { space, ..n };
        let id = n.shmget(libc::IPC_PRIVATE, 4096, 0o600).unwrap();
        // SAFETY: nothing is remapped, and nothing used.
        let at = unsafe { n.shmat(id, 0, 0) }.unwrap();
        let attached = |n: Namespace| n.shm_status(id).map(|status| status.attached);
        assert_eq!((attached(copy), attached(n)), (Ok(1), Ok(1)));
        n.remove_shm(id).unwrap();
        assert_eq!(attached(copy), Ok(1));
        // SAFETY: as above.
        unsafe { Namespace::shmdt(at as usize) }.unwrap();
        assert_eq!(attached(copy), Err(Errno(libc::EINVAL)));
    }

    #[test]
    fn a_dead_waiter_keeps_its_place_until_it_is_out_of_its_queue() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let number = std::thread::spawn(move || n.begin().unwrap().1.number).join().unwrap();
        let (_call, local) = n.begin().unwrap();
        let dead = local.space.thread(number.into()).unwrap();
        dead.waits_on.store(8, Relaxed);
        local.set(&dead.waits_on, 0).unwrap();
        assert!(!n.mend_one(local, number.into(), dead));
        local.commit();
        assert!(n.mend_one(local, number.into(), dead));
    }
}
