// SPDX-License-Identifier: MIT OR Apache-2.0
//! The restartable section on x86-64. `restart/mod.rs` has the rules; this is the machine code.
//!
//! # One section, one descriptor
//! Everything that may run inside is linked into the ELF section `reprieve_restart`. Its name is a C identifier, so the linker keeps
//! all pieces together and provides `__start_`/`__stop_` symbols; the `rseq_cs` descriptor spans the whole of it,
//! however many functions, loops and calls there are. Its length is computed at start-up, since no relocation can express it. The symbols
//! are hidden: each shared object has a section and a descriptor of its own.
//!
//! # Arming
//! [`arm`] is inline assembly in a function that lies in the section: the instruction after the store is inside the span, so
//! there is no gap in which the kernel would find the descriptor armed and the program outside it (and disarm it).
//!
//! # The way back
//! [`enter`] saves the stack pointer in the thread's block, and rbx and rbp in its frame; the compiler is told that all other
//! registers are lost. The abort handler, which lies outside the section, takes them from there and returns to
//! `enter`'s caller with 0 in place of 1 (its return address lies just below the saved stack pointer: nothing but the return
//! itself ever changes that word, and signal frames are placed below the red zone).
//!
//! A signal handler that runs between the abort and the handler's first instruction, and does lookups of its own, must leave the saved stack
//! pointer as it was. So `enter` finds out whether it interrupted another `enter` (the saved pointer is not 0) and then
//! saves and restores it: a cold path. (A handler that leaves by `longjmp` leaves it nonzero: from then on the cold path is
//! taken, which is always right.)
//!
//! A user shadow stack (CET) would keep the return addresses that an abort leaves behind, and the next return would fault. Images that contain this
//! code are not marked as compatible unless the compiler was told to mark everything, or the loader to ignore marks, so start-up looks
//! ([`shadow_stack`]) and then lookups run in plain sections.

use super::selftest::Probe;
use crate::thread::Thread;
use std::arch::{asm, global_asm};
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::AtomicU32;

pub(crate) const SUPPORTED: bool = true;

/// The kernel checks that these bytes stand before the abort handler, so that the mechanism cannot be used to jump just anywhere. The
/// value is the one the C library registered.
const SIGNATURE: u32 = 0x53053053;

const CPU_ID: usize = 4;
const RSEQ_CS: usize = 8;

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
    // Not the kernel's: a linker that drops unreferenced sections keeps this one, and with it the start and stop symbols.
    ".quad reprieve_restart_probe",
    ".popsection",
    // The abort handler. The bytes before the signature make it an instruction for disassemblers (ud1).
    ".pushsection .text.reprieve_restart_abort,\"ax\",@progbits",
    ".byte 0x0f, 0xb9, 0x3d",
    ".long {signature}",
    ".type reprieve_restart_abort,@function",
    "reprieve_restart_abort:",
    "mov rax, qword ptr [rip + reprieve_thread@GOTTPOFF]",
    "mov rsp, qword ptr fs:[rax + {stack}]",
    "mov rbx, qword ptr [rsp + 8]",
    "mov rbp, qword ptr [rsp + 16]",
    "cld",
    "xor eax, eax",
    "xor edx, edx",
    "jmp qword ptr [rsp - 8]",
    ".size reprieve_restart_abort, . - reprieve_restart_abort",
    ".popsection",
    // The probe of the self-test: rdi probe, rsi address of rseq_cs, rdx turns left.
    ".pushsection reprieve_restart,\"ax\",@progbits",
    ".globl reprieve_restart_probe",
    ".hidden reprieve_restart_probe",
    ".type reprieve_restart_probe,@function",
    "reprieve_restart_probe:",
    "lea rax, [rip + reprieve_restart_cs]",
    "mov qword ptr [rsi], rax",
    "mov eax, dword ptr [rsi + {cpu_id} - {rseq_cs}]",
    "mov dword ptr [rdi + {probe_cpu}], eax",
    "mov dword ptr [rdi + {probe_entered}], 1",
    "2: cmp dword ptr [rdi + {probe_stop}], 0",
    "jne 3f",
    "pause",
    "dec rdx",
    "jnz 2b",
    "xor eax, eax",
    "jmp 4f",
    "3: mov eax, {saw_stop}",
    "4: mov qword ptr [rsi], 0",
    "mov edx, 1",
    "ret",
    ".size reprieve_restart_probe, . - reprieve_restart_probe",
    ".popsection",
    // Weak: null where the C library has no rseq.
    ".weak __rseq_offset",
    ".weak __rseq_size",
    signature = const SIGNATURE,
    stack = const offset_of!(Thread, stack),
    cpu_id = const CPU_ID,
    rseq_cs = const RSEQ_CS,
    probe_cpu = const offset_of!(Probe, cpu),
    probe_entered = const offset_of!(Probe, entered),
    probe_stop = const offset_of!(Probe, stop),
    saw_stop = const super::selftest::SAW_STOP,
);

