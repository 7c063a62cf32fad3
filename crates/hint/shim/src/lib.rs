// SPDX-License-Identifier: MIT OR Apache-2.0
//! `LD_PRELOAD=libreprieve_locks.so PROGRAM`: the program's pthread mutexes and reader-writer locks
//! become those of `reprieve-hint`, in the memory that they have.
//!
//! - **Mutexes** of the default and the adaptive kind. Recursive, error-checking, robust,
//!   process-shared and priority mutexes stay the C library's: its `kind` field says which they
//!   are, and is left as it is (`mutex`).
//! - **Reader-writer locks** that are not process-shared. Readers go first, as with the C library,
//!   unless the lock was made to prefer writers without recursion.
//! - **Condition variables**, because the C library's know the inside of its mutexes: those that
//!   are not process-shared become a count of signals that threads sleep on (`lock/condition.rs`).
//!   With a process-shared one and a mutex of ours, threads look once a millisecond.
//!
//! Where the C library's structures are not as expected, which is tried first (`layout`),
//! everything stays the C library's; `reprieve_locks_replaced` says which it is.
//!
//! All else is found out when the library is loaded ([`loaded`]): a lock's own function allocates
//! nothing, and makes no system call but futex.

mod condition;
mod image;
mod layout;
mod loader;
mod mutex;
mod next;
mod read_write;
mod time;

#[used]
#[unsafe(link_section = ".init_array.00101")]
static LOADED: extern "C" fn() = loaded;

/// After `reprieve_hint`'s own, whose number is lower.
extern "C" fn loaded() {
    if layout::known() {
        let clock = image::kernel(c"__vdso_clock_gettime").unwrap_or(std::ptr::null_mut());
        // SAFETY: the kernel's function, or null.
        unsafe { reprieve_hint::abi::preloaded(clock) };
        loader::find_clocks();
    }
}
