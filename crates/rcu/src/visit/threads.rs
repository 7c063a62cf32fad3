// SPDX-License-Identifier: MIT OR Apache-2.0
//! The visitors: threads that sleep until a round begins.

use super::{Rounds, judge};
use crate::domain::core::Workers;
use crate::{barrier, sys};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long visits are waited for before CPUs are interrupted after all: longer than a time slice of a hypervisor and one of a guest.
const LONGEST: Duration = Duration::from_millis(100);
/// With more CPUs than this there are no visits.
const MOST: usize = 64;
const STACK: usize = 64 << 10;

/// A domain's. Started when they are needed for the first time.
pub(crate) struct Visitors {
    shared: Arc<Shared>,
    started: AtomicBool,
    threads: Workers,
    /// Rounds.
    pub(crate) count: AtomicU64,
}

struct Shared {
    /// The kernel's CPU numbers are below this. `None`: unknown, and no visits.
    numbers: Option<usize>,
    rounds: Rounds,
    /// CPUs that have a visitor, or will have one.
    live: Box<[AtomicBool]>,
    stop: AtomicBool,
}

impl Visitors {
    pub(crate) fn new() -> Visitors {
        let cpus = sys::cpus();
        let shared = Shared {
            numbers: sys::cpu_numbers(),
            rounds: Rounds::new(cpus),
            live: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
        };
        Visitors {
            shared: Arc::new(shared),
            started: AtomicBool::new(false),
            threads: Workers::new(),
            count: AtomicU64::new(0),
        }
    }

    /// The heavy barrier that restarts sections, in the cheaper way. One caller at a time.
    pub(crate) fn heavy(&self) {
        match self.shared.numbers {
            Some(numbers) if self.shared.live.len() <= MOST && judge::visits() => {
                self.start();
                self.count.fetch_add(1, Ordering::Relaxed);
                self.shared.visit_all(numbers);
            }
            _ => judge::watch(barrier::restart_all),
        }
    }

    fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let _blocked = sys::SignalsBlocked::new();
        for (cpu, live) in self.shared.live.iter().enumerate() {
            let shared = self.shared.clone();
            live.store(true, Ordering::Relaxed);
            let name = format!("reprieve-v/{cpu}");
            let thread = std::thread::Builder::new().name(name).stack_size(STACK);
            match thread.spawn(move || shared.serve(cpu)) {
                Ok(thread) => self.threads.add(thread),
                Err(_) => live.store(false, Ordering::Relaxed),
            }
        }
    }

    /// Ends the threads. No round runs, and none will.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.rounds.begin();
        self.threads.join();
    }

    /// In the child of a fork: there are no visitors.
    pub(crate) fn after_fork(&self) {
        self.started.store(false, Ordering::Relaxed);
        self.threads.after_fork();
        self.shared.live.iter().for_each(|live| live.store(false, Ordering::Relaxed));
    }
}

impl Shared {
    fn visit_all(&self, numbers: usize) {
        let round = self.rounds.begin();
        let end = Instant::now() + LONGEST;
        let due = |(cpu, live): (usize, &AtomicBool)| {
            live.load(Ordering::SeqCst) && !self.rounds.visited(cpu, round)
        };
        let all = || !self.live.iter().enumerate().any(due);
        self.rounds.wait(all, || Some(end.saturating_duration_since(Instant::now())));
        for cpu in (0..numbers).filter(|&cpu| !self.rounds.visited(cpu, round)) {
            barrier::restart_one(cpu);
        }
    }

    fn serve(&self, cpu: usize) {
        let mut done = self.rounds.current();
        let place = place(cpu);
        let mut here = sys::bind(place);
        // The round that it was started for, too.
        let mut first = true;
        loop {
            let round = self.rounds.current();
            if self.stop.load(Ordering::SeqCst) || !here {
                break;
            }
            if round == done && !first {
                self.rounds.sleep(round);
                continue;
            }
            // A CPU that was switched off has sent this thread elsewhere.
            here = sys::current_cpu() == place;
            if here {
                self.rounds.answer(cpu, round);
                (done, first) = (round, false);
            }
        }
        // Nobody waits for this visit.
        self.live[cpu].store(false, Ordering::SeqCst);
        self.rounds.nudge();
    }
}

/// Where a visitor of that CPU goes: there, faults excepted.
fn place(cpu: usize) -> usize {
    #[cfg(reprieve_fault)]
    if crate::fault::is(crate::fault::Fault::StayAway) {
        return 0;
    }
    cpu
}
