// SPDX-License-Identifier: MIT OR Apache-2.0
//! The abilities of this process, found out once at start-up (`start.rs`).
//!
//! - **membarrier** (Linux 4.14): registered and tried. Missing or filtered: readers execute
//!   fences.
//! - **restartable sections**: rseq registered by the C library (glibc 2.35), membarrier's rseq
//!   command (Linux 5.10) registered and tried, and, when the first lookup asks for it, the
//!   self-test of `restart/selftest.rs`. Missing: lookups run in plain sections.
//! - `REPRIEVE_FORCE=plain` forbids restartable sections; `REPRIEVE_FORCE=restart` skips the
//!   self-test.
//! - `REPRIEVE_BARRIER=visit|interrupt` says how leaders of grace periods reach other CPUs: by
//!   per-CPU threads, or by interrupts, even if that takes longer.
//!
//! None of it allocates from the heap, so a signal handler may be the first to ask.

use super::barrier::Kind;
use super::start::ensure;
use super::{rseq, sys};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// Whether lookups use restartable sections, and if not, why. See [`crate::support`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Restartable {
    /// The self-test passed, or was skipped by `REPRIEVE_FORCE=restart`: lookups restart.
    Yes = 1,
    /// No assembly for this architecture yet.
    Architecture,
    /// `REPRIEVE_FORCE=plain` is set.
    ForcedPlain,
    /// The C library has not registered rseq: it is older than glibc 2.35, or another library, or
    /// `glibc.pthread.rseq=0` forbids it, or the kernel (or gVisor) has no rseq.
    NoRseq,
    /// The kernel lacks `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ` (Linux 5.10), or a filter forbids
    /// it.
    NoMembarrier,
    /// A preempted or interrupted section was seen to go on instead of starting over.
    SelfTestFailed,
    /// The self-test could not create its helper or was not conclusive in time. Later lookups try
    /// it again, a limited number of times.
    SelfTestInconclusive,
    /// The process has user shadow stacks (CET), which the abort handler does not unwind.
    ShadowStack,
}

impl Restartable {
    fn from(value: u32) -> Option<Restartable> {
        use Restartable::*;
        [
            Yes,
            Architecture,
            ForcedPlain,
            NoRseq,
            NoMembarrier,
            SelfTestFailed,
            SelfTestInconclusive,
            ShadowStack,
        ]
        .into_iter()
        .find(|&r| r as u32 == value)
    }
}

/// The same text for Rust and C.
pub(crate) const fn reason(restartable: Restartable) -> &'static CStr {
    match restartable {
        Restartable::Yes => c"restartable sections work",
        Restartable::Architecture => c"no restartable sections on this architecture yet",
        Restartable::ForcedPlain => c"REPRIEVE_FORCE=plain is set",
        Restartable::NoRseq => {
            c"rseq is not registered (needs glibc 2.35, and glibc.pthread.rseq not 0)"
        }
        Restartable::NoMembarrier => {
            c"no membarrier command for rseq (needs Linux 5.10, unfiltered)"
        }
        Restartable::SelfTestFailed => c"this kernel lets a preempted section go on",
        Restartable::SelfTestInconclusive => c"the self-test could not run",
        Restartable::ShadowStack => {
            c"user shadow stacks are on (glibc.cpu.x86_shstk=off turns them off)"
        }
    }
}

impl std::fmt::Display for Restartable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self != Restartable::Yes {
            f.write_str("plain sections: ")?;
        }
        f.write_str(&reason(*self).to_string_lossy())
    }
}

static FENCED: AtomicBool = AtomicBool::new(true);
static ONE_CPU: AtomicBool = AtomicBool::new(false);
/// The request of `REPRIEVE_BARRIER`: [`EITHER`], [`BY_THREADS`] or [`BY_INTERRUPTS`].
static REACH: AtomicU8 = AtomicU8::new(EITHER);
const EITHER: u8 = 0;
const BY_THREADS: u8 = 1;
const BY_INTERRUPTS: u8 = 2;
/// A `Restartable`, or `UNTESTED` while the self-test has not been asked for, or from `TESTING` on
/// the number of the self-test that runs.
static RESTARTABLE: AtomicU32 = AtomicU32::new(Restartable::NoRseq as u32);
const UNTESTED: u32 = 100;
const TESTING: u32 = 101;
/// A thread that has waited this long for the self-test of another runs one of its own: the other
/// thread may have ended in the middle, or a debugger has stopped it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Self-tests that were not conclusive: the helper did not get the section's CPU in time. On
/// another thread it may.
static TESTS: AtomicU32 = AtomicU32::new(0);
const MOST_TESTS: u32 = 8;