unsafe extern "C" {
    static mut reprieve_restart_cs: [u64; 4];
    static __start_reprieve_restart: u8;
    static __stop_reprieve_restart: u8;
    fn reprieve_restart_probe(probe: *const Probe, cs: usize, turns: usize) -> Ret;
}

/// What the outermost function inside the section returns, in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ret {
    pub(crate) value: MaybeUninit<usize>,
    /// 1. An aborted section has 0 here.
    pub(crate) done: usize,
}

/// Fills in the length of the section. Before any section is armed.
pub(crate) fn describe_section() {
    // SAFETY: called once, while the process finds out what it can do; the symbols delimit one section.
    unsafe {
        let length = (&raw const __stop_reprieve_restart as u64)
            - (&raw const __start_reprieve_restart as u64);
        (&raw mut reprieve_restart_cs).cast::<u64>().add(2).write(length);
    }
}

/// Where the calling thread's `rseq_cs` field is, if the C library registered the thread.
pub(crate) fn rseq_cs() -> Option<usize> {
    let (offset, size, thread): (*const isize, *const u32, usize);
    // SAFETY: reads two GOT entries, null if the symbols are not defined, and the thread pointer.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {1}, qword ptr [rip + __rseq_size@GOTPCREL]",
            "mov {2}, qword ptr fs:[0]",
            out(reg) offset, out(reg) size, out(reg) thread,
            options(nostack, readonly, preserves_flags)
        );
    }
    // SAFETY: the C library defines both as constants. The area at that offset is this thread's own.
    unsafe {
        if offset.is_null() || size.is_null() || *size == 0 {
            return None;
        }
        let area = thread.wrapping_add_signed(*offset);
        let cpu = ((area + CPU_ID) as *const i32).read_volatile();
        // Negative: not registered, or registration failed.
        (cpu >= 0).then_some(area + RSEQ_CS)
    }
}

/// Whether the calling thread has a shadow stack.
pub(crate) fn shadow_stack() -> bool {
    let pointer: usize;
    // SAFETY: `rdsspq rax`, written out for assemblers without it: reads the shadow stack pointer, and does nothing where there is none.
    unsafe {
        asm!("xor eax, eax", ".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8", out("rax") pointer, options(nomem, nostack));
    }
    pointer != 0
}

/// The CPU the calling thread runs on.
pub(crate) fn current_cpu(cs: usize) -> u32 {
    // SAFETY: `cs` is from `rseq_cs`, and lies in this thread's rseq area.
    unsafe { ((cs - RSEQ_CS + CPU_ID) as *const u32).read_volatile() }
}

/// Where this function's code is: in its caller, if it is inlined.
#[inline]
pub(crate) fn here() -> usize {
    let here;
    // SAFETY: an address.
    unsafe { asm!("lea {}, [rip]", out(reg) here, options(pure, nomem, nostack, preserves_flags)) };
    here
}

/// Whether code at that address is in the section.
#[inline(always)]
pub(crate) fn in_section(code: usize) -> bool {
    let (start, stop): (usize, usize);
    // SAFETY: two addresses.
    unsafe {
        asm!(
            "lea {0}, [rip + __start_reprieve_restart]",
            "lea {1}, [rip + __stop_reprieve_restart]",
            out(reg) start, out(reg) stop, options(pure, nomem, nostack, preserves_flags)
        );
    }
    code.wrapping_sub(start) < stop.wrapping_sub(start)
}

/// Begins the restartable part of a function that lies in the section.
///
/// # Safety
/// The code is in the section, was called by [`enter`], and `cs` is from [`rseq_cs`] of this thread.
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

/// Ends it. What was done before is not undone any more.
///
/// # Safety
/// As for [`arm`].
#[inline(always)]
pub(crate) unsafe fn disarm(cs: usize) {
    // SAFETY: as for `arm`.
    unsafe { asm!("mov qword ptr [{0}], 0", in(reg) cs, options(nostack, preserves_flags)) };
}

/// Calls a function inside the section so that its abort returns too, with `done` 0. Arguments go to `a`, `b`, `c`.
///
/// A macro, because `$body` must be a path for `sym`.
macro_rules! enter {
    ($body:path, $a:expr, $b:expr, $c:expr) => {{
        let (value, done): (usize, usize);
        std::arch::asm!(
            "mov rax, qword ptr [rip + reprieve_thread@GOTTPOFF]",
            "cmp qword ptr fs:[rax + {stack}], 0",
            "jne 3f",
            "sub rsp, 32",
            "mov qword ptr [rsp + 8], rbx",
            "mov qword ptr [rsp + 16], rbp",
            "mov qword ptr fs:[rax + {stack}], rsp",
            "call {body}",
            "mov rcx, qword ptr [rip + reprieve_thread@GOTTPOFF]",
            "mov qword ptr fs:[rcx + {stack}], 0",
            "add rsp, 32",
            "2:",
            // A signal handler that interrupted another `enter`.
            ".pushsection .text.unlikely,\"ax\",@progbits",
            "3:",
            "sub rsp, 32",
            "mov qword ptr [rsp + 8], rbx",
            "mov qword ptr [rsp + 16], rbp",
            "mov rcx, qword ptr fs:[rax + {stack}]",
            "mov qword ptr [rsp + 24], rcx",
            "mov qword ptr fs:[rax + {stack}], rsp",
            "call {body}",
            "mov rsi, qword ptr [rsp + 24]",
            "mov rcx, qword ptr [rip + reprieve_thread@GOTTPOFF]",
            "mov qword ptr fs:[rcx + {stack}], rsi",
            "add rsp, 32",
            "jmp 2b",
            ".popsection",
            body = sym $body,
            stack = const std::mem::offset_of!($crate::thread::Thread, stack),
            in("rdi") $a, in("rsi") $b, in("rdx") $c,
            lateout("rax") value, lateout("rdx") done,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("C"),
        );
        $crate::restart::arch::Ret { value: std::mem::MaybeUninit::new(value), done }
    }};
}
pub(crate) use enter;

