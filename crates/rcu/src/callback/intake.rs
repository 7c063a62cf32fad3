// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where callbacks wait until somebody takes them: stashes, then the list of a CPU. And the accounts of all that wait.
//!
//! > **Invariant.** A registered callback is in a stash, on a list, or with whoever took it; it counts in an account all the while; and a
//! > stash is pending, or a list not empty, before the fence after which its registration looks whether the worker sleeps
//! > (`alarm.rs`).
//!
//! Each CPU has two lists: callbacks that only free memory, which any thread may run, and the others.

use super::account::{self, Account, Phase};
use super::list::{Chain, List};
use super::load::Load;
use super::stash::{Access, Stash};
use super::{Head, LEAF, PHASE};
use crate::barrier::{Kind, heavy, patient};
#[cfg(not(loom))]
use crate::record::Record;
use crate::registry::Registry;
#[cfg(not(loom))]
use crate::sync::fence;
use crate::sync::{AtomicU32, Lock, Ordering};
#[cfg(not(loom))]
use std::time::{Duration, Instant};

/// One CPU's.
pub(crate) struct Lane {
    /// By whether they are mere frees.
    lists: [List; 2],
    pub(crate) account: Account,
}

#[cfg(not(loom))]
impl Lane {
    /// For `inspect.rs`.
    pub(crate) const ACCOUNT: usize = std::mem::offset_of!(Lane, account);
}

pub(crate) struct Intake {
    lanes: Box<[Lane]>,
    phase: Phase,
    /// Of the sweeper.
    sweep: Lock,
    /// Stashes are swept with it.
    barrier: Kind,
    /// Registrations of threads that exit: begun, and ended.
    #[cfg(not(loom))]
    late: [AtomicU32; 2],
    /// By phase: the account may show what is nowhere, for a thread ended in the middle of a registration. See `audit.rs`.
    lost: [AtomicU32; 2],
}

/// What a sweep came to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Swept {
    /// There was nothing.
    Nothing,
    /// There is something, in use: later.
    Later,
    /// Something is on a list now.
    Some,
}

impl Intake {
    /// `barrier`: `Fence` if owners of stashes execute fences.
    pub(crate) fn new(lanes: usize, barrier: Kind) -> Intake {
        let lane = || Lane { lists: [List::new(), List::new()], account: Account::new() };
        Intake {
            lanes: std::iter::repeat_with(lane).take(lanes).collect(),
            phase: Phase::new(),
            sweep: Lock::new(),
            // Lookups need not start over for this.
            barrier: if barrier == Kind::Fence { Kind::Fence } else { Kind::Membarrier },
            #[cfg(not(loom))]
            late: [AtomicU32::new(0), AtomicU32::new(0)],
            lost: [AtomicU32::new(0), AtomicU32::new(0)],
        }
    }

