// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time-slice extensions of rseq (Linux 7.0, `CONFIG_RSEQ_SLICE_EXTENSION`): a thread that is about
//! to lose its CPU in a non-preemptable section keeps it for some microseconds, if it asked for
//! that. It then gives the CPU back as soon as the section is over.
//!
//! The request is a byte in the thread's rseq area, which the C library has registered. The kernel
//! accepts it in registrations of more than 32 bytes only (glibc 2.41); this crate registers none
//! of its own, since a thread has one and the runtime's restartable sections use it.

use super::{Line, NOBODY};
use crate::platform::sys;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, compiler_fence};

/// `PR_RSEQ_SLICE_EXTENSION` and what follows it, as in `linux/prctl.h`.
const PR_RSEQ_SLICE_EXTENSION: usize = 79;
const SET: usize = 2;
const ENABLE: usize = 1;

/// In a line's `slice`: there are no extensions.
pub(super) const NOWHERE: u64 = 0;
/// The thread asks for them at its first section that is not preemptable.
const UNKNOWN: u64 = 1;

/// Whether the main thread got them: then others may.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// At load time.
pub(super) fn find_out() {
    KNOWN.store(enable().is_ok(), Relaxed);
}

/// The `slice` of a new line.
pub(super) fn first() -> u64 {
    if KNOWN.load(Relaxed) { UNKNOWN } else { NOWHERE }
}

impl Line {
    /// Lets the kernel hear the requests of the line's thread, which is the calling one.
    pub(crate) fn enable_slices(&self) -> Result<(), Lack> {
        // Many threads share that line.
        let control = if self.index() == NOBODY { Err(Lack::Line) } else { enable() };
        self.slice.store(control.map_or(NOWHERE, |control| control.0 as u64), Relaxed);
        control.map(|_| ())
    }
}

fn enable() -> Result<Control, Lack> {
    let arguments = [PR_RSEQ_SLICE_EXTENSION, SET, ENABLE, 0, 0, 0];
    // SAFETY: takes numbers only.
    let set = unsafe { sys::call(libc::SYS_prctl, arguments) };
    match -set as i32 {
        0 => Control::of_this_thread().ok_or(Lack::Area),
        // ENOTSUPP, which user space has no name for: the boot parameter `rseq_slice_ext=off`, or
        // the registration is too short.
        524 => Err(Lack::Short),
        libc::ENXIO => Err(Lack::Area),
        _ => Err(Lack::Kernel),
    }
}

/// Why a thread gets no time-slice extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// The kernel is older than 7.0, or built without `CONFIG_RSEQ_SLICE_EXTENSION`.
    Kernel,
    /// The rseq area that the C library registers is too short (glibc before 2.41), or the kernel
    /// was booted with `rseq_slice_ext=off`.
    Short,
    /// The C library registers no rseq area.
    Area,
    /// The process has so many threads that this one has no place for its hints.
    Line,
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lack::Kernel => {
                "the kernel has none: Linux 7.0 with CONFIG_RSEQ_SLICE_EXTENSION has time-slice extensions"
            }
            Lack::Short => {
                "rseq area without them: glibc 2.41 is needed, and a kernel not booted with rseq_slice_ext=off"
            }
            Lack::Area => "the C library registers no rseq area",
            Lack::Line => "more threads give hints than there are lines for them (4095)",
        })
    }
}

impl std::error::Error for Lack {}

/// A thread's `slice_ctrl`, by its address: a byte for the request, a byte for the kernel's grant.
#[derive(Clone, Copy)]
struct Control(usize);

#[cfg(target_arch = "x86_64")]
mod area {
    const FLAGS: usize = 16;
    const ENABLED: u32 = 1 << 5;
    const SLICE_CTRL: usize = 28;

    impl super::Control {
        /// `None` if the area that is registered is not the C library's.
        pub(super) fn of_this_thread() -> Option<super::Control> {
            let area = crate::platform::cpu::rseq_area()?;
            // SAFETY: lies in this thread's rseq area of 32 bytes and more.
            let flags = unsafe { ((area + FLAGS) as *const u32).read_volatile() };
            (flags & ENABLED != 0).then_some(super::Control(area + SLICE_CTRL))
        }
    }

    pub(super) fn yield_slice() {
        const SYS_RSEQ_SLICE_YIELD: i64 = 471;
        // SAFETY: no arguments.
        unsafe { crate::platform::sys::call(SYS_RSEQ_SLICE_YIELD, [0; 6]) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod area {
    impl super::Control {
        pub(super) fn of_this_thread() -> Option<super::Control> {
            None
        }
    }

    pub(super) fn yield_slice() {}
}

impl Control {
    fn byte(word: u64, at: usize) -> *const AtomicU8 {
        std::ptr::with_exposed_provenance(word as usize + at)
    }
}

/// The outermost section begins.
///
/// # Safety
/// `word` is that of the calling thread's line.
#[cold]
pub(crate) unsafe fn request(mut word: u64) {
    if word == UNKNOWN {
        let line = super::me();
        let _ = line.enable_slices();
        word = line.slice.load(Relaxed);
    }
    if word != NOWHERE {
        // SAFETY: the request is a byte of this thread's rseq area.
        unsafe { (*Control::byte(word, 0)).store(1, Relaxed) };
        compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// The outermost section is over.
///
/// # Safety
/// As above.
#[cold]
pub(crate) unsafe fn release(word: u64) {
    // A handler may have begun its own section before the thread asked.
    if word == NOWHERE || word == UNKNOWN {
        return;
    }
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    // SAFETY: as above; the second byte is the grant.
    let granted = unsafe {
        (*Control::byte(word, 0)).store(0, Relaxed);
        (*Control::byte(word, 1)).load(Relaxed) != 0
    };
    if granted {
        area::yield_slice();
    }
}
