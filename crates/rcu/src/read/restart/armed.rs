// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that lie in the section, one per lookup, and the calls of them.
//!
//! # What a lookup costs
//! A hash lookup in a section of its own executes these instructions more than one between two
//! quiescent states of QSBR, where a section is nothing:
//!
//! ```text
//! cmp  [thread.stack], IDLE; jne        may it begin at once?
//! mov  rdx, [thread.cs]                 where to arm
//! mov  rdi, ...; mov rcx, ...           the words of the lookup
//! mov  [thread.stack], rsp              for the abort handler: the section may change these
//! mov  [thread.saved], rbx, rbp, r13, r14
//! call
//! lea  rax, descriptor; mov [rdx], rax  arm
//! ret
//! test r12, r12; je                     was it aborted?
//! mov  rcx, [thread.cs]; mov [rcx], 0   disarm
//! mov  [thread.stack], IDLE             a signal handler may use `saved`
//! ```
//!
//! and the caller reloads what it had in the other registers. Half of them would remain at best:
//! the compiler uses rsp, rbx and rbp as it likes, the code has to lie in the section, and the
//! abort has to be seen. Tried, without gain:
//! - to stay armed after a lookup, and to test the field inside: one load and two stores less, one
//!   branch more;
//! - to prefetch the first nodes: wrong guesses of branches have fetched them already.
//!
//! Several lookups in one section share the cost: a [`Lookup`] may return an array. A lookup waits
//! for branches that the processor could not predict. After each it fetches anew, so instructions
//! count, and stores do not.

use super::arch::{abort_unless_optimized, arm, enter};
use super::argument::{Argument, Output, Register, in_registers};
use super::section::{ASSEMBLY, Section};
use super::{Lookup, Names, fill};
use crate::thread::{Thread, leave};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicUsize;

/// Two registers, as the ABI returns them.
#[repr(C)]
pub(super) struct Words([Register; 2]);

/// Arms the section, except in builds that arm outside on purpose, which the tests must catch.
#[inline(always)]
unsafe fn begin<L: Lookup>(cs: usize) {
    if !(L::UNOPTIMIZED && ASSEMBLY) {
        // SAFETY: as below.
        unsafe { abort_unless_optimized() };
    }
    #[cfg(reprieve_fault)]
    if crate::platform::fault::is(crate::platform::fault::Fault::ArmOutside) {
        return;
    }
    // SAFETY: the caller lies in the section.
    unsafe { arm(cs) };
}

#[inline(never)]
#[unsafe(link_section = "reprieve_restart")]
unsafe extern "C" fn value_body<L: Lookup>(
    a: Register,
    _: Register,
    cs: usize,
    b: Register,
) -> Words {
    // SAFETY: called by `attempt_lookup` with the words of a lookup and this thread's rseq_cs. This
    // function lies in the section.
    unsafe {
        let argument = Argument::<L> { words: [a, b] };
        begin::<L>(cs);
        // One by one: an unoptimized build fills an array of equals in a loop, whose stores the
        // verifier cannot tell from stores elsewhere.
        let mut output = Output { words: [Register::uninit(), Register::uninit()] };
        output.value = argument.lookup().run(&Section::new());
        Words(output.words)
    }
}

#[inline(never)]
#[unsafe(link_section = "reprieve_restart")]
unsafe extern "C" fn copy_body<L: Lookup>(
    a: Register,
    out: &mut MaybeUninit<L::Output>,
    cs: usize,
    b: Register,
) {
    // SAFETY: as above.
    unsafe {
        let argument = Argument::<L> { words: [a, b] };
        begin::<L>(cs);
        *out = MaybeUninit::new(argument.lookup().run(&Section::new()));
    }
}

#[inline(never)]
#[unsafe(link_section = "reprieve_restart")]
unsafe extern "C" fn protect_body<L: Lookup<Output: Names>>(
    a: Register,
    slot: usize,
    cs: usize,
    b: Register,
) -> Words {
    // SAFETY: as above; `slot` is the address of a slot of this thread's.
    unsafe {
        let argument = Argument::<L> { words: [a, b] };
        begin::<L>(cs);
        // One by one: an unoptimized build fills an array of equals in a loop, whose stores the
        // verifier cannot tell from stores elsewhere.
        let mut output = Output { words: [Register::uninit(), Register::uninit()] };
        output.value = argument.lookup().run(&Section::new());
        // The last act inside, and the only store.
        fill(slot, &output.value);
        Words(output.words)
    }
}

#[inline(always)]
pub(super) unsafe fn attempt_lookup<L: Lookup>(
    thread: *mut Thread,
    cs: usize,
    [a, b]: [Register; 2],
) -> Option<L::Output> {
    #[cfg(reprieve_fault)]
    arm_outside(cs);
    // SAFETY: the functions lie in the section; the arguments are what they take.
    unsafe {
        if const { in_registers::<L::Output>() } {
            let unused = Register::uninit();
            let (words, done) = enter!(thread, value_body::<L>, a, unused, cs, b);
            if done.is_null() {
                return None;
            }
            leave(done);
            Some(Output { words }.value)
        } else {
            let mut out = MaybeUninit::<L::Output>::uninit();
            let (_, done) = enter!(thread, copy_body::<L>, a, out.as_mut_ptr(), cs, b);
            if done.is_null() {
                return None;
            }
            leave(done);
            Some(out.assume_init())
        }
    }
}

#[inline(always)]
pub(super) unsafe fn attempt_protect<L: Lookup<Output: Names>>(
    thread: *mut Thread,
    cs: usize,
    [a, b]: [Register; 2],
    slot: &AtomicUsize,
) -> Option<L::Output> {
    const { assert!(in_registers::<L::Output>()) };
    #[cfg(reprieve_fault)]
    arm_outside(cs);
    // SAFETY: `protect_body` lies in the section; the arguments are what it takes, and it returns
    // what fits two registers.
    unsafe {
        let (words, done) = enter!(thread, protect_body::<L>, a, slot.as_ptr(), cs, b);
        if done.is_null() {
            return None;
        }
        leave(done);
        Some(Output { words }.value)
    }
}

/// For builds that arm too early on purpose: arms outside the section, with the gap widened so that
/// a preemption falls into it within seconds, not days.
#[cfg(reprieve_fault)]
fn arm_outside(cs: usize) {
    use crate::platform::fault::{Fault, is};
    use std::sync::atomic::{AtomicU8, Ordering};
    if is(Fault::ArmOutside) {
        // SAFETY: `cs` is this thread's own. Arming outside is the fault.
        unsafe { arm(cs) };
        // Every eighth call enters the kernel: how long the loop takes is up to the processor.
        static TURN: AtomicU8 = AtomicU8::new(0);
        if TURN.fetch_add(1, Ordering::Relaxed) % 8 == 0 {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        for _ in 0..64 {
            std::hint::spin_loop();
        }
    }
}
