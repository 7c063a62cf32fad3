// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where callbacks wait until a worker takes them: in buffers, then on the lists of a CPU. And the
//! pending counts.
//!
//! > **Invariant.** A registered callback is in a buffer, on a list, or in the hands of the thread
//! > that took it; a pending count includes it all the time; and a buffer is pending, or a list not
//! > empty, before the fence after which its registration looks whether the worker sleeps
//! > (`worker_wait.rs`).
//!
//! Each CPU has two lists: callbacks that only free memory, which any thread may run, and the
//! others.

use super::pending_count::{self, PendingCount, Phase};
use crate::grace::heavy;
#[cfg(not(loom))]
use crate::platform::Instant;
use crate::platform::barrier::Kind;
use crate::platform::collect::try_collect;
use crate::platform::lock::Lock;
use crate::platform::sync::{AtomicU32, Ordering};
#[cfg(not(loom))]
use crate::platform::sync::{AtomicU64, fence};
use crate::thread::buffer::{Access, Buffer};
#[cfg(not(loom))]
use crate::thread::head::HELD;
use crate::thread::head::{Head, LEAF, PHASE};
use crate::thread::list::{Chain, List};
use crate::thread::load::Load;
#[cfg(not(loom))]
use crate::thread::record::Record;
use crate::thread::registry::Registry;
use std::time::Duration;

/// The lists and the pending count of one CPU.
pub(crate) struct Lane {
    /// Index 0: callbacks that may do anything. Index 1: mere frees.
    lists: [List; 2],
    pub(crate) pending: PendingCount,
}

#[cfg(not(loom))]
impl Lane {
    /// For `inspect.rs`.
    pub(crate) const PENDING: usize = std::mem::offset_of!(Lane, pending);
}

#[cfg(not(loom))]
/// The lanes of a domain, whose address does not change while the domain lives.
#[repr(C)]
pub(crate) struct Lanes {
    address: usize,
    count: usize,
}

#[cfg(not(loom))]
impl Lanes {
    pub(crate) fn of(lanes: &[Lane]) -> Lanes {
        Lanes { address: lanes.as_ptr().expose_provenance(), count: lanes.len() }
    }
}

pub(crate) struct PerCpuLists {
    lanes: Box<[Lane]>,
    phase: Phase,
    /// Held by the sweeper.
    sweep: Lock,
    /// The heavy barrier of sweeps.
    barrier: Kind,
    /// Registrations of threads that exit: begun, and ended.
    #[cfg(not(loom))]
    late: [AtomicU32; 2],
    /// By phase: not 0 if the pending count may include callbacks that do not exist, because a
    /// thread ended in the middle of a registration. See `recount.rs`.
    lost: [AtomicU32; 2],
    /// Callbacks that owners ran from buffers that have been closed since.
    #[cfg(not(loom))]
    ran: AtomicU64,
}

/// The result of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Swept {
    /// No buffer had callbacks.
    Nothing,
    /// A buffer that is in use has callbacks, or another thread sweeps: sweep again later.
    Later,
    /// Callbacks were put on a list.
    Some,
}

impl PerCpuLists {
    /// `barrier`: `Fence` if owners of buffers execute fences.
    pub(crate) fn new(lanes: usize, barrier: Kind) -> PerCpuLists {
        let lane = || Lane { lists: [List::new(), List::new()], pending: PendingCount::new() };
        PerCpuLists {
            lanes: std::iter::repeat_with(lane).take(lanes).collect(),
            phase: Phase::new(),
            sweep: Lock::new(),
            // A sweep need not restart lookups.
            barrier: if barrier == Kind::Fence { Kind::Fence } else { Kind::Membarrier },
            #[cfg(not(loom))]
            late: [AtomicU32::new(0), AtomicU32::new(0)],
            lost: [AtomicU32::new(0), AtomicU32::new(0)],
            #[cfg(not(loom))]
            ran: AtomicU64::new(0),
        }
    }

