// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the guest, every few milliseconds.
//!
//! A real-time thread reads `/proc/meminfo` with one system call per sample, from a descriptor kept open, into memory touched beforehand: it
//! neither allocates nor waits for the load's threads. Times are those of the reading, not of the plan; a sample that could not be taken in
//! time (vCPU preempted) is left out and shows as a gap, whose longest is reported.

use super::meminfo::{self, MemInfo};
use crate::sys::{self, Context, Result, now_ns};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// One reading: when (`CLOCK_MONOTONIC`, ns) and what.
pub type Reading = (u64, MemInfo);

pub struct MemorySampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Vec<Reading>, u64)>,
}

/// What a sampler saw.
pub struct Readings {
    pub readings: Vec<Reading>,
    /// CPU time the thread took.
    pub cpu_ns: u64,
}

impl MemorySampler {
    /// Starts sampling every `interval_ms`, for `duration_ms` and some more.
    pub fn start(interval_ms: u32, duration_ms: u64) -> Result<MemorySampler> {
        let interval = u64::from(interval_ms.max(1)) * 1_000_000;
        let file = File::open("/proc/meminfo").context("/proc/meminfo")?;
        let capacity = (duration_ms * 1_000_000 / interval * 2 + 1_000) as usize;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            // Written once, so that the pages are there.
            let mut readings = vec![(1, MemInfo::default()); capacity];
            readings.clear();
            let mut text = vec![1; 16 << 10];
            let _ = sys::make_realtime();
            let cpu = sys::thread_cpu_ns();
            let mut due = now_ns();
            while !stopped.load(Ordering::Relaxed) && readings.len() < capacity {
                let n = file.read_at(&mut text, 0).unwrap_or(0);
                let t = now_ns();
                if let Some(info) = meminfo::parse(&text[..n]) {
                    readings.push((t, info));
                }
                due = next_due(due, now_ns(), interval);
                sys::sleep_until(due);
            }
            (readings, sys::thread_cpu_ns() - cpu)
        };
        let thread = std::thread::Builder::new()
            .name("memory".into())
            .stack_size(128 << 10)
            .spawn(run)
            .context("starting the memory sampler")?;
        Ok(MemorySampler { stop, thread })
    }

    pub fn finish(self) -> Result<Readings> {
        self.stop.store(true, Ordering::Relaxed);
        let (readings, cpu_ns) = self.thread.join().map_err(|_| "the memory sampler died")?;
        Ok(Readings { readings, cpu_ns })
    }
}

/// The next multiple of `interval` after `due` that still lies ahead of `now`: what was missed is not made up for.
pub fn next_due(due: u64, now: u64, interval: u64) -> u64 {
    if now < due { due } else { due + ((now - due) / interval + 1) * interval }
}

/// The longest time between two neighbours, and between them and the ends of the phase.
pub fn longest_gap(times: impl Iterator<Item = u64>, start: u64, end: u64) -> u64 {
    let mut last = start;
    let mut longest = 0;
    for t in times.chain(std::iter::once(end)) {
        longest = longest.max(t.saturating_sub(last));
        last = t;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_samples_are_left_out() {
        assert_eq!(next_due(100, 100, 20), 120);
        assert_eq!(next_due(100, 119, 20), 120);
        assert_eq!(next_due(100, 120, 20), 140);
        assert_eq!(next_due(100, 205, 20), 220);
        assert_eq!(next_due(100, 90, 20), 100);
    }

    #[test]
    fn gaps_include_the_ends() {
        assert_eq!(longest_gap([10, 20, 30].into_iter(), 5, 35), 10);
        assert_eq!(longest_gap([10, 20].into_iter(), 0, 100), 80);
        assert_eq!(longest_gap(std::iter::empty(), 0, 100), 100);
    }
}
