// SPDX-License-Identifier: MIT OR Apache-2.0
//! Aborts, made to happen by a thread that calls the membarrier all the time, or by single-stepping: each trap is a signal, which aborts.

use super::*;
use crate::startup::{Restartable, restartable};
use crate::thread::{IDLE, this};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

global_asm!(
    // A section that ruins everything an abort has to put right, and never ends by itself. rdx: address of rseq_cs.
    ".pushsection reprieve_restart,\"ax\",@progbits",
    ".globl reprieve_restart_wreck",
    ".hidden reprieve_restart_wreck",
    ".type reprieve_restart_wreck,@function",
    "reprieve_restart_wreck:",
    "lea rax, [rip + reprieve_restart_cs]",
    "mov qword ptr [rdx], rax",
    "mov rbx, -1",
    "mov rbp, -1",
    "mov r12, -1",
    "mov r13, -1",
    "mov r14, -1",
    "mov r15, -1",
    "sub rsp, 256",
    "std",
    "2: pause",
    "jmp 2b",
    ".size reprieve_restart_wreck, . - reprieve_restart_wreck",
    ".popsection",
    // Calls rdi(rsi) with known values in all registers that calls keep; 0 if they, the stack pointer and the direction flag are as they were.
    ".pushsection .text.reprieve_test_keeps,\"ax\",@progbits",
    ".globl reprieve_test_keeps",
    ".hidden reprieve_test_keeps",
    "reprieve_test_keeps:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov rbx, 0x1234567",
    "mov rbp, 0x7654321",
    "mov r12, rsp",
    "mov r13, 0x1111111",
    "mov r14, 0x2222222",
    "mov r15, 0x3333333",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "pushfq",
    "pop rax",
    "and rax, 0x400",
    "xor rbx, 0x1234567",
    "or rax, rbx",
    "xor rbp, 0x7654321",
    "or rax, rbp",
    "xor r13, 0x1111111",
    "or rax, r13",
    "xor r14, 0x2222222",
    "or rax, r14",
    "xor r15, 0x3333333",
    "or rax, r15",
    "mov rcx, r12",
    "sub rcx, rsp",
    "or rax, rcx",
    "mov rsp, r12",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "cld",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn reprieve_restart_wreck(a: usize, b: usize, cs: usize);
    fn reprieve_test_keeps(f: unsafe extern "C" fn(usize), cs: usize) -> usize;
}