    /// How many callbacks owners ran from buffers that have been closed since.
    #[cfg(not(loom))]
    pub(crate) fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    /// For `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(crate) fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane]
    }

    /// At least the waiting callbacks.
    #[cfg(not(loom))]
    pub(crate) fn load(&self) -> Load {
        pending_count::waiting(self.lanes.iter().map(|l| &l.pending), &[0, 1])
    }

    /// At least the waiting callbacks of one phase.
    pub(crate) fn waiting(&self, phase: usize) -> Load {
        pending_count::waiting(self.lanes.iter().map(|l| &l.pending), &[phase])
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Opens a closed buffer for `n` callbacks of `units` each.
    pub(crate) fn open(&self, buffer: &mut Access<'_>, lane: usize, units: u32, n: u32) {
        let (phase, load) = (self.phase.current(), Load::many(units, n));
        self.lanes[lane].pending.register(phase, load);
        buffer.open(lane, phase, load);
    }

    /// Closes a buffer: puts its callbacks on the lists of its CPU. Returns how many callbacks its
    /// owner had run from it, and whether a list was empty.
    pub(crate) fn close(&self, buffer: &mut Access<'_>) -> (u64, bool) {
        let closed = buffer.close();
        let lane = &self.lanes[closed.home];
        let mut first = false;
        for (list, chain) in lane.lists.iter().zip(closed.chains) {
            if !chain.is_empty() {
                // SAFETY: the chain was the buffer's, whose contents are ours.
                first |= unsafe { list.push(chain.first, chain.last) };
            }
        }
        let ran: u64 = closed.unsettled.iter().map(|l| l.callbacks()).sum();
        // Before the pending count shows it: whoever waits for the callbacks finds them counted.
        #[cfg(not(loom))]
        self.ran.fetch_add(ran, Ordering::Relaxed);
        lane.pending.finish(closed.phase, closed.unused);
        for (phase, load) in closed.unsettled.into_iter().enumerate() {
            lane.pending.finish(phase, load);
        }
        (ran, first)
    }

    /// Registers a callback for which the buffer is not open. The owner is inside the buffer.
    /// Returns whether the list was empty.
    ///
    /// # Safety
    /// The head is the caller's alone, and stays valid until it is run.
    pub(crate) unsafe fn push(&self, lane: usize, head: *mut Head) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.push_as(self.phase.current(), lane, head) }
    }

    /// The same for an owner that may not use its buffer now.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    pub(crate) unsafe fn push_unbuffered(
        &self,
        buffer: &Buffer,
        lane: usize,
        head: *mut Head,
    ) -> bool {
        let phase = self.phase.current();
        // SAFETY: the caller's promise.
        buffer.register_unbuffered(phase, || unsafe { self.push_as(phase, lane, head) })
    }

    /// The same for an exiting thread, which has no buffer any more.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    #[cfg(not(loom))]
    pub(crate) unsafe fn push_late(&self, lane: usize, head: *mut Head) -> bool {
        // A handler may fork.
        let _blocked = crate::platform::sys::SignalsBlocked::new();
        let [begun, ended] = &self.late;
        begun.fetch_add(1, Ordering::Relaxed);
        // As in `Buffer::register_unbuffered`.
        fence(Ordering::Release);
        // SAFETY: the caller's promise.
        let first = unsafe { self.push_as(self.phase.current(), lane, head) };
        ended.fetch_add(1, Ordering::Release);
        first
    }

    unsafe fn push_as(&self, phase: usize, lane: usize, head: *mut Head) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            (*head).flags = (*head).flags & !PHASE | phase as u32;
            self.lanes[lane].pending.register(phase, Load::one((*head).units));
            self.give(lane, (*head).flags & LEAF != 0, Chain { first: head, last: head })
        }
    }

    /// Puts callbacks that the pending count includes already on a list. Returns whether the list
    /// was empty.
    ///
    /// # Safety
    /// The chain, not empty, is the caller's alone.
    pub(crate) unsafe fn give(&self, lane: usize, leaves: bool, chain: Chain) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.lanes[lane].lists[leaves as usize].push(chain.first, chain.last) }
    }

    /// Takes all callbacks from one of a CPU's lists.
    pub(crate) fn take(&self, lane: usize, leaves: bool) -> *mut Head {
        self.lanes[lane].lists[leaves as usize].take()
    }

    /// Whether there are callbacks on a CPU's lists.
    pub(crate) fn any(&self, lane: usize) -> bool {
        self.lanes[lane].lists.iter().any(|list| !list.is_empty())
    }

    /// Closes the buffers whose owners are not inside, and puts the callbacks that are ready there
    /// on the lists, too. `choose` returns `None` for a buffer to leave alone, false for one to
    /// leave for later.
    ///
    /// The callbacks of a buffer go to the lists of its lane, and for a moment they are neither
    /// pending nor on a list. So the sweeper makes sure that the workers of the lanes it chooses
    /// find them: a worker chooses its own lane only, and looks at the lists afterwards; other
    /// sweepers wake the workers.
    ///
    /// > **Invariant.** `choose` has chosen a buffer as it is closed. Before the revocation it is
    /// > asked about a buffer whose owner may close it and open it again on another lane, so it is
    /// > asked once more when the owner is kept out.
    pub(crate) fn sweep(
        &self,
        registry: &Registry,
        choose: impl FnMut(&Buffer) -> Option<bool>,
    ) -> Swept {
        self.sweep.lock();
        let swept = self.sweep_locked(registry, choose);
        self.sweep.unlock();
        swept
    }

    /// The same, but later if another thread sweeps: that may be the worker of a CPU that a
    /// real-time thread never gives up.
    pub(crate) fn try_sweep(
        &self,
        registry: &Registry,
        choose: impl FnMut(&Buffer) -> Option<bool>,
    ) -> Swept {
        const LONGEST: std::time::Duration = std::time::Duration::from_millis(1);
        if !self.sweep.lock_for(Some(LONGEST)) {
            // The sweeper may have the callbacks of our lane in hand.
            return Swept::Later;
        }
        let swept = self.sweep_locked(registry, choose);
        self.sweep.unlock();
        swept
    }

    fn sweep_locked(
        &self,
        registry: &Registry,
        mut choose: impl FnMut(&Buffer) -> Option<bool>,
    ) -> Swept {
        let mut choose = |buffer: &Buffer| if buffer.pending() { choose(buffer) } else { None };
        let mut swept = Swept::Nothing;
        let chosen = registry.records().map(|r| &r.buffer).filter(|s| {
            let choice = choose(s);
            if choice == Some(false) {
                swept = Swept::Later;
            }
            choice == Some(true)
        });
        let Some(chosen) = try_collect(chosen) else { return Swept::Later };
        if !chosen.is_empty() {
            chosen.iter().for_each(|s| s.revoke());
            // An owner that registers after this sees the revocation; any other is seen inside.
            heavy::cheapest(self.barrier, registry);
            for buffer in chosen {
                let Some(mut access) = buffer.seize() else {
                    swept = swept.max(Swept::Later);
                    continue;
                };
                match choose(buffer) {
                    Some(true) => (),
                    Some(false) => {
                        swept = swept.max(Swept::Later);
                        continue;
                    }
                    None => continue,
                }
                self.empty(&mut access);
                swept = Swept::Some;
            }
        }
        swept
    }

    /// A sweeper: puts the callbacks of a buffer on the lists.
    fn empty(&self, access: &mut Access<'_>) {
        let ready = access.take_ready();
        if !ready.is_empty() {
            // SAFETY: it was the buffer's.
            unsafe { self.give(access.home(), true, Chain::of(ready.first)) };
        }
        if !access.abandoned() {
            self.close(access);
            return;
        }
        let closed = access.close();
        for (leaves, chain) in [false, true].into_iter().zip(closed.chains) {
            if !chain.is_empty() {
                // SAFETY: it was the buffer's; by the invariant of `buffer.rs` its first head leads
                // to all of it.
                unsafe { self.give(closed.home, leaves, Chain::of(chain.first)) };
            }
        }
        self.lose();
        access.reopen();
    }

    /// The pending counts may be too large from now on.
    pub(crate) fn lose(&self) {
        self.lost.iter().for_each(|lost| lost.store(1, Ordering::Relaxed));
    }
}

