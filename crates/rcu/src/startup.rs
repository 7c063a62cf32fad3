// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process can do, found out once, before `main` where the linker lets us.
//!
//! - **membarrier** (Linux 4.14): registered and tried. Missing or filtered: readers execute fences.
//! - **restartable sections**: rseq registered by the C library (glibc 2.35), membarrier's rseq command (Linux 5.10) registered and tried, and,
//!   when the first lookup asks for it, the self-test of `restart/selftest.rs`. Missing: lookups run in plain sections.
//! - `REPRIEVE_FORCE=plain` takes the second away; `REPRIEVE_FORCE=restart` skips the self-test.
//! - `REPRIEVE_BARRIER=visit|interrupt` says how leaders of grace periods reach other CPUs (`visit`), whatever takes longer.
//! - `REPRIEVE_BOOST=1` turns [`Domain::set_boost`](crate::Domain::set_boost) on in all domains.
//!
//! None of it allocates from the heap, so that a signal handler may be the first to ask.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// Why lookups do not use restartable sections, or that they do. See [`crate::support`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Restartable {
    /// The self-test passed, or was skipped by `REPRIEVE_FORCE=restart`: lookups restart.
    Yes = 1,
    /// No assembly for this architecture yet.
    Architecture,
    /// `REPRIEVE_FORCE=plain` is set.
    ForcedPlain,
    /// The C library has not registered rseq: it is older than glibc 2.35, another library, told not to by
    /// `glibc.pthread.rseq=0`, or the kernel (or gVisor) has none.
    NoRseq,
    /// The kernel lacks `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ` (Linux 5.10), or a filter forbids it.
    NoMembarrier,
    /// A preempted or interrupted section was seen to go on instead of starting over.
    SelfTestFailed,
    /// The self-test could not create its helper or was not conclusive in time. Lookups to come try again, some times.
    SelfTestInconclusive,
    /// The process has user shadow stacks (CET), which the abort handler does not unwind.
    ShadowStack,
}

impl Restartable {
    fn from(value: u8) -> Option<Restartable> {
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
        .find(|&r| r as u8 == value)
    }
}

impl std::fmt::Display for Restartable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Restartable::Yes => "restartable sections work",
            Restartable::Architecture => "plain sections: no restartable sections on this architecture yet",
            Restartable::ForcedPlain => "plain sections: REPRIEVE_FORCE=plain is set",
            Restartable::NoRseq => "plain sections: rseq is not registered (needs glibc 2.35, and glibc.pthread.rseq not 0)",
            Restartable::NoMembarrier => "plain sections: no membarrier command for rseq (needs Linux 5.10, unfiltered)",
            Restartable::SelfTestFailed => "plain sections: this kernel lets a preempted section go on",
            Restartable::SelfTestInconclusive => "plain sections: the self-test could not run",
            Restartable::ShadowStack => "plain sections: user shadow stacks are on (glibc.cpu.x86_shstk=off turns them off)",
        })
    }
}

/// [`NOT_STARTED`], [`DONE`], or the id of the process in which a thread is at it.
static STATE: AtomicU32 = AtomicU32::new(NOT_STARTED);
const NOT_STARTED: u32 = 0;
const DONE: u32 = u32::MAX;
static FENCED: AtomicU8 = AtomicU8::new(1);
/// A `Restartable`, or `UNTESTED` while the self-test has not been asked for, or `TESTING`.
static RESTARTABLE: AtomicU8 = AtomicU8::new(Restartable::NoRseq as u8);
const UNTESTED: u8 = 100;
const TESTING: u8 = 101;
/// Self-tests that were not conclusive: the helper did not get the section's CPU in time, which another thread may have more luck with.
static TESTS: AtomicU32 = AtomicU32::new(0);
const MOST_TESTS: u32 = 8;
static BOOST: AtomicBool = AtomicBool::new(false);
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = ensure;

