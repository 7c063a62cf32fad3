// SPDX-License-Identifier: MIT OR Apache-2.0
//! The restartable section on x86-64. `restart/mod.rs` has the rules; this is the machine code.
//!
//! # One section, one descriptor
//! Everything that may run inside is linked into the ELF section `reprieve_restart`. Its name is a
//! C identifier, so the linker keeps all pieces together and provides `__start_`/`__stop_` symbols;
//! the `rseq_cs` descriptor spans the whole of it, however many functions, loops and calls there
//! are. Its length is computed at start-up, since no relocation can express it. The symbols are
//! hidden: each shared object has a section and a descriptor of its own.
//!
//! # Arming
//! [`arm`] is inline assembly in a function that lies in the section: the instruction after the
//! store is inside the span, so there is no gap in which the kernel would find the descriptor armed
//! and the program outside it (and disarm it).
//!
//! # The way back
//! [`enter`] saves the stack pointer and four registers in the thread's block; the compiler is told
//! that all other registers are lost. The abort handler, which lies outside the section, takes them
//! from there and returns to `enter`'s caller with null in r12 in place of the block's address (its
//! return address lies just below the saved stack pointer: nothing but the return itself ever
//! changes that word, and signal frames are placed below the red zone). `enter` moves nothing on
//! the stack, so an unwinder inside the section needs only the compiler's own tables. (A signal
//! handler sees the abort handler's first instruction instead, because the kernel aborts the
//! section before it delivers the signal. The thread's position in the section is lost, and
//! unwinding ends there.)
//!
//! # Signal handlers
//! A handler that interrupts an attempt, or runs between an abort and the abort handler, and does
//! lookups of its own, must leave the saved registers as they were. It finds the block's `stack`
//! neither idle nor 0, so its lookups take the slow path, which saves and restores them
//! ([`Interrupted`](crate::thread::Interrupted)). A handler that leaves by `longjmp` leaves it so:
//! from then on the slow path is taken, which is always right.
//!
//! # What is not restored
//! The direction flag is cleared; SSE, AVX and mask registers are lost, as in any call. MXCSR and
//! the x87 unit's state stay as the section left them: nothing inside may change a control word, or
//! use x87 or MMX registers (`long double` in C). Exception flags that it raised stay raised.
//!
//! A user shadow stack (CET) would keep the return addresses that an abort leaves behind, and the
//! next return would fault. Images that contain this code are not marked as compatible unless the
//! compiler was told to mark everything, or the loader to ignore marks, so start-up looks
//! ([`shadow_stack`]) and then lookups run in plain sections.

use super::probe::Probe;
use crate::platform::rseq::{CPU_ID, RSEQ_CS};
#[cfg(doc)]
use crate::platform::rseq::{rseq_cs, shadow_stack};
use crate::thread::Thread;
use std::arch::{asm, global_asm};
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The kernel checks that these bytes stand before the abort handler, so that the mechanism cannot
/// be used to jump just anywhere. The value is the one the C library registered.
const SIGNATURE: u32 = 0x53053053;

