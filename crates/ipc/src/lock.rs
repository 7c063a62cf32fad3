// SPDX-License-Identifier: MIT OR Apache-2.0
//! Robust locks, and transactions under them.
//!
//! **Invariant: what a lock protects is changed through [`Local::set`] only, which writes the old
//! value into the thread's log first.** A thread that dies leaves its log behind:
//!
//! - Before a lock is taken its offset is noted in `held`; so a lock's holder always names it.
//! - `set` writes the log's entry, then counts it, then changes the word; a change of one word
//!   that is a whole transaction is one store, without the log. [`Local::commit`] resets
//!   the count: that one store makes all changes final. Locks are released after it.
//! - Who finds a lock whose holder is dead rolls the holder's log back, newest entry first, *and
//!   only then* takes the lock over. That may be repeated from the start (the mender may die as
//!   well): the words have no other writer, since each is protected by a lock that the dead thread
//!   still holds until all is rolled back.
//! - Menders take turns at one more lock, and look again whether the place is that of a dead: its
//!   place may have been cleared and taken by a living thread, whose log is its own business.
//!   Places are cleared under that lock, too.
//! - A lock names its holder by number and generation of its place: so a slow contender cannot
//!   take it from the living thread that got the place of the dead one.
//!
//! A thread that is killed has executed some prefix of its instructions, and the kernel's way out
//! of it is a full barrier: hence only the compiler's order matters between log and word.
//!
//! Releasing is a plain store, and a look whether somebody sleeps; who is about to sleep executes
//! the barrier for both (membarrier), after it has said so.
//!
//! A holder that is alive but does not name the lock cannot be: somebody wrote into the file. After
//! a hundred looks the lock is taken from it. A thread never takes a lock from itself: one that it
//! holds already is reported as damage. (A handler does not come here in the middle of a call; see
//! `signals`.)

use crate::error::{CORRUPT, Result};
use crate::peers::{Local, OWNER_DIED, gone_unmarked, own_namespace, thread_dead};
use crate::space::Space;
use crate::space::layout::{HELD, LOG, Lock, NUMBER_MASK, Thread, mark};
use crate::sys;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicU64, compiler_fence};
use std::time::Duration;

/// Pauses while a lock is held: before the first look, at most between two, and in all, before
/// sleeping. Locks are held for some 30 ns, so the holder does many operations until the first
/// look; looked at earlier, the lock and what it guards change CPUs for each operation.
const FIRST_PAUSES: u32 = 16;
const MOST_PAUSES: u32 = 32;
const SPINS: u32 = 2000;
/// Between two looks whether the holder is dead.
const LOOK: Duration = Duration::from_millis(5);
/// The same where wake-ups may be lost, because membarrier is not to be had.
const NAP: Duration = Duration::from_micros(500);
/// Looks at a holder that does not name the lock.
const PATIENCE: u32 = 100;

/// A lock that is held. Dropped without a commit, it rolls all changes back.
pub(crate) struct Held<'l> {
    local: &'l Local,
    lock: &'l Lock,
}

impl Local {
    /// Takes a lock. Locks are taken in the order: ids, object, heap.
    #[inline(always)]
    pub fn lock<'l>(&'l self, lock: &'l Lock) -> Result<Held<'l>> {
        let depth = self.depth.get();
        // The last is for the lock of menders.
        if depth >= HELD - 1 {
            return Err(CORRUPT);
        }
        self.thread.held[depth].store(self.space.offset_of(lock), Relaxed);
        compiler_fence(SeqCst);
        if lock.word.compare_exchange(0, self.mark, Acquire, Relaxed).is_err() {
            if self.holds(lock) {
                self.thread.held[depth].store(0, Relaxed);
                return Err(CORRUPT);
            }
            self.lock_slowly(lock).inspect_err(|_| self.thread.held[depth].store(0, Relaxed))?;
        }
        self.depth.set(depth + 1);
        Ok(Held { local: self, lock })
    }

    #[cold]
    fn holds(&self, lock: &Lock) -> bool {
        let (at, depth) = (self.space.offset_of(lock), self.depth.get());
        self.thread.held[..depth].iter().any(|held| held.load(Relaxed) == at)
    }

