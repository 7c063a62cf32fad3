// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's record in one domain: what it shows to leaders of grace periods and to reclaimers.
//!
//! # The reader word
//! One 64-bit word, written by its owner alone: the low half counts how deep the owner is nested in
//! sections, the high half how many outermost sections it has ended. Entering adds 1; leaving
//! subtracts 1, and the outermost leaving adds 2^32 as well. So:
//!
//! > **Invariant.** If a section was running when a reclaimer read the word, the word it read has a
//! > nonzero low half. Until that section has ended the low half stays nonzero and the high half
//! > stays the same (nested sections change the low half only); once it has ended, the low half is
//! > zero or the high half differs.
//!
//! (A wrap of the high half between two looks can only hide that a section *has* ended: the
//! reclaimer looks again. The low half cannot wrap: [`Record::enter`] ends the process first.)
//!
//! # Why no fence
//! Reader: store the word; **light**; load pointers. Reclaimer: unlink; **heavy**; load the word.
//! Light is a mere compiler barrier; heavy (membarrier) makes every running thread of the process
//! pass a full fence somewhere between two of its instructions, and threads that do not run have
//! passed one when they were descheduled. If the reader's point falls after its store, the
//! reclaimer sees the store and waits. If it falls before, every later load of the reader sees the
//! unlinking. There is no third place. Without membarrier, light is a real fence (`Guard` takes the
//! slow path).
//!
//! Both stores release, and the reclaimer's load acquires: what a section read is read before the
//! free, whether the reclaimer learns of its end from the store that left it or from the one that
//! entered the next.
//!
//! A quiescent state (QSBR) is leaving and entering in one store: the thread stays nested, the high
//! half advances. It may be left out at any time, for then the section merely goes on; but no grace
//! period ends while one that waits for the section is never told. So C leaves it out in line as
//! long as [`Record::awaited`] says that no leader waits for the section: a leader that looks later
//! waits for the next quiescent state, as it would after an announcement just before its look.
//!
//! # In a signal handler
//! A handler leaves the low half as it found it, so it may run between any two instructions of
//! enter or leave: at worst the interrupted *enter* puts back a high half that misses the handler's
//! own sections, which are over. A reclaimer that took its snapshot inside one of those may take
//! the interrupted section for it: it waits for one section too many, never too few.

use crate::platform::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::thread::buffer::Buffer;
use crate::thread::slots::Slots;

/// Marks a branch as the rarer one.
#[cold]
fn nested() {}

/// A section that ended.
const SECTION: u64 = 1 << 32;
const NESTING: u64 = SECTION - 1;
/// Far below the limit of the nesting count, and far beyond the depth of any correct program.
const DEEPEST: u32 = i32::MAX as u32;

/// A thread's place in the registry of one domain. Never freed, only passed on to another thread,
/// or left behind.
///
/// The parts are apart by cache lines: what the owner writes at each section, its protection slots,
/// the callbacks that it registers, and what registration and reclaimers write.
#[repr(C, align(128))]
pub(crate) struct Record {
    word: AtomicU64,
    /// Address of the owner's `rseq_cs` field if its lookups may use the restartable section of
    /// this domain, else 0.
    pub(crate) restart: AtomicUsize,
    /// Times a restartable section of the owner started over, and lookups done in a plain section
    /// instead. The owner writes.
    pub(crate) restarts: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) slots: Slots,
    pub(crate) buffer: Buffer,
    part: Part,
    #[cfg(loom)]
    pub(crate) cpu: loom::sync::Mutex<crate::platform::cpu::Cpu>,
}

/// Written at registration and by the leader of a grace period.
#[repr(C, align(128))]
struct Part {
    /// Thread id of the owner, 0 when free, [`SEIZED`] while a leader finds out whether the owner
    /// is dead. With [`LEFT`]: of the last owner there will be.
    owner: AtomicU32,
    /// Not 0: the owner may have opened what is open by guards of Rust.
    guards: AtomicU32,
    /// The word as the leader of the grace period found it, 0 when there is nothing to wait for.
    snapshot: AtomicU64,
    /// When the owner took the record, in nanoseconds since boot; 0 if it has just done so. A
    /// thread that has its id and started later is another thread.
    taken: AtomicU64,
    /// The section that was last seen to hold a grace period up.
    lag: Lag,
    /// Not 0: the owner, who left the record behind, may still end what is open in it.
    #[cfg(not(loom))]
    unsettled: AtomicU32,
}

