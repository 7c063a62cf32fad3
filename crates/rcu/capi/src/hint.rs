// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions behind `reprieve/hint.h` (crate `reprieve-hint`).

use lock_api::{RawMutex as _, RawRwLock as _};
use reprieve_core::abi;
use reprieve_hint::{RawMutex, RawRwLock, Sleeps, Spins, ThreadId};
use std::ffi::{c_int, c_uint, c_void};

// As `hint.h` has it.
const _: () = assert!(size_of::<RawMutex<Sleeps>>() == 48 && size_of::<RawRwLock<Spins>>() == 24);

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_hint_line_slow() -> *const c_void {
    reprieve_hint::abi::line()
}

/// # Safety
/// `slice` is that of the calling thread's line, and not 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_hint_slice_request(slice: u64) {
    // SAFETY: the caller's promise.
    unsafe { reprieve_hint::abi::slice_request(slice) };
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_hint_slice_release(slice: u64) {
    // SAFETY: the caller's promise.
    unsafe { reprieve_hint::abi::slice_release(slice) };
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_has_time_slice_extensions() -> c_int {
    reprieve_hint::time_slice_extensions().is_ok().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_current_thread() -> u64 {
    reprieve_hint::current_thread().to_number()
}

fn answer(answer: Option<bool>) -> c_int {
    answer.map_or(-1, c_int::from)
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_is_preempted(thread: u64) -> c_int {
    answer(reprieve_hint::is_preempted(ThreadId::from_number(thread)))
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_is_vcpu_preempted(vcpu: c_uint) -> c_int {
    answer(reprieve_hint::is_vcpu_preempted(vcpu))
}

/// # Safety
/// The calling thread's line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_hint_tell_host(line: *const c_void) {
    // SAFETY: as above.
    unsafe { reprieve_hint::abi::tell_host(line) };
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_is_overloaded(cpu: c_uint) -> c_int {
    answer(reprieve_hint::is_overloaded(cpu))
}

/// Functions on a lock: what they do, by their names in C.
macro_rules! functions {
    ($lock:ty: $($name:ident = $method:ident $(-> $result:ty)?;)*) => {
        $(
            /// # Safety
            /// The lock is valid; an unlock is called by its holder.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(lock: *const $lock) $(-> $result)? {
                // SAFETY: the caller's promise.
                #[allow(unused_unsafe, reason = "only unlocking is unsafe")]
                unsafe {
                    // The function's ordering, for thread sanitizers: too much does no harm.
                    abi::release_lock(lock);
                    let result = (*lock).$method();
                    abi::acquire_lock(lock);
                    #[allow(clippy::unused_unit, reason = "some return nothing")]
                    { result $(as $result)? }
                }
            }
        )*
    };
}

functions! {
    RawMutex<Sleeps>:
    reprieve_mutex_lock = lock;
    reprieve_mutex_trylock = try_lock -> c_int;
    reprieve_mutex_unlock = unlock;
}

functions! {
    RawMutex<Spins>:
    reprieve_spin_lock = lock;
    reprieve_spin_trylock = try_lock -> c_int;
    reprieve_spin_unlock = unlock;
}

functions! {
    RawRwLock<Spins>:
    reprieve_rw_read_lock = lock_shared;
    reprieve_rw_read_trylock = try_lock_shared -> c_int;
    reprieve_rw_read_unlock = unlock_shared;
    reprieve_rw_write_lock = lock_exclusive;
    reprieve_rw_write_trylock = try_lock_exclusive -> c_int;
    reprieve_rw_write_unlock = unlock_exclusive;
}

functions! {
    RawRwLock<Sleeps>:
    reprieve_rwsem_down_read = lock_shared;
    reprieve_rwsem_down_read_trylock = try_lock_shared -> c_int;
    reprieve_rwsem_up_read = unlock_shared;
    reprieve_rwsem_down_write = lock_exclusive;
    reprieve_rwsem_down_write_trylock = try_lock_exclusive -> c_int;
    reprieve_rwsem_up_write = unlock_exclusive;
}
