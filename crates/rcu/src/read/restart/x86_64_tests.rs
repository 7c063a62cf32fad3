// SPDX-License-Identifier: MIT OR Apache-2.0
//! Aborts, made to happen by a thread that calls the membarrier all the time, or by
//! single-stepping: each trap is a signal, which aborts.

use super::*;
use crate::platform::facts::Restartable;
use crate::platform::rseq::rseq_cs;
use crate::read::restart::selftest::settled;
use crate::thread::{IDLE, this};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

global_asm!(
    // A section that destroys all the registers that an abort restores, and never ends by itself.
    // rdx: address of rseq_cs.
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
    // Calls rdi(rsi) with known values in all registers that calls keep; 0 if they, the stack
    // pointer and the direction flag are as they were.
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

/// Runs `f` while another thread calls the membarrier all the time. An attempt that does not come
/// back, because its registers are wrong, hangs the test.
fn interrupted(f: impl FnOnce(usize)) {
    let answer = settled();
    if answer != Restartable::Yes {
        println!("SKIPPED: {answer}");
        return;
    }
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(SeqCst) {
                crate::platform::sys::membarrier(
                    crate::platform::sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ,
                );
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let result = catch_unwind(AssertUnwindSafe(|| f(rseq_cs().unwrap())));
        end.store(true, SeqCst);
        result.unwrap_or_else(|panic| resume_unwind(panic));
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

/// The state that an interrupted attempt needs is set by hand here, as a signal handler finds it.
#[test]
fn lookups_leave_the_attempt_that_they_interrupted_as_it_was() {
    use crate::read::restart::Lookup;
    use crate::read::restart::section::Section;

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
            let restarts = || crate::Domain::global().stats().restarts;
            let before = restarts();
            let saved = [1, 2, 3, 4];
            // And until one was aborted: the other thread may have to wait for a CPU.
            for _ in (0..).take_while(|&i| i < 50 || restarts() == before) {
                (*this()).stack = 4096;
                (*this()).saved = saved;
                assert_eq!(crate::lookup(&Spin), 1);
                assert_eq!(((*this()).stack, (*this()).saved), (4096, saved));
            }
            (*this()).stack = 0;
            assert_eq!(crate::lookup(&Spin), 1);
            assert_eq!((*this()).stack, IDLE);
        }
    });
}

mod nested {
    use super::*;
    use crate::read::restart::section::Section;
    use crate::read::restart::{Lookup, RESTARTS};
    use crate::thread::entered;
    use std::cell::Cell;

    mod samples {
        include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/samples.rs"));
    }
    use samples::{Samples, spread};

    /// Half of the moments at which the second handler comes in each case, at least.
    const LEAST: u64 = 12;

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

    /// When the second handler interrupts the lookup of the first.
    #[derive(Clone, Copy, Debug)]
    enum Moment {
        /// After that many instructions of the lookup.
        Instruction(u64),
        /// When the thread's block has changed that often: the handlers share nothing else.
        Change(u64),
        Never,
    }

    type Block = (usize, [usize; 4]);

    thread_local! {
        static STAGE: Cell<Stage> = const { Cell::new(Stage::Nested) };
        static MOMENT: Cell<Moment> = const { Cell::new(Moment::Never) };
        /// Instructions of the first handler's lookup, and changes of the thread's block in it.
        static PASSED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
        /// The thread's block after the last instruction.
        static BLOCK: Cell<Block> = const { Cell::new((0, [0; 4])) };
    }

    fn block() -> Block {
        // SAFETY: this thread's block.
        unsafe { ((&raw const (*this()).stack).read_volatile(), (*this()).saved) }
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
                PASSED.set((0, 0));
                BLOCK.set(block());
                stepped(look_up);
            }
            Stage::Handler => {
                let (instructions, changes) = PASSED.get();
                let changed = BLOCK.replace(block()) != block();
                let passed = (instructions + 1, changes + u64::from(changed));
                PASSED.set(passed);
                let now = match MOMENT.get() {
                    Moment::Instruction(n) => passed.0 == n,
                    Moment::Change(n) => passed.1 == n,
                    Moment::Never => false,
                };
                if !now {
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

    /// Whether that moment came.
    fn interrupt(outer: Outer, here: fn(usize) -> bool, moment: Moment, cs: usize) -> bool {
        look_up();
        STAGE.set(Stage::Outer(here));
        MOMENT.set(moment);
        // SAFETY: what `keeps` calls makes one attempt.
        assert_eq!(unsafe { reprieve_test_keeps(outer, cs) }, 0, "{moment:?}");
        assert!(!matches!(STAGE.get(), Stage::Outer(_)), "it was not interrupted");
        matches!(STAGE.get(), Stage::Nested)
    }

    /// The registers and the stack pointer of the first attempt outlast both handlers' lookups,
    /// wherever the second comes.
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
        let cases: [(_, Outer, _); 4] = [
            ("a wrecked attempt, aborted", wrecked, aborted),
            ("a wrecked attempt, being entered", wrecked, entering),
            ("a lookup, aborted", found, aborted),
            ("a lookup, being entered", found, entering),
        ];
        interrupted(|cs| {
            for (name, outer, here) in cases {
                assert!(!interrupt(outer, here, Moment::Never, cs));
                let (instructions, changes) = PASSED.get();
                assert!(instructions > 50 && changes > 2 * RESTARTS as u64);
                let samples =
                    Samples::new(format!("{name}, {instructions} instructions"), 2 * LEAST);
                let moments = spread(changes).map(Moment::Change);
                // The changes in the first attempt and those at the end of the last one.
                let ends = (1..=LEAST / 2).flat_map(|n| [n, changes + 1 - n]).map(Moment::Change);
                let mut moments = ends.chain(moments.take(LEAST as usize));
                let mut more = spread(instructions).map(Moment::Instruction);
                while samples.go_on() {
                    let Some(moment) = moments.next().or_else(|| more.next()) else { break };
                    if interrupt(outer, here, moment, cs) {
                        samples.take();
                    }
                }
                samples.end();
            }
        });
    }
}
