// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loads that are sound inside a section, at every optimization level.
//!
//! Each compiles to one load instruction in line. In builds with debug assertions, which are mostly
//! unoptimized, it is inline assembly, because the methods of atomics are calls there. In other
//! builds it is an atomic load, which the compiler can fold into addresses and schedule; a program
//! that does not inline it never gets inside the section (`restart/armed.rs`).

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;

/// Proof of being inside a read-side section, of whatever kind.
pub struct Section(PhantomData<*mut ()>);

/// A plain value of a register's size, or a pointer, that may be read while it is written (each bit
/// pattern valid, or the structure's invariants make it so).
///
/// Read a pointer as `*mut T`. An integer that is read in its place loses the provenance, and may
/// not be followed.
///
/// # Safety
/// One aligned load instruction reads the type as a whole, and each bit pattern that a writer
/// stores is valid.
pub unsafe trait Word: Copy {
    /// Reads `*from`, acquiring.
    ///
    /// # Safety
    /// `from` is aligned and points to a live value.
    unsafe fn load(from: *const Self) -> Self;
}

/// Whether the loads are in line whatever the optimization level of the crate that they are
/// compiled for.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) const ASSEMBLY: bool = cfg!(all(target_arch = "x86_64", debug_assertions));

macro_rules! words {
    ($($type:ty, $atomic:ident$(<$target:ident>)?: $class:ident, $instruction:literal;)*) => { $(
        // SAFETY: one instruction reads the type; all bit patterns are valid integers, and
        // valid pointers as long as nobody follows them.
        unsafe impl$(<$target>)? Word for $type {
            #[inline(always)]
            unsafe fn load(from: *const $type) -> $type {
                #[cfg(all(target_arch = "x86_64", debug_assertions))]
                {
                    let value: $type;
                    // SAFETY: the caller's promise. A plain load acquires on x86.
                    unsafe {
                        std::arch::asm!($instruction, out($class) value, in(reg) from,
                            options(nostack, readonly, preserves_flags));
                    }
                    value
                }
                #[cfg(not(all(target_arch = "x86_64", debug_assertions)))]
                {
                    // SAFETY: the caller's promise. Nothing is written through the pointer.
                    unsafe { std::sync::atomic::$atomic::from_ptr(from.cast_mut()).load(std::sync::atomic::Ordering::Acquire) }
                }
            }
        }
    )* };
}

words! {
    u8, AtomicU8: reg_byte, "mov {0}, byte ptr [{1}]";
    i8, AtomicI8: reg_byte, "mov {0}, byte ptr [{1}]";
    u16, AtomicU16: reg, "mov {0:x}, word ptr [{1}]";
    i16, AtomicI16: reg, "mov {0:x}, word ptr [{1}]";
    u32, AtomicU32: reg, "mov {0:e}, dword ptr [{1}]";
    i32, AtomicI32: reg, "mov {0:e}, dword ptr [{1}]";
    u64, AtomicU64: reg, "mov {0}, qword ptr [{1}]";
    i64, AtomicI64: reg, "mov {0}, qword ptr [{1}]";
    usize, AtomicUsize: reg, "mov {0}, qword ptr [{1}]";
    isize, AtomicIsize: reg, "mov {0}, qword ptr [{1}]";
    *mut T, AtomicPtr<T>: reg, "mov {0}, qword ptr [{1}]";
}

impl Section {
    #[inline(always)]
    pub(crate) const fn new() -> Section {
        Section(PhantomData)
    }

    /// Loads a pointer that a writer publishes with a release store. Acquires (what
    /// `rcu_dereference` does, and on x86-64 as cheap).
    #[inline(always)]
    pub fn load<T>(&self, from: &AtomicPtr<T>) -> *mut T {
        // SAFETY: an AtomicPtr has the size and alignment of a pointer; the reference keeps it
        // alive.
        unsafe { self.read(from as *const AtomicPtr<T> as *const *mut T) }
    }

    /// Like [`load`](Section::load), with null as `None`: testing a pointer with
    /// `is_null` is a call in unoptimized builds, and a call leaves the section.
    #[inline(always)]
    pub fn follow<T>(&self, from: &AtomicPtr<T>) -> Option<NonNull<T>> {
        let pointer = self.load(from);
        // SAFETY: `None` is the null pointer, and the layouts are the same: the documentation of
        // `Option` guarantees it.
        unsafe { std::mem::transmute::<*mut T, Option<NonNull<T>>>(pointer) }
    }

    /// Reads a word.
    ///
    /// # Safety
    /// `from` is aligned and points to a value that is alive in this section.
    #[inline(always)]
    pub unsafe fn read<W: Word>(&self, from: *const W) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load(from) }
    }
}