/// Finds everything out if that has not been done.
///
/// A process may fork while another of its threads is at it (only when the library was loaded by `dlopen`: else this runs before `main`).
/// The child finds its parent's id, and starts over.
pub(crate) extern "C" fn ensure() {
    if STATE.load(Ordering::Acquire) == DONE {
        return;
    }
    let _blocked = sys::SignalsBlocked::new();
    let this_process = std::process::id();
    loop {
        match STATE.load(Ordering::Acquire) {
            DONE => return,
            state if state == this_process => std::thread::yield_now(),
            state => {
                let take =
                    |new| STATE.compare_exchange(state, new, Ordering::Acquire, Ordering::Relaxed);
                if take(this_process).is_ok() {
                    find_out();
                    STATE.store(DONE, Ordering::Release);
                }
            }
        }
    }
}

fn find_out() {
    #[cfg(reprieve_fault)]
    crate::fault::init();
    let mut key = 0;
    // (Started over, this leaves a key of the parent's unused.)
    // SAFETY: the destructor is a function of this image, which `pin` keeps loaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_thread_exit)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
    pin();
    crate::fork::install();
    register_membarrier();
    BOOST.store(variable(c"REPRIEVE_BOOST", c"1"), Ordering::Relaxed);
    RESTARTABLE.store(find_restartable(), Ordering::Relaxed);
    sys::note_usable();
    let barrier = |value| variable(c"REPRIEVE_BARRIER", value);
    // Refused where the command itself is not registered.
    let one_cpu = sys::membarrier_on(sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, Some(0)) == 0;
    crate::visit::init(one_cpu, barrier(c"visit"), barrier(c"interrupt"));
}

/// Registers for membarrier. Again in the child of a fork, in case a kernel does not pass the registration on.
pub(crate) fn register_membarrier() {
    let works = sys::membarrier(sys::MEMBARRIER_QUERY) & sys::MEMBARRIER_PRIVATE_EXPEDITED as i64
        > 0
        && sys::membarrier(sys::MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) == 0
        && sys::membarrier(sys::MEMBARRIER_PRIVATE_EXPEDITED) == 0;
    FENCED.store(!works as u8, Ordering::Relaxed);
}

/// Whether an environment variable has that value.
fn variable(name: &std::ffi::CStr, value: &std::ffi::CStr) -> bool {
    // SAFETY: the environment is not written while the process starts; getenv returns null or a string. A program that runs with more
    // privileges than its caller does not listen to it.
    unsafe {
        if libc::getauxval(libc::AT_SECURE) != 0 {
            return false;
        }
        let found = libc::getenv(name.as_ptr());
        !found.is_null() && std::ffi::CStr::from_ptr(found) == value
    }
}

fn force(value: &std::ffi::CStr) -> bool {
    variable(c"REPRIEVE_FORCE", value)
}

/// Whether domains help preempted readers from the start.
pub(crate) fn boost() -> bool {
    ensure();
    BOOST.load(Ordering::Relaxed)
}

fn find_restartable() -> u8 {
    if !crate::restart::arch::SUPPORTED {
        return Restartable::Architecture as u8;
    }
    if force(c"plain") {
        return Restartable::ForcedPlain as u8;
    }
    if crate::restart::arch::shadow_stack() {
        return Restartable::ShadowStack as u8;
    }
    if crate::restart::arch::rseq_cs().is_none() {
        return Restartable::NoRseq as u8;
    }
    if !register_restart() {
        return Restartable::NoMembarrier as u8;
    }
    crate::restart::arch::describe_section();
    if force(c"restart") { Restartable::Yes as u8 } else { UNTESTED }
}

