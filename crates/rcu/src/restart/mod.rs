// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restartable lookups: sections that a grace period sends back to their start instead of waiting for them.
//!
//! # The rules inside
//! From arming to disarming a thread runs nothing but code that is linked into the section. The kernel compares the
//! instruction pointer with the section's bounds when the thread is preempted, migrated, given a signal, or told to by the
//! membarrier: inside, the thread goes to the abort handler and starts over; outside, it would go on with pointers to freed memory.
//! Hence no call or jump out, which includes whatever the compiler calls for us: `memcpy` for large copies,
//! panics, and in unoptimized builds every function that is not `#[inline(always)]`, the methods of `AtomicPtr` among them. No
//! system call, no lock, no allocation; no store except to the caller's result. [`Section`] offers the loads that keep the rules at every
//! optimization level; [`Lookup::UNOPTIMIZED`] is the implementor's word that nothing else is used.
//!
//! # What a grace period promises
//! > **Invariant.** When the membarrier's rseq command has returned, no thread will execute another instruction of a restartable
//! > section that was armed before the command was called.
//!
//! A thread that runs inside gets the interrupt and leaves the kernel at the abort handler. One that is off its CPU was
//! preempted, and leaves the kernel there too. One that was arming is, after its store, inside. One that had just disarmed is
//! done, and its result (a copied value, or a filled slot: `slots.rs`) is visible to the caller.
//!
//! # What must not reach inside
//! Whatever executes the section's instructions elsewhere: a uprobe (`perf probe`) or a debugger's displaced stepping runs a copy out of line, where
//! a preemption does not find the thread inside. Instrument code outside the section.
//!
//! # Storms
//! After [`RESTARTS`] restarts a lookup runs in a plain section, which cannot be sent back: a storm of grace periods, or a debugger that
//! single-steps, delays it and cannot starve it.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
pub(crate) mod arch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "other.rs"]
pub(crate) mod arch;
pub(crate) mod section;
pub(crate) mod selftest;

use crate::record::Record;
use crate::startup::{self, Restartable};
use crate::thread;
use section::Section;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a lookup starts over before it runs in a plain section.
pub const RESTARTS: u32 = 16;

/// A traversal that runs inside a restartable section, and in a plain one when it must.
///
/// # Safety
/// The implementor promises, of [`run`](Lookup::run):
/// - it is `#[inline(always)]`, and so is every function it calls; no panic, allocation, lock, system call or store is reachable in it
///   (see the module's rules; arithmetic that cannot overflow, indices that cannot be out of range; `reprieve verify` checks the machine code);
/// - it may be abandoned after any instruction and begun again;
/// - shared memory is read with the methods of [`Section`] only.
pub unsafe trait Lookup {
    /// What it returns: copied out of the section. At most 64 bytes, so that the compiler copies it in line.
    type Output: Copy;

    /// Whether the promise holds in unoptimized builds, too, where a call of any function that is not `#[inline(always)]` (as `is_null` of
    /// a pointer is not) leaves the section. If not, builds with debug assertions run the lookup in a plain section, and so do
    /// builds that do not inline (whatever this crate's own profile is). Say so
    /// only of code that consists of [`Section`]'s methods, the language's own operators and functions of the same kind.
    const UNOPTIMIZED: bool = false;

    /// Traverses.
    ///
    /// # Safety
    /// Called inside a section of the domain through which everything it can reach is reclaimed.
    unsafe fn run(&self, section: &Section) -> Self::Output;
}

/// The most that a lookup may return: larger copies are calls of `memcpy`, which lies outside.
const LARGEST: usize = 64;

#[cfg(target_arch = "x86_64")]
mod armed {
    use super::arch::{Ret, arm, disarm};
    use super::{Lookup, Section};
    use std::mem::{ManuallyDrop, MaybeUninit};

    /// Results up to a register's size return in one.
    const fn in_register<T>() -> bool {
        size_of::<T>() <= size_of::<usize>()
    }

    /// Shared or not, faults excepted: a build that arms outside the section must be caught by the tests.
    #[inline(always)]
    unsafe fn begin(cs: usize) {
        #[cfg(reprieve_fault)]
        if crate::fault::is(crate::fault::Fault::ArmOutside) {
            return;
        }
        // SAFETY: the caller lies in the section.
        unsafe { arm(cs) };
    }

    /// Whether the crate that this is compiled for, which is the lookup's and not this one, inlines functions that are merely `#[inline]`. Its profile
    /// need not be ours: `cfg!(debug_assertions)` says nothing about it. Called in the section.
    #[inline(always)]
    fn optimized<L: Lookup>() -> bool {
        L::UNOPTIMIZED || super::arch::in_section(super::arch::here())
    }