/// For [`recount`](super::recount), which has the reasons.
#[cfg(not(loom))]
impl PerCpuLists {
    pub(super) fn lost(&self, phase: usize) -> bool {
        self.lost[phase].load(Ordering::Relaxed) != 0
    }

    /// Empties the buffers, keeps all owners out, and subtracts from the pending count of `phase`
    /// the callbacks that `count` does not find. `count` returns the two numbers. Does nothing if
    /// another thread sweeps, if an owner is inside or registers under this phase, or if `count`
    /// fails.
    pub(super) fn settle(
        &self,
        registry: &Registry,
        phase: usize,
        count: impl FnOnce() -> Option<(Load, Load)>,
    ) {
        /// How long to wait for owners that are inside.
        const PATIENCE: Duration = Duration::from_millis(1);
        if !self.sweep.try_lock() {
            return;
        }
        // Buffers of records that are new from here on are neither revoked nor seized.
        let buffers = try_collect(registry.records().map(|r| &r.buffer));
        let mut seized = Vec::new();
        let Some(buffers) = buffers.filter(|b| seized.try_reserve_exact(b.len()).is_ok()) else {
            return self.sweep.unlock();
        };
        buffers.iter().for_each(|s| s.revoke());
        heavy::interrupt(self.barrier, registry);
        let end = Instant::now() + PATIENCE;
        while buffers.iter().any(|s| s.occupied()) && Instant::now() < end {
            std::thread::yield_now();
        }
        // Each is revoked until it is dropped.
        seized.extend(buffers.iter().map(|s| s.seize()));
        let all = seized.iter().all(Option::is_some);
        // How often owners have registered without their buffers, in order of the records. `None`
        // if one does so now, or if there is a record that was not revoked.
        let unbuffered = || {
            let times = registry.records().map(|r| r.buffer.unbuffered_registrations(phase));
            let times = try_collect(times).filter(|times| times.iter().all(Option::is_some));
            let [begun, ended] = &self.late;
            let ended = ended.load(Ordering::Acquire);
            let late = (begun.load(Ordering::Acquire) == ended).then_some(ended);
            times.filter(|times| times.len() == buffers.len()).zip(late)
        };
        if let Some(before) = unbuffered().filter(|_| all) {
            seized.iter_mut().flatten().for_each(|access| self.empty(access));
            let counted = count();
            // After this, the registration of any owner that was counted, in part or whole, shows
            // in `unbuffered`, and so does a new record.
            heavy::interrupt(self.barrier, registry);
            if let Some((shown, found)) = counted.filter(|_| unbuffered() == Some(before)) {
                self.lanes[0].pending.finish(phase, shown.less(found));
                self.lost[phase].store(0, Ordering::Relaxed);
            }
        }
        self.sweep.unlock();
    }
}