/// Registers for membarrier's rseq command.
pub(crate) fn register_restart() -> bool {
    !fenced()
        && sys::membarrier(sys::MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0
        && sys::membarrier(sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ) == 0
}

/// Readers execute fences.
pub(crate) fn fenced() -> bool {
    FENCED.load(Ordering::Relaxed) != 0
}

/// The heavy barrier of a domain. A domain with restartable lookups uses the one that restarts them from the start, whether or not any thread
/// has passed the self-test by then: a lookup that begins while a grace period runs is as good as any other.
pub(crate) fn barrier(restart: bool) -> crate::barrier::Kind {
    use crate::barrier::Kind;
    ensure();
    if fenced() {
        return Kind::Fence;
    }
    let possible = matches!(
        Restartable::from(RESTARTABLE.load(Ordering::Relaxed)),
        None | Some(
            Restartable::Yes | Restartable::SelfTestFailed | Restartable::SelfTestInconclusive
        )
    );
    if restart && possible { Kind::Restart } else { Kind::Membarrier }
}

/// Runs the self-test if nobody has, and tells whether lookups may use restartable sections. While another thread is testing the answer
/// is [`Restartable::SelfTestInconclusive`], to be asked again.
pub(crate) fn restartable() -> Restartable {
    ensure();
    if RESTARTABLE.load(Ordering::Acquire) == UNTESTED {
        let _blocked = sys::SignalsBlocked::new();
        if RESTARTABLE
            .compare_exchange(UNTESTED, TESTING, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            let result = crate::restart::selftest::run();
            let again = result == Restartable::SelfTestInconclusive
                && TESTS.fetch_add(1, Ordering::Relaxed) + 1 < MOST_TESTS;
            RESTARTABLE.store(if again { UNTESTED } else { result as u8 }, Ordering::Release);
            return result;
        }
    }
    Restartable::from(RESTARTABLE.load(Ordering::Acquire))
        .unwrap_or(Restartable::SelfTestInconclusive)
}

/// In the child of a fork: a self-test that another thread was running will never end.
pub(crate) fn after_fork() {
    let fenced_before = fenced();
    if !fenced_before {
        register_membarrier();
        if fenced() {
            // Readers already count on membarrier.
            sys::die("membarrier worked before fork and fails in the child");
        }
    }
    let state = RESTARTABLE.load(Ordering::Relaxed);
    if matches!(state, UNTESTED | TESTING) || state == Restartable::Yes as u8 {
        if !register_restart() {
            sys::die("membarrier's rseq command worked before fork and fails in the child");
        }
        if state == TESTING {
            RESTARTABLE.store(UNTESTED, Ordering::Relaxed);
        }
    }
}

/// Rounds of destructors before a thread's records are given up: one less than the C library is bound to make
/// (`PTHREAD_DESTRUCTOR_ITERATIONS`, at least 4), so that guards which other keys' destructors drop are gone by then.
const ROUNDS: usize = 3;

/// Makes [`crate::thread::unregister`] run when this thread exits.
pub(crate) fn run_at_thread_exit() {
    run_after(ROUNDS);
}

fn run_after(rounds: usize) {
    let key = KEY.load(Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: the key exists; the value is a number that nobody follows. glibc allocates for keys beyond the 32nd only, and ours was
        // made before `main`.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(rounds + 1)) };
    }
}

extern "C" fn at_thread_exit(value: *mut libc::c_void) {
    match value.addr().saturating_sub(1) {
        0 => crate::thread::unregister(),
        rounds => run_after(rounds - 1),
    }
}

/// Keeps the image that contains this code loaded: key destructors and fork handlers point into it.
fn pin() {
    // SAFETY: dladdr fills `info` in when it returns nonzero; the path is a string of the loader; NOLOAD only looks up.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(ensure as *const libc::c_void, &mut info) != 0 && !info.dli_fname.is_null()
        {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of the parent was starting up when the process forked: the child has no such thread.
    #[test]
    fn a_fork_in_the_middle_of_starting_up() {
        ensure();
        let in_child = |f: &dyn Fn() -> i32| {
            let mut status = -1;
            // SAFETY: the child leaves by _exit; if it hangs, SIGALRM ends it.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(20);
                    libc::_exit(f());
                }
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
            status
        };
        let status = in_child(&|| {
            STATE.store(std::os::unix::process::parent_id(), Ordering::Relaxed);
            ensure();
            drop(crate::read_lock());
            crate::synchronize_rcu();
            // Handlers that were there twice would wait for themselves.
            let again = in_child(&|| 7);
            i32::from(STATE.load(Ordering::Relaxed) != DONE || again != 7 << 8)
        });
        assert_eq!(status, 0);
    }
}
