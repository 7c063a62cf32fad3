// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two threads that do nothing but wake each other want a CPU, one after the other. Each was woken
//! a moment ago whenever the other sleeps; a scheduler that always prefers such threads would never
//! run anybody else there.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use anyhow::{Result, anyhow};
use reprieve_lab::vm::{Threads, allowed_cpus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long shares are measured, and the time before.
const WINDOW: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(300);
/// How long each of the two computes before it wakes the other.
const COMPUTES: Duration = Duration::from_micros(20);

/// Where threads may run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Where {
    /// On one CPU only.
    Pinned,
    Anywhere,
}

/// All four ways in which a pair and threads that compute can meet.
pub const SCENES: [(Where, Where); 4] = [
    (Where::Pinned, Where::Pinned),
    (Where::Pinned, Where::Anywhere),
    (Where::Anywhere, Where::Pinned),
    (Where::Anywhere, Where::Anywhere),
];

/// Wakes, again and again, whoever reads from `to`.
fn partner(from: &Receiver<()>, to: &Sender<()>, stop: &AtomicBool) {
    while from.recv().is_ok() && !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        while began.elapsed() < COMPUTES {
            std::hint::spin_loop();
        }
        if to.send(()).is_err() {
            return;
        }
    }
}

/// The two threads, until it is dropped.
struct Pair {
    tids: Vec<u32>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pair {
    fn start() -> Result<Pair> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut pair = Pair { tids: Vec::new(), stop, threads: Vec::new() };
        let ((to_first, from_second), (to_second, from_first)) = (channel(), channel());
        to_first.send(())?;
        for (from, to) in [(from_second, to_second), (from_first, to_first)] {
            let (stop, (send, tid)) = (pair.stop.clone(), channel());
            let thread = std::thread::Builder::new().name("partner".into()).spawn(move || {
                let _ = send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
                partner(&from, &to, &stop);
            })?;
            pair.threads.push(thread);
            pair.tids.push(tid.recv()?);
        }
        Ok(pair)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Whoever sees it first takes its ends of the channels along, and so wakes the other.
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The least that a thread had which computes, in percent of a CPU, beside a pair. There is a
/// thread for each of two CPUs; a pinned pair is on the first of them.
pub fn least_share(setup: &GuestSetup, (pair, others): (Where, Where)) -> Result<f64> {
    let cpus: Vec<u32> = few_cpus().into_iter().take(2).collect();
    let first = *cpus.first().ok_or_else(|| anyhow!("no CPU"))?;
    let all: Vec<u32> = (0..allowed_cpus().len() as u32).collect();
    let this = |tid| Threads::new(std::process::id(), vec![tid]);

    let spinners = cpus.iter().map(|&cpu| Spinner::start(cpu)).collect::<Result<Vec<_>>>()?;
    if others == Where::Anywhere {
        for spinner in &spinners {
            this(spinner.tid).pin(std::slice::from_ref(&all), &[])?;
        }
    }
    let two = Pair::start()?;
    if pair == Where::Pinned {
        for &tid in &two.tids {
            this(tid).pin(&[vec![first]], &[])?;
        }
    }
    setup.sleep(SETTLE)?;
    let ran = || spinners.iter().map(|spinner| this(spinner.tid).vcpu_counters().run_ns);
    let (began, before) = (Instant::now(), ran().collect::<Vec<u64>>());
    setup.sleep(WINDOW)?;
    let shares = ran().zip(before).map(|(after, before)| after - before);
    let least = shares.min().unwrap_or(0) as f64;
    Ok(100.0 * least / began.elapsed().as_nanos() as f64)
}
