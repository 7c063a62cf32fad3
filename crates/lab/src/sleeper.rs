// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread of the host that belongs to no VM: it sleeps for 1 to 10 ms, runs for 50 us, and notes
//! by how much it woke too late, as a shell or a network daemon on a host of VMs would.

use crate::error::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Sleeps, ns.
const LEAST_NS: u64 = 1_000_000;
const MOST_NS: u64 = 10_000_000;

/// CPU time between two sleeps, ns.
const WORK_NS: u64 = 50_000;

/// A running thread, until this is dropped.
pub struct Sleeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<Vec<u64>>>>,
}

impl Sleeper {
    pub fn start() -> Result<Sleeper> {
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let builder = std::thread::Builder::new().name("sleeper".into());
        let thread = builder.spawn(move || sleep_and_run(&until));
        let thread = thread.map_err(|e| Error::Other(format!("the sleeping thread: {e}")))?;
        Ok(Sleeper { stop, thread: Some(thread) })
    }

    /// Ends it, and returns how late it woke each time, ns.
    pub fn end(mut self) -> Result<Vec<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        let late = ended.ok_or_else(|| Error::Other("the sleeping thread panicked".into()))?;
        late.map_err(|e| Error::Other(format!("the sleeping thread: {e}")))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sleep_and_run(stop: &AtomicBool) -> std::io::Result<Vec<u64>> {
    // SAFETY: sets the slack of this thread's timers to 1 ns; passes no pointer.
    if unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut late = vec![];
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let due = now(ClockId::Monotonic) + sleep_ns(n);
        sleep_until(due)?;
        late.push(now(ClockId::Monotonic).saturating_sub(due));
        let end = now(ClockId::ThreadCPUTime) + WORK_NS;
        while now(ClockId::ThreadCPUTime) < end {
            std::hint::spin_loop();
        }
    }
    Ok(late)
}

/// The `n`-th sleep: multiples of the golden ratio spread evenly, in step with no tick or slice.
fn sleep_ns(n: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let part = u128::from(n.wrapping_mul(GOLDEN)) * u128::from(MOST_NS - LEAST_NS);
    LEAST_NS + (part >> 64) as u64
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn sleep_until(due_ns: u64) -> std::io::Result<()> {
    let due = libc::timespec {
        tv_sec: (due_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (due_ns % 1_000_000_000) as libc::c_long,
    };
    loop {
        // SAFETY: `due` is valid for the call; an absolute sleep writes no rest.
        let error = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &due,
                std::ptr::null_mut(),
            )
        };
        match error {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(std::io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_spread_evenly() {
        let all: Vec<u64> = (0..9000).map(sleep_ns).collect();
        assert!(all.iter().all(|ns| (LEAST_NS..MOST_NS).contains(ns)));
        for part in 0..9 {
            let from = LEAST_NS * (1 + part);
            let count = all.iter().filter(|&&ns| (from..from + LEAST_NS).contains(&ns)).count();
            assert!((990..=1010).contains(&count), "{count} sleeps from {from} ns on");
        }
    }

    #[test]
    fn it_notes_each_sleep_until_it_is_ended() {
        // On a busy machine the thread may not run for any time: longer and longer ones are tried.
        let mut waits = (0..).map(|n| std::time::Duration::from_millis(20 << n));
        let noted = waits.find_map(|wait| {
            let sleeper = Sleeper::start().unwrap();
            let began = std::time::Instant::now();
            std::thread::sleep(wait);
            let late = sleeper.end().unwrap();
            // No sleep is shorter than asked for.
            let slept: u64 = (0..late.len() as u64).map(sleep_ns).sum();
            let lateness: u64 = late.iter().sum();
            assert!(u128::from(slept + lateness) <= began.elapsed().as_nanos(), "{late:?}");
            (!late.is_empty()).then_some(late)
        });
        assert!(noted.is_some());
    }
}
