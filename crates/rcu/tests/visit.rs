// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods that visit CPUs instead of interrupting them. Each case runs in a process of its
//! own with `REPRIEVE_BARRIER=visit`.

mod common {
    pub mod child;
    pub mod policy;
}

use common::child::in_child;
use common::policy::set_policy;
use reprieve::{Domain, Lookup, Restartable, Section};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Runs the ignored test `case`: whether it passes, and what it prints.
fn outcome(case: &str, barrier: &str, fault: &str) -> (bool, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--nocapture", "--test-threads=1"])
        .env("REPRIEVE_BARRIER", barrier)
        .env("REPRIEVE_FAULT", fault)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success() && text.contains("1 passed"), text)
}

#[track_caller]
fn run(case: &str, barrier: &str) {
    let (passed, text) = outcome(case, barrier, "none");
    assert!(passed, "{case}: {text}");
    print!("{text}");
}

/// Whether there are visits on this machine.
fn possible() -> bool {
    let yes = reprieve::support().restartable == Restartable::Yes;
    if !yes {
        println!("SKIPPED: no restartable sections here");
    }
    yes
}

/// The visitors of this process.
fn visitors() -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("reprieve-v/")).count()
}

#[test]
fn visitors_come_when_needed_and_go() {
    run("come_and_go", "visit");
    run("interrupts", "interrupt");
}

#[test]
#[ignore = "run by visitors_come_when_needed_and_go"]
fn come_and_go() {
    if !possible() {
        return;
    }
    let rounds = |domain: &Domain| {
        // A machine may be so busy that no CPU is visited in time, though not for ever.
        while domain.stats().visits < 5 {
            domain.synchronize();
        }
        assert!(domain.stats().visits <= domain.stats().grace_periods.count);
    };
    let domains = [Domain::builder().build().unwrap(), Domain::builder().build().unwrap()];
    assert_eq!(visitors(), 0, "before they are needed");
    domains.iter().for_each(rounds);
    // SAFETY: no preconditions.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) } as usize;
    // A visitor that is late may still be about to end beside its successor.
    while visitors() > cpus {
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = in_child(|| {
        let none = visitors() == 0;
        domains.iter().for_each(|domain| domain.synchronize());
        rounds(&Domain::builder().build().unwrap());
        none
    });
    assert_eq!(status, 0);
    drop(domains);
    while visitors() != 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    rounds(&Domain::builder().build().unwrap());
}

#[test]
#[ignore = "run by visitors_come_when_needed_and_go"]
fn interrupts() {
    Domain::global().synchronize();
    assert_eq!((Domain::global().stats().visits, visitors()), (0, 0));
}

const ROUNDS: u64 = 3;

/// Reads the node until the round is over, which is longer than visits are waited for.
struct Look<'a> {
    link: &'a AtomicPtr<AtomicU64>,
    round: &'a AtomicU64,
}

// SAFETY: loads through the section, inlined; the loop ends.
unsafe impl Lookup for Look<'_> {
    type Output = u64;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        // Seconds: a lookup that was restarted often runs in a plain section, which the writer
        // waits for.
        let mut left = 4_000_000_000u64;
        // SAFETY: alive in the section; nodes are never unmapped.
        unsafe {
            let round = self.round as *const AtomicU64 as *const u64;
            let begun = section.read(round);
            let node = section.load(self.link) as *const u64;
            let mut value = section.read(node);
            while left > 0 && begun != ROUNDS && section.read(round) == begun {
                value = section.read(node);
                left -= 1;
            }
            // Again: the end of the round was seen after the node.
            if left > 0 { section.read(node) } else { value }
        }
    }
}

#[cfg(not(reprieve_fault))]
const DISPLACED: &str = " 0 with interrupts";

/// A reader that no visitor displaces, for it has the CPU at real-time priority: it is interrupted
/// after all, and sees no poison.
#[test]
#[cfg(not(reprieve_fault))]
fn a_cpu_that_cannot_be_visited_is_interrupted() {
    loop {
        let (passed, text) = outcome("not_displaced", "visit", "none");
        assert!(passed, "{text}");
        print!("{text}");
        // The kernel may let others have a real-time thread's CPU for a while: once more.
        if text.contains("SKIPPED") || !text.contains(DISPLACED) {
            return;
        }
    }
}

#[test]
#[cfg(reprieve_fault)]
fn a_cpu_that_is_left_out_is_caught() {
    let (passed, text) = outcome("not_displaced", "visit", "none");
    assert!(passed, "without a fault it must pass: {text}");
    for fault in ["skip-one", "stay-away"] {
        let caught = || {
            let (passed, text) = outcome("not_displaced", "visit", fault);
            println!("{fault}: {text}");
            !passed && text.contains("poison")
        };
        while !text.contains("SKIPPED") && !caught() {}
    }
}

#[test]
#[ignore = "run by the tests above"]
fn not_displaced() {
    const POISON: u64 = u64::MAX;
    if !possible() {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: one CPU, which the writer needs");
        return;
    }
    let leak = |value| Box::into_raw(Box::new(AtomicU64::new(value)));
    let (link, stop) = (AtomicPtr::new(leak(0)), AtomicBool::new(false));
    let round = AtomicU64::new(0);
    // 0: not begun; 1: the reader has its CPU; 2: it may not.
    let state = AtomicU64::new(0);
    let domain = Domain::builder().build().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first grace period finds out whether lookups restart.
            domain.synchronize();
            // The last CPU: a fault sends all visitors to the first.
            // SAFETY: plain data; this thread alone.
            let allowed = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&set), &mut set);
                let mut cpus = 0..libc::CPU_SETSIZE as usize;
                let last = cpus.rfind(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap();
                libc::CPU_ZERO(&mut set);
                libc::CPU_SET(last, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
            };
            let allowed = allowed && set_policy(libc::SCHED_FIFO, 10);
            state.store(2 - u64::from(allowed), Release);
            while allowed && !stop.load(Relaxed) {
                // SAFETY: nodes are poisoned after a grace period of this domain.
                let value = unsafe { domain.lookup(&Look { link: &link, round: &round }) };
                assert_ne!(value, POISON, "poison was read");
            }
        });
        while state.load(Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if state.load(Acquire) == 2 {
            println!("SKIPPED: no real-time priority allowed here");
            return;
        }
        let before = domain.stats().visits;
        let start = Instant::now();
        for value in 1..=ROUNDS {
            // The reader is in its section.
            std::thread::sleep(Duration::from_millis(20));
            let old = link.swap(leak(value), AcqRel);
            domain.synchronize();
            // SAFETY: leaked.
            unsafe { (*old).store(POISON, Relaxed) };
            stop.store(value == ROUNDS, Relaxed);
            round.store(value, Release);
        }
        let interrupted = ROUNDS - (domain.stats().visits - before);
        println!("{ROUNDS} grace periods in {:?}, {interrupted} with interrupts", start.elapsed());
    });
}