/// Called at start-up.
pub(super) fn find_out() {
    register_membarrier();
    RESTARTABLE.store(find_restartable(), Ordering::Relaxed);
    let barrier = |value| variable(c"REPRIEVE_BARRIER", value);
    let reach = match (barrier(c"visit"), barrier(c"interrupt")) {
        (true, _) => BY_THREADS,
        (_, true) => BY_INTERRUPTS,
        _ => EITHER,
    };
    REACH.store(reach, Ordering::Relaxed);
    // Refused where the command itself is not registered.
    let one_cpu = sys::membarrier_on(sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, Some(0)) == 0;
    ONE_CPU.store(one_cpu, Ordering::Relaxed);
}

/// Registers for membarrier. The child of a fork registers again, in case a kernel does not inherit
/// the registration.
fn register_membarrier() {
    let works = sys::membarrier(sys::MEMBARRIER_QUERY) & sys::MEMBARRIER_PRIVATE_EXPEDITED as i64
        > 0
        && sys::membarrier(sys::MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) == 0
        && sys::membarrier(sys::MEMBARRIER_PRIVATE_EXPEDITED) == 0;
    FENCED.store(!works, Ordering::Relaxed);
}

/// Whether an environment variable has this value.
fn variable(name: &CStr, value: &CStr) -> bool {
    // SAFETY: the environment is not written while the process starts; getenv returns null or a
    // string. A program with more privileges than its caller ignores the environment.
    unsafe {
        if sys::privileged() {
            return false;
        }
        let found = libc::getenv(name.as_ptr());
        !found.is_null() && CStr::from_ptr(found) == value
    }
}

fn force(value: &CStr) -> bool {
    variable(c"REPRIEVE_FORCE", value)
}

/// Whether the membarrier's rseq command has a form for one CPU (Linux 5.10).
pub(crate) fn one_cpu() -> bool {
    ONE_CPU.load(Ordering::Relaxed)
}

/// Whether leaders shall reach other CPUs by per-CPU threads (`true`) or interrupts. `None`: the
/// environment does not say.
pub(crate) fn by_threads() -> Option<bool> {
    match REACH.load(Ordering::Relaxed) {
        EITHER => None,
        reach => Some(reach == BY_THREADS),
    }
}

fn find_restartable() -> u32 {
    if !rseq::SUPPORTED {
        return Restartable::Architecture as u32;
    }
    if force(c"plain") {
        return Restartable::ForcedPlain as u32;
    }
    if rseq::shadow_stack() {
        return Restartable::ShadowStack as u32;
    }
    if rseq::rseq_cs().is_none() {
        return Restartable::NoRseq as u32;
    }
    if !register_restart() {
        return Restartable::NoMembarrier as u32;
    }
    if force(c"restart") { Restartable::Yes as u32 } else { UNTESTED }
}