/// For forks.
#[cfg(not(loom))]
impl PerCpuLists {
    /// Keeps every owner out, except this thread, which may be in the middle of a registration
    /// further up the stack. Waits at most `limit`. False if another sweeper did not end in time;
    /// buffers whose owners did not leave in time are left alone.
    pub(crate) fn hold(
        &self,
        registry: &Registry,
        own: Option<&Record>,
        limit: std::time::Duration,
    ) -> bool {
        let end = std::time::Instant::now() + limit;
        if !self.sweep.lock_for(Some(limit)) {
            return false;
        }
        registry.records().for_each(|r| r.buffer.revoke());
        heavy::interrupt(self.barrier, registry);
        let inside = || others(registry, own).any(|r| r.buffer.occupied());
        while inside() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        registry.records().for_each(|r| r.buffer.hold());
        true
    }

    /// The end of [`PerCpuLists::hold`], in the parent.
    pub(crate) fn release(&self, registry: &Registry) {
        registry.records().for_each(|r| r.buffer.restore());
        self.sweep.unlock();
    }

    /// In the child: empties the buffers onto the lists. The caller sets the pending counts, unless
    /// this returns false: then this thread is in the middle of a registration, finds its buffer as
    /// it left it, and the pending counts must stay as they are.
    pub(crate) fn after_fork(&self, registry: &Registry, own: Option<&Record>) -> bool {
        self.sweep.reset();
        // Registrations of threads that do not exist here do not end. This thread is in none.
        let [begun, ended] = &self.late;
        ended.store(begun.load(Ordering::Relaxed), Ordering::Relaxed);
        let own = own.filter(|own| own.buffer.registering());
        for record in others(registry, own) {
            let Some(closed) = record.buffer.after_fork() else { continue };
            for (leaves, chain) in [false, true].into_iter().zip(closed.chains) {
                if !chain.is_empty() {
                    // SAFETY: it was the buffer's.
                    unsafe { self.give(closed.home, leaves, chain) };
                }
            }
        }
        if let Some(own) = own {
            own.buffer.restore();
        }
        // This thread may also be registering without its buffer, or running a callback. A recount
        // that finds no difference does no harm.
        self.lose();
        own.is_none()
    }

    /// Adds up the callbacks on a CPU's lists.
    pub(crate) fn add_up(&self, lane: usize, sums: &mut Sums) {
        for list in &self.lanes[lane].lists {
            let chain = list.take();
            // SAFETY: the only thread, and the lists are consistent.
            unsafe {
                add_up(chain, sums);
                if !chain.is_null() {
                    let chain = Chain::of(chain);
                    list.push(chain.first, chain.last);
                }
            }
        }
    }
}

/// All records but one.
#[cfg(not(loom))]
fn others<'a>(registry: &'a Registry, own: Option<&'a Record>) -> impl Iterator<Item = &'a Record> {
    registry.records().filter(move |r| !own.is_some_and(|own| std::ptr::eq(own, *r)))
}