    #[cold]
    fn lock_slowly(&self, lock: &Lock) -> Result<()> {
        let (mut unnamed, mut looks) = (0, 0);
        // A thread that is bound to its CPU may yet have to do with others elsewhere.
        let spins = self.spins || self.poked_from_elsewhere();
        loop {
            let mut pauses = if spins { FIRST_PAUSES } else { SPINS };
            while pauses < SPINS && lock.word.load(Relaxed) != 0 {
                // Ever less often: each look takes the line away from who works under the lock.
                (0..pauses.min(MOST_PAUSES)).for_each(|_| std::hint::spin_loop());
                pauses += pauses.min(MOST_PAUSES);
            }
            let word = lock.word.load(Relaxed);
            let taken = if word == 0 {
                lock.word.compare_exchange(0, self.mark, Acquire, Relaxed).is_ok()
            } else {
                looks > 0 && self.take_over(lock, word, &mut unnamed)?
            };
            if taken {
                if looks > 0 {
                    // A sleeper was woken, others may sleep: this thread wakes the next one.
                    lock.sleepers.fetch_or(1, Relaxed);
                }
                return Ok(());
            }
            if word != 0 {
                let seen = lock.sleepers.fetch_or(1, SeqCst) | 1;
                // The releaser sees that, or we see the release: it stores and loads
                // without a fence, as readers do. Else the sleep is a short one.
                let seen_by_all = sys::membarrier(sys::MEMBARRIER_GLOBAL_EXPEDITED);
                if lock.word.load(SeqCst) != 0 {
                    sys::futex_wait(&lock.sleepers, seen, if seen_by_all { LOOK } else { NAP });
                    looks += 1;
                    self.mark_the_unmarked();
                }
            }
        }
    }

    /// Takes the lock from a holder that is dead, or cannot be the holder.
    fn take_over(&self, lock: &Lock, word: u32, unnamed: &mut u32) -> Result<bool> {
        let number = u64::from(word & NUMBER_MASK);
        let holder = self.holder(number)?;
        let holder = holder.filter(|_| number <= self.space.header().threads.load(SeqCst));
        let free = match holder {
            None => true,
            // Its place was cleared, and what it was in the middle of undone before that.
            Some(thread) if mark(number, thread) != word => true,
            Some(thread) if is_dead(self.space, thread) => {
                // Before the lock is ours: if we die now, the next one begins from the start.
                self.mend(thread)?;
                true
            }
            Some(thread) => {
                let at = self.space.offset_of(lock);
                let named = number != u64::from(self.number)
                    && thread.held.iter().any(|held| held.load(SeqCst) == at);
                let same = lock.word.load(SeqCst) == word;
                *unnamed = if named || !same { 0 } else { *unnamed + 1 };
                *unnamed >= PATIENCE
            }
        };
        Ok(free && lock.word.compare_exchange(word, self.mark, Acquire, Relaxed).is_ok())
    }

