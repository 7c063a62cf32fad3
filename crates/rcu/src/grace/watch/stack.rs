// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stacks of other threads, by a signal: each thread unwinds its own, in a handler.
//!
//! A signal is the only way to find out where a *preempted* thread is: the kernel shows instruction
//! pointers of blocked threads only. A library must not send signals that nobody expects (system
//! calls of the interrupted thread may fail with `EINTR`), so the program asks for it and chooses
//! the signal.
//!
//! The handler calls nothing but the unwinder, which takes no lock with glibc 2.35 or newer
//! (`_dl_find_object`); with other C libraries a thread that is inside `dlopen` at that moment may
//! deadlock. It writes to an entry in static memory that is its own for as long as it takes. So a
//! thread that is slow to answer does no harm: the report waits at most [`LONGEST`] for it, and the
//! late answer overwrites nothing.

use crate::error::Error;
use crate::platform::Instant;
use crate::platform::fork::{self, Handlers, Part};
use crate::platform::lock::Lock;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Frames of one stack.
const DEPTH: usize = 64;
/// Threads that are asked.
pub(crate) const THREADS: usize = 16;
/// A preempted thread has to be given a CPU before it can answer.
const LONGEST: Duration = Duration::from_millis(300);

/// 0: stacks are not enabled.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Held for one report at a time.
static REPORTER: Lock = Lock::new();
static ANSWERS: [Answer; THREADS] = [const { Answer::new() }; THREADS];

/// States of an answer. A slow thread's entry stays at `WRITING` until the thread is done, even if
/// the report has been made without it.
const FREE: u64 = 0;
const WANTED: u64 = 1;
const WRITING: u64 = 2;
const WRITTEN: u64 = 3;

/// The state of a thread's answer. One word: a thread that comes late does not answer for another.
fn word(thread: u32, state: u64) -> u64 {
    u64::from(thread) << 32 | state
}

struct Answer {
    /// See [`word`].
    word: AtomicU64,
    depth: AtomicUsize,
    frames: [AtomicUsize; DEPTH],
}

impl Answer {
    const fn new() -> Answer {
        Answer {
            word: AtomicU64::new(FREE),
            depth: AtomicUsize::new(0),
            frames: [const { AtomicUsize::new(0) }; DEPTH],
        }
    }

