// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stands before the program's signal handlers (see the crate's module of the same name): a handler
//! that semaphores arrive in must not find its own thread in the middle of an operation.
//!
//! The kernel is given one function for all signals. In a section it keeps the signal's
//! information, blocks the signal in the context to which it returns, and the section's end
//! queues it again and lifts the block. Signals of faults are left alone: their handlers run at
//! once, and may make no calls in a section.

use crate::next::next;
use libc::{c_int, c_void, sighandler_t, siginfo_t};
use reprieve_ipc_core::kernel::{self, Signals, call};
use reprieve_ipc_core::signals::{arrived, deliver_with, delivered};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

const SIGNALS: usize = 65;

/// The handling that the program asked for.
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static WANTED: [Wanted; SIGNALS] =
    [const { Wanted { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

/// Signals that [`siginterrupt`] was asked to have interrupt calls.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Signals that were put off, and what came with each.
struct PutOff {
    mask: u64,
    information: [MaybeUninit<siginfo_t>; SIGNALS],
}

thread_local! {
    static PUT_OFF: UnsafeCell<PutOff> =
        const { UnsafeCell::new(PutOff { mask: 0, information: [MaybeUninit::uninit(); SIGNALS] }) };
}

pub const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

fn next_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    next!(
        c"sigaction",
        fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
        signal,
        new,
        old
    )
}

fn handler_address() -> usize {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
    handler as usize
}

extern "C" fn handle(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let Some(wanted) = WANTED.get(signal as usize) else { return };
    if arrived() {
        // SAFETY: this thread's, and its handlers are all this one; the arguments of a handler.
        PUT_OFF.with(|put_off| unsafe {
            let put_off = &mut *put_off.get();
            put_off.information[signal as usize].write(*information);
            put_off.mask |= 1 << (signal - 1);
            *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<Signals>() |=
                bit(signal);
        });
        return;
    }
    let (address, flags) = (wanted.handler.load(Acquire), wanted.flags.load(Acquire));
    if address == libc::SIG_DFL || address == libc::SIG_IGN {
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        // SAFETY: plain data.
        let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
        // The kernel changes the handler alone.
        default.sa_flags = flags;
        next_sigaction(signal, &default, std::ptr::null_mut());
    }
    // SAFETY: the program's handler, with what the kernel gave; one that takes the number only
    // ignores the rest.
    unsafe {
        std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(address)(
            signal,
            information,
            context,
        );
    }
}

/// Delivers what was put off, as if it had been blocked until now: all is queued again before the
/// first handler runs. That one may jump out of here, and the kernel keeps the others.
fn deliver() {
    // SAFETY: this thread's places. With all signals blocked no handler changes them.
    PUT_OFF.with(|put_off| unsafe {
        let mut mask = kernel::block(libc::SIG_BLOCK, kernel::ALL_SIGNALS);
        delivered();
        let put_off = &mut *put_off.get();
        let process = call!(SYS_getpid).unwrap_or(0);
        let thread = call!(SYS_gettid).unwrap_or(0);
        while put_off.mask != 0 {
            let signal = put_off.mask.trailing_zeros() as c_int + 1;
            put_off.mask &= put_off.mask - 1;
            let mut information = put_off.information[signal as usize].assume_init();
            let _ = call!(SYS_rt_tgsigqueueinfo, process, thread, signal, &raw mut information);
            mask &= !bit(signal);
        }
        kernel::block(libc::SIG_SETMASK, mask);
    });
}

/// When the library is loaded.
pub fn begin() {
    deliver_with(deliver);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(wanted) =
        WANTED.get(signal as usize).filter(|_| signal > 0 && !FAULTS.contains(&signal))
    else {
        return next_sigaction(signal, new, old);
    };
    let known = (wanted.handler.load(Acquire), wanted.flags.load(Acquire));
    let mut replaced = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the caller's pointers are valid or null, as sigaction demands.
    unsafe {
        let result = if new.is_null() || (*new).sa_sigaction <= libc::SIG_IGN {
            next_sigaction(signal, new, replaced.as_mut_ptr())
        } else {
            let mut ours = *new;
            ours.sa_sigaction = handler_address();
            ours.sa_flags = (ours.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
            wanted.handler.store((*new).sa_sigaction, Release);
            wanted.flags.store((*new).sa_flags, Release);
            let result = next_sigaction(signal, &ours, replaced.as_mut_ptr());
            if result != 0 {
                wanted.handler.store(known.0, Release);
                wanted.flags.store(known.1, Release);
            }
            result
        };
        if result == 0 && !old.is_null() {
            *old = replaced.assume_init();
            if (*old).sa_sigaction == handler_address() {
                (*old).sa_sigaction = known.0;
                (*old).sa_flags = known.1;
            }
        }
        result
    }
}

/// The same by the name that is the C library's own.
///
/// # Safety
/// As for `sigaction`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { sigaction(signal, new, old) }
}

fn set_handler(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: plain data; the handler is the caller's; errno is this thread's own.
    unsafe {
        if handler == libc::SIG_ERR {
            *libc::__errno_location() = libc::EINVAL;
            return libc::SIG_ERR;
        }
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if flags & libc::SA_NODEFER == 0 {
            *(&raw mut new.sa_mask).cast::<Signals>() = bit(signal);
        }
        if sigaction(signal, &new, &mut old) != 0 { libc::SIG_ERR } else { old.sa_sigaction }
    }
}

fn set_restarting(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = INTERRUPTING.load(Relaxed) & bit(signal) != 0;
    set_handler(signal, handler, if interrupts { 0 } else { libc::SA_RESTART })
}

/// 0 for what is no signal.
fn bit(signal: c_int) -> Signals {
    if (1..SIGNALS as c_int).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// The C library's tells only its own `signal`, and calls `sigaction` past ours.
#[unsafe(no_mangle)]
extern "C" fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
    // SAFETY: plain data that the call fills in, and the handler that there is.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return -1;
        }
        if interrupt != 0 {
            INTERRUPTING.fetch_or(bit(signal), Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(signal), Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        sigaction(signal, &action, std::ptr::null_mut())
    }
}

#[unsafe(no_mangle)]
extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_restarting(signal, handler)
}

#[unsafe(no_mangle)]
extern "C" fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_restarting(signal, handler)
}

#[unsafe(no_mangle)]
extern "C" fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_restarting(signal, handler)
}

/// The C library's calls `sigaction` past ours.
#[unsafe(no_mangle)]
extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    /// Blocks the signal, and leaves its handler as it is.
    const SIG_HOLD: sighandler_t = 2;
    // SAFETY: plain data that the call fills in; the handler is the caller's.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        new.sa_sigaction = handler;
        let (how, new) = match handler {
            SIG_HOLD => (libc::SIG_BLOCK, std::ptr::null()),
            _ => (libc::SIG_UNBLOCK, &raw const new),
        };
        if handler == libc::SIG_ERR || bit(signal) == 0 {
            *libc::__errno_location() = libc::EINVAL;
            return libc::SIG_ERR;
        }
        if sigaction(signal, new, &mut old) != 0 {
            return libc::SIG_ERR;
        }
        let held = kernel::block(how, bit(signal)) & bit(signal) != 0;
        if held { SIG_HOLD } else { old.sa_sigaction }
    }
}

#[unsafe(no_mangle)]
extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

/// The `signal` of a strictly conforming program.
#[unsafe(no_mangle)]
extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}