/// No thread has this id: ids are positive and signed.
pub(crate) const SEIZED: u32 = u32::MAX;
/// No id has this bit.
const LEFT: u32 = 1 << 31;

/// Notes of `watch/` about a reader that a grace period waits for. A leader writes; others may
/// read, and get old and new values mixed at worst.
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Lag {
    /// High half of the word, plus 1. 0 before the first.
    section: AtomicU64,
    /// When it was first seen, in nanoseconds of the monotonic clock.
    since: AtomicU64,
    /// The owner's CPU time then, in nanoseconds.
    ran: AtomicU64,
}

impl Record {
    /// Where the reader word is, for C.
    #[cfg(not(loom))]
    pub(crate) const WORD: usize = std::mem::offset_of!(Record, word);
    #[cfg(not(loom))]
    pub(crate) const OWNER: usize =
        std::mem::offset_of!(Record, part) + std::mem::offset_of!(Part, owner);
    #[cfg(not(loom))]
    pub(crate) const SNAPSHOT: usize =
        std::mem::offset_of!(Record, part) + std::mem::offset_of!(Part, snapshot);

    /// Zeroes are a free record, so fresh pages need no set-up.
    #[cfg(loom)]
    pub(crate) fn new() -> Record {
        Record {
            word: AtomicU64::new(0),
            restart: AtomicUsize::new(0),
            restarts: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            slots: Slots::new(),
            buffer: Buffer::new(),
            part: Part {
                owner: AtomicU32::new(0),
                guards: AtomicU32::new(0),
                snapshot: AtomicU64::new(0),
                taken: AtomicU64::new(0),
                lag: Lag::default(),
            },
            cpu: loom::sync::Mutex::new(Default::default()),
        }
    }

    /// Enters a section. The caller executes a light barrier next, before it loads anything the
    /// section protects.
    #[inline(always)]
    pub(crate) fn enter(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word as u32 >= DEEPEST {
            too_deep();
        }
        // Release, though nothing is published: a reclaimer that reads this store, and takes from
        // its high half that the previous section has ended, must be ordered after that section. A
        // release store is no more than a store on x86.
        self.word.store(word + 1, Ordering::Release);
    }

