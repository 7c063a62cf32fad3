// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scheduling-aware spinning: whether a thread that waits for a lock had better spin or sleep.
//!
//! Spinning pays while the holder runs and nobody else wants the waiter's CPU: the lock comes
//! sooner than a sleeper wakes up. It is waste when the holder is off its CPU: it cannot release
//! the lock, and the waiter may sit on the very CPU that the holder waits for.
//!
//! Whoever runs knows something about those who do not, for nothing:
//! 1. **The holder took the lock on my CPU.** I run there, so it does not (or it has moved; then I
//!    sleep once too often).
//! 2. **Time has jumped** between two looks at the lock: I was off my CPU, so somebody else wants
//!    it. That is remembered for each CPU for a while ([`REMEMBERED`]).
//!
//! (In a guest whose host offers a region, the host may say that the holder's vCPU lost its CPU.)
//!
//! And after some spinning a question is cheap against what has been spent already:
//! 3. **The holder's CPU clock**, twice: it stands still if the holder does.
//! 4. **`sched_yield`** lets those who want this CPU have it; if time jumps, there were some.
//!
//! None of the answers has to be true: a wrong one costs time. In a program that has these locks
//! preloaded, the third and the fourth are not asked: it may have forbidden itself system calls
//! that the C library's locks do not make.

use crate::platform::end::End;
#[cfg(not(loom))]
use crate::platform::sync::Ordering;
use std::time::Duration;

/// Advice to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Spin,
    Sleep,
}

/// In a lock's word: who holds it. The low bits are the index of the holder's line.
pub(crate) const HELD: u32 = 1 << 31;

/// How long the lock's users may overtake one who sleeps, in ns.
pub(crate) const FAIR: u64 = 1_000_000;

#[cfg(not(loom))]
pub(crate) use real::{ONLY_FUTEX, Waiter, now, pass, quick, runs, spinners};

#[cfg(loom)]
pub(crate) use modelled::{Waiter, now, pass, quick, runs, set_looks, spinners};

/// The time until `end`: `None` if it is over, `Some(None)` if there is no end.
pub(crate) fn left(end: Option<End>) -> Option<Option<Duration>> {
    match end.map(End::left) {
        Some(Duration::ZERO) => None,
        left => Some(left),
    }
}

pub(crate) fn is_over(end: Option<End>) -> bool {
    left(end).is_none()
}

/// The calling thread has taken a lock.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn took(line: &crate::thread::Line) {
    line.cpu.store(crate::platform::cpu::current(), Ordering::Relaxed);
}

#[cfg(not(loom))]
mod real {
    use super::{Advice, HELD};
    use crate::platform::{clock, cpu, sys};
    use crate::region;
    use crate::thread::{self, NOBODY, line};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    pub(crate) use crate::platform::clock::now;

    /// Looks at the lock before the clock is read for the first time: short sections are over by
    /// then.
    const FIRST_LOOKS: u32 = 8;
    /// Looks of a thread that has told nobody that it waits.
    const QUICK_LOOKS: u32 = 20;
    /// Time between two looks is some 100 ns; more than this, and the thread was off its CPU.
    const JUMP: u64 = 30_000;
    /// How long a CPU counts as wanted after a jump.
    const REMEMBERED: u64 = 5_000_000;
    /// How long to spin on a CPU that others want: about what sleeping and waking up cost.
    const SHORT: u64 = 10_000;
    /// When the holder's clock is read for the first time.
    const FIRST_PROBE: u64 = 40_000;
    /// Between the two readings of the holder's clock.
    const PROBE: u64 = 4_000;
    /// Beyond this, a sleeper costs less than the electricity.
    const LONGEST: u64 = 20_000_000;
    /// A waiter that has not looked for that long does not run.
    const FRESH: u64 = 20_000;

    /// Whether waiters make no system call but futex.
    pub(crate) static ONLY_FUTEX: AtomicBool = AtomicBool::new(false);