    /// Reporter: asks `thread`. False if a slow thread still uses the entry.
    fn want(&self, thread: u32) -> bool {
        let before = self.word.load(Ordering::Acquire);
        // The thread that was asked before may begin to write now.
        before as u32 as u64 != WRITING
            && self
                .word
                .compare_exchange(before, word(thread, WANTED), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    fn state(&self) -> u64 {
        self.word.load(Ordering::Acquire) as u32 as u64
    }

    /// `thread`: makes the entry its own, if the reporter asks it there.
    fn begin(&self, thread: u32) -> bool {
        let (wanted, writing) = (word(thread, WANTED), word(thread, WRITING));
        self.word.compare_exchange(wanted, writing, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The end of [`begin`](Self::begin).
    fn end(&self, thread: u32) {
        self.word.store(word(thread, WRITTEN), Ordering::Release);
    }

    /// Reporter: takes the answer, or withdraws the question.
    fn take(&self) -> Vec<usize> {
        let before = self.word.load(Ordering::Relaxed);
        if before as u32 as u64 == WANTED {
            let free = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.word.compare_exchange(before, FREE, free.0, free.1);
        }
        if self.state() != WRITTEN {
            return Vec::new();
        }
        let depth = self.depth.load(Ordering::Relaxed).min(DEPTH);
        let frames = self.frames[..depth].iter().map(|f| f.load(Ordering::Relaxed)).collect();
        self.word.store(FREE, Ordering::Relaxed);
        frames
    }
}

/// Lets stall reports of all domains show stacks: installs a handler for `signal`, a real-time
/// signal of the program's choice (`SIGRTMIN() + n`), which is sent to at most 16 laggards per
/// report. Their blocking system calls may return `EINTR`.
///
/// # Errors
/// [`Error::StackSignal`] if it is not a real-time signal, or has a handler already.
pub fn enable_stacks(signal: i32) -> Result<(), Error> {
    let error = Error::StackSignal { signal };
    if !(libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal) {
        return Err(error);
    }
    fork::enter(Part::Stacks, const { &Handlers::in_child(after_fork) });
    // SAFETY: plain data that is filled in; the handler keeps the rules of signal handlers.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = answer;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        if libc::sigaction(signal, &action, &mut old) != 0 {
            return Err(error);
        }
        if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != handler as usize {
            libc::sigaction(signal, &old, std::ptr::null_mut());
            return Err(error);
        }
    }
    SIGNAL.store(signal, Ordering::Release);
    Ok(())
}

/// The stacks of the first [`THREADS`] threads, as far as they answer in time. Empty if nobody
/// enabled them.
pub(crate) fn capture(threads: &[u32]) -> Vec<Vec<usize>> {
    let signal = SIGNAL.load(Ordering::Acquire);
    if signal == 0 || !REPORTER.try_lock() {
        return Vec::new();
    }
    let asked: Vec<Option<&Answer>> = threads
        .iter()
        .zip(&ANSWERS)
        .map(|(&thread, answer)| {
            let send = || {
                // SAFETY: the signal has our handler; if the thread is gone, nothing is sent.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) }
            };
            (answer.want(thread) && send() == 0).then_some(answer)
        })
        .collect();
    let end = Instant::now() + LONGEST;
    let pending = |a: &Answer| matches!(a.state(), WANTED | WRITING);
    while asked.iter().flatten().copied().any(pending) && Instant::now() < end {
        crate::platform::sys::sleep(Duration::from_millis(1));
    }
    let stacks = asked.iter().map(|a| a.map_or_else(Vec::new, Answer::take)).collect();
    REPORTER.unlock();
    stacks
}

/// In the child of a fork: nobody writes.
fn after_fork() {
    REPORTER.reset();
    ANSWERS.iter().for_each(|a| a.word.store(FREE, Ordering::Relaxed));
}

#[repr(C)]
struct UnwindContext(c_void);
type UnwindCallback = extern "C" fn(*mut UnwindContext, *mut c_void) -> i32;
// The unwinder that the standard library itself is linked with.
unsafe extern "C" {
    fn _Unwind_Backtrace(callback: UnwindCallback, argument: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut UnwindContext) -> usize;
}
const GO_ON: i32 = 0;
const END_OF_STACK: i32 = 5;

struct Walk {
    answer: &'static Answer,
    /// Where the thread was interrupted: frames above it belong to the handler.
    interrupted: usize,
    depth: usize,
}

extern "C" fn frame(context: *mut UnwindContext, walk: *mut c_void) -> i32 {
    // SAFETY: called by the unwinder with its context and the walk of `answer` below.
    let (walk, address) = unsafe { (&mut *walk.cast::<Walk>(), _Unwind_GetIP(context)) };
    if address == walk.interrupted {
        walk.depth = 0;
    }
    if walk.depth >= DEPTH {
        return END_OF_STACK;
    }
    walk.answer.frames[walk.depth].store(address, Ordering::Relaxed);
    walk.depth += 1;
    GO_ON
}

extern "C" fn answer(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    let thread = crate::platform::sys::thread_id();
    let Some(answer) = ANSWERS.iter().find(|a| a.begin(thread)) else {
        return;
    };
    let mut walk = Walk { answer, interrupted: interrupted(context), depth: 0 };
    // SAFETY: the callback is given what it expects. errno is kept.
    unsafe {
        let errno = *libc::__errno_location();
        _Unwind_Backtrace(frame, (&raw mut walk).cast());
        *libc::__errno_location() = errno;
    }
    answer.depth.store(walk.depth, Ordering::Relaxed);
    answer.end(thread);
}

/// The instruction pointer of the interrupted thread.
fn interrupted(context: *mut c_void) -> usize {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel passes a ucontext to handlers with SA_SIGINFO.
    return unsafe {
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    return unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc as usize };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        0
    }
}
