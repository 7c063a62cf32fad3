// SPDX-License-Identifier: MIT OR Apache-2.0
//! Until when a thread waits.

use std::time::Duration;

#[cfg(not(loom))]
use super::clock::{now, time_of_day};
#[cfg(loom)]
use super::env::{now, now as time_of_day};

/// A time in ns, by one of the clocks that the kernel waits by.
#[derive(Clone, Copy)]
pub enum End {
    /// `CLOCK_MONOTONIC`.
    Monotonic(u64),
    /// `CLOCK_REALTIME`. Whoever sets the clock changes how long it is until then.
    TimeOfDay(u64),
}

impl End {
    /// For a futex's wait until `end`, if there is one: the operation, and its time. The kernel
    /// knows when the clock is set.
    #[cfg(not(loom))]
    pub fn for_futex(end: Option<End>) -> (i32, Option<libc::timespec>) {
        let (by, ns) = match end {
            None => (0, None),
            Some(End::Monotonic(ns)) => (0, Some(ns)),
            Some(End::TimeOfDay(ns)) => (libc::FUTEX_CLOCK_REALTIME, Some(ns)),
        };
        let limit = ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG | by, limit)
    }

    /// An end `time` from now.
    pub fn after(time: Duration) -> End {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        End::Monotonic(now().saturating_add(time))
    }

    /// How long it is until then; 0 if it is over.
    pub fn left(self) -> Duration {
        let (end, now) = match self {
            End::Monotonic(end) => (end, now()),
            End::TimeOfDay(end) => (end, time_of_day()),
        };
        Duration::from_nanos(end.saturating_sub(now))
    }
}
