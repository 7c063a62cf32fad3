// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restartable lookups: sections that a grace period sends back to their start instead of waiting
//! for them.
//!
//! # The rules inside
//! From arming to leaving a thread runs nothing but code that is linked into the section. The
//! kernel compares the instruction pointer with the section's bounds when the thread is preempted,
//! migrated, given a signal, or told to by the membarrier: inside, the thread goes to the abort
//! handler and starts over; outside, it would go on with pointers to freed memory. Hence no call or
//! jump out, which includes calls that the compiler inserts: `memcpy` for large copies, panics,
//! and in unoptimized builds every function that is not `#[inline(always)]`, the methods of
//! `AtomicPtr` among them. No system call, no lock, no allocation; no store except to the caller's
//! result. [`Section`] offers the loads that keep the rules at every optimization level;
//! [`Lookup::UNOPTIMIZED`] is the implementor's promise that nothing else is used.
//!
//! # What a grace period promises
//! > **Invariant.** When the membarrier's rseq command has returned, no thread will execute another
//! > instruction of a restartable section that was armed before the command was called.
//!
//! A thread can be
//! - running inside: the interrupt arrives between two instructions. On the way back to user mode
//!   the kernel finds an armed descriptor and sends the thread to the abort handler.
//! - off its CPU, inside: the kernel marks a preempted thread, and the same check precedes its next
//!   instruction in user mode.
//! - arming: the store is one instruction. Before it nothing has been loaded through the section.
//!   After it: the first case.
//! - just outside: the thread has no pointer any more, only a result (a copied value, or a filled
//!   slot: `slots.rs`). The interrupt has made the result visible to the caller of the membarrier.
//! - in a signal handler: delivery aborts the interrupted section. The handler's lookups are
//!   sections of their own.
//!
//! # What must not reach inside
//! Tools that execute the section's instructions elsewhere: a uprobe (`perf probe`) or a debugger's
//! displaced stepping runs a copy out of line, and there the kernel does not find a preempted
//! thread inside. Instrument code outside the section only.
//!
//! # Storms
//! After [`RESTARTS`] restarts a lookup runs in a plain section, which cannot be sent back: a storm
//! of grace periods, or a debugger that single-steps, delays it and cannot starve it. Grace periods
//! wait for that section as long as it takes, so long traversals go in parts (`traversal`).
//!
//! # Other architectures and systems
//! Every lookup runs in a plain section there. For aarch64 the assembly goes into a file next to
//! `x86_64.rs`, with the same items: the descriptor and abort handler (signature 0xd428bc00),
//! `arm`/`disarm` as a store to `tpidr_el0 + __rseq_offset + 8`, `enter!` with x19-x30, d8-d15 and
//! sp, the probe, and `start_helper`; filling a slot is `stlr` there. Linux 6.19 on arm64 did not
//! abort every preempted section: the self-test decides.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "x86_64.rs"]
pub(crate) mod arch;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod probe;
pub(crate) mod section;
pub(crate) mod selftest;
pub(crate) mod traversal;

use crate::platform::facts::{self, Restartable};
use crate::platform::rseq;
use crate::thread::record::Record;
use crate::thread::{self, Thread};
use argument::{Argument, Register};
use section::Section;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a lookup starts over before it runs in a plain section.
pub const RESTARTS: u32 = 16;

/// A traversal that runs inside a restartable section, or in a plain one where it must.
///
/// # Safety
/// The implementor promises, of [`run`](Lookup::run):
/// - it is `#[inline(always)]`, and so is every function it calls; no panic, allocation, lock,
///   system call or store is reachable in it (see the module's rules; arithmetic that cannot
///   overflow, indices that cannot be out of range; `reprieve verify` checks the machine code);
/// - it may be abandoned after any instruction and begun again;
/// - shared memory is read with the methods of [`Section`] only.
pub unsafe trait Lookup {
    /// The result, copied out of the section. At most 64 bytes, and 32 if
    /// [`UNOPTIMIZED`](Lookup::UNOPTIMIZED), so that the compiler copies it in line. Up to 16 bytes
    /// return in registers, as a lookup of 16 bytes is passed in them.
    type Output: Copy;

    /// Whether the promise holds in unoptimized builds, too. There a call of any function that is
    /// not `#[inline(always)]` (such as a pointer's `is_null`) leaves the section. If it does not
    /// hold, builds with debug assertions run the lookup in a plain section, and so do builds that
    /// do not inline (whatever this crate's own profile is). Even if it holds, a build that does
    /// not inline, of a crate whose copy of this one has no debug assertions, uses plain sections:
    /// the loads are calls then. Say so only of code that consists of [`Section`]'s methods, the
    /// language's own operators and functions of the same kind.
    const UNOPTIMIZED: bool = false;

    /// Traverses.
    ///
    /// # Safety
    /// Called inside a section of the domain through which everything it can reach is reclaimed.
    unsafe fn run(&self, section: &Section) -> Self::Output;
}