global_asm!(
    // The descriptor: version, flags, start, length (filled in by describe_section), abort handler.
    ".pushsection .data.reprieve_restart_cs,\"aw\",@progbits",
    ".balign 32",
    ".globl reprieve_restart_cs",
    ".hidden reprieve_restart_cs",
    ".hidden __start_reprieve_restart",
    ".hidden __stop_reprieve_restart",
    ".type reprieve_restart_cs,@object",
    ".size reprieve_restart_cs,40",
    "reprieve_restart_cs:",
    ".long 0, 0",
    ".quad __start_reprieve_restart",
    ".quad 0",
    ".quad reprieve_restart_abort",
    // Not for the kernel: by this reference a linker that drops unreferenced sections keeps the
    // section, and with it the start and stop symbols.
    ".quad reprieve_restart_probe",
    ".popsection",
    // The abort handler. The bytes before the signature make it an instruction for disassemblers
    // (ud1).
    ".pushsection .text.reprieve_restart_abort,\"ax\",@progbits",
    ".byte 0x0f, 0xb9, 0x3d",
    ".long {signature}",
    ".globl reprieve_restart_abort",
    ".hidden reprieve_restart_abort",
    ".type reprieve_restart_abort,@function",
    "reprieve_restart_abort:",
    // The stack pointer is wherever the section left it: nothing to unwind by.
    ".cfi_startproc",
    ".cfi_undefined rip",
    "mov rcx, qword ptr [rip + reprieve_thread@GOTTPOFF]",
    "mov rsp, qword ptr fs:[rcx + {stack}]",
    "mov rbx, qword ptr fs:[rcx + {saved}]",
    "mov rbp, qword ptr fs:[rcx + {saved} + 8]",
    "mov r13, qword ptr fs:[rcx + {saved} + 16]",
    "mov r14, qword ptr fs:[rcx + {saved} + 24]",
    // From here on unwinding works as in the function that contains `enter`, before its next
    // instruction: the registers by which that function finds its frame are restored.
    ".cfi_def_cfa rsp, 0",
    ".cfi_offset rip, -8",
    "xor r12d, r12d",
    // The last step: from here on a signal handler may use the block.
    "mov qword ptr fs:[rcx + {stack}], 0",
    "cld",
    "jmp qword ptr [rsp - 8]",
    ".cfi_endproc",
    ".size reprieve_restart_abort, . - reprieve_restart_abort",
    ".popsection",
    // The probe of the self-test: rdi probe, rsi turns left, rdx address of rseq_cs.
    ".pushsection reprieve_restart,\"ax\",@progbits",
    ".globl reprieve_restart_probe",
    ".hidden reprieve_restart_probe",
    ".type reprieve_restart_probe,@function",
    "reprieve_restart_probe:",
    "lea rax, [rip + reprieve_restart_cs]",
    "mov qword ptr [rdx], rax",
    "mov eax, dword ptr [rdx + {cpu_id} - {rseq_cs}]",
    "mov dword ptr [rdi + {probe_cpu}], eax",
    "mov dword ptr [rdi + {probe_entered}], 1",
    "2: cmp dword ptr [rdi + {probe_stop}], 0",
    "jne 3f",
    "pause",
    "dec rsi",
    "jnz 2b",
    "xor eax, eax",
    "jmp 4f",
    "3: mov eax, {saw_stop}",
    "4: ret",
    ".size reprieve_restart_probe, . - reprieve_restart_probe",
    ".popsection",
    signature = const SIGNATURE,
    stack = const offset_of!(Thread, stack),
    saved = const offset_of!(Thread, saved),
    cpu_id = const CPU_ID,
    rseq_cs = const RSEQ_CS,
    probe_cpu = const offset_of!(Probe, cpu),
    probe_entered = const offset_of!(Probe, entered),
    probe_stop = const offset_of!(Probe, stop),
    saw_stop = const super::probe::SAW_STOP,
);

unsafe extern "C" {
    static mut reprieve_restart_cs: [u64; 4];
    static __start_reprieve_restart: u8;
    static __stop_reprieve_restart: u8;
    pub(crate) fn reprieve_restart_abort();
    fn reprieve_restart_probe(probe: *const Probe, turns: usize, cs: usize) -> u32;
}

/// Fills in the length of the section. Before any section is armed; any number of times.
pub(crate) fn describe_section() {
    // SAFETY: aligned, and written here only; the symbols delimit one section.
    unsafe {
        let length = (&raw const __stop_reprieve_restart as u64)
            - (&raw const __start_reprieve_restart as u64);
        let field = (&raw mut reprieve_restart_cs).cast::<u64>().add(2);
        AtomicU64::from_ptr(field).store(length, Ordering::Release);
    }
}

/// For [`abort_unless_optimized`]. Not `#[inline(always)]`, as most functions are not.
#[inline]
pub(crate) fn mark_inlined() {
    // SAFETY: no instruction.
    unsafe { asm!(".set .Lreprieve_inlined, 1", options(nostack, preserves_flags)) };
}

/// Ends the attempt at its start where functions that are merely `#[inline]` are not inlined, and
/// costs nothing where they are. Whether they are depends on the crate that the lookup is compiled
/// for: its profile need not be ours, so `cfg!(debug_assertions)` says nothing about it. Instead
/// the assembler sees whether the mark lies between these two lines, or is a call.
///
/// Called inside, before arming. The abort handler restores everything, as after an abort.
///
/// # Safety
/// The code is in the section, and was called by [`enter`].
#[inline(always)]
pub(crate) unsafe fn abort_unless_optimized() {
    // SAFETY: the jump does what the kernel could do here.
    unsafe {
        asm!(".set .Lreprieve_inlined, 0", options(nostack, preserves_flags));
        mark_inlined();
        asm!(
            ".if .Lreprieve_inlined == 0",
            "jmp {abort}",
            ".endif",
            abort = sym reprieve_restart_abort,
            options(nostack, preserves_flags)
        );
    }
}

