// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flavors as objects (`struct rcu_flavor_struct`), for libraries that take one: liburcu-cds, as it
//! is installed, calls this runtime through them.

use crate::helper::{self, reprieve_defer, reprieve_qsbr_defer};
use crate::{qsbr, reprieve_barrier, reprieve_read_lock_slow, reprieve_read_ongoing};
use crate::{reprieve_read_unlock_slow, reprieve_register_thread, reprieve_synchronize};
use reprieve_core::{Function, Head};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// `struct urcu_atfork`.
#[repr(C)]
pub struct AtFork {
    before: Option<unsafe extern "C" fn(*mut c_void)>,
    after_parent: Option<unsafe extern "C" fn(*mut c_void)>,
    after_child: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
}

/// `struct rcu_flavor_struct`.
#[repr(C)]
pub struct Flavor {
    read_lock: extern "C" fn(),
    read_unlock: extern "C" fn(),
    read_ongoing: extern "C" fn() -> c_int,
    quiescent_state: extern "C" fn(),
    call: unsafe extern "C" fn(*mut Head, Function),
    synchronize: extern "C" fn(),
    defer: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void),
    offline: extern "C" fn(),
    online: extern "C" fn(),
    register: extern "C" fn(),
    unregister: extern "C" fn(),
    barrier: extern "C" fn(),
    register_atfork: extern "C" fn(*mut AtFork),
    unregister_atfork: extern "C" fn(*mut AtFork),
}

/// All flavors but QSBR.
#[unsafe(no_mangle)]
pub static reprieve_flavor: Flavor = Flavor {
    read_lock: reprieve_read_lock_slow,
    read_unlock: reprieve_read_unlock_slow,
    read_ongoing: reprieve_read_ongoing,
    quiescent_state: nothing,
    call,
    synchronize: reprieve_synchronize,
    defer: reprieve_defer,
    offline: nothing,
    online: nothing,
    register: reprieve_register_thread,
    unregister: nothing,
    barrier,
    register_atfork: reprieve_register_atfork,
    unregister_atfork: reprieve_unregister_atfork,
};

#[unsafe(no_mangle)]
pub static reprieve_qsbr_flavor: Flavor = Flavor {
    read_lock: nothing,
    read_unlock: nothing,
    read_ongoing: qsbr::reprieve_qsbr_ongoing,
    quiescent_state: qsbr::reprieve_qsbr_quiescent_state_slow,
    call: qsbr_call,
    synchronize: qsbr::reprieve_qsbr_synchronize,
    defer: reprieve_qsbr_defer,
    offline: qsbr::reprieve_qsbr_offline,
    online: qsbr::reprieve_qsbr_online,
    register: qsbr::reprieve_qsbr_online,
    unregister: qsbr::reprieve_qsbr_offline,
    barrier: qsbr_barrier,
    register_atfork: reprieve_register_atfork,
    unregister_atfork: reprieve_unregister_atfork,
};

extern "C" fn nothing() {}

/// The head may be one of liburcu's, which is smaller than ours: it is the callback's argument and
/// nothing else.
unsafe extern "C" fn call(head: *mut Head, function: Function) {
    // SAFETY: the caller's promise; a function that takes one pointer takes another.
    unsafe { reprieve_defer(as_deferred(function), head.cast()) }
}

unsafe extern "C" fn qsbr_call(head: *mut Head, function: Function) {
    // SAFETY: as above.
    unsafe { reprieve_qsbr_defer(as_deferred(function), head.cast()) }
}

/// # Safety
/// The result is called with a pointer that `function` may be called with.
unsafe fn as_deferred(function: Function) -> unsafe extern "C" fn(*mut c_void) {
    // SAFETY: the types differ in what the one argument, a thin pointer, leads to.
    unsafe { std::mem::transmute::<Function, unsafe extern "C" fn(*mut c_void)>(function) }
}

extern "C" fn barrier() {
    reprieve_barrier();
}

extern "C" fn qsbr_barrier() {
    qsbr::reprieve_qsbr_barrier();
}

/// The fork handlers of liburcu-cds: one object for all its tables, as long as there are any.
static ATFORK: AtomicPtr<AtFork> = AtomicPtr::new(null_mut());
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// Under the caller's own lock, as in liburcu.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_register_atfork(atfork: *mut AtFork) {
    if REGISTERED.fetch_add(1, Ordering::AcqRel) == 0 {
        ATFORK.store(atfork, Ordering::Release);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_unregister_atfork(_: *mut AtFork) {
    let less = |count: usize| count.checked_sub(1);
    if REGISTERED.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) == Ok(1) {
        ATFORK.store(null_mut(), Ordering::Release);
    }
}

fn at_fork(hook: impl Fn(&AtFork) -> Option<unsafe extern "C" fn(*mut c_void)>) {
    // SAFETY: null, or registered and alive until it is unregistered, by a program that does not
    // fork meanwhile.
    if let Some(atfork) = unsafe { ATFORK.load(Ordering::Acquire).as_ref() } {
        if let Some(hook) = hook(atfork) {
            // SAFETY: its own argument.
            unsafe { hook(atfork.argument) }
        }
    }
}

/// `call_rcu_before_fork` and the two that follow: the program calls them around a fork.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_before_fork() {
    at_fork(|a| a.before);
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_after_fork_parent() {
    at_fork(|a| a.after_parent);
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_after_fork_child() {
    at_fork(|a| a.after_child);
    helper::after_fork_child();
}
