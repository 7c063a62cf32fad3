// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stands before the program's signal handlers (see the crate's module of the same name): a handler
//! that semaphores arrive in must not find its own thread in the middle of an operation.
//!
//! The kernel is given one function for all signals. In a section it keeps the signal's
//! information, blocks the signal in the context to which it returns, and the section's end
//! queues it again and lifts the block. Signals of faults are left alone.

use crate::next::next;
use libc::{c_int, c_void, sighandler_t, siginfo_t};
use reprieve_ipc_core::signals::{arrived, deliver_with};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};

const SIGNALS: usize = 65;

/// What the program asked for.
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static WANTED: [Wanted; SIGNALS] =
    [const { Wanted { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

/// Signals that were put off, and what came with each.
struct PutOff {
    mask: u64,
    information: [MaybeUninit<siginfo_t>; SIGNALS],
}

thread_local! {
    static PUT_OFF: UnsafeCell<PutOff> =
        const { UnsafeCell::new(PutOff { mask: 0, information: [MaybeUninit::uninit(); SIGNALS] }) };
}

fn is_fault(signal: c_int) -> bool {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]
        .contains(&signal)
}

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
            libc::sigaddset(&mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, signal);
        });
        return;
    }
    let (address, flags) = (wanted.handler.load(Acquire), wanted.flags.load(Acquire));
    if address == libc::SIG_DFL || address == libc::SIG_IGN {
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        // SAFETY: plain data.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
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

/// Delivers what was put off.
fn deliver() {
    // SAFETY: this thread's; a handler may change it between the looks only.
    PUT_OFF.with(|put_off| unsafe {
        loop {
            let (signal, mut information) = {
                let put_off = &mut *put_off.get();
                if put_off.mask == 0 {
                    return;
                }
                let signal = put_off.mask.trailing_zeros() as c_int + 1;
                put_off.mask &= put_off.mask - 1;
                (signal, put_off.information[signal as usize].assume_init())
            };
            let errno = *libc::__errno_location();
            libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                libc::getpid(),
                libc::gettid(),
                signal,
                &raw mut information,
            );
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            *libc::__errno_location() = errno;
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(wanted) = WANTED.get(signal as usize).filter(|_| signal > 0 && !is_fault(signal))
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
            deliver_with(deliver);
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

fn set_handler(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: plain data; the handler is the caller's.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        if sigaction(signal, &new, &mut old) != 0 { libc::SIG_ERR } else { old.sa_sigaction }
    }
}

#[unsafe(no_mangle)]
extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESTART)
}

#[unsafe(no_mangle)]
extern "C" fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESTART)
}

#[unsafe(no_mangle)]
extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

/// What `signal` is in a strictly conforming program.
#[unsafe(no_mangle)]
extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}
