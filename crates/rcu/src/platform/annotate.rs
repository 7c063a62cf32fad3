// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells a thread sanitizer, if the program has one, what orders threads here. The sanitizer sees
//! no membarrier, and no atomics of this crate unless it was compiled with the sanitizer. One clock
//! stands for all readers and callbacks, so the sanitizer misses some races between them.
//!
//! C's headers annotate what is in line. `abi.rs` annotates the functions that C calls.

/// The address of a function of the sanitizer's, or 0.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom)))]
macro_rules! entry {
    ($name:literal) => {{
        let found: usize;
        // SAFETY: reads a GOT entry, null where nobody defines the symbol.
        unsafe {
            std::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) found,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        found
    }};
}
/// Accesses before a [`release`] of the same address happen before this returns.
pub(crate) fn acquire(address: usize) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom)))]
    call(address, entry!("__tsan_acquire"));
    #[cfg(any(loom, not(all(target_arch = "x86_64", target_os = "linux"))))]
    let _ = address;
}

/// See [`acquire`].
pub(crate) fn release(address: usize) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom)))]
    call(address, entry!("__tsan_release"));
    #[cfg(any(loom, not(all(target_arch = "x86_64", target_os = "linux"))))]
    let _ = address;
}

/// The address of the clock for readers and callbacks.
pub(crate) fn clock() -> usize {
    static CLOCK: u64 = 0;
    (&raw const CLOCK).addr()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom)))]
#[inline]
fn call(address: usize, function: usize) {
    if function != 0 {
        let function = std::ptr::with_exposed_provenance::<()>(function);
        // SAFETY: a function of this type (sanitizer/tsan_interface.h), which takes any address.
        unsafe { std::mem::transmute::<*const (), extern "C" fn(usize)>(function)(address) };
    }
}
