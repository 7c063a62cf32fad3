// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods as numbers, shared by all threads that wait.
//!
//! `seq` is even when no grace period runs and odd while one does; each complete one adds 2 (the
//! kernel's `gp_seq` with one state bit). A [`GpSeq`] is the value `seq` will have when a grace
//! period that *began* after the cookie was taken has ended. So any number of requests made while
//! one grace period runs are served together by the next.
//!
//! A waiting thread that finds no leader becomes the leader, runs one grace period for all, and
//! wakes the others. The runtime needs no thread of its own for this.
//!
//! # Why a cookie is enough
//! Requester: unlink; fence; read `seq` = s. Leader: write `seq` odd; heavy barrier; look at the
//! readers. A grace period that the cookie counts on wrote its odd value after the requester's
//! read, so the requester's fence comes before the leader's heavy barrier in the order of fences,
//! and readers that begin after that barrier see the unlinking.
//!
//! A leader may give up (a deadline, or a fork in whose child it does not exist): `seq` goes back
//! to the even value before. Cookies taken in between then ask for one grace period more than they
//! need, and never for too few.
//!
//! # A leader without a CPU
//! A worker of the runtime is bound to a CPU. If a real-time thread takes that CPU for good while
//! the worker leads, no grace period would end any more. So such a leader takes the leader's lock
//! by a note of its id, and a thread that has waited long for it lets it run on any CPU. The worker
//! binds itself again when it no longer leads. Threads of the program note nothing: their CPUs are
//! the program's.
//!
//! > **Invariant.** Who takes the note out of the lock unbinds the thread, under another lock; a
//! > leader that finds its note taken when it steps down takes that other lock before it binds
//! > itself. So it is unbound before, not after; and a thread that was noted lives until it has
//! > stepped down.

use super::engine::{Attempt, GraceEngine};
use super::stats::GraceStats;
use crate::platform::Instant;
use crate::platform::cancel::CancelDisabled;
use crate::platform::event::Event;
#[cfg(not(loom))]
use crate::platform::lock::Lock;
use crate::platform::sync::{AtomicU64, Ordering, const_unless_loom, fence};
#[cfg(not(loom))]
use crate::platform::sys;
#[cfg(not(loom))]
use crate::thread::{self, Bound};

/// How long threads wait for a bound leader before they unbind it.
#[cfg(not(loom))]
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);

/// In the leader's lock: it is held. The lower bits are the note of a leader that is [`Bound`],
/// until somebody unbinds it.
const HELD: u64 = 1 << 63;

/// Names a grace period that has not ended yet when the cookie is taken. The public one names its
/// domain as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpSeq(pub(crate) u64);

pub(crate) struct Sequence {
    seq: AtomicU64,
    /// The leader's lock: 0, or [`HELD`] with a note.
    leader: AtomicU64,
    /// Held by a thread that takes the note and unbinds the leader.
    #[cfg(not(loom))]
    unbinding: Lock,
    /// A leader steps down.
    stepped_down: Event,
}

impl Sequence {
    /// Where the number is, for `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) const SEQUENCE: usize = std::mem::offset_of!(Sequence, seq);

    const_unless_loom! {
        pub(crate) fn new() -> Sequence {
            Sequence {
                seq: AtomicU64::new(0),
                leader: AtomicU64::new(0),
                #[cfg(not(loom))]
                unbinding: Lock::new(),
                stepped_down: Event::new()
            }
        }
    }

    /// The end of the next full grace period. Does not start one.
    pub(crate) fn cookie(&self) -> GpSeq {
        // Pairs with the heavy barrier of the leader: see the module's text.
        fence(Ordering::SeqCst);
        GpSeq((self.seq.load(Ordering::Relaxed) + 3) & !1)
    }

    /// Does a grace period run?
    #[cfg(not(loom))]
    pub(crate) fn running(&self) -> bool {
        self.seq.load(Ordering::Relaxed) & 1 != 0
    }

    /// Has it ended?
    pub(crate) fn done(&self, cookie: GpSeq) -> bool {
        // Acquires what the leader acquired from the readers.
        self.seq.load(Ordering::Acquire).wrapping_sub(cookie.0) as i64 >= 0
    }

    /// Waits until it has ended, leading grace periods where nobody else does. False if `deadline`
    /// came first.
    pub(crate) fn run_until(
        &self,
        cookie: GpSeq,
        attempt: &Attempt<'_>,
        engine: &dyn GraceEngine,
        stats: &GraceStats,
    ) -> bool {
        let _cancel = CancelDisabled::new();
        #[cfg(not(loom))]
        let bound = thread::bound();
        #[cfg(not(loom))]
        let held = HELD | bound.map_or(0, Bound::note);
        #[cfg(loom)]
        let held = HELD;
        // Since when no leader has stepped down.
        #[cfg(not(loom))]
        let mut waits: Option<(u32, Instant)> = None;
        loop {
            let count = self.stepped_down.count();
            if self.done(cookie) {
                return true;
            }
            if self.leader.compare_exchange(0, held, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                let done = self.done(cookie) || self.lead(attempt, engine, stats);
                let _noted = self.leader.swap(0, Ordering::AcqRel);
                self.stepped_down.happen();
                #[cfg(not(loom))]
                if let Some(bound) = bound.filter(|_| _noted != held) {
                    self.bind_again(bound);
                }
                if !done {
                    return false;
                }
            } else {
                let left = attempt.deadline.map(|d| d.saturating_duration_since(Instant::now()));
                if left.is_some_and(|l| l.is_zero()) {
                    return false;
                }
                #[cfg(not(loom))]
                {
                    // Signals may end the sleep early, again and again.
                    let since = waits.filter(|waits| waits.0 == count).map(|waits| waits.1);
                    let since = since.unwrap_or_else(Instant::now);
                    waits = Some((count, since));
                    let time = left.map_or(PATIENCE, |l| l.min(PATIENCE));
                    self.await_leader(count, since, time);
                }
                #[cfg(loom)]
                self.stepped_down.sleep(count, left);
            }
        }
    }