/// The result of a lookup that protects: a node, by itself or with a word, in two registers. The
/// functions are called inside.
pub(crate) trait Names: Copy {
    /// Whether two slots are filled.
    const TWICE: bool = false;

    /// The address of the node; 0 for none.
    fn node(&self) -> usize;

    /// How far behind the first slot the second is.
    #[inline(always)]
    fn beyond(&self) -> usize {
        0
    }
}

/// Fills the slot at that address with what was found, and a second one if it is to be.
///
/// The verifier knows the second by its distance from the first, whose address is in a register.
///
/// # Safety
/// The slots are this thread's.
#[inline(always)]
unsafe fn fill<N: Names>(slot: usize, found: &N) {
    // SAFETY: the caller's promise.
    unsafe {
        store(slot, found.node());
        if const { N::TWICE } {
            store(slot.wrapping_add(found.beyond()), found.node());
        }
    }
}

/// # Safety
/// As for [`fill`].
#[inline(always)]
unsafe fn store(slot: usize, node: usize) {
    // SAFETY: the caller's promise. On x86 every store releases. Assembly, because the methods of
    // atomics are calls in unoptimized builds.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov qword ptr [{0}], {1}", in(reg) slot, in(reg) node, options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        (*(slot as *const AtomicUsize)).store(node, Ordering::Release);
    }
}

impl<T> Names for *const T {
    #[inline(always)]
    fn node(&self) -> usize {
        *self as usize
    }
}

/// The largest result of a lookup, in bytes. Larger copies are calls of `memcpy`, which lies
/// outside the section.
const fn largest<L: Lookup>() -> usize {
    if L::UNOPTIMIZED { 32 } else { 64 }
}

mod argument;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod armed;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod armed {
    use super::Lookup;

    pub(super) unsafe fn attempt_lookup<L: Lookup>(
        _: *mut super::Thread,
        _: usize,
        _: [super::Register; 2],
    ) -> Option<L::Output> {
        None
    }

    pub(super) unsafe fn attempt_protect<L: Lookup<Output: super::Names>>(
        _: *mut super::Thread,
        _: usize,
        _: [super::Register; 2],
        _: &super::AtomicUsize,
    ) -> Option<L::Output> {
        None
    }
}

