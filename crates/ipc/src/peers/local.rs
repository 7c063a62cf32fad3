// SPDX-License-Identifier: MIT OR Apache-2.0
//! This thread in a namespace, and its read-side sections.

use super::registry;
use crate::error::{Errno, Result};
use crate::kernel::call;
use crate::signals::{Here, here};
use crate::space::Space;
use crate::space::layout::{Thread, mark};
use crate::sys;
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::time::Duration;

/// Objects that a thread remembers, and entries of semaphore adjustments.
const REMEMBERED: usize = 8;

pub(crate) struct Local {
    pub space: &'static Space,
    pub thread: &'static Thread,
    pub number: u32,
    /// The word of a lock that it holds.
    pub mark: u32,
    pub process: u64,
    pub pid: u32,
    /// The epoch of its process.
    pub epoch: u64,
    epoch_now: &'static AtomicU64,
    /// Locks that it holds.
    pub depth: Cell<usize>,
    /// Whether this thread may run on several CPUs.
    pub spins: bool,
    /// Waits without lingering that are to come, and how many there were the last time.
    pub skip: Cell<u32>,
    pub skipped: Cell<u32>,
    /// How long its last wait for somebody on another CPU took.
    pub waited: Cell<Duration>,
    /// Not to yield before this time.
    pub yields_from: Cell<Duration>,
    /// Objects that ids named, by kind and id; see `ids`.
    pub objects: [Remembered; REMEMBERED],
    undo: [Cell<(u64, u64)>; REMEMBERED],
    /// Sections that it is in, whatever somebody has written into the file.
    #[cfg(debug_assertions)]
    pub sections: Cell<u32>,
}

/// An object that this thread has found before.
#[derive(Default)]
pub(crate) struct Remembered {
    /// Its kind, and below it its id; with a bit, so that zero names nothing.
    pub name: Cell<u64>,
    pub offset: Cell<u64>,
    /// The header's `reclaims` before it was found.
    pub reclaims: Cell<u64>,
}

thread_local! {
    static OWNED: RefCell<Owned> = const { RefCell::new(Owned(Vec::new())) };
}

/// A thread's, one per namespace. Boxed, because the thread's place points to one.
#[expect(clippy::vec_box, reason = "the vector moves what is in it")]
struct Owned(Vec<Box<Local>>);

impl Drop for Owned {
    fn drop(&mut self) {
        // Later destructors of this thread may use the namespace: they register again.
        here(|here| here.current.set(std::ptr::null()));
    }
}

/// A word that is zero in the child of any fork, by a handler or by the kernel (MADV_WIPEONFORK).
static EPOCH: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const OTHERWISE).cast_mut());
static OTHERWISE: AtomicU64 = AtomicU64::new(0);
static EPOCHS: AtomicU64 = AtomicU64::new(1);

fn epoch_now() -> &'static AtomicU64 {
    // SAFETY: a word that is never unmapped.
    unsafe { &*EPOCH.load(Acquire) }
}

/// When the library is loaded.
pub(crate) fn prepare_forks() {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, whose words are aligned, and which stays.
    let page = unsafe {
        call!(SYS_mmap, 0, 4096, protection, flags, usize::MAX, 0).inspect(|&page| {
            let _ = call!(SYS_madvise, page, 4096, libc::MADV_WIPEONFORK);
        })
    };
    if let Ok(page) = page {
        EPOCH.store(page as *mut AtomicU64, Release);
    }
}

/// In the child of a fork, first of all. Its number.
pub(crate) fn after_fork() -> u32 {
    epoch_now().store(0, SeqCst);
    crate::space::forget_registering();
    super::inherit_namespace()
}

/// The process's epoch; a new one in the child of a fork, which forgets what is its parent's.
#[cold]
pub(crate) fn epoch() -> u64 {
    let now = epoch_now();
    let epoch = now.load(SeqCst);
    if epoch != 0 {
        return epoch;
    }
    crate::space::forget_registering_of_others();
    let new = EPOCHS.fetch_add(1, SeqCst);
    now.store(new, SeqCst);
    new
}

/// Makes what this thread has in thread-local storage: that takes a lock of the dynamic loader.
pub(crate) fn make_local() {
    let _ = OWNED.try_with(|_| ());
}

/// This thread in that namespace; registers it if it is new. The flag: whether it was.
#[inline]
pub(crate) fn local(here: &Here, space: &'static Space) -> Result<(&'static Local, bool)> {
    let current = here.current.get().cast::<Local>();
    if !current.is_null() {
        // SAFETY: set by this thread, and reset before it is freed.
        let local: &'static Local = unsafe { &*current };
        // A single branch: each costs a nanosecond here.
        if std::ptr::eq(local.space, space)
            & (local.epoch == local.epoch_now.load(Relaxed))
            & here.is_one_call()
        {
            return Ok((local, false));
        }
    }
    register(here, space)
}