/// Registers for membarrier's rseq command.
fn register_restart() -> bool {
    !fenced()
        && sys::membarrier(sys::MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0
        && sys::membarrier(sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ) == 0
}

/// Whether readers execute fences, because there is no membarrier.
pub(crate) fn fenced() -> bool {
    FENCED.load(Ordering::Relaxed)
}

/// The heavy barrier of a domain. A domain with restartable lookups uses the restarting form from
/// its first grace period, even if the self-test has not run yet: the first restartable lookup may
/// begin while that grace period runs.
pub(crate) fn barrier(restart: bool) -> Kind {
    ensure();
    if fenced() {
        return Kind::Fence;
    }
    let possible = matches!(
        restartable(),
        None | Some(
            Restartable::Yes | Restartable::SelfTestFailed | Restartable::SelfTestInconclusive
        )
    );
    if restart && possible { Kind::Restart } else { Kind::Membarrier }
}

/// Whether lookups may use restartable sections. `None`: the self-test has not run yet.
pub(crate) fn restartable() -> Option<Restartable> {
    ensure();
    Restartable::from(RESTARTABLE.load(Ordering::Acquire))
}

/// A self-test that runs, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SelfTest(u32);

/// The self-test that runs now.
pub(crate) fn running_self_test() -> Option<SelfTest> {
    let state = RESTARTABLE.load(Ordering::Acquire);
    (state >= TESTING).then_some(SelfTest(state))
}

/// Makes the caller the one that runs the self-test; it then calls [`end_self_test`]. `stuck`: in
/// place of that test. Of several simultaneous callers exactly one gets a test.
pub(crate) fn begin_self_test(stuck: Option<SelfTest>) -> Option<SelfTest> {
    let (from, to) = stuck.map_or((UNTESTED, TESTING), |test| (test.0, test.0 + 1));
    let begun = RESTARTABLE.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
    begun.is_ok().then_some(SelfTest(to))
}

/// Notes the result of a self-test, unless another one took its place, and wakes the threads that
/// wait for it. Returns what counts now. The result itself may not: the other test may have seen a
/// section go on.
#[must_use]
pub(crate) fn end_self_test(test: SelfTest, result: Restartable) -> Option<Restartable> {
    let again = result == Restartable::SelfTestInconclusive
        && TESTS.fetch_add(1, Ordering::Relaxed) + 1 < MOST_TESTS;
    let state = if again { UNTESTED } else { result as u32 };
    let noted = RESTARTABLE.compare_exchange(test.0, state, Ordering::AcqRel, Ordering::Relaxed);
    // Another test took the place of this one. A failure counts whoever saw it.
    if noted.is_err()
        && result == Restartable::SelfTestFailed
        && RESTARTABLE.swap(state, Ordering::AcqRel) == Restartable::Yes as u32
    {
        // Other threads may be inside restartable sections now.
        sys::die(
            "a self-test saw an interrupted restartable section go on, after another self-test had \
             seen such sections start over",
        );
    }
    sys::futex_wake(&RESTARTABLE, i32::MAX);
    restartable()
}

/// Sleeps until the self-test has ended. False if that takes longer than [`PATIENCE`].
pub(crate) fn await_self_test(test: SelfTest) -> bool {
    // A lookup leaves errno alone.
    let errno = sys::errno();
    // SAFETY: this thread's own.
    let before = unsafe { *errno };
    let start = sys::since_boot();
    while RESTARTABLE.load(Ordering::Acquire) == test.0 {
        let waited = Duration::from_nanos(sys::since_boot().saturating_sub(start));
        let Some(left) = PATIENCE.checked_sub(waited).filter(|left| !left.is_zero()) else {
            return false;
        };
        sys::futex_wait(&RESTARTABLE, test.0, Some(left));
        // SAFETY: as above.
        unsafe { *errno = before };
    }
    true
}

/// In the child of a fork: a self-test that another thread was running will never end.
pub(super) fn after_fork() {
    let fenced_before = fenced();
    if !fenced_before {
        register_membarrier();
        if fenced() {
            // Readers already rely on membarrier.
            sys::die("membarrier worked before fork and fails in the child");
        }
    }
    let state = RESTARTABLE.load(Ordering::Relaxed);
    if state >= UNTESTED || state == Restartable::Yes as u32 {
        if !register_restart() {
            sys::die("membarrier's rseq command worked before fork and fails in the child");
        }
        if state >= TESTING {
            RESTARTABLE.store(UNTESTED, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::start::tests::in_child;
    use super::*;
    use crate::read::restart::selftest;

    /// C has the cure from the reason alone.
    #[test]
    fn reasons_say_what_to_do() {
        let shadow_stack = Restartable::ShadowStack;
        let reason = reason(shadow_stack).to_str().unwrap();
        assert!(reason.contains("glibc.cpu.x86_shstk=off"));
        assert_eq!(shadow_stack.to_string(), format!("plain sections: {reason}"));
        assert_eq!(Restartable::Yes.to_string(), "restartable sections work");
    }

    /// A first lookup during the self-test of another thread has the result of that test.
    #[test]
    fn a_first_lookup_waits_for_the_self_test() {
        ensure();
        let status = in_child(&|| {
            RESTARTABLE.store(TESTING, Ordering::Relaxed);
            let start = crate::platform::Instant::now();
            static RESULT: AtomicU32 = AtomicU32::new(UNTESTED);
            let run = || RESULT.store(selftest::restartable() as u32, Ordering::Relaxed);
            let waiter =
                sys::Thread::start(format_args!("waiter"), sys::Stack::Program, run).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            // A result that no self-test has.
            RESTARTABLE.store(Restartable::ForcedPlain as u32, Ordering::Release);
            sys::futex_wake(&RESTARTABLE, i32::MAX);
            waiter.join();
            let result = RESULT.load(Ordering::Relaxed);
            // On a machine that stood still the waiter has lost patience.
            let forced = result == Restartable::ForcedPlain as u32;
            i32::from(!forced && start.elapsed() < PATIENCE)
        });
        assert_eq!(status, 0);
    }

    /// A self-test that comes late fails. If threads use restartable sections already, the process
    /// ends.
    #[test]
    fn a_late_failure_counts() {
        ensure();
        for noted in [Restartable::SelfTestInconclusive, Restartable::Yes] {
            let status = in_child(&|| {
                // Without its message.
                // SAFETY: the child has no other use for standard error.
                unsafe { libc::close(2) };
                RESTARTABLE.store(noted as u32, Ordering::Relaxed);
                let counts = end_self_test(SelfTest(TESTING), Restartable::SelfTestFailed);
                i32::from(counts != Some(Restartable::SelfTestFailed))
            });
            let died = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT;
            assert_eq!(died, noted == Restartable::Yes, "{status:#x}");
            assert!(died || status == 0, "{status:#x}");
        }
    }

    /// Another test took the place of one that passes, and has ended in whatever way, or goes on.
    #[test]
    fn a_self_test_that_was_replaced_does_not_count() {
        use Restartable::*;
        ensure();
        for (state, counts) in [
            (SelfTestFailed as u32, Some(SelfTestFailed)),
            (SelfTestInconclusive as u32, Some(SelfTestInconclusive)),
            (UNTESTED, None),
            (TESTING + 1, None),
            (TESTING, Some(Yes)),
        ] {
            let status = in_child(&|| {
                RESTARTABLE.store(state, Ordering::Relaxed);
                i32::from(end_self_test(SelfTest(TESTING), Yes) != counts)
            });
            assert_eq!(status, 0, "{state}");
        }
    }

    /// The same with a test in another thread, which fails at some moment of this one.
    #[test]
    fn a_thread_whose_self_test_was_replaced_goes_by_the_other() {
        ensure();
        let status = in_child(&|| {
            static LOOKS: AtomicBool = AtomicBool::new(false);
            static ENDED: AtomicBool = AtomicBool::new(false);
            let fail = || {
                LOOKS.store(true, Ordering::Relaxed);
                while !ENDED.load(Ordering::Relaxed) {
                    let failed = Restartable::SelfTestFailed as u32;
                    let _ = RESTARTABLE.compare_exchange(
                        TESTING,
                        failed,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                }
            };
            let turn = || {
                RESTARTABLE.store(UNTESTED, Ordering::Relaxed);
                LOOKS.store(false, Ordering::Relaxed);
                ENDED.store(false, Ordering::Relaxed);
                let other =
                    sys::Thread::start(format_args!("other"), sys::Stack::Program, fail).unwrap();
                while !LOOKS.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let result = selftest::restartable();
                ENDED.store(true, Ordering::Relaxed);
                other.join();
                let state = RESTARTABLE.load(Ordering::Relaxed);
                // An inconclusive test is run again.
                state == UNTESTED || state == result as u32
            };
            i32::from(!(0..20).all(|_| turn()))
        });
        assert_eq!(status, 0);
    }

    /// The thread that ran the self-test is gone: another one takes its place.
    #[test]
    fn a_self_test_that_does_not_end_is_run_by_another_thread() {
        ensure();
        let status = in_child(&|| {
            RESTARTABLE.store(TESTING + 5, Ordering::Relaxed);
            let result = selftest::restartable();
            let state = RESTARTABLE.load(Ordering::Relaxed);
            // An inconclusive test is run again.
            i32::from(state != UNTESTED && state != result as u32)
        });
        assert_eq!(status, 0);
    }
}