    /// Sleeps until the leader steps down, at most `time`. Lets a bound leader run on other CPUs if
    /// none has stepped down `since` then, for [`PATIENCE`].
    #[cfg(not(loom))]
    fn await_leader(&self, count: u32, since: Instant, time: std::time::Duration) {
        self.stepped_down.sleep(count, Some(time));
        let stays = since.elapsed() >= PATIENCE && self.stepped_down.count() == count;
        let noted = |leader: u64| Bound::noted(leader & !HELD);
        // A thread that has the lock does the same.
        if stays
            && noted(self.leader.load(Ordering::Relaxed)).is_some()
            && self.unbinding.try_lock()
        {
            let leader = self.leader.load(Ordering::Acquire);
            // Somebody may have given it other CPUs since, which are left as they are.
            let helps = |bound: &Bound| sys::is_bound(bound.thread, bound.cpu);
            if let Some(bound) = noted(leader).filter(helps) {
                let taken =
                    self.leader.compare_exchange(leader, HELD, Ordering::AcqRel, Ordering::Relaxed);
                if taken.is_ok() {
                    sys::unbind(bound.thread);
                }
            }
            self.unbinding.unlock();
        }
    }

    /// A worker that was the leader, whose note was taken: on its CPU again.
    #[cfg(not(loom))]
    fn bind_again(&self, bound: Bound) {
        self.unbinding.lock();
        self.unbinding.unlock();
        if sys::is_unbound() {
            sys::bind(bound.cpu);
        }
    }

    /// Runs a grace period, under the leader's lock.
    fn lead(&self, attempt: &Attempt<'_>, engine: &dyn GraceEngine, stats: &GraceStats) -> bool {
        let before = self.seq.load(Ordering::Relaxed);
        debug_assert!(before & 1 == 0);
        let start = stats.start();
        self.seq.store(before + 1, Ordering::SeqCst);
        let done = engine.grace_period(attempt);
        // Release: pairs with `done`.
        self.seq.store(if done { before + 2 } else { before }, Ordering::Release);
        stats.end(start, done);
        done
    }

    /// In the child of a fork: there is no leader, whatever the memory says. A grace period that
    /// was running counts as never begun, since this thread may be one of the readers it waited
    /// for.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.leader.store(0, Ordering::Relaxed);
        self.unbinding.reset();
        self.seq.store(self.seq.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        self.stepped_down.after_fork();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::urgency::Urgency;
    use super::super::watch::Watch;
    use super::*;
    use crate::platform::barrier::Kind;
    use crate::thread::id::DomainId;
    use crate::thread::registry::Registry;
    use std::sync::atomic::AtomicBool;

    fn cpus() -> usize {
        let allowed = sys::affinity().unwrap();
        // SAFETY: plain data.
        unsafe { libc::CPU_COUNT(&allowed) as usize }
    }

    /// A grace period that ends when its leader may run on more than one CPU.
    struct Unbound(AtomicBool);

    impl GraceEngine for Unbound {
        fn grace_period(&self, _: &Attempt<'_>) -> bool {
            self.0.store(true, Ordering::SeqCst);
            while cpus() == 1 {
                sys::sleep(std::time::Duration::from_millis(1));
            }
            true
        }
    }

    /// As if a real-time thread had the CPU of a worker that leads: without help the test hangs.
    #[test]
    fn a_bound_leader_is_unbound_and_binds_itself_again() {
        crate::platform::start::ensure();
        if cpus() == 1 {
            return println!("one CPU: skipped");
        }
        let (sequence, engine) = (Sequence::new(), Unbound(AtomicBool::new(false)));
        let (registry, urgency, stats) = (Registry::new(), Urgency::new(), GraceStats::new());
        let (watch, visits) = (Watch::new(DomainId::GLOBAL), AtomicU64::new(0));
        let attempt = || Attempt {
            registry: &registry,
            barrier: Kind::Fence,
            urgency: &urgency,
            deadline: None,
            watch: &watch,
            visits: &visits,
        };
        let cookie = sequence.cookie();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cpu = sys::current_cpu().unwrap();
                assert!(sys::bind(cpu));
                thread::note_bound();
                assert!(sequence.run_until(cookie, &attempt(), &engine, &stats));
                assert_eq!(cpus(), 1, "bound again");
                assert_eq!(sys::current_cpu(), Some(cpu));
            });
            while !engine.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(sequence.run_until(cookie, &attempt(), &engine, &stats));
        });
    }
}