    /// The place of that number, if there is one.
    fn holder(&self, number: u64) -> Result<Option<&'static Thread>> {
        match self.space.thread(number) {
            Err(CORRUPT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Rolls back what a dead thread was in the middle of.
    pub fn mend(&self, dead: &Thread) -> Result<()> {
        if dead.changes.load(Acquire) == 0 {
            return Ok(());
        }
        let _recovery = self.recover()?;
        // Its place may have been cleared, and be a living thread's, or about to be: registering
        // does not take the menders' lock.
        if dead.process.load(Acquire) != 0 && thread_dead(self.space, dead) {
            roll_back(self.space, dead)?;
        }
        Ok(())
    }

    /// Whether a transaction that is not over, of anybody's, has changed that word.
    pub fn in_a_transaction(&self, word: &AtomicU64) -> bool {
        // A thread that has changed the word has logged it before: its stores come in that order.
        sys::membarrier(sys::MEMBARRIER_GLOBAL_EXPEDITED);
        let at = self.space.offset_of(word);
        let has = |t: &Thread| {
            let changes = (t.changes.load(Acquire) as usize).min(LOG);
            t.log[..changes].iter().any(|entry| entry.offset.load(Relaxed) == at)
        };
        self.space.threads().map_or(true, |mut threads| threads.any(|(_, t)| has(t)))
    }

    /// Gives the place of a dead thread that was mended away. Under the lock of the registry.
    pub fn clear_place(&self, dead: &Thread) {
        // Whoever mends it is sure that it stays dead.
        if let Ok(_recovery) = self.recover() {
            dead.process.store(0, SeqCst);
        }
    }

    /// Marks the threads that are gone and that the kernel has not marked: once a second.
    #[cold]
    pub fn mark_the_unmarked(&self) {
        let (looked, now) = (&self.space.header().looked, sys::now());
        let namespace = own_namespace();
        if sys::is_filtered() || had_its_turn(looked, namespace, now) {
            return;
        }
        // A thread that cannot see zombies has a turn of its own: others are to find those.
        let blind = if sys::proc_has_our_numbers() { 0 } else { 1 << 31 };
        if !takes_its_turn(looked, namespace ^ blind, now) {
            return;
        }
        let Ok(threads) = self.space.threads() else { return };
        for (_, thread) in threads {
            if !thread_dead(self.space, thread) && gone_unmarked(self.space, thread) {
                // Places are cleared under this lock, so the thread that is asked for once more is
                // the one that is marked.
                let Ok(_recovery) = self.recover() else { return };
                if thread.process.load(Acquire) != 0 && gone_unmarked(self.space, thread) {
                    thread.life[0].store(OWNER_DIED, SeqCst);
                }
            }
        }
    }

    /// Takes the menders' lock.
    fn recover(&self) -> Result<Recovery<'_>> {
        let recovery = &self.space.header().recovery;
        let at = self.space.offset_of(recovery);
        self.thread.held[HELD - 1].store(at, SeqCst);
        let (mut unnamed, mut looks) = (0, 0);
        loop {
            let word = recovery.word.load(Relaxed);
            let number = u64::from(word & NUMBER_MASK);
            let holder = self.holder(number);
            let holder = holder.inspect_err(|_| self.thread.held[HELD - 1].store(0, SeqCst))?;
            looks += 1;
            let free = holder.is_none_or(|thread| {
                mark(number, thread) != word
                    || is_dead(self.space, thread)
                    || looks % PATIENCE == 0 && gone_unmarked(self.space, thread)
            });
            // As for other locks: who does not name it cannot hold it.
            let named = holder.is_some_and(|thread| thread.held[HELD - 1].load(SeqCst) == at)
                && word != self.mark;
            unnamed = if named { 0 } else { unnamed + 1 };
            let free = free || unnamed >= PATIENCE;
            if free && recovery.word.compare_exchange(word, self.mark, AcqRel, Relaxed).is_ok() {
                return Ok(Recovery(self));
            }
            sys::pause(Duration::from_micros(50));
        }
    }

    /// Changes a word that a lock protects which this thread holds.
    #[inline]
    pub fn set(&self, word: &AtomicU64, value: u64) -> Result<()> {
        let thread = self.thread;
        let changes = thread.changes.load(Relaxed);
        let Some(entry) = thread.log.get(changes as usize) else { return Err(CORRUPT) };
        entry.offset.store(self.space.offset_of(word), Relaxed);
        entry.old.store(word.load(Relaxed), Relaxed);
        compiler_fence(SeqCst);
        thread.changes.store(changes + 1, Relaxed);
        compiler_fence(SeqCst);
        word.store(value, Relaxed);
        Ok(())
    }

    /// [`Local::set`] of several words: all are logged, then counted together, then changed.
    #[inline(always)]
    pub fn set_all<const N: usize>(&self, changes: [(&AtomicU64, u64); N]) -> Result<()> {
        let thread = self.thread;
        let before = thread.changes.load(Relaxed) as usize;
        let end = before.wrapping_add(N);
        let entries = thread.log.get(before..end).ok_or(CORRUPT)?;
        for (entry, (word, _)) in entries.iter().zip(&changes) {
            entry.offset.store(self.space.offset_of(*word), Relaxed);
            entry.old.store(word.load(Relaxed), Relaxed);
        }
        compiler_fence(SeqCst);
        thread.changes.store(end as u64, Relaxed);
        compiler_fence(SeqCst);
        changes.iter().for_each(|(word, value)| word.store(*value, Relaxed));
        Ok(())
    }

    /// Makes all changes since the last commit final.
    #[inline]
    pub fn commit(&self) {
        compiler_fence(SeqCst);
        self.thread.changes.store(0, Release);
    }

    /// Takes all changes since the last commit back.
    pub fn roll_back(&self) {
        // All that it has changed is mapped.
        let _ = roll_back(self.space, self.thread);
    }
}

/// A PID namespace's turn to look for dead threads in a second, as a word of the header. Each
/// namespace has one, because its threads can be asked for there only.
fn turn(namespace: u64, now: u64) -> u64 {
    now << 32 | namespace & 0xffff_ffff
}

/// Whether somebody has taken that turn, or nobody can.
fn had_its_turn(looked: &[AtomicU64], namespace: u64, now: u64) -> bool {
    namespace == 0 || looked.iter().any(|word| word.load(Relaxed) == turn(namespace, now))
}

/// Takes the turn, unless somebody else has. A word of this second is nobody else's until the next
/// one; the first eight get one.
fn takes_its_turn(looked: &[AtomicU64], namespace: u64, now: u64) -> bool {
    let turn = turn(namespace, now);
    for word in looked.iter().cycle().skip(namespace as usize % looked.len()).take(looked.len()) {
        let mut found = word.load(Relaxed);
        while found >> 32 != turn >> 32 {
            match word.compare_exchange(found, turn, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(other) => found = other,
            }
        }
        if found == turn {
            return false;
        }
    }
    false
}

/// The menders' lock, held.
struct Recovery<'l>(&'l Local);

