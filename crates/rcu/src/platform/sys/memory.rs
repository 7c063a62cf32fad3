// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages.

use crate::platform::annotate;

/// Fresh zeroed pages that are never given back, or null.
pub(crate) fn map_pages(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing of
    // ours.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // The mapping is a write for thread sanitizers. Other threads use it from here on.
    annotate::release(annotate::clock());
    if p == libc::MAP_FAILED { std::ptr::null_mut() } else { p.cast() }
}
