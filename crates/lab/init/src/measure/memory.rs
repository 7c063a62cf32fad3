// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the guest, every few milliseconds.
//!
//! A real-time thread reads `/proc/meminfo` with one system call per sample, from a descriptor kept
//! open, into memory touched beforehand: it neither allocates nor waits for the load's threads. A
//! sample has the time at which it was taken, not the time at which it was due. A sample that could
//! not be taken in time (the vCPU was preempted) is left out; the longest such gap is reported.
//!
//! However long the phase, a bounded number of samples is taken: a long one has a longer interval.

use super::meminfo;
use crate::sys::{self, Context, Result, now_ns};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Most readings of a phase: half an hour at 20 ms. There is room for twice as many (8 MB).
const MOST: u64 = 100_000;

/// A reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    pub free_kb: u64,
    pub slab_kb: u64,
    pub used_kb: u64,
}

/// Samples until it is finished, or dropped.
pub struct MemorySampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Reading>>>,
    own_kb: u64,
}

impl MemorySampler {
    /// Starts sampling every `interval_ms` or more, for `duration_ms` and some more. Returns after
    /// the first sample: there is one from before the load.
    pub fn start(interval_ms: u32, duration_ms: u64) -> Result<MemorySampler> {
        let file = File::open("/proc/meminfo").context("/proc/meminfo")?;
        let duration = duration_ms.saturating_mul(1_000_000);
        let interval = (u64::from(interval_ms.max(1)) * 1_000_000).max(duration / MOST);
        let room = (duration / interval * 2 + 1_000) as usize;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (first, taken) = mpsc::channel::<()>();
        let run = move || {
            let mut first = Some(first);
            // Written once, so that the pages are there.
            let mut readings = vec![Reading { time_ns: 1, ..Reading::default() }; room];
            readings.clear();
            let mut text = vec![1; 16 << 10];
            let _ = sys::make_realtime();
            let mut due = now_ns();
            while !stopped.load(Ordering::Relaxed) && readings.len() < room {
                let n = file.read_at(&mut text, 0).unwrap_or(0);
                let t = now_ns();
                if let Some(info) = meminfo::parse(&text[..n]) {
                    readings.push(Reading {
                        time_ns: t,
                        free_kb: info.free_kb,
                        slab_kb: info.slab_kb,
                        used_kb: info.used_kb(),
                    });
                }
                drop(first.take());
                due = next_due(due, now_ns(), interval);
                sys::sleep_until(due);
            }
            readings
        };
        let thread = std::thread::Builder::new()
            .name("memory".into())
            .stack_size(128 << 10)
            .spawn(run)
            .context("starting the memory sampler")?;
        // Nothing is sent: the sender is dropped, also if the thread panics.
        let _ = taken.recv();
        let own_kb = (room * size_of::<Reading>()) as u64 >> 10;
        Ok(MemorySampler { stop, thread: Some(thread), own_kb })
    }

    /// Memory that the samples take.
    pub fn own_kb(&self) -> u64 {
        self.own_kb
    }

    pub fn finish(mut self) -> Result<Vec<Reading>> {
        self.end().ok_or_else(|| "the memory sampler died".into())
    }

    fn end(&mut self) -> Option<Vec<Reading>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        self.end();
    }
}

/// The readings from `from` to `to`, each with its time since then; before them the last one from
/// before `from`, at 0: what there was when the phase began.
pub fn of_phase(readings: &[Reading], from: u64, to: u64) -> impl Iterator<Item = (u64, &Reading)> {
    let began = readings.iter().rposition(|r| r.time_ns <= from).unwrap_or(0);
    let until = readings[began..].iter().take_while(move |r| r.time_ns <= to);
    until.map(move |r| (r.time_ns.saturating_sub(from), r))
}

/// The next multiple of `interval` after `due` that is later than `now`: missed samples are not
/// made up for.
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
    fn a_day_takes_no_more_memory_than_an_hour() {
        let sampler = |ms| MemorySampler::start(20, ms).unwrap();
        assert!(sampler(24 * 3_600_000).own_kb() < 8 << 10);
        assert!(sampler(5_000).own_kb() < 100);
    }

    #[test]
    fn a_phase_begins_with_the_last_reading_before_it() {
        let readings =
            [90, 110, 130, 150, 170].map(|time_ns| Reading { time_ns, ..Reading::default() });
        let of = |from, to| -> Vec<(u64, u64)> {
            of_phase(&readings, from, to).map(|(t, r)| (t, r.time_ns)).collect()
        };
        assert_eq!(of(125, 160), [(0, 110), (5, 130), (25, 150)]);
        assert_eq!(of(130, 150), [(0, 130), (20, 150)]);
        assert_eq!(of(80, 100), [(10, 90)]);
        assert_eq!(of(180, 200), [(0, 170)]);
    }

    #[test]
    fn a_sampler_that_has_started_has_a_sample() {
        let readings = MemorySampler::start(1, 1_000).unwrap().finish().unwrap();
        assert!(readings.first().is_some_and(|reading| reading.time_ns <= now_ns()));
    }

    #[test]
    fn a_dropped_sampler_samples_no_more() {
        let sampler = MemorySampler::start(1, 1_000).unwrap();
        let stop = sampler.stop.clone();
        assert_eq!(Arc::strong_count(&stop), 3);
        drop(sampler);
        assert_eq!(Arc::strong_count(&stop), 1, "its thread has ended");
    }

    #[test]
    fn gaps_include_the_ends() {
        assert_eq!(longest_gap([10, 20, 30].into_iter(), 5, 35), 10);
        assert_eq!(longest_gap([10, 20].into_iter(), 0, 100), 80);
        assert_eq!(longest_gap(std::iter::empty(), 0, 100), 100);
    }
}
