// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of time-slice extensions, on a kernel that has them. `crates/lab/tests/slice.rs`
//! builds one and boots it with this program as its first process; elsewhere, it tells what is
//! missing.
//!
//! Two threads share a CPU. The worker enters and leaves sections; the observer looks whenever it
//! has the CPU. If the worker is in a section then, it was preempted there. The worker's sections
//! are of each kind in turn: the non-preemptable ones ask for more time.

use reprieve_hint::{Section, non_preemptable, preemptable, time_slice_extensions};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

const STATISTICS: &str = "/sys/kernel/debug/rseq/stats";
/// The longest that the kernel allows, in ns: an emulated CPU needs it.
const LENGTH: (&str, &str) = ("/sys/kernel/debug/rseq/slice_ext_nsec", "50000");
/// Turns of the observer in each round.
const TURNS: u64 = 200;

/// Odd while the worker is in a section.
static SECTION: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

/// Turns of the observer after which the worker had run, and in how many of them it was in a
/// section.
fn observe() -> (u64, u64) {
    let (mut turns, mut inside) = (0, 0);
    let mut last = SECTION.load(SeqCst);
    while turns < TURNS {
        let now = SECTION.load(SeqCst);
        if now != last {
            turns += 1;
            inside += now & 1;
            last = now;
        }
    }
    (turns, inside)
}

fn work(section: fn() -> Section) {
    // Emulated ticks come after equal numbers of instructions: if the ways between sections were
    // equally long, they could find the same place each time. Most of the time is in sections.
    let mut random = 1_u64;
    while !OVER.load(SeqCst) {
        let guard = section();
        SECTION.fetch_add(1, SeqCst);
        (0..60).for_each(|_| std::hint::spin_loop());
        SECTION.fetch_add(1, SeqCst);
        drop(guard);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (0..random % 16).for_each(|_| std::hint::spin_loop());
    }
}

fn round(name: &str, section: fn() -> Section) {
    OVER.store(false, SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| work(section));
        let (turns, inside) = observe();
        OVER.store(true, SeqCst);
        println!("{name}: preempted {turns} times, {inside} in a section");
    });
}

/// A section that does not end while the observer waits: more time is given once, not for ever.
fn endless() {
    OVER.store(false, SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = non_preemptable();
            while !OVER.load(SeqCst) {
                SECTION.fetch_add(2, SeqCst);
            }
            drop(guard);
        });
        let (turns, _) = observe();
        OVER.store(true, SeqCst);
        println!("endless: preempted {turns} times");
    });
}

fn statistics() {
    for line in fs::read_to_string(STATISTICS).unwrap_or_default().lines() {
        println!("kernel: {}", line.trim());
    }
}

/// As the first process of a VM.
fn mount() {
    let _ = fs::create_dir_all("/sys");
    for (what, on) in [(c"sysfs", c"/sys"), (c"debugfs", c"/sys/kernel/debug")] {
        // SAFETY: strings and numbers only.
        let failed = unsafe {
            libc::mount(what.as_ptr(), on.as_ptr(), what.as_ptr(), 0, std::ptr::null()) != 0
        };
        if failed {
            println!("mount {what:?}: {}", std::io::Error::last_os_error());
        }
    }
    if let Err(error) = fs::write(LENGTH.0, LENGTH.1) {
        println!("{}: {error}", LENGTH.0);
    }
}

fn main() {
    let first = std::process::id() == 1;
    if first {
        mount();
    }
    match time_slice_extensions() {
        Ok(()) => {
            statistics();
            round("preemptable", preemptable);
            statistics();
            round("non-preemptable", non_preemptable);
            statistics();
            endless();
            statistics();
            println!("done");
        }
        Err(lack) => println!("{lack}"),
    }
    if first {
        // SAFETY: ends the VM, whose QEMU does not reboot.
        unsafe { libc::reboot(libc::RB_AUTOBOOT) };
    }
}
