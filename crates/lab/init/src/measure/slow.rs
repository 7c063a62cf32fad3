// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples what changes slowly: fragmentation, shares of CPU time, waiting callbacks; about once a
//! second, by an ordinary thread.
//!
//! No stock kernel shows the number of all waiting callbacks. The kernel module knows the number of
//! its own when it runs membench; that number is reported, as the load's.

use super::cpu::{self, CpuTimes, Shares};
use super::fragmentation;
use super::memory::next_due;
use crate::kmod;
use crate::sys::{Context, Result, now_ns};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub struct SlowReading {
    pub time_ns: u64,
    pub shares: Option<Shares>,
    pub unusable: Option<Vec<f64>>,
    pub callbacks: Option<u64>,
}

/// Readings stop being kept here: a day's worth at one per second.
const MOST: usize = 100_000;

#[derive(Default)]
struct Stop {
    wanted: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

/// Samples until it is finished, or dropped.
pub struct SlowSampler {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Vec<SlowReading>>>,
}

impl SlowSampler {
    pub fn start(interval_ms: u32) -> Result<SlowSampler> {
        let interval = u64::from(interval_ms.max(10)) * 1_000_000;
        let stop = Arc::new(Stop::default());
        let stopped = stop.clone();
        let run = move || {
            let mut readings = Vec::with_capacity(256);
            let mut before = times();
            let mut due = now_ns();
            loop {
                due = next_due(due, now_ns(), interval);
                sleep_unless_stopped(&stopped, due);
                if stopped.wanted.load(Ordering::Relaxed) || readings.len() == MOST {
                    return readings;
                }
                let time_ns = now_ns();
                let after = times();
                let unusable = fragmentation::read();
                let callbacks = kmod::stats().ok().filter(|s| s.pairs > 0).map(|s| s.waiting);
                readings.push(SlowReading {
                    time_ns,
                    shares: before.zip(after).and_then(|(b, a)| cpu::shares(&b, &a)),
                    unusable,
                    callbacks,
                });
                before = after;
            }
        };
        let thread = std::thread::Builder::new()
            .name("slow".into())
            .stack_size(128 << 10)
            .spawn(run)
            .context("starting the slow sampler")?;
        Ok(SlowSampler { stop, thread: Some(thread) })
    }

    pub fn finish(mut self) -> Result<Vec<SlowReading>> {
        self.end().ok_or_else(|| "the slow sampler died".into())
    }

    fn end(&mut self) -> Option<Vec<SlowReading>> {
        self.stop.wanted.store(true, Ordering::Relaxed);
        // Under the lock, so that the thread is either before its look at the flag or asleep.
        drop(self.stop.lock.lock().unwrap_or_else(|e| e.into_inner()));
        self.stop.wake.notify_all();
        self.thread.take()?.join().ok()
    }
}

impl Drop for SlowSampler {
    fn drop(&mut self) {
        self.end();
    }
}

fn times() -> Option<CpuTimes> {
    cpu::parse(&fs::read_to_string("/proc/stat").ok()?)
}

fn sleep_unless_stopped(stop: &Stop, due: u64) {
    let mut guard = stop.lock.lock().unwrap_or_else(|e| e.into_inner());
    while !stop.wanted.load(Ordering::Relaxed) {
        let left = due.saturating_sub(now_ns());
        if left == 0 {
            return;
        }
        let wait = Duration::from_nanos(left);
        guard = stop.wake.wait_timeout(guard, wait).unwrap_or_else(|e| e.into_inner()).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_sampler_samples_no_more() {
        // The next sample is due in seven weeks: the test ends if nobody waits for it.
        let sampler = SlowSampler::start(u32::MAX).unwrap();
        let stop = sampler.stop.clone();
        drop(sampler);
        assert_eq!(Arc::strong_count(&stop), 1, "its thread has ended");
    }
}