    /// Leaves a section.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        let word = self.word.load(Ordering::Relaxed);
        #[cfg(all(reprieve_fault, not(loom)))]
        if crate::platform::fault::is(crate::platform::fault::Fault::LeaveAll) {
            // When the outer ones are left there is nothing to end.
            return self.forget_sections();
        }
        // A branch instead of arithmetic: it makes the store depend on one addition only, and the
        // next section's load depends on the store.
        if word & NESTING == 1 {
            self.word.store(word.wrapping_add(SECTION - 1), Ordering::Release);
        } else {
            nested();
            self.word.store(word.wrapping_sub(1), Ordering::Release);
        }
    }

    /// Ends one section and begins the next, if the caller is nested exactly once: otherwise other
    /// sections go on. The caller executes a light barrier next.
    #[inline(always)]
    pub(crate) fn quiesce(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & NESTING == 1 {
            self.word.store(word.wrapping_add(SECTION), Ordering::Release);
        }
    }

    /// How deep the owner is nested.
    #[inline(always)]
    pub(crate) fn nesting(&self) -> u32 {
        self.word.load(Ordering::Relaxed) as u32
    }

    /// The owner: whether it is in a section, or protects a node.
    #[cfg(not(loom))]
    pub(crate) fn in_use(&self) -> bool {
        self.nesting() != 0 || !self.slots.empty()
    }

    /// The owner: from here on it may open sections and protections by guards of Rust.
    #[cfg(not(loom))]
    pub(crate) fn note_guards(&self) {
        // Without membarrier at each section; leaders read the same cache line.
        if self.part.guards.load(Ordering::Relaxed) == 0 {
            self.part.guards.store(1, Ordering::Relaxed);
        }
    }

    /// Whether what is open must not end with the owner, which is this thread or no longer exists:
    /// references from leaked guards may be in use elsewhere.
    #[cfg(not(loom))]
    pub(crate) fn outlives_owner(&self) -> bool {
        self.part.guards.load(Ordering::Relaxed) != 0 && self.in_use()
    }

    /// The owner, thread `thread`, exits: from here on nobody else gives the record up, and what is
    /// open in it stays open until the domain ends. A leak for a leak: a record that the owner does
    /// not release after all is lost for good, for it may drop a guard in its very last destructor.
    /// `last`: not before the last round of destructors.
    #[cfg(not(loom))]
    pub(crate) fn leave_behind(&self, thread: u32, last: bool) {
        self.part.unsettled.store((!last).into(), Ordering::Relaxed);
        // An exchange, as in `release`: a leader that has seized the record finds that it lost it.
        self.part.owner.swap(thread | LEFT, Ordering::Release);
    }

    /// The thread that left the record behind, if one did.
    #[cfg(not(loom))]
    pub(crate) fn left_behind(&self) -> Option<u32> {
        let owner = self.owner();
        (owner & LEFT != 0 && owner != SEIZED).then_some(owner & !LEFT)
    }

    /// Before a fork: the record was left behind for good if the thread that did so has `ended`.
    #[cfg(not(loom))]
    pub(crate) fn settle(&self, ended: impl FnOnce(u32) -> bool) {
        let Some(thread) = self.left_behind() else { return };
        if self.part.unsettled.load(Ordering::Relaxed) != 0
            && ended(thread)
            // The record may have gone on to another thread, until that one's end.
            && self.left_behind() == Some(thread)
        {
            self.part.unsettled.store(0, Ordering::Relaxed);
        }
    }

    /// In the child of a fork: whether the record was left behind for good. If not, its owner, who
    /// does not exist in the child, was about to end what is open in it.
    #[cfg(not(loom))]
    pub(crate) fn stays_in_child(&self) -> bool {
        self.left_behind().is_some() && self.part.unsettled.load(Ordering::Relaxed) == 0
    }

    /// Leader, after the heavy barrier: notes and returns whether there is a section to wait for.
    pub(crate) fn look(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        let waiting = word & NESTING != 0;
        self.part.snapshot.store(if waiting { word } else { 0 }, Ordering::Relaxed);
        waiting
    }

    /// After a heavy barrier: every section of the owner's that was running before it has ended.
    pub(crate) fn outside(&self) -> bool {
        self.word.load(Ordering::Acquire) & NESTING == 0
    }

    /// Leader: has the section that [`Record::look`] saw ended?
    pub(crate) fn passed(&self) -> bool {
        let snapshot = self.part.snapshot.load(Ordering::Relaxed);
        if snapshot == 0 {
            return true;
        }
        let word = self.word.load(Ordering::Acquire);
        if word & NESTING != 0 && word / SECTION == snapshot / SECTION {
            return false;
        }
        self.part.snapshot.store(0, Ordering::Relaxed);
        true
    }

    /// Does the leader wait for the section that runs? For `watch/`; and `reprieve.h` asks the same
    /// in line.
    pub(crate) fn awaited(&self) -> bool {
        let (snapshot, word) =
            (self.part.snapshot.load(Ordering::Relaxed), self.word.load(Ordering::Acquire));
        snapshot != 0 && word & NESTING != 0 && word / SECTION == snapshot / SECTION
    }

    /// For `watch/`: since when the section that runs has been known to hold grace periods up, and
    /// the owner's CPU time then.
    #[cfg(not(loom))]
    pub(crate) fn lag(&self) -> Option<(u64, u64)> {
        let (lag, word) = (&self.part.lag, self.word.load(Ordering::Acquire));
        let same = lag.section.load(Ordering::Acquire) == word / SECTION + 1;
        (word & NESTING != 0 && same)
            .then(|| (lag.since.load(Ordering::Relaxed), lag.ran.load(Ordering::Relaxed)))
    }

    /// Leader: the section that it looked at is holding a grace period up, since `since` at least.
    #[cfg(not(loom))]
    pub(crate) fn set_lag(&self, since: u64, ran: u64) {
        let lag = &self.part.lag;
        lag.since.store(since, Ordering::Relaxed);
        lag.ran.store(ran, Ordering::Relaxed);
        let section = self.part.snapshot.load(Ordering::Relaxed) / SECTION;
        lag.section.store(section + 1, Ordering::Release);
    }

    /// Takes the record if it is free.
    pub(crate) fn claim(&self, thread: u32) -> bool {
        // Relaxed first: claiming walks over records in use, whose lines should stay shared.
        self.part.owner.load(Ordering::Relaxed) == 0
            && self
                .part
                .owner
                .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// The domain is about to end: ends what leaked guards have left open. Sections of a thread
    /// that has used no guards go on: a callback may be in one.
    #[cfg(not(loom))]
    pub(crate) fn end_guards(&self) {
        if self.part.guards.load(Ordering::Relaxed) != 0 {
            self.forget_sections();
        }
        self.slots.clear();
    }

    /// Ends sections and protections that the owner left behind, and what it knows about the
    /// domain.
    pub(crate) fn reset(&self) {
        self.forget_sections();
        self.restart.store(0, Ordering::Relaxed);
        self.slots.clear();
    }

    /// Gives the record up for another thread.
    pub(crate) fn release(&self) {
        self.reset();
        self.buffer.abandon();
        #[cfg(not(loom))]
        {
            self.part.guards.store(0, Ordering::Relaxed);
            self.part.unsettled.store(0, Ordering::Relaxed);
        }
        // Nobody may think that the next owner took the record when this one did.
        self.part.taken.store(0, Ordering::Relaxed);
        // An exchange instead of a store: so it is ordered after a seizure that it overwrites, for
        // the model checker too.
        self.part.owner.swap(0, Ordering::Release);
    }

    /// Ends all sections of the owner, which is this thread or no longer exists.
    fn forget_sections(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & NESTING != 0 {
            self.word.store((word & !NESTING).wrapping_add(SECTION), Ordering::Release);
        }
    }

    /// Thread id of the owner, 0 if there is none. No id if the record was left behind.
    pub(crate) fn owner(&self) -> u32 {
        self.part.owner.load(Ordering::Relaxed)
    }

    /// The owner has a new thread id (it is the child of a fork).
    #[cfg(not(loom))]
    pub(crate) fn rename(&self, thread: u32) {
        // A record that it left behind in its destructors stays left behind.
        let left = if self.left_behind().is_some() { LEFT } else { 0 };
        self.part.owner.store(thread | left, Ordering::Relaxed);
        self.stamp();
    }

    /// The owner took the record just now.
    #[cfg(not(loom))]
    pub(crate) fn stamp(&self) {
        self.part.taken.store(crate::platform::sys::since_boot(), Ordering::Relaxed);
    }

    /// When the owner took it: see [`Record::stamp`].
    #[cfg(not(loom))]
    pub(crate) fn taken(&self) -> u64 {
        self.part.taken.load(Ordering::Relaxed)
    }

    /// Releases the record if its owner is `thread` and `dead`, which is given the time when the
    /// owner took it, says that this thread is dead. Tells whether it did.
    ///
    /// A live owner may release the record at any moment, and another thread may claim it. So first
    /// the owner becomes [`SEIZED`], which keeps others from claiming it. If *then* the thread is
    /// found dead and has not released the record, it never will, and the record is ours alone.
    pub(crate) fn release_if(&self, thread: u32, dead: impl FnOnce(u64) -> bool) -> bool {
        let owner = &self.part.owner;
        if owner.compare_exchange(thread, SEIZED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        if dead(self.part.taken.load(Ordering::Relaxed)) && owner.load(Ordering::Acquire) == SEIZED
        {
            self.release();
            return true;
        }
        // Fails if the owner has released it meanwhile.
        let _ = owner.compare_exchange(SEIZED, thread, Ordering::Release, Ordering::Relaxed);
        false
    }
}

#[cold]
#[inline(never)]
fn too_deep() -> ! {
    #[cfg(loom)]
    panic!("2^31 nested read-side sections");
    #[cfg(not(loom))]
    crate::platform::sys::die("2^31 nested read-side sections: guards are being leaked")
}