    #[inline(never)]
    #[unsafe(link_section = "reprieve_restart")]
    unsafe extern "C" fn lookup_body<L: Lookup>(
        lookup: &L,
        out: Option<&mut MaybeUninit<L::Output>>,
        cs: usize,
    ) -> Ret {
        // SAFETY: called by `attempt_lookup` with a valid lookup, a place for the result unless it fits a register, and
        // this thread's rseq_cs. This function lies in the section.
        unsafe {
            if !optimized::<L>() {
                // As if aborted: in the end it runs in a plain section.
                return Ret { value: MaybeUninit::uninit(), done: 0 };
            }
            begin(cs);
            let result = lookup.run(&Section::new());
            let mut register = Register { value: MaybeUninit::uninit() };
            if const { in_register::<L::Output>() } {
                register.output = ManuallyDrop::new(result);
            } else if let Some(out) = out {
                *out = MaybeUninit::new(result);
            }
            disarm(cs);
            Ret { value: register.value, done: 1 }
        }
    }

    /// A result that fits a register, as the register. (Raw pointers would do, and come with checks in debug builds.)
    #[repr(C)]
    union Register<T: Copy> {
        value: MaybeUninit<usize>,
        output: ManuallyDrop<T>,
    }

    #[inline(never)]
    #[unsafe(link_section = "reprieve_restart")]
    unsafe extern "C" fn protect_body<T, L: Lookup<Output = *const T>>(
        lookup: &L,
        slot: usize,
        cs: usize,
    ) -> Ret {
        // SAFETY: as above; `slot` is the address of a slot of this thread's.
        unsafe {
            if !optimized::<L>() {
                return Ret { value: MaybeUninit::uninit(), done: 0 };
            }
            begin(cs);
            let node = lookup.run(&Section::new());
            // The last act inside, and the only store. On x86 every store releases.
            std::arch::asm!("mov qword ptr [{0}], {1}", in(reg) slot, in(reg) node, options(nostack, preserves_flags));
            disarm(cs);
            Ret { value: MaybeUninit::new(node as usize), done: 1 }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn attempt_lookup<L: Lookup>(lookup: &L, cs: usize) -> Option<L::Output> {
        #[cfg(reprieve_fault)]
        crate::fault::arm_outside(cs);
        let lookup: *const L = lookup;
        // SAFETY: `lookup_body` lies in the section; the arguments are what it takes. The register holds the result's bytes if they fit.
        unsafe {
            if const { in_register::<L::Output>() } {
                let out = std::ptr::null_mut::<L::Output>();
                let ret = super::arch::enter!(lookup_body::<L>, lookup, out, cs);
                (ret.done != 0).then(|| (&raw const ret.value).cast::<L::Output>().read())
            } else {
                let mut out = MaybeUninit::<L::Output>::uninit();
                let ret = super::arch::enter!(lookup_body::<L>, lookup, out.as_mut_ptr(), cs);
                (ret.done != 0).then(|| out.assume_init())
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn attempt_protect<T, L: Lookup<Output = *const T>>(
        lookup: &L,
        slot: &super::AtomicUsize,
        cs: usize,
    ) -> Option<*const T> {
        #[cfg(reprieve_fault)]
        crate::fault::arm_outside(cs);
        let lookup: *const L = lookup;
        // SAFETY: `protect_body` lies in the section; the arguments are what it takes.
        let ret = unsafe { super::arch::enter!(protect_body::<T, L>, lookup, slot.as_ptr(), cs) };
        // SAFETY: it sets the value.
        (ret.done != 0).then(|| unsafe { ret.value.assume_init() } as *const T)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod armed {
    use super::Lookup;

    pub(super) unsafe fn attempt_lookup<L: Lookup>(_: &L, _: usize) -> Option<L::Output> {
        None
    }

    pub(super) unsafe fn attempt_protect<T, L: Lookup<Output = *const T>>(
        _: &L,
        _: &super::AtomicUsize,
        _: usize,
    ) -> Option<*const T> {
        None
    }
}

/// A domain, as far as lookups care.
pub(crate) trait Place {
    fn index(&self) -> usize;
    /// Its grace periods send restartable sections back.
    fn may_restart(&self) -> bool;
}

/// Whether this build may run the lookup in a restartable section.
const fn vouched<L: Lookup>() -> bool {
    L::UNOPTIMIZED || !cfg!(debug_assertions)
}

pub(crate) fn count(counter: &std::sync::atomic::AtomicU64) {
    // Only the owner writes.
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The calling thread's rseq_cs if its lookups in a domain that allows it may restart; remembers it in the record.
#[cold]
#[inline(never)]
pub(crate) fn find_restart(record: &Record, place: &impl Place) -> usize {
    if place.may_restart() && startup::restartable() == Restartable::Yes {
        let cs = arch::rseq_cs().unwrap_or(0);
        record.restart.store(cs, Ordering::Relaxed);
        cs
    } else {
        0
    }
}

/// Runs `lookup` in a section of the domain: restartable if it may, else plain.
///
/// # Safety
/// Everything the lookup can reach is reclaimed through this domain.
#[inline(always)]
pub(crate) unsafe fn lookup<L: Lookup>(place: impl Place, lookup: &L) -> L::Output {
    const { assert!(size_of::<L::Output>() <= LARGEST, "a lookup may return 64 bytes at most") };
    if let Some(record) = thread::fast(place.index()) {
        let cs = record.restart.load(Ordering::Relaxed);
        if cs != 0 && vouched::<L>() {
            // SAFETY: the address is this thread's own.
            if let Some(result) = unsafe { armed::attempt_lookup(lookup, cs) } {
                return result;
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { lookup_slow(place, lookup) }
}

/// First lookup of a thread, restarts, and plain sections.
#[cold]
#[inline(never)]
unsafe fn lookup_slow<L: Lookup>(place: impl Place, lookup: &L) -> L::Output {
    let record = thread::record(place.index());
    let mut cs = 0;
    if vouched::<L>() {
        cs = record.restart.load(Ordering::Relaxed);
        if cs != 0 {
            count(&record.restarts);
        } else {
            cs = find_restart(record, &place);
        }
    }
    if cs != 0 {
        for _ in 0..RESTARTS {
            // SAFETY: as in `lookup`.
            if let Some(result) = unsafe { armed::attempt_lookup(lookup, cs) } {
                return result;
            }
            count(&record.restarts);
        }
    }
    count(&record.fallbacks);
    thread::enter(place.index());
    // SAFETY: inside a plain section of the domain.
    let result = unsafe { lookup.run(&Section::new()) };
    record.leave();
    result
}

/// Like [`lookup`], and fills a slot of this thread with the node found, as the last act inside. Null: nothing found, no slot filled.
///
/// # Safety
/// As for [`lookup`]; and the node is freed only after its address has been looked for in all slots of the domain, at the end of its
/// grace period.
#[inline(always)]
pub(crate) unsafe fn protect<T, L: Lookup<Output = *const T>>(
    place: impl Place,
    lookup: &L,
) -> (*const T, &'static AtomicUsize) {
    if let Some(record) = thread::fast(place.index()) {
        let cs = record.restart.load(Ordering::Relaxed);
        if cs != 0 && vouched::<L>() {
            let slot = record.slots.free();
            // SAFETY: the address and the slot are this thread's own.
            if let Some(node) = unsafe { armed::attempt_protect(lookup, slot, cs) } {
                return (node, slot);
            }
            // SAFETY: as in `lookup`.
            return unsafe { protect_slow(place, lookup, slot) };
        }
    }
    let slot = thread::record(place.index()).slots.free();
    // SAFETY: as in `lookup`.
    unsafe { protect_slow(place, lookup, slot) }
}

/// `slot` may hold what an aborted attempt left: it is ours until this returns, and is overwritten.
#[cold]
#[inline(never)]
unsafe fn protect_slow<T, L: Lookup<Output = *const T>>(
    place: impl Place,
    lookup: &L,
    slot: &'static AtomicUsize,
) -> (*const T, &'static AtomicUsize) {
    let record = thread::record(place.index());
    let mut cs = 0;
    if vouched::<L>() {
        cs = record.restart.load(Ordering::Relaxed);
        if cs != 0 {
            count(&record.restarts);
        } else {
            cs = find_restart(record, &place);
        }
    }
    if cs != 0 {
        for _ in 0..RESTARTS {
            // SAFETY: as in `protect`.
            if let Some(node) = unsafe { armed::attempt_protect(lookup, slot, cs) } {
                return (node, slot);
            }
            count(&record.restarts);
        }
    }
    count(&record.fallbacks);
    thread::enter(place.index());
    // SAFETY: inside a plain section of the domain.
    let node = unsafe { lookup.run(&Section::new()) };
    #[cfg(reprieve_fault)]
    if crate::fault::is(crate::fault::Fault::FillLate) {
        record.leave();
        crate::fault::gap();
        slot.store(node as usize, Ordering::Release);
        return (node, slot);
    }
    // Before the section ends, so that whoever waited for it sees the slot filled. Release: see `slots.rs`.
    slot.store(node as usize, Ordering::Release);
    record.leave();
    (node, slot)
}