    const CPUS: usize = 256;
    /// When each CPU was last seen to be wanted by others, by its number modulo the length.
    static WANTED: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];

    fn wanted_at() -> &'static AtomicU64 {
        &WANTED[cpu::current() as usize % CPUS]
    }

    /// Waits for a short section, some 1 us at most. Whether `taken` was true. The line that the
    /// holder needs for its release is read and not written: a waiter that first counts itself
    /// takes that line from the holder three times for one section.
    pub(crate) fn quick(mut taken: impl FnMut() -> bool) -> bool {
        (0..QUICK_LOOKS).any(|_| {
            std::hint::spin_loop();
            taken()
        })
    }

    /// Waits for a thread that is between two instructions.
    pub(crate) fn pass() {
        sys::yield_cpu();
    }

    /// How many may spin for one lock at a time: with the holder, one for each CPU.
    pub(crate) fn spinners() -> u32 {
        (cpu::usable() - 1).max(1)
    }

    /// Whether a thread that spins for a lock runs, as far as one can tell.
    pub(crate) fn runs(who: u32, now: u64) -> bool {
        let index = who & !HELD;
        let looked = line(index).waited.load(Ordering::Relaxed);
        now.saturating_sub(looked) < FRESH && !region::lost_cpu(index, now)
    }

    /// A thread that waits for a lock.
    pub(crate) struct Waiter {
        looks: u32,
        begun: u64,
        last: u64,
        /// When to ask for the holder's clock, and what it was when it was read first.
        probe_at: u64,
        probe: Option<(u32, u64, u64)>,
        interval: u64,
    }

    impl Waiter {
        pub(crate) fn new() -> Waiter {
            Waiter { looks: 0, begun: 0, last: 0, probe_at: 0, probe: None, interval: FIRST_PROBE }
        }

        /// After a look at the lock that found it held by `holder` (0: not known): passes some
        /// time, and says what to do.
        #[inline]
        pub(crate) fn look(&mut self, holder: impl FnOnce() -> u32) -> Advice {
            self.looks = self.looks.saturating_add(1);
            if self.looks <= FIRST_LOOKS {
                for _ in 0..1 << (self.looks / 2) {
                    std::hint::spin_loop();
                }
                return Advice::Spin;
            }
            self.look_long(holder())
        }

        fn look_long(&mut self, holder: u32) -> Advice {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            let now = now();
            thread::me().waited.store(now, Ordering::Relaxed);
            if self.begun == 0 {
                (self.begun, self.last) = (now, now);
                self.probe_at = now + FIRST_PROBE;
            }
            let advice = self.advise(holder & !HELD, now);
            self.last = now.max(self.last);
            advice
        }

        fn advise(&mut self, holder: u32, now: u64) -> Advice {
            if now.saturating_sub(self.last) > JUMP {
                wanted_at().store(now, Ordering::Relaxed);
                // The lock was not looked at for long: it is, once more, before anything else.
                self.begun = now;
                return Advice::Spin;
            }
            if region::lost_cpu(holder, now) {
                return Advice::Sleep;
            }
            let spun = now.saturating_sub(self.begun);
            let wanted = now.saturating_sub(wanted_at().load(Ordering::Relaxed)) < REMEMBERED;
            if holder != NOBODY && line(holder).cpu.load(Ordering::Relaxed) == cpu::current() {
                return Advice::Sleep;
            }
            if wanted && spun > SHORT || spun > LONGEST {
                return Advice::Sleep;
            }
            if now < self.probe_at {
                return Advice::Spin;
            }
            if holder == NOBODY || ONLY_FUTEX.load(Ordering::Relaxed) {
                return Advice::Sleep;
            }
            self.ask_clock(holder, now)
        }

        /// Whether the holder's CPU clock goes.
        fn ask_clock(&mut self, holder: u32, now: u64) -> Advice {
            let thread = line(holder).thread.load(Ordering::Relaxed);
            let Some(clock) = clock::cpu_time(thread) else { return Advice::Sleep };
            match self.probe.take() {
                Some((same, then, before)) if same == holder => {
                    if clock.saturating_sub(before) * 4 < now.saturating_sub(then) {
                        return Advice::Sleep;
                    }
                    // The holder runs. Whoever wants this CPU may have it, and then we know.
                    sys::yield_cpu();
                    self.interval = (self.interval * 2).min(1_000_000);
                    self.probe_at = clock::now() + self.interval;
                }
                _ => {
                    self.probe = Some((holder, now, clock));
                    self.probe_at = now + PROBE;
                }
            }
            Advice::Spin
        }
    }
}

/// In place of the scheduler.
#[cfg(loom)]
mod modelled {
    use super::Advice;
    pub(crate) use crate::platform::env::now;
    use crate::platform::env::{time_passes, toss};

    std::thread_local! {
        /// How often a waiting thread looks before it sleeps. All threads of a model are on one of
        /// the system's.
        static LOOKS: std::cell::Cell<u32> = const { std::cell::Cell::new(2) };
    }

    pub(crate) fn set_looks(looks: u32) {
        LOOKS.set(looks);
    }

    /// A waiting thread: looks some times, then sleeps.
    pub(crate) struct Waiter {
        looks: u32,
    }

    impl Waiter {
        pub(crate) fn new() -> Waiter {
            Waiter { looks: 0 }
        }

        pub(crate) fn look(&mut self, _: impl FnOnce() -> u32) -> Advice {
            self.looks += 1;
            if self.looks >= LOOKS.get() {
                return Advice::Sleep;
            }
            time_passes();
            Advice::Spin
        }
    }

    /// Once: the next look is the waiter's.
    pub(crate) fn quick(mut taken: impl FnMut() -> bool) -> bool {
        taken()
    }

    pub(crate) fn spinners() -> u32 {
        1
    }

    pub(crate) fn runs(_: u32, _: u64) -> bool {
        toss() % 2 == 1
    }

    pub(crate) fn pass() {
        loom::thread::yield_now();
    }
}
