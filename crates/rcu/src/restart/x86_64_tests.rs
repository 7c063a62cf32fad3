// SPDX-License-Identifier: MIT OR Apache-2.0
//! Aborts, made to happen by a thread that calls the membarrier all the time.

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
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(SeqCst) {
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
