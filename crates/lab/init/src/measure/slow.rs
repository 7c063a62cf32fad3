// SPDX-License-Identifier: MIT OR Apache-2.0
//! What changes slowly: fragmentation, shares of CPU time, callbacks waiting. Sampled about once a second by an ordinary thread.
//!
//! No stock kernel tells how many callbacks wait in all. Where the kernel module runs membench, its own are known; they are reported as what they
//! are: those of the load.

use super::cpu::{self, CpuTimes, Shares};
use super::fragmentation;
use super::memory::next_due;
use crate::kmod;
use crate::sys::{self, Context, Result, now_ns};
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

pub struct SlowSampler {
    stop: Arc<Stop>,
    thread: JoinHandle<(Vec<SlowReading>, u64)>,
}

impl SlowSampler {
    pub fn start(interval_ms: u32) -> Result<SlowSampler> {
        let interval = u64::from(interval_ms.max(10)) * 1_000_000;
        let stop = Arc::new(Stop::default());
        let stopped = stop.clone();
        let run = move || {
            let cpu = sys::thread_cpu_ns();
            let mut readings = Vec::with_capacity(256);
            let mut before = times();
            let mut due = now_ns();
            loop {
                due = next_due(due, now_ns(), interval);
                sleep_unless_stopped(&stopped, due);
                if stopped.wanted.load(Ordering::Relaxed) || readings.len() == MOST {
                    return (readings, sys::thread_cpu_ns() - cpu);
                }
                let time_ns = now_ns();
                let after = times();
                readings.push(SlowReading {
                    time_ns,
                    shares: before.zip(after).and_then(|(b, a)| cpu::shares(&b, &a)),
                    unusable: fragmentation::read(),
                    callbacks: kmod::stats().ok().filter(|s| s.pairs > 0).map(|s| s.waiting),
                });
                before = after;
            }
        };
        let thread = std::thread::Builder::new()
            .name("slow".into())
            .stack_size(128 << 10)
            .spawn(run)
            .context("starting the slow sampler")?;
        Ok(SlowSampler { stop, thread })
    }

    /// The readings, and the CPU time the thread took.
    pub fn finish(self) -> Result<(Vec<SlowReading>, u64)> {
        self.stop.wanted.store(true, Ordering::Relaxed);
        // Under the lock, so that the thread is either before its look at the flag or asleep.
        drop(self.stop.lock.lock().unwrap_or_else(|e| e.into_inner()));
        self.stop.wake.notify_all();
        self.thread.join().map_err(|_| "the slow sampler died".into())
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
