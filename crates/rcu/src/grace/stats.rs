// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of a domain, cheap enough to stay on: written by leaders of grace periods and by
//! workers, never on a read side's fast path.

use crate::platform::sync::AtomicU64;
#[cfg(not(loom))]
use crate::platform::sync::Ordering;
#[cfg(not(loom))]
use crate::platform::sys::monotonic_for_statistics;
use std::time::Duration;

/// Buckets of [`Latency`]: four per power of two, from 1 ns to beyond an hour.
pub const BUCKETS: usize = 4 * 42;

/// A registering thread may run a grace period itself if the last ones were shorter than this.
#[cfg(not(loom))]
const QUICK: Duration = Duration::from_micros(250);

/// Written by the leader of a grace period.
pub(crate) struct GraceStats {
    pub(crate) count: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    given_up: AtomicU64,
    /// Attempts in a row that were given up or took longer than [`QUICK`].
    slow: AtomicU64,
    /// When the current or the last grace period began: nanoseconds of [`uptime`].
    #[cfg(not(loom))]
    since: AtomicU64,
    #[cfg(not(loom))]
    buckets: [AtomicU64; BUCKETS],
}

impl GraceStats {
    /// For `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) const COMPLETED: usize = std::mem::offset_of!(GraceStats, count);
    #[cfg(not(loom))]
    pub(crate) const SINCE: usize = std::mem::offset_of!(GraceStats, since);

    pub(crate) fn new() -> GraceStats {
        GraceStats {
            count: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            #[cfg(not(loom))]
            since: AtomicU64::new(0),
            #[cfg(not(loom))]
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn start(&self) -> Duration {
        let now = monotonic_for_statistics();
        self.since.store(now.as_nanos() as u64, Ordering::Relaxed);
        now
    }

    /// Whether the next grace period is likely to be quick: nobody is inside a plain section for
    /// long, and the membarrier need not wait for CPUs that do not run. A single slow one may mean
    /// that its leader was preempted; several in a row do not.
    #[cfg(not(loom))]
    pub(crate) fn quick(&self) -> bool {
        const ROW: u64 = 4;
        self.slow.load(Ordering::Relaxed) < ROW
    }

    #[cfg(not(loom))]
    pub(crate) fn end(&self, start: Duration, done: bool) {
        let time = monotonic_for_statistics().saturating_sub(start);
        if !done || time > QUICK {
            self.slow.fetch_add(1, Ordering::Relaxed);
        } else {
            self.slow.store(0, Ordering::Relaxed);
        }
        if !done {
            self.given_up.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let ns = time.as_nanos() as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    // Counters would multiply the states of a model and prove nothing.
    #[cfg(loom)]
    pub(crate) fn start(&self) {}

    #[cfg(loom)]
    pub(crate) fn end(&self, _: (), _: bool) {}

    #[cfg(not(loom))]
    pub(crate) fn latency(&self) -> Latency {
        Latency {
            count: self.count.load(Ordering::Relaxed),
            total: Duration::from_nanos(self.total_ns.load(Ordering::Relaxed)),
            max: Duration::from_nanos(self.max_ns.load(Ordering::Relaxed)),
            given_up: self.given_up.load(Ordering::Relaxed),
            buckets: std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed)),
        }
    }
}

/// The bucket for `ns`: its two bits after the leading one choose within the power of two.
#[cfg(any(not(loom), test))]
fn bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let power = ns.ilog2() as usize;
    (power * 4 + (ns >> (power - 2)) as usize % 4).min(BUCKETS - 1)
}

/// Smallest time of bucket `index`, in nanoseconds.
#[cfg(any(not(loom), test))]
fn bucket_start(index: usize) -> u64 {
    let (power, quarter) = (index as u32 / 4, index as u64 % 4);
    if power < 2 { 0 } else { (4 + quarter) << (power - 2) }
}

/// How long grace periods took, from the leader's start to the end of the last section it waited
/// for.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Grace periods completed.
    pub count: u64,
    /// Sum of their durations.
    pub total: Duration,
    /// The longest.
    pub max: Duration,
    /// Grace periods that a caller with a deadline began and gave up.
    pub given_up: u64,
    /// Logarithmic histogram, four buckets per power of two of nanoseconds. See
    /// [`Latency::quantile`].
    pub buckets: [u64; BUCKETS],
}

