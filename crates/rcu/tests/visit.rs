// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods that visit CPUs instead of interrupting them. Each case runs in a process of its own with `REPRIEVE_BARRIER=visit`.

use reprieve::{Domain, Lookup, Restartable, Section};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Runs the ignored test `case`; what it prints is shown if it fails.
#[track_caller]
fn run(case: &str, barrier: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--nocapture", "--test-threads=1"])
        .env("REPRIEVE_BARRIER", barrier)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{case}: {text}");
}

fn restarts() -> bool {
    let yes = reprieve::support().restartable == Restartable::Yes;
    if !yes {
        println!("no restartable sections here: the membarrier that restarts is not used");
    }
    yes
}

/// Threads of this process whose name begins so.
fn threads(prefix: &str) -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[test]
fn rounds_are_counted_and_threads_end() {
    run("counted", "visit");
    run("interrupts", "interrupt");
}

#[test]
#[ignore = "run by rounds_are_counted_and_threads_end"]
fn counted() {
    if !restarts() {
        return;
    }
    let domain = Domain::builder().build().unwrap();
    assert_eq!(threads("reprieve-v/"), 0, "before they are needed");
    for _ in 0..100 {
        domain.synchronize();
    }
    let stats = domain.stats();
    assert_eq!((stats.visits, stats.grace_periods.count), (100, 100));
    assert!(threads("reprieve-v/") > 0);
    drop(domain);
    assert_eq!(threads("reprieve-v/"), 0, "with the domain");
    // The default domain's threads are no hindrance to a child of a fork, nor to its exit.
    reprieve::synchronize_rcu();
    // SAFETY: the child uses this crate, and leaves by _exit; SIGALRM ends it if it hangs.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            reprieve::synchronize_rcu();
            let more = Domain::builder().build().unwrap();
            more.synchronize();
            drop(more);
            libc::_exit(i32::from(threads("reprieve-v/") == 0));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
    }
}

#[test]
#[ignore = "run by rounds_are_counted_and_threads_end"]
fn interrupts() {
    Domain::global().synchronize();
    assert_eq!(Domain::global().stats().visits, 0);
}

struct Look<'a>(&'a AtomicPtr<AtomicU64>);

// SAFETY: loads through the section, inlined; the loop ends.
unsafe impl Lookup for Look<'_> {
    type Output = u64;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        let node = section.load(self.0);
        let mut value = 0;
        let mut left = 20_000u64;
        while left > 0 {
            // SAFETY: alive in the section; never unmapped.
            value = unsafe { section.read(node as *const u64) };
            left -= 1;
        }
        value
    }
}

/// A reader that no visitor displaces, for it has the CPU at real-time priority: it is interrupted after all, and sees no poison.
#[test]
fn a_cpu_that_cannot_be_visited_is_interrupted() {
    run("displaced", "visit");
}

#[test]
#[ignore = "run by a_cpu_that_cannot_be_visited_is_interrupted"]
fn displaced() {
    const POISON: u64 = u64::MAX;
    const ROUNDS: u64 = 8;
    if !restarts() {
        return;
    }
    let leak = |value| Box::into_raw(Box::new(AtomicU64::new(value)));
    let (link, stop, reads) = (AtomicPtr::new(leak(0)), AtomicBool::new(false), AtomicU64::new(0));
    let domain = Domain::builder().build().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: plain data; this thread alone.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set);
                let priority = libc::sched_param { sched_priority: 10 };
                if libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) != 0 {
                    println!("no real-time priority allowed here: an ordinary reader");
                }
            }
            while !stop.load(Relaxed) {
                // SAFETY: nodes are poisoned after a grace period of this domain.
                assert_ne!(unsafe { domain.lookup(&Look(&link)) }, POISON);
                reads.fetch_add(1, Relaxed);
            }
        });
        while reads.load(Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        for value in 1..=ROUNDS {
            let old = link.swap(leak(value), AcqRel);
            domain.synchronize();
            // SAFETY: leaked.
            unsafe { (*old).store(POISON, Relaxed) };
        }
        println!("{ROUNDS} grace periods in {:?}", start.elapsed());
        stop.store(true, Relaxed);
    });
    assert_eq!(domain.stats().visits, ROUNDS);
    assert!(reads.into_inner() > 0);
}