/// A domain, as far as its lookups need to know it.
pub(crate) trait LookupDomain {
    /// Whether this is the default domain: its lookups need only [`thread::ready`].
    const DEFAULT: bool;
    fn index(&self) -> usize;
    /// Whether its grace periods send restartable sections back.
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

/// The address of the calling thread's `rseq_cs` field, or 0 if its lookups in this domain may not
/// restart. Notes it in the record.
///
/// A thread that is inside a plain section neither runs the self-test nor waits for it: grace
/// periods wait for the section, and its lookups may run plain until then as well.
#[cold]
#[inline(never)]
pub(crate) fn find_restart(record: &Record, domain: &impl LookupDomain) -> usize {
    let may_ask = || record.nesting() == 0 || facts::restartable().is_some();
    if domain.may_restart() && may_ask() && selftest::restartable() == Restartable::Yes {
        let cs = rseq::rseq_cs().unwrap_or(0);
        record.restart.store(cs, Ordering::Relaxed);
        cs
    } else {
        0
    }
}

/// This thread's block and rseq_cs if a lookup may begin at once.
#[inline(always)]
fn ready<L: Lookup, P: LookupDomain>(domain: &P) -> Option<(*mut Thread, usize)> {
    if !vouched::<L>() {
        return None;
    }
    if !P::DEFAULT && thread::fast(domain.index())?.restart.load(Ordering::Relaxed) == 0 {
        return None;
    }
    thread::ready()
}

/// Attempts off the fast path: the first of a thread, those after a restart, those of a signal
/// handler that interrupted an attempt.
///
/// If the caller interrupted an attempt, leaves the thread's block as that attempt needs it. Else
/// leaves it so that the next lookup may begin at once.
fn attempts<R>(
    record: &Record,
    domain: &impl LookupDomain,
    mut attempt: impl FnMut(*mut Thread, usize) -> Option<R>,
) -> Option<R> {
    let cs = match record.restart.load(Ordering::Relaxed) {
        0 => find_restart(record, domain),
        cs => cs,
    };
    if cs == 0 {
        return None;
    }
    let interrupted = thread::Interrupted::save();
    thread::set_cs(cs);
    let mut result = None;
    for _ in 0..RESTARTS {
        result = attempt(thread::this(), cs);
        if result.is_some() {
            break;
        }
        count(&record.restarts);
    }
    interrupted.restore();
    result
}

/// Runs `lookup` in a section of the domain: restartable if it may, else plain.
///
/// # Safety
/// Everything the lookup can reach is reclaimed through this domain.
#[inline(always)]
pub(crate) unsafe fn lookup<L: Lookup, P: LookupDomain>(domain: P, lookup: &L) -> L::Output {
    const {
        assert!(
            size_of::<L::Output>() <= largest::<L>(),
            "a lookup may return 64 bytes at most, 32 if it is UNOPTIMIZED"
        )
    };
    // SAFETY: the address is this thread's own; the caller's promise.
    unsafe {
        let [a, b] = Argument::new(lookup).words;
        match ready::<L, P>(&domain) {
            Some((thread, cs)) => match armed::attempt_lookup::<L>(thread, cs, [a, b]) {
                Some(result) => result,
                None => lookup_slow::<L>(domain, a, b, true),
            },
            None => lookup_slow::<L>(domain, a, b, false),
        }
    }
}

/// First lookup of a thread, restarts, and plain sections.
#[cold]
#[inline(never)]
unsafe fn lookup_slow<L: Lookup>(
    domain: impl LookupDomain,
    a: Register,
    b: Register,
    restarted: bool,
) -> L::Output {
    let record = thread::record(domain.index());
    if restarted {
        count(&record.restarts);
    }
    if vouched::<L>() {
        // SAFETY: as in `lookup`.
        let attempt = |thread, cs| unsafe { armed::attempt_lookup::<L>(thread, cs, [a, b]) };
        if let Some(result) = attempts(record, &domain, attempt) {
            return result;
        }
    }
    count(&record.fallbacks);
    thread::enter(domain.index());
    // SAFETY: inside a plain section of the domain.
    let result = unsafe { Argument::<L> { words: [a, b] }.lookup().run(&Section::new()) };
    record.leave();
    result
}

/// Like [`lookup`], and fills a slot of this thread with the node found, as the last act inside.
/// Null: nothing found, no slot filled.
///
/// # Safety
/// As for [`lookup`]; and the node is freed only after its address has been looked for in all slots
/// of the domain, at the end of its grace period.
#[inline(always)]
pub(crate) unsafe fn protect<L: Lookup<Output: Names>, P: LookupDomain>(
    domain: P,
    lookup: &L,
) -> (L::Output, &'static AtomicUsize) {
    // SAFETY: the address and the slot are this thread's own; the caller's promise.
    unsafe {
        let [a, b] = Argument::new(lookup).words;
        let Some(record) = thread::fast(domain.index()) else {
            let slot = thread::record(domain.index()).slots.free();
            return protect_slow::<L>(domain, a, b, slot, false);
        };
        let slot = record.slots.free();
        match ready::<L, P>(&domain) {
            Some((thread, cs)) => match armed::attempt_protect::<L>(thread, cs, [a, b], slot) {
                Some(found) => (found, slot),
                None => protect_slow::<L>(domain, a, b, slot, true),
            },
            None => protect_slow::<L>(domain, a, b, slot, false),
        }
    }
}

/// `slot` may hold a node of an aborted attempt. Until this returns the slot is ours, and it is
/// overwritten.
#[cold]
#[inline(never)]
unsafe fn protect_slow<L: Lookup<Output: Names>>(
    domain: impl LookupDomain,
    a: Register,
    b: Register,
    slot: &'static AtomicUsize,
    restarted: bool,
) -> (L::Output, &'static AtomicUsize) {
    // SAFETY: as in `protect`.
    let attempt = |thread, cs| unsafe { armed::attempt_protect::<L>(thread, cs, [a, b], slot) };
    // SAFETY: inside a plain section of the domain.
    let plain = || unsafe { Argument::<L> { words: [a, b] }.lookup().run(&Section::new()) };
    // SAFETY: the slot is this thread's.
    (unsafe { protect_otherwise::<L>(domain, slot, restarted, attempt, plain) }, slot)
}

/// Attempts off the fast path, then a plain section of the domain.
///
/// # Safety
/// The slot is this thread's, and so is the second, if there is one.
unsafe fn protect_otherwise<L: Lookup<Output: Names>>(
    domain: impl LookupDomain,
    slot: &AtomicUsize,
    restarted: bool,
    attempt: impl FnMut(*mut Thread, usize) -> Option<L::Output>,
    plain: impl FnOnce() -> L::Output,
) -> L::Output {
    let record = thread::record(domain.index());
    if restarted {
        count(&record.restarts);
    }
    if vouched::<L>() {
        if let Some(found) = attempts(record, &domain, attempt) {
            return found;
        }
    }
    count(&record.fallbacks);
    thread::enter(domain.index());
    let found = plain();
    #[cfg(reprieve_fault)]
    if crate::platform::fault::is(crate::platform::fault::Fault::FillLate) {
        record.leave();
        crate::platform::fault::gap();
        // SAFETY: the caller's promise.
        unsafe { fill(slot.as_ptr() as usize, &found) };
        return found;
    }
    // Before the section ends: a reclaimer that waited for the section sees the slot filled.
    // SAFETY: the caller's promise.
    unsafe { fill(slot.as_ptr() as usize, &found) };
    record.leave();
    found
}
