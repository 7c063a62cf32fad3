// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work on many threads, with an allocator that poisons what is freed and keeps it out of use for a
//! while: a reader that follows a freed node finds a wrong value, or an address that faults.

use reprieve::{Domain, Engine};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell as Local;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

/// Fills freed blocks with [`Poison::BYTE`], and gives each back when as many others have been
/// freed as the ring holds.
struct Poison;

static RING: [AtomicPtr<u8>; 1 << 12] = [const { AtomicPtr::new(null_mut()) }; 1 << 12];
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Poison {
    const BYTE: u8 = 0xd5;
    /// In front of each block: its size.
    const FRONT: usize = 16;

    fn outer(size: usize) -> Layout {
        Layout::from_size_align(size + Poison::FRONT, Poison::FRONT).unwrap()
    }
}

// SAFETY: blocks of the system's allocator, of which the first 16 bytes are not handed out. Larger
// alignments go straight through.
unsafe impl GlobalAlloc for Poison {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe {
            if layout.align() > Poison::FRONT {
                return System.alloc(layout);
            }
            let block = System.alloc(Poison::outer(layout.size()));
            if block.is_null() {
                return block;
            }
            block.cast::<usize>().write(layout.size());
            block.add(Poison::FRONT)
        }
    }

    unsafe fn dealloc(&self, inner: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise: the block is ours.
        unsafe {
            if layout.align() > Poison::FRONT {
                return System.dealloc(inner, layout);
            }
            inner.write_bytes(Poison::BYTE, layout.size());
            let slot = &RING[NEXT.fetch_add(1, Relaxed) % RING.len()];
            let old = slot.swap(inner.sub(Poison::FRONT), AcqRel);
            if !old.is_null() {
                System.dealloc(old, Poison::outer(*old.cast::<usize>()));
            }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Poison = Poison;

/// A value that knows whether it is whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marked {
    pub id: u64,
    pub version: u64,
    pub mark: u64,
}

impl Marked {
    pub fn new(id: u64, version: u64) -> Marked {
        Marked {
            id,
            version,
            mark: (id ^ version.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    #[track_caller]
    pub fn check(self, id: u64) -> u64 {
        assert_eq!(self, Marked::new(id, self.version));
        self.version
    }
}

/// A value that owns memory.
#[derive(Debug)]
pub struct Owner(pub Box<Marked>);

pub fn random(below: u64) -> u64 {
    thread_local!(static STATE: Local<u64> = const { Local::new(0) });
    static SEED: AtomicU64 = AtomicU64::new(1);
    STATE.with(|state| {
        if state.get() == 0 {
            state.set(SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed) | 1);
        }
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x % below
    })
}

pub fn seconds() -> f64 {
    std::env::var("REPRIEVE_STRESS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0)
}

/// Calls each of `work` over and over, `threads` threads per work, for `time`, and a hundred times
/// at least. A panic in one stops all.
pub fn run(time: Duration, threads: usize, work: &[&(dyn Fn() + Sync)]) {
    /// Tells the others, however the thread ends.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let (stop, end) = (AtomicBool::new(false), Instant::now() + time);
    thread::scope(|scope| {
        for _ in 0..threads {
            for f in work {
                scope.spawn(|| {
                    let _stop = Stop(&stop);
                    loop {
                        (0..100).for_each(|_| f());
                        if stop.load(Relaxed) || Instant::now() >= end {
                            break;
                        }
                    }
                });
            }
        }
    });
}

/// Runs `f` for each engine, for an equal part of the test's length. The first time without plain
/// sections: they make grace periods long, and so few.
pub fn each_engine(f: impl Fn(&Domain, Duration, bool)) {
    let tick = Duration::from_millis(1);
    let engines = [
        (Engine::Restart, false),
        (Engine::Restart, true),
        (Engine::Poll, true),
        (Engine::Ltimer { tick }, true),
        (Engine::Sched { tick }, true),
    ];
    for (engine, plain) in engines {
        let domain = Domain::builder().engine(engine).build().unwrap();
        f(&domain, Duration::from_secs_f64(seconds() / engines.len() as f64), plain);
        domain.barrier().unwrap();
        let stats = domain.stats();
        println!(
            "{engine:?}: {} grace periods, {} callbacks",
            stats.grace_periods.count, stats.run
        );
    }
}

/// A little while, now and then.
pub fn dawdle() {
    if random(64) == 0 {
        thread::yield_now();
    }
}