impl Drop for Recovery<'_> {
    fn drop(&mut self) {
        let recovery = &self.0.space.header().recovery;
        let _ = recovery.word.compare_exchange(self.0.mark, 0, Release, Relaxed);
        self.0.thread.held[HELD - 1].store(0, SeqCst);
    }
}

fn is_dead(space: &Space, thread: &Thread) -> bool {
    thread.process.load(Acquire) == 0 || thread_dead(space, thread)
}

/// All of it, or it is to be begun again: what cannot be mapped cannot be undone.
fn roll_back(space: &Space, thread: &Thread) -> Result<()> {
    let changes = (thread.changes.load(Acquire) as usize).min(LOG);
    for entry in thread.log[..changes].iter().rev() {
        match space.view::<AtomicU64>(entry.offset.load(Relaxed)) {
            Ok(word) => word.store(entry.old.load(Relaxed), Relaxed),
            Err(CORRUPT) => {}
            Err(error) => return Err(error),
        }
    }
    compiler_fence(SeqCst);
    thread.changes.store(0, Release);
    Ok(())
}

#[cold]
fn wake_sleeper(lock: &Lock) {
    let seen = lock.sleepers.load(Relaxed);
    // Another value: who is about to sleep looks again.
    let even = seen.wrapping_add(seen & 1);
    if lock.sleepers.compare_exchange(seen, even, SeqCst, Relaxed).is_ok() {
        sys::futex_wake(&lock.sleepers, 1);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        let local = self.local;
        if local.thread.changes.load(Relaxed) != 0 {
            local.roll_back();
        }
        // The object of a lock in the heap is freed once its readers have left.
        #[cfg(debug_assertions)]
        assert!(
            local.space.offset_of(self.lock) < crate::space::layout::HEAP
                || local.sections.get() != 0,
            "a lock outlives the section"
        );
        self.lock.word.store(0, Release);
        // Pairs with the barrier of who is about to sleep, which is the fence that we leave out.
        local.space.fence();
        let depth = local.depth.get() - 1;
        local.depth.set(depth);
        local.thread.held[depth].store(0, Relaxed);
        if self.lock.sleepers.load(Relaxed) & 1 != 0 {
            wake_sleeper(self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::namespace::Namespace;

    /// A mender that was slow finds the place cleared: what is logged there is the next thread's.
    #[test]
    fn a_place_that_is_nobodys_is_not_rolled_back() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let (_call, local) = n.begin().unwrap();
        let place = local.space.thread(9).unwrap();
        let word = &local.ids(crate::space::layout::Kind::Sem).used;
        place.log[0].offset.store(local.space.offset_of(word), Relaxed);
        place.log[0].old.store(7, Relaxed);
        place.changes.store(1, Relaxed);
        local.mend(place).unwrap();
        assert_eq!(word.load(Relaxed), 0);
        assert_eq!(place.changes.load(Relaxed), 1);
    }

    /// As where an offset was written over: the object's lock is that of the ids.
    #[test]
    fn a_thread_does_not_take_a_lock_from_itself() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let (_call, local) = n.begin().unwrap();
        let ids = local.ids(crate::space::layout::Kind::Sem);
        let _held = local.lock(&ids.lock).unwrap();
        local.set(&ids.used, 5).unwrap();
        assert_eq!(local.lock(&ids.lock).err(), Some(CORRUPT));
        assert_eq!((local.depth.get(), local.thread.held[1].load(Relaxed)), (1, 0));
        assert_eq!(ids.used.load(Relaxed), 5);
    }

    #[test]
    fn each_namespace_has_a_turn_in_each_second() {
        let looked: [AtomicU64; 8] = Default::default();
        // Some share a word by their numbers.
        let namespaces: [u64; 8] = std::array::from_fn(|i| 0xf000_0000 + 4 * i as u64);
        for now in [1_700_000_000, 1_700_000_001, 1_600_000_000] {
            for first in [true, false] {
                for namespace in namespaces {
                    assert_eq!(had_its_turn(&looked, namespace, now), !first);
                    assert_eq!(takes_its_turn(&looked, namespace, now), first);
                }
            }
            assert!(had_its_turn(&looked, 0, now));
        }
    }

    /// In a child, whose address space is limited for a while.
    #[test]
    fn a_lock_is_not_taken_from_the_dead_whose_changes_cannot_be_mapped() {
        use crate::space::layout::{CHUNK, HEAP, Kind};
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let (_call, local) = n.begin().unwrap();
        let number = std::thread::spawn(move || n.begin().unwrap().1.number).join().unwrap();
        let holder = local.space.thread(number.into()).unwrap();
        let (lock, changed) = (&local.ids(Kind::Sem).lock, HEAP + 64 * CHUNK);
        holder.held[0].store(local.space.offset_of(lock), SeqCst);
        lock.word.store(mark(number.into(), holder), SeqCst);
        holder.log[0].offset.store(changed, SeqCst);
        holder.log[0].old.store(7, SeqCst);
        holder.changes.store(1, SeqCst);
        let limit = |bytes| {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: a structure that outlives the call.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        };
        // SAFETY: the child uses what is this thread's, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            limit(0);
            let refused = local.lock(lock).err() == Some(Errno(libc::ENOMEM));
            let left = holder.changes.load(SeqCst) == 1 && local.depth.get() == 0;
            limit(libc::RLIM_INFINITY);
            let taken = local.lock(lock).is_ok();
            let undone = local.space.view::<AtomicU64>(changed).map(|word| word.load(SeqCst));
            let fine = refused && left && taken && undone == Ok(7);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = -1;
        // SAFETY: the child above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_holder_that_the_kernel_has_not_marked_is_found_dead() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let (_call, local) = n.begin().unwrap();
        let number = std::thread::spawn(move || n.begin().unwrap().1.number).join().unwrap();
        let holder = local.space.thread(number.into()).unwrap();
        let ids = local.ids(crate::space::layout::Kind::Sem);
        let locks = [&ids.lock, &local.space.header().recovery];
        for (lock, held) in locks.into_iter().zip([&holder.held[0], &holder.held[HELD - 1]]) {
            held.store(local.space.offset_of(lock), SeqCst);
            lock.word.store(mark(number.into(), holder), SeqCst);
        }
        ids.used.store(5, SeqCst);
        holder.log[0].offset.store(local.space.offset_of(&ids.used), SeqCst);
        holder.log[0].old.store(0, SeqCst);
        holder.changes.store(1, SeqCst);
        holder.life[0].store(holder.tid.load(SeqCst) as u32, SeqCst);
        let _held = local.lock(&ids.lock).unwrap();
        assert_eq!(ids.used.load(SeqCst), 0);
    }
}
