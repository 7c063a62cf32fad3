// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stall reports, for C.

use reprieve_core::Domain;
use reprieve_core::watch::{self, State};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::time::Duration;

/// `struct reprieve_laggard`.
#[repr(C)]
pub struct Laggard {
    waiting_ns: u64,
    ran_ns: u64,
    name: *const c_char,
    thread: u32,
    state: u32,
    cpu: i32,
    call: i32,
}

/// `struct reprieve_stall`.
#[repr(C)]
pub struct Stall {
    waiting_ns: u64,
    laggards: *const Laggard,
    count: usize,
    text: *const c_char,
}

/// `reprieve_stall_hook`.
pub type Hook = unsafe extern "C" fn(*const Stall, *mut c_void);

/// A domain, or the default one.
///
/// # Safety
/// `domain` is null or alive.
unsafe fn domain<'a>(domain: *const Domain) -> &'a Domain {
    // SAFETY: the caller's promise.
    unsafe { domain.as_ref() }.unwrap_or_else(|| Domain::global())
}

/// Without what C would take for its end.
fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// As `enum reprieve_reader_state`.
fn number(state: &State) -> u32 {
    match state {
        State::Running => 1,
        State::Preempted => 2,
        State::Blocked { .. } => 3,
        State::Stopped => 4,
        State::Dead { forgotten: false, .. } => 5,
        State::Dead { forgotten: true, .. } => 6,
        _ => 0,
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().min(u64::MAX as u128) as u64
}

/// Calls the hook.
///
/// # Safety
/// The hook is a function that takes `argument`.
unsafe fn tell(stall: &watch::Stall, hook: Hook, argument: *mut c_void) {
    let names: Vec<CString> = stall.laggards.iter().map(|l| c_string(l.name.clone())).collect();
    let laggard = |(laggard, name): (&watch::Laggard, &CString)| Laggard {
        waiting_ns: nanoseconds(laggard.waiting),
        ran_ns: laggard.ran.map_or(0, nanoseconds),
        name: CStr::as_ptr(name),
        thread: laggard.thread,
        state: number(&laggard.state),
        cpu: laggard.cpu.map_or(-1, |cpu| cpu as i32),
        call: match laggard.state {
            State::Blocked { call: Some(call @ 0..), .. } => call as i32,
            _ => -1,
        },
    };
    let laggards: Vec<Laggard> = stall.laggards.iter().zip(&names).map(laggard).collect();
    let text = c_string(stall.to_string());
    let copy = Stall {
        waiting_ns: nanoseconds(stall.waiting),
        laggards: laggards.as_ptr(),
        count: laggards.len(),
        text: text.as_ptr(),
    };
    // SAFETY: the caller's promise.
    unsafe { hook(&copy, argument) }
}

/// # Safety
/// As `stall.h` says, here and below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_set_stall_timeout(of: *const Domain, timeout_ms: u64) {
    let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms));
    // SAFETY: the caller's promise.
    unsafe { domain(of) }.set_stall_timeout(timeout);
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_on_stall(
    of: *const Domain,
    hook: Option<Hook>,
    argument: *mut c_void,
) {
    // The program answers for its use on other threads.
    let argument = argument.expose_provenance();
    // SAFETY: the caller's promise.
    let domain = unsafe { domain(of) };
    match hook {
        None => domain.print_stalls(),
        Some(hook) => domain.on_stall(move |stall| {
            // SAFETY: the caller's promise.
            unsafe { tell(stall, hook, std::ptr::with_exposed_provenance_mut(argument)) }
        }),
    }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_stalled(
    of: *const Domain,
    longer_than_ms: u64,
    hook: Option<Hook>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { domain(of) }.stalled(Duration::from_millis(longer_than_ms)) {
        Some(stall) => {
            if let Some(hook) = hook {
                // SAFETY: the caller's promise.
                unsafe { tell(&stall, hook, argument) };
            }
            1
        }
        None => 0,
    }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_set_forget_dead(of: *const Domain, forget: c_int) {
    // SAFETY: the caller's promise.
    unsafe { domain(of) }.set_forget_dead(forget != 0);
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_forget_dead_threads(of: *const Domain) -> usize {
    // SAFETY: the caller's promise.
    unsafe { domain(of) }.forget_dead_threads()
}