/// The sums that callbacks are counted in: one per phase of the pending count, and that of those
/// that wait for guards only.
#[cfg(not(loom))]
pub(crate) type Sums = [Load; 3];

#[cfg(not(loom))]
pub(crate) const GUARDED: usize = 2;

/// The sum that a callback is in.
#[cfg(not(loom))]
pub(crate) fn sum_of(head: &Head) -> usize {
    if head.flags & HELD != 0 { GUARDED } else { (head.flags & PHASE) as usize }
}

/// Adds a chain's callbacks to the sums.
///
/// # Safety
/// The chain is the caller's alone.
#[cfg(not(loom))]
pub(crate) unsafe fn add_up(chain: *mut Head, sums: &mut Sums) {
    let mut next = chain;
    // SAFETY: the caller's promise.
    while let Some(head) = unsafe { next.as_ref() } {
        let sum = &mut sums[sum_of(head)];
        *sum = sum.add(Load::one(head.units));
        next = head.next;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A fork keeps the buffers whose owners it saw outside, whatever they do then (register
    /// without the buffer, knock), and one that an earlier owner left in the middle. It does not
    /// wait for an owner that stays inside, and drops what is there.
    #[test]
    fn a_child_keeps_the_buffers_that_the_fork_held() {
        #[derive(Debug, PartialEq)]
        enum Owner {
            Outside,
            Unbuffered,
            Knocks,
            EndedInside,
            StaysInside,
        }
        use Owner::*;
        for owner in [Outside, Unbuffered, Knocks, EndedInside, StaysInside] {
            let (lists, registry) = (PerCpuLists::new(1, Kind::Fence), Registry::new());
            let record = registry.claim(1).unwrap();
            let mut head = Head::new();
            let head: *mut Head = &mut head;
            let mut access = record.buffer.enter(true).unwrap();
            lists.open(&mut access, 0, 0, 4);
            // SAFETY: the head outlives the turn, and is never run.
            assert!(unsafe { access.put(head) });
            if owner == EndedInside {
                std::mem::forget(access);
                record.release();
            } else if owner == StaysInside {
                std::mem::forget(access);
            } else {
                drop(access);
            }
            assert!(lists.hold(&registry, None, Duration::ZERO));
            if owner == Knocks {
                record.buffer.knock();
            }
            let child = || {
                // The child's steps for a thread that does not exist there.
                record.release();
                assert!(lists.after_fork(&registry, None));
            };
            if owner == Unbuffered {
                record.buffer.register_unbuffered(0, child);
            } else {
                child();
            }
            let kept = if owner == StaysInside { std::ptr::null_mut() } else { head };
            assert_eq!(lists.take(0, false), kept, "{owner:?}");
            assert!(record.buffer.enter(true).is_some(), "{owner:?}");
        }
    }

    /// The owner closes its buffer and opens it on another lane after the sweeper has looked at it
    /// and before it revokes it. The worker of that lane sleeps or has looked at its lists already:
    /// nobody would wake it.
    #[test]
    fn a_sweep_leaves_a_buffer_alone_that_has_moved_to_another_lane() {
        let (lists, registry) = (PerCpuLists::new(2, Kind::Fence), Registry::new());
        let buffer = &registry.claim(1).unwrap().buffer;
        let mut heads = [Head::new(), Head::new()];
        let register = |lane, head: &mut Head| {
            let mut access = buffer.enter(true).unwrap();
            lists.close(&mut access);
            lists.open(&mut access, lane, 0, 4);
            // SAFETY: the heads outlive the test, and are never run.
            assert!(unsafe { access.put(head) });
        };
        let [first, second] = &mut heads;
        register(0, first);
        let mut second = Some(second);
        let asked = Cell::new(0);
        let swept = lists.sweep(&registry, |buffer| {
            let ours = buffer.home() == 0;
            if let Some(second) = second.take() {
                register(1, second);
            }
            asked.set(asked.get() + 1);
            ours.then_some(true)
        });
        assert_eq!((swept, asked.get()), (Swept::Nothing, 2));
        assert!(lists.any(0), "closed by its owner");
        assert!(!lists.any(1) && buffer.pending() && buffer.home() == 1);
        // Nothing keeps the owner out, and the other lane's worker finds it.
        assert!(buffer.enter(true).is_some());
        assert_eq!(lists.sweep(&registry, |s| (s.home() == 1).then_some(true)), Swept::Some);
        assert!(lists.any(1) && !buffer.pending());
    }
}
