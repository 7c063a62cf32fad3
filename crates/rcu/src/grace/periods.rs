// SPDX-License-Identifier: MIT OR Apache-2.0
//! The grace periods of one domain: their sequence, the engine that runs them, the registry of
//! readers, the watch over readers that hold them up, the counters.

use super::background::Background;
use super::engine::{self, Attempt, GraceEngine};
use super::sequence::{GpSeq, Sequence};
use super::stats::{GraceStats, Latency, uptime};
use super::urgency::Urgency;
use super::watch::{Stall, Watch};
use crate::platform::Instant;
use crate::platform::barrier::Kind;
use crate::platform::cancel::CancelDisabled;
use crate::thread;
use crate::thread::id::DomainId;
use crate::thread::record::Record;
use crate::thread::registry::{REGISTRIES, Registry};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) struct GracePeriods {
    pub(crate) id: DomainId,
    pub(crate) registry: &'static Registry,
    engine: Box<dyn GraceEngine>,
    pub(crate) barrier: Kind,
    sequence: Sequence,
    pub(crate) urgency: Urgency,
    stats: GraceStats,
    pub(crate) watch: Watch,
    /// Grace periods that visited CPUs.
    visits: AtomicU64,
    /// When somebody last looked for callbacks of dead threads, in nanoseconds of [`uptime`].
    looked_for_dead: AtomicU64,
    pub(crate) background: Background,
}

impl GracePeriods {
    /// Where things are, for `inspect.rs`.
    pub(crate) const SEQUENCE: usize = offset_of!(GracePeriods, sequence) + Sequence::SEQUENCE;
    pub(crate) const COMPLETED: usize = offset_of!(GracePeriods, stats) + GraceStats::COMPLETED;
    pub(crate) const SINCE: usize = offset_of!(GracePeriods, stats) + GraceStats::SINCE;

    pub(crate) fn new(id: DomainId, engine: Box<dyn GraceEngine>, barrier: Kind) -> GracePeriods {
        GracePeriods {
            id,
            registry: &REGISTRIES[id.index()],
            engine,
            barrier,
            sequence: Sequence::new(),
            urgency: Urgency::new(),
            stats: GraceStats::new(),
            watch: Watch::new(id),
            visits: AtomicU64::new(0),
            looked_for_dead: AtomicU64::new(0),
            background: Background::new(),
        }
    }

    /// See [`Sequence::cookie`].
    #[inline]
    pub(crate) fn cookie(&self) -> GpSeq {
        self.sequence.cookie()
    }

    /// See [`Sequence::done`].
    #[inline]
    pub(crate) fn done(&self, cookie: GpSeq) -> bool {
        self.sequence.done(cookie)
    }

    fn attempt(&self, deadline: Option<Instant>) -> Attempt<'_> {
        Attempt {
            registry: self.registry,
            barrier: self.barrier,
            urgency: &self.urgency,
            deadline,
            watch: &self.watch,
            visits: &self.visits,
        }
    }

    /// See [`Sequence::run_until`].
    pub(crate) fn run_until(&self, cookie: GpSeq, deadline: Option<Instant>) -> bool {
        let attempt = self.attempt(deadline);
        self.sequence.run_until(cookie, &attempt, &*self.engine, &self.stats)
    }

    /// Whether the last grace periods were quick.
    pub(crate) fn quick(&self) -> bool {
        self.stats.quick()
    }

    /// See [`engine::quick`].
    pub(crate) fn quick_grace_period(&self) -> bool {
        let start = self.stats.start();
        let done = engine::quick(self.barrier, self.registry);
        self.stats.end(start, done);
        done
    }

    /// This thread's record, if it has one.
    pub(crate) fn own_record(&self) -> Option<&'static Record> {
        thread::existing(self.id.index())
    }

    /// Whether this thread is inside a plain section of this domain: then it must not wait for a
    /// grace period.
    pub(crate) fn in_section(&self) -> bool {
        self.own_record().is_some_and(|r| r.nesting() != 0)
    }

    /// See `Domain::stalled`.
    pub(crate) fn stalled(&self, longer_than: Duration) -> Option<Stall> {
        // The watch reads files of /proc.
        let _cancel = CancelDisabled::new();
        self.sequence.running().then(|| self.watch.stalled(self.registry, longer_than)).flatten()
    }

    /// See `Domain::forget_dead_threads`.
    pub(crate) fn forget_dead_threads(&self) -> usize {
        // A record stays seized while its owner is looked for.
        let _cancel = CancelDisabled::new();
        self.watch.forget_all_dead(self.registry)
    }

    /// Gives up the records of threads that died in the middle of a registration, for which
    /// callbacks wait. Unless the program has forbidden it.
    pub(crate) fn forget_dead_owners(&self) {
        self.watch.forget_dead_registering(self.registry);
    }

    /// Whether it is time to look for callbacks of dead threads. Of several simultaneous callers
    /// exactly one gets `true`.
    pub(crate) fn time_to_look_for_dead(&self) -> bool {
        /// In nanoseconds.
        const PAUSE: u64 = 100_000_000;
        let (now, last) =
            (uptime().as_nanos() as u64, self.looked_for_dead.load(Ordering::Relaxed));
        now > last + PAUSE
            && self
                .looked_for_dead
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn latency(&self) -> Latency {
        self.stats.latency()
    }

    /// Grace periods that visited CPUs.
    pub(crate) fn visits(&self) -> u64 {
        self.visits.load(Ordering::Relaxed)
    }

    /// The thread for grace periods in the background: runs them until `stopping`.
    pub(crate) fn serve_background(&self, stopping: impl Fn() -> bool) {
        let run = |cookie| {
            self.run_until(cookie, None);
        };
        self.background.serve(&self.sequence, run, stopping);
    }

    /// In the child of a fork.
    pub(crate) fn after_fork(&self) {
        self.sequence.after_fork();
        self.urgency.after_fork();
        self.background.after_fork();
    }
}