/// Spins in an armed section until the probe's flag is set (`Some(SAW_STOP)`), for some 10^6 turns (`Some(0)`), or until
/// it is aborted (`None`).
pub(crate) fn probe(probe: &Probe, cs: usize) -> Option<u32> {
    const TURNS: usize = 1 << 20;
    let probe: *const Probe = probe;
    // SAFETY: the probe function lies in the section and keeps its rules; the arguments are what it takes.
    let ret = unsafe { enter!(reprieve_restart_probe, probe, cs, TURNS) };
    // SAFETY: the probe function sets rax.
    (ret.done != 0).then(|| unsafe { ret.value.assume_init() } as u32)
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

/// Runs `f(probe)` on a bare thread with the given stack (its end), without thread-local storage, and has the kernel clear and wake `alive`
/// at its end. False if it could not be created.
///
/// # Safety
/// Stack, `probe` and `alive` live until `alive` is 0. `f` uses no thread-local storage: that of the caller is visible to it.
pub(crate) unsafe fn start_helper(
    stack: *mut u8,
    f: unsafe extern "C" fn(*const Probe),
    probe: &Probe,
    alive: &AtomicU32,
) -> bool {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    let result: isize;
    // SAFETY: the child gets a stack of its own and never leaves the assembly except into `f`; the parent sees a plain system call.
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
    result > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    global_asm!(
        // A section that ruins everything an abort has to put right, and never ends by itself. rdx: address of rseq_cs.
        ".pushsection reprieve_restart,\"ax\",@progbits",
        ".globl reprieve_restart_wreck",
        ".hidden reprieve_restart_wreck",
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
        ".popsection",
        // Calls rdi(rsi) with known values in rbx and rbp; 0 if they, the stack pointer and the direction flag are as the ABI wants them.
        ".pushsection .text.reprieve_test_keeps,\"ax\",@progbits",
        ".globl reprieve_test_keeps",
        ".hidden reprieve_test_keeps",
        "reprieve_test_keeps:",
        "push rbx",
        "push rbp",
        "push r12",
        "mov rbx, 0x1234567",
        "mov rbp, 0x7654321",
        "mov r12, rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "pushfq",
        "pop rax",
        "and rax, 0x400",
        "xor rbx, 0x1234567",
        "xor rbp, 0x7654321",
        "sub r12, rsp",
        "or rax, rbx",
        "or rax, rbp",
        "or rax, r12",
        "lea rsp, [rsp + r12]",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "cld",
        "ret",
        ".popsection",
    );

    unsafe extern "C" {
        fn reprieve_restart_wreck(a: usize, b: usize, cs: usize) -> Ret;
        fn reprieve_test_keeps(f: unsafe extern "C" fn(usize), cs: usize) -> usize;
    }

    unsafe extern "C" fn aborted(cs: usize) {
        // SAFETY: the function lies in the section, and is left by an abort only.
        let ret = unsafe { enter!(reprieve_restart_wreck, 0usize, 0usize, cs) };
        assert_eq!(ret.done, 0);
    }

    #[test]
    fn an_abort_puts_everything_right() {
        use crate::startup::{Restartable, restartable};
        static END: AtomicBool = AtomicBool::new(false);
        if restartable() != Restartable::Yes {
            return;
        }
        let interrupter = std::thread::spawn(|| {
            while !END.load(SeqCst) {
                crate::sys::membarrier(crate::sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ);
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        let cs = rseq_cs().unwrap();
        for outer in [0, 1] {
            // With 1, as in a signal handler that interrupted another `enter`: the cold path, which leaves the value as it was.
            // SAFETY: this thread's block, in no `enter`. `aborted` is what `keeps` calls.
            unsafe {
                let stack = &raw mut (*crate::thread::this()).stack;
                *stack = outer;
                for _ in 0..100 {
                    assert_eq!(reprieve_test_keeps(aborted, cs), 0);
                    assert_eq!(*stack, outer);
                }
                *stack = 0;
            }
        }
        END.store(true, SeqCst);
        interrupter.join().unwrap();
    }
}