#[cfg(not(loom))]
impl Latency {
    /// The mean, zero if there was none.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(self.count.min(u32::MAX as u64) as u32).unwrap_or_default()
    }

    /// Upper bound of the duration that a share `q` (0 to 1) of the grace periods stayed below,
    /// within 25 %.
    pub fn quantile(&self, q: f64) -> Duration {
        let all: u64 = self.buckets.iter().sum();
        let wanted = (all as f64 * q.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted && seen > 0 {
                return Duration::from_nanos(bucket_start(i + 1)).min(self.max);
            }
        }
        Duration::ZERO
    }
}

/// Written by workers.
pub(crate) struct CallbackStats {
    pub(crate) run: AtomicU64,
    /// Times a registering thread found the cap exceeded, and times one helped, which it does from
    /// 7/8 of the soft cap on.
    pub(crate) over_cap: AtomicU64,
    pub(crate) helped: AtomicU64,
}

impl CallbackStats {
    #[cfg(not(loom))]
    pub(crate) fn new() -> CallbackStats {
        CallbackStats {
            run: AtomicU64::new(0),
            over_cap: AtomicU64::new(0),
            helped: AtomicU64::new(0),
        }
    }
}

/// A snapshot of a domain's counters. Counters that threads write without synchronization may lag.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Grace periods and how long they took.
    pub grace_periods: Latency,
    /// Callbacks registered and not yet run.
    pub waiting: u64,
    /// Bytes that their registrations announced, in steps of 16.
    pub waiting_bytes: u64,
    /// Those of them that wait for [`Protected`](crate::Protected) guards only, as of the last look
    /// into the slots.
    pub held: u64,
    /// Callbacks run.
    pub run: u64,
    /// Registrations that found the cap exceeded.
    pub over_cap: u64,
    /// Times a registering thread made a grace period and ran callbacks itself.
    pub helped: u64,
    /// Times a restartable section started over.
    pub restarts: u64,
    /// Lookups that ran in a plain section after too many restarts, or because the thread cannot
    /// restart.
    pub fallbacks: u64,
    /// Stall reports made. See [`watch`](crate::grace::watch).
    pub stalls: u64,
    /// Readers that died inside a section, or with a record, and were forgotten.
    pub forgotten: u64,
    /// Grace periods that woke a thread on each CPU where that was possible, instead of
    /// interrupting it, because the membarrier was seen to spin. See `docs/runtime.md`.
    pub visits: u64,
    /// Threads registered because they read or register callbacks, with this domain or with an
    /// earlier one whose place it took.
    pub threads: u64,
}

/// Time since some fixed moment, the same for all threads.
pub(crate) fn uptime() -> Duration {
    #[cfg(not(loom))]
    return crate::platform::sys::monotonic();
    #[cfg(loom)]
    return Duration::ZERO;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_ordered() {
        for i in 8..BUCKETS - 1 {
            assert_eq!(bucket(bucket_start(i)), i);
            assert_eq!(bucket(bucket_start(i + 1) - 1), i);
        }
        assert_eq!(bucket(0), 8);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_bound_the_samples() {
        let grace = GraceStats::new();
        for ns in [1_000u64, 2_000, 3_000, 1_000_000] {
            grace.count.fetch_add(1, Ordering::Relaxed);
            grace.total_ns.fetch_add(ns, Ordering::Relaxed);
            grace.max_ns.fetch_max(ns, Ordering::Relaxed);
            grace.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        }
        let latency = grace.latency();
        assert_eq!(latency.mean(), Duration::from_nanos(251_500));
        let median = latency.quantile(0.5).as_nanos();
        assert!((2_000..=2_500).contains(&median), "{median}");
        assert_eq!(latency.quantile(1.0), Duration::from_millis(1));
    }
}