/// Runs `f` while another thread calls the membarrier all the time.
fn interrupted(f: impl FnOnce(usize)) {
    if restartable() != Restartable::Yes {
        return;
    }
    let (start, end) = (std::time::Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(SeqCst) {
                // With wrong registers it may go anywhere.
                if start.elapsed() > Duration::from_secs(120) {
                    crate::sys::die("an attempt that was interrupted does not come back");
                }
                crate::sys::membarrier(crate::sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        f(rseq_cs().unwrap());
        end.store(true, SeqCst);
    });
}

unsafe extern "C" fn aborted(cs: usize) {
    // SAFETY: the function lies in the section, and is left by an abort only.
    let (_, done) = unsafe { enter!(this(), reprieve_restart_wreck, 0usize, 0usize, cs, 0usize) };
    assert!(done.is_null());
    // SAFETY: this thread's block.
    assert_eq!(unsafe { (*this()).stack }, 0, "the next lookup looks for what happened");
}

#[test]
fn an_abort_puts_everything_right() {
    interrupted(|cs| {
        for _ in 0..200 {
            // SAFETY: `aborted` is what `keeps` calls.
            assert_eq!(unsafe { reprieve_test_keeps(aborted, cs) }, 0);
        }
    });
}

/// As in a signal handler.
#[test]
fn lookups_leave_the_attempt_that_they_interrupted_as_it_was() {
    use crate::restart::Lookup;
    use crate::restart::section::Section;

    /// Spins, so that some are aborted.
    struct Spin;
    // SAFETY: reads nothing, calls nothing.
    unsafe impl Lookup for Spin {
        type Output = u64;
        const UNOPTIMIZED: bool = true;

        #[inline(always)]
        unsafe fn run(&self, _: &Section) -> u64 {
            let mut turns = 2_000u64;
            while turns != 1 {
                // SAFETY: an instruction without operands.
                unsafe { asm!("pause", options(nostack, nomem)) };
                turns -= 1;
            }
            turns
        }
    }

    interrupted(|_| {
        // SAFETY: Spin reaches nothing; the block is this thread's, which is in no attempt.
        unsafe {
            assert_eq!(crate::lookup(&Spin), 1);
            assert_eq!((*this()).stack, IDLE);
            let before = crate::Domain::global().stats().restarts;
            let saved = [1, 2, 3, 4];
            for _ in 0..50 {
                (*this()).stack = 4096;
                (*this()).saved = saved;
                assert_eq!(crate::lookup(&Spin), 1);
                assert_eq!(((*this()).stack, (*this()).saved), (4096, saved));
            }
            (*this()).stack = 0;
            assert_eq!(crate::lookup(&Spin), 1);
            assert_eq!((*this()).stack, IDLE);
            assert_ne!(crate::Domain::global().stats().restarts, before, "none was aborted");
        }
    });
}

mod nested {
    use super::*;
    use crate::restart::Lookup;
    use crate::restart::section::Section;
    use crate::thread::entered;
    use std::cell::Cell;

    struct Seven;
    // SAFETY: reads nothing, calls nothing.
    unsafe impl Lookup for Seven {
        type Output = u64;
        const UNOPTIMIZED: bool = true;

        #[inline(always)]
        unsafe fn run(&self, _: &Section) -> u64 {
            7
        }
    }

    fn look_up() {
        // SAFETY: Seven reaches nothing.
        assert_eq!(unsafe { crate::lookup(&Seven) }, 7);
    }

    #[derive(Clone, Copy)]
    enum Stage {
        /// The attempt is being made, until this holds of an instruction in it.
        Outer(fn(usize) -> bool),
        /// A handler interrupted it, and does a lookup of its own.
        Handler,
        /// Another handler interrupted that.
        Nested,
    }

    thread_local! {
        static STAGE: Cell<Stage> = const { Cell::new(Stage::Nested) };
        /// Instructions of the handler's lookup until the next handler.
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }

    /// Runs `f` with a trap after each instruction.
    #[inline(always)]
    fn stepped(f: impl FnOnce()) {
        // SAFETY: the flag makes signals, which are handled, and is cleared again.
        unsafe {
            asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
            f();
            asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
        }
    }

    extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the context of this signal.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        match STAGE.get() {
            Stage::Outer(here) => {
                if !entered() || !here(registers[libc::REG_RIP as usize] as usize) {
                    return;
                }
                STAGE.set(Stage::Handler);
                stepped(look_up);
            }
            Stage::Handler => {
                LEFT.set(LEFT.get() - 1);
                if LEFT.get() != 0 {
                    return;
                }
                STAGE.set(Stage::Nested);
                look_up();
            }
            Stage::Nested => {}
        }
        registers[libc::REG_EFL as usize] &= !0x100;
    }

    type Outer = unsafe extern "C" fn(usize);

    unsafe extern "C" fn wrecked(cs: usize) {
        let mut done = std::ptr::null_mut();
        // SAFETY: the function lies in the section, and is left by an abort only.
        stepped(|| unsafe {
            (_, done) = enter!(this(), reprieve_restart_wreck, 0usize, 0usize, cs, 0usize);
        });
        assert!(done.is_null());
    }

    unsafe extern "C" fn found(_: usize) {
        stepped(look_up);
    }

    /// Whether the handler's lookup had that many instructions.
    fn interrupt(outer: Outer, here: fn(usize) -> bool, left: u32, cs: usize) -> bool {
        look_up();
        STAGE.set(Stage::Outer(here));
        LEFT.set(left);
        // SAFETY: what `keeps` calls makes one attempt.
        assert_eq!(unsafe { reprieve_test_keeps(outer, cs) }, 0, "{left}");
        assert!(!matches!(STAGE.get(), Stage::Outer(_)), "it was not interrupted");
        matches!(STAGE.get(), Stage::Nested)
    }

    /// The registers and the stack pointer of the first attempt outlast both handlers' lookups, wherever the second comes.
    #[test]
    fn handlers_that_interrupt_handlers_leave_the_attempt_as_it_was() {
        // SAFETY: the handler is for traps, which this test makes.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = trapped;
            new.sa_sigaction = handler as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &new, std::ptr::null_mut()), 0);
        }
        let aborted: fn(usize) -> bool = |ip| ip == reprieve_restart_abort as *const () as usize;
        let entering: fn(usize) -> bool = |_| true;
        let step = if cfg!(debug_assertions) { 5 } else { 1 };
        let cases: [(Outer, _); 4] =
            [(wrecked, aborted), (wrecked, entering), (found, aborted), (found, entering)];
        interrupted(|cs| {
            for (outer, here) in cases {
                let fewer = (1..).step_by(step).find(|&left| !interrupt(outer, here, left, cs));
                assert!(fewer.unwrap() > 50);
            }
        });
    }
}