/// Begins the restartable part of a function that lies in the section.
///
/// # Safety
/// The code is in the section, was called by [`enter`], and `cs` is from [`rseq_cs`] of this
/// thread.
#[inline(always)]
pub(crate) unsafe fn arm(cs: usize) {
    // SAFETY: writes this thread's rseq_cs field. Not `nomem`: nothing may move across.
    unsafe {
        asm!(
            "lea {0}, [rip + reprieve_restart_cs]",
            "mov qword ptr [{1}], {0}",
            out(reg) _, in(reg) cs, options(nostack, preserves_flags)
        );
    }
}

/// Calls a function inside the section so that its abort returns, too. `$a`, `$b`, `$cs`, `$d`
/// become its arguments, words or pointers; `$thread` is the thread's block. Gives the two words it
/// returns, and `$thread`, or null if it was aborted.
///
/// Stores to one cache line that follow each other retire in pairs, but one at a time if they are
/// addressed by way of `fs`: hence the block's address, and four registers saved, which take no
/// longer than three.
///
/// A macro, because `$body` must be a path for `sym`.
macro_rules! enter {
    ($thread:expr, $body:path, $a:expr, $b:expr, $cs:expr, $d:expr) => {{
        let (first, second): (std::mem::MaybeUninit<usize>, std::mem::MaybeUninit<usize>);
        let thread: *mut $crate::thread::Thread = $thread;
        let done: *mut $crate::thread::Thread;
        std::arch::asm!(
            "mov qword ptr [r12 + {stack}], rsp",
            "mov qword ptr [r12 + {saved}], rbx",
            "mov qword ptr [r12 + {saved} + 8], rbp",
            "mov qword ptr [r12 + {saved} + 16], r13",
            "mov qword ptr [r12 + {saved} + 24], r14",
            "call {body}",
            body = sym $body,
            stack = const std::mem::offset_of!($crate::thread::Thread, stack),
            saved = const std::mem::offset_of!($crate::thread::Thread, saved),
            in("rdi") $a, in("rsi") $b, in("rcx") $d,
            inlateout("rdx") $cs => second,
            lateout("rax") first,
            inlateout("r12") thread => done,
            out("r15") _,
            clobber_abi("C"),
        );
        ([first, second], done)
    }};
}
pub(crate) use enter;

/// Spins in an armed section until the probe's flag is set (`Some(SAW_STOP)`), for some 10^6 turns
/// (`Some(0)`), or until it is aborted (`None`).
pub(crate) fn probe(probe: &Probe, cs: usize) -> Option<u32> {
    const TURNS: usize = 1 << 20;
    let probe: *const Probe = probe;
    let unused = MaybeUninit::<usize>::uninit();
    // SAFETY: the probe function lies in the section and keeps its rules; the arguments are what it
    // takes. It sets eax.
    unsafe {
        let thread = crate::thread::this();
        let ([value, _], done) = enter!(thread, reprieve_restart_probe, probe, TURNS, cs, unused);
        if done.is_null() {
            return None;
        }
        // Not `leave`: the block does not know `cs` yet, and no attempt may begin at once while
        // nobody knows whether it would be sent back.
        (cs as *mut usize).write_volatile(0);
        (&raw mut (*thread).stack).write_volatile(0);
        Some(value.assume_init() as u32)
    }
}

/// A system call that leaves `errno` alone.
///
/// # Safety
/// As the call's.
pub(crate) unsafe fn raw_syscall(number: i64, a: usize, b: usize, c: usize) -> isize {
    let result;
    // SAFETY: the caller answers for the call; the kernel changes rax, rcx, r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Runs `f(probe)` on a bare thread with the given stack (its end), without thread-local storage,
/// and has the kernel clear and wake `alive` at its end. False if it could not be created.
///
/// # Safety
/// Stack, `probe` and `alive` live until `alive` is 0. `f` uses no thread-local storage: that of
/// the caller is visible to it.
pub(crate) unsafe fn start_helper(
    stack: *mut u8,
    f: unsafe extern "C" fn(*const Probe),
    probe: &Probe,
    alive: &AtomicU32,
) -> Option<u32> {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    let result: isize;
    // SAFETY: the child gets a stack of its own and never leaves the assembly except into `f`; the
    // parent sees a plain system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as usize, in("rsi") stack, in("rdx") 0, in("r10") alive.as_ptr(), in("r8") 0,
            in("r12") std::ptr::from_ref(probe), in("r13") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    (result > 0).then_some(result as u32)
}

#[cfg(test)]
#[path = "x86_64_tests.rs"]
mod tests;
