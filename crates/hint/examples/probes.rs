// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost to a waiter of finding out whether the holder runs, beside the cost of a sleep.
//!
//! `cargo run --release -p reprieve-hint --example probes`

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Instant;

/// The median of some batches, in ns.
fn time(name: &str, n: u32, mut f: impl FnMut()) {
    let mut batches: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            (0..n).for_each(|_| f());
            start.elapsed().as_nanos() as f64 / f64::from(n)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    println!("{name:58} {:9.1} ns", batches[7]);
}

fn futex(word: &AtomicU32, op: i32, value: u32) {
    let op = op | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, std::ptr::null::<libc::timespec>())
    };
}

fn main() {
    let stop = AtomicBool::new(false);
    let other = AtomicI32::new(0);
    let mut clock = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let word = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: no preconditions.
            other.store(unsafe { libc::gettid() }, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        while other.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let thread = (!other.load(Ordering::Relaxed) << 3) | 6;
        time("hint: enter and leave a section", 1_000_000, || {
            drop(black_box(reprieve_hint::non_preemptable()));
        });
        time("one pause", 1_000_000, std::hint::spin_loop);
        time("which CPU this is (C library)", 1_000_000, || {
            // SAFETY: no preconditions.
            black_box(unsafe { libc::sched_getcpu() });
        });
        time("the time, to see it jump", 200_000, || {
            // SAFETY: fills the structure in.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut clock) };
        });
        time("the page (unknown without `reprieve hint serve`)", 200_000, || {
            black_box(reprieve_hint::is_preempted(reprieve_hint::current_thread()));
        });
        time("the holder's CPU clock, while it runs", 20_000, || {
            // SAFETY: fills the structure in.
            unsafe { libc::clock_gettime(thread, &mut clock) };
        });
        time("sched_yield, if nobody wants the CPU", 20_000, || {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
        });
        time("futex: wake nobody", 20_000, || futex(&word, libc::FUTEX_WAKE, 1));
        // SAFETY: no memory is passed. 16 registers, 8 is the private expedited command.
        unsafe { libc::syscall(libc::SYS_membarrier, 16, 0, 0) };
        time("membarrier, beside a running thread", 2_000, || {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_membarrier, 8, 0, 0) };
        });
        stop.store(true, Ordering::Relaxed);
    });
    let turn = AtomicU32::new(0);
    std::thread::scope(|scope| {
        const TURNS: u32 = 40_000;
        let take = |mine: u32| {
            for _ in 0..TURNS {
                while turn.load(Ordering::SeqCst) != mine {
                    futex(&turn, libc::FUTEX_WAIT, 1 - mine);
                }
                turn.store(1 - mine, Ordering::SeqCst);
                futex(&turn, libc::FUTEX_WAKE, 1);
            }
        };
        let start = Instant::now();
        let ping = scope.spawn(move || take(0));
        take(1);
        ping.join().unwrap();
        let each = start.elapsed().as_nanos() as f64 / f64::from(2 * TURNS);
        println!("{:58} {each:9.1} ns", "sleep, and be woken by another thread");
    });
}