#[cold]
fn register(here: &Here, space: &'static Space) -> Result<(&'static Local, bool)> {
    if !here.is_one_call() {
        return Err(Errno(libc::EDEADLK));
    }
    let _signals = sys::SignalsBlocked::new();
    let epoch = epoch();
    let epoch_now = epoch_now();
    // The current `Local` may be forgotten now, and this thread may not get another one.
    here.current.set(std::ptr::null());
    let known = OWNED.try_with(|owned| {
        let mut owned = owned.try_borrow_mut().ok()?;
        owned.0.retain(|local| local.epoch == epoch);
        let known = owned.0.iter().find(|local| std::ptr::eq(local.space, space))?;
        Some(&raw const **known)
    });
    if let Ok(Some(known)) = known {
        here.current.set(known.cast());
        // SAFETY: boxed, and freed by the thread's end only.
        return Ok((unsafe { &*known }, false));
    }
    let registry = space.registry()?;
    let process = registry::own_process(space, epoch)?;
    let number = registry::own_thread(space, process)?;
    drop(registry);
    let local = Box::new(Local {
        space,
        thread: space.thread(number)?,
        number: number as u32,
        mark: mark(number, space.thread(number)?),
        process,
        pid: sys::process_id(),
        epoch,
        epoch_now,
        depth: Cell::new(0),
        spins: sys::usable_cpus() > 1,
        skip: Cell::new(0),
        skipped: Cell::new(0),
        waited: Cell::new(Duration::ZERO),
        yields_from: Cell::new(Duration::ZERO),
        objects: Default::default(),
        undo: Default::default(),
        #[cfg(debug_assertions)]
        sections: Cell::new(0),
    });
    let pointer: *const Local = &raw const *local;
    let mut local = Some(local);
    let kept = OWNED.try_with(|owned| {
        if let (Ok(mut owned), Some(local)) = (owned.try_borrow_mut(), local.take()) {
            owned.0.push(local);
        }
    });
    if kept.is_err() || local.is_some() {
        // The thread is about to end.
        std::mem::forget(local.take());
    }
    here.current.set(pointer.cast());
    // SAFETY: as above, or leaked.
    Ok((unsafe { &*pointer }, true))
}

impl Local {
    /// Clears the places of so many of the dead, after `mend` has undone what they were in the
    /// middle of.
    pub fn clear_the_dead(&self, most: usize, mut mend: impl FnMut(u64, &Thread) -> bool) {
        let _signals = sys::SignalsBlocked::new();
        let Ok(_registry) = self.space.registry() else { return };
        let mended = registry::dead_threads(self.space).filter(|&(n, thread)| mend(n, thread));
        mended.take(most).for_each(|(_, thread)| self.clear_place(thread));
        registry::clear_processes(self.space);
    }

    /// Begins a read-side section: what is found in it is not freed until it ends.
    #[inline]
    pub fn enter(&self) -> Section<'_> {
        let reader = self.thread.reader.load(Relaxed);
        let outermost = reader & 1 == 0;
        if outermost {
            self.thread.reader.store(reader.wrapping_add(1), Relaxed);
            // Pairs with the barrier of a grace period: it sees that we are inside, or we see what
            // it unlinked. Its membarrier is the fence that we leave out.
            self.space.fence();
        }
        #[cfg(debug_assertions)]
        self.sections.set(self.sections.get() + 1);
        Section { local: self, outermost }
    }

    /// Whether the last poke came from another CPU.
    pub fn poked_from_elsewhere(&self) -> bool {
        let poker = self.thread.poker.load(Relaxed);
        poker != 0 && poker != sys::current_cpu() + 1
    }

    pub fn remember_undo(&self, set: u64, entry: u64) {
        self.undo[(set >> 6) as usize % REMEMBERED].set((set, entry));
    }

    pub fn forget_undo(&self, set: u64) {
        self.undo[(set >> 6) as usize % REMEMBERED].set((0, 0));
    }

    #[inline]
    pub fn remembered_undo(&self, set: u64) -> Option<u64> {
        let (of, entry) = self.undo[(set >> 6) as usize % REMEMBERED].get();
        (of == set && set != 0).then_some(entry)
    }
}

/// A read-side section.
pub(crate) struct Section<'l> {
    local: &'l Local,
    outermost: bool,
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        self.local.sections.set(self.local.sections.get() - 1);
        if self.outermost {
            let reader = &self.local.thread.reader;
            reader.store(reader.load(Relaxed).wrapping_add(1) & !1, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::namespace::Namespace;
    use std::sync::atomic::Ordering::*;

    /// A sandbox may be a thread's: the first one to register was refused, the next one is not.
    #[test]
    fn readers_fence_as_long_as_others_rely_on_it() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let process = n.begin().unwrap().1.process;
        let place = crate::peers::place(n.space, process).unwrap();
        n.space.unfenced.store(false, SeqCst);
        place.unfenced.store(0, SeqCst);
        std::thread::spawn(move || drop(n.begin().unwrap())).join().unwrap();
        assert_eq!(u64::from(n.space.unfenced.load(SeqCst)), place.unfenced.load(SeqCst));
    }
}