    /// For `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(crate) fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane]
    }

    /// At least what waits.
    #[cfg(not(loom))]
    pub(crate) fn load(&self) -> Load {
        account::waiting(self.lanes.iter().map(|l| &l.account), &[0, 1])
    }

    /// At least what waits of one phase.
    pub(crate) fn waiting(&self, phase: usize) -> Load {
        account::waiting(self.lanes.iter().map(|l| &l.account), &[phase])
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Opens a closed stash for `n` callbacks of `units` each.
    pub(crate) fn open(&self, stash: &mut Access<'_>, lane: usize, units: u32, n: u32) {
        let (phase, load) = (self.phase.current(), Load::many(units, n));
        self.lanes[lane].account.register(phase, load);
        stash.open(lane, phase, load);
    }

    /// Closes a stash: what is in it goes to the lists of its CPU. Returns the callbacks that were run from it, and whether a list was empty.
    pub(crate) fn close(&self, stash: &mut Access<'_>) -> (u64, bool) {
        let closed = stash.close();
        let lane = &self.lanes[closed.home];
        let mut first = false;
        for (list, chain) in lane.lists.iter().zip(closed.chains) {
            if !chain.is_empty() {
                // SAFETY: the chain was the stash's, whose contents are ours.
                first |= unsafe { list.push(chain.first, chain.last) };
            }
        }
        lane.account.finish(closed.phase, closed.unused);
        for (phase, load) in closed.unsettled.into_iter().enumerate() {
            lane.account.finish(phase, load);
        }
        (closed.unsettled.iter().map(|l| l.callbacks()).sum(), first)
    }

    /// Registers a callback that the stash is not opened for. The owner is inside. Returns whether the list was empty.
    ///
    /// # Safety
    /// The head is the caller's alone, and stays valid until it is run.
    pub(crate) unsafe fn push(&self, lane: usize, head: *mut Head) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.push_as(self.phase.current(), lane, head) }
    }

    /// The same for the owner of a stash that it may not use now.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    pub(crate) unsafe fn push_beside(&self, stash: &Stash, lane: usize, head: *mut Head) -> bool {
        let phase = self.phase.current();
        // SAFETY: the caller's promise.
        stash.beside(phase, || unsafe { self.push_as(phase, lane, head) })
    }

    /// The same for a thread that exits, and has no stash any more.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    #[cfg(not(loom))]
    pub(crate) unsafe fn push_late(&self, lane: usize, head: *mut Head) -> bool {
        let [begun, ended] = &self.late;
        begun.fetch_add(1, Ordering::Relaxed);
        // As in `Stash::beside`.
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
            self.lanes[lane].account.register(phase, Load::one((*head).units));
            self.give(lane, (*head).flags & LEAF != 0, Chain { first: head, last: head })
        }
    }

    /// Puts callbacks that are in the account already on a list. Returns whether it was empty.
    ///
    /// # Safety
    /// The chain, not empty, is the caller's alone.
    pub(crate) unsafe fn give(&self, lane: usize, leaves: bool, chain: Chain) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.lanes[lane].lists[leaves as usize].push(chain.first, chain.last) }
    }

    /// Takes what is on one of a CPU's lists.
    pub(crate) fn take(&self, lane: usize, leaves: bool) -> *mut Head {
        self.lanes[lane].lists[leaves as usize].take()
    }

    /// Whether there is something on a CPU's lists.
    pub(crate) fn any(&self, lane: usize) -> bool {
        self.lanes[lane].lists.iter().any(|list| !list.is_empty())
    }

    /// Closes stashes, as far as their owners are not inside, and puts what is ready there on the lists, too. `choose`: `None` for a stash
    /// that is not looked at, false for one that is left for later.
    ///
    /// What was in a stash goes to the lists of its lane, and there is a moment in which it is neither pending nor on a list: so whoever sweeps
    /// answers for the workers of the lanes that it chooses. A worker chooses its own lane only, and looks at the lists afterwards; others wake
    /// the workers.
    ///
    /// > **Invariant.** `choose` has chosen a stash as it is closed. Before the revocation it is asked about a stash whose owner may close it and open it
    /// > again on another lane, so it is asked once more when the owner is kept out.
    pub(crate) fn sweep(
        &self,
        registry: &Registry,
        mut choose: impl FnMut(&Stash) -> Option<bool>,
    ) -> Swept {
        let mut choose = |stash: &Stash| if stash.pending() { choose(stash) } else { None };
        self.sweep.lock();
        let mut swept = Swept::Nothing;
        let chosen: Vec<&Stash> = registry
            .records()
            .map(|r| &r.stash)
            .filter(|s| {
                let choice = choose(s);
                if choice == Some(false) {
                    swept = Swept::Later;
                }
                choice == Some(true)
            })
            .collect();
        if !chosen.is_empty() {
            chosen.iter().for_each(|s| s.revoke());
            // Owners that registered after this have seen the revocation; of the others we see that they are inside.
            patient(self.barrier, registry);
            for stash in chosen {
                let Some(mut access) = stash.seize() else {
                    swept = swept.max(Swept::Later);
                    continue;
                };
                match choose(stash) {
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
        self.sweep.unlock();
        swept
    }

    /// A sweeper: what is in a stash goes to the lists.
    fn empty(&self, access: &mut Access<'_>) {
        let ready = access.take_ready();
        if !ready.is_empty() {
            // SAFETY: it was the stash's.
            unsafe { self.give(access.home(), true, Chain::of(ready.first)) };
        }
        if !access.abandoned() {
            self.close(access);
            return;
        }
        let closed = access.close();
        for (leaves, chain) in [false, true].into_iter().zip(closed.chains) {
            if !chain.is_empty() {
                // SAFETY: it was the stash's; by the invariant of `stash.rs` its first head leads to all of it.
                unsafe { self.give(closed.home, leaves, Chain::of(chain.first)) };
            }
        }
        self.lose();
        access.reopen();
    }

    /// What the account shows may be too much from now on.
    pub(crate) fn lose(&self) {
        self.lost.iter().for_each(|lost| lost.store(1, Ordering::Relaxed));
    }
}

/// For [`audit`](super::audit), which says why.
#[cfg(not(loom))]
impl Intake {
    pub(super) fn lost(&self, phase: usize) -> bool {
        self.lost[phase].load(Ordering::Relaxed) != 0
    }

    /// Empties the stashes and, while all owners are kept out, takes from the account of `phase` what it shows beyond what `count` finds. `count` returns the
    /// two. No if an owner is inside or registers under that phase, or if there is no count.
    pub(super) fn settle(
        &self,
        registry: &Registry,
        phase: usize,
        count: impl FnOnce() -> Option<(Load, Load)>,
    ) {
        /// How long an owner that is inside is waited for.
        const PATIENCE: Duration = Duration::from_millis(1);
        self.sweep.lock();
        // Records that are new from here on are not revoked, and not seized.
        let stashes: Vec<&Stash> = registry.records().map(|r| &r.stash).collect();
        stashes.iter().for_each(|s| s.revoke());
        heavy(self.barrier, registry);
        let end = Instant::now() + PATIENCE;
        while stashes.iter().any(|s| s.occupied()) && Instant::now() < end {
            std::thread::yield_now();
        }
        // Each is revoked until it is dropped.
        let seized: Vec<_> = stashes.iter().map(|s| s.seize()).collect();
        // What registers without a stash, in order of the records. `None` if one is at it, or if there is a record that was not revoked.
        let beside = || {
            let times: Option<Vec<_>> =
                registry.records().map(|r| r.stash.times_beside(phase)).collect();
            let [begun, ended] = &self.late;
            let ended = ended.load(Ordering::Acquire);
            let late = (begun.load(Ordering::Acquire) == ended).then_some(ended);
            times.filter(|times| times.len() == stashes.len()).zip(late)
        };
        let before = beside();
        if let (Some(mut seized), Some(before)) =
            (seized.into_iter().collect::<Option<Vec<_>>>(), before)
        {
            seized.iter_mut().for_each(|access| self.empty(access));
            let counted = count();
            // An owner whose registration was counted, in part or whole, has begun visibly; and a record that is new is seen.
            heavy(self.barrier, registry);
            if let Some((shown, found)) = counted.filter(|_| beside() == Some(before)) {
                self.lanes[0].account.finish(phase, shown.less(found));
                self.lost[phase].store(0, Ordering::Relaxed);
            }
        }
        self.sweep.unlock();
    }
}

/// For fork.
#[cfg(not(loom))]
impl Intake {
    /// Keeps every owner out, except this thread, which may be in the middle of a registration further up the stack. False if that took longer than
    /// `limit`; what could not be had is left alone.
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
        registry.records().for_each(|r| r.stash.revoke());
        heavy(self.barrier, registry);
        let inside = || others(registry, own).any(|r| r.stash.occupied());
        while inside() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        true
    }

    /// The end of [`Intake::hold`], in the parent.
    pub(crate) fn release(&self, registry: &Registry) {
        registry.records().for_each(|r| r.stash.restore());
        self.sweep.unlock();
    }

    /// In the child: stashes are emptied onto the lists. The accounts are set by the caller, unless this thread is in the middle of a registration: then it
    /// finds its stash as it left it, the accounts must stay as they are, and this is false.
    pub(crate) fn after_fork(&self, registry: &Registry, own: Option<&Record>, held: bool) -> bool {
        self.sweep.reset();
        let own = own.filter(|own| own.stash.registering());
        for record in others(registry, own) {
            let Some(closed) = record.stash.after_fork().filter(|_| held) else { continue };
            for (leaves, chain) in [false, true].into_iter().zip(closed.chains) {
                if !chain.is_empty() {
                    // SAFETY: it was the stash's.
                    unsafe { self.give(closed.home, leaves, chain) };
                }
            }
        }
        if let Some(own) = own {
            own.stash.restore();
        }
        // It may be registering without its stash as well, or running what it registered; an audit that finds nothing does no harm.
        self.lose();
        own.is_none()
    }

    /// What is on a CPU's lists, by phase.
    pub(crate) fn listed(&self, lane: usize) -> [Load; 2] {
        let mut loads = [Load::NONE; 2];
        for list in &self.lanes[lane].lists {
            let chain = list.take();
            // SAFETY: the only thread, and the lists are consistent.
            unsafe {
                add_up(chain, &mut loads);
                if !chain.is_null() {
                    let chain = Chain::of(chain);
                    list.push(chain.first, chain.last);
                }
            }
        }
        loads
    }
}

/// All records but one.
#[cfg(not(loom))]
fn others<'a>(registry: &'a Registry, own: Option<&'a Record>) -> impl Iterator<Item = &'a Record> {
    registry.records().filter(move |r| !own.is_some_and(|own| std::ptr::eq(own, *r)))
}

/// Adds a chain's callbacks to the sums.
///
/// # Safety
/// The chain is the caller's alone.
#[cfg(not(loom))]
pub(crate) unsafe fn add_up(chain: *mut Head, loads: &mut [Load; 2]) {
    let mut next = chain;
    // SAFETY: the caller's promise.
    while let Some(head) = unsafe { next.as_ref() } {
        let phase = (head.flags & PHASE) as usize;
        loads[phase] = loads[phase].add(Load::one(head.units));
        next = head.next;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The owner closes its stash and opens it on another lane when the sweeper has looked at it and not revoked it yet. The worker of that
    /// lane sleeps or has looked at its lists: nobody would tell it.
    #[test]
    fn a_sweep_leaves_a_stash_alone_that_has_moved_to_another_lane() {
        let (intake, registry) = (Intake::new(2, Kind::Fence), Registry::new());
        let stash = &registry.claim(1).unwrap().stash;
        let mut heads = [Head::new(), Head::new()];
        let register = |lane, head: &mut Head| {
            let mut access = stash.enter(true).unwrap();
            intake.close(&mut access);
            intake.open(&mut access, lane, 0, 4);
            // SAFETY: the heads outlive the test, and are never run.
            assert!(unsafe { access.put(head) });
        };
        let [first, second] = &mut heads;
        register(0, first);
        let mut second = Some(second);
        let asked = Cell::new(0);
        let swept = intake.sweep(&registry, |stash| {
            let ours = stash.home() == 0;
            if let Some(second) = second.take() {
                register(1, second);
            }
            asked.set(asked.get() + 1);
            ours.then_some(true)
        });
        assert_eq!((swept, asked.get()), (Swept::Nothing, 2));
        assert!(intake.any(0), "closed by its owner");
        assert!(!intake.any(1) && stash.pending() && stash.home() == 1);
        // Nothing keeps the owner out, and the other lane's worker finds it.
        assert!(stash.enter(true).is_some());
        assert_eq!(intake.sweep(&registry, |s| (s.home() == 1).then_some(true)), Swept::Some);
        assert!(intake.any(1) && !stash.pending());
    }
}
