// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's rseq area, which the C library registers with the kernel: where the
//! thread's `rseq_cs` field is, and on which CPU the thread runs.

/// Whether this file supports the architecture.
pub(crate) const SUPPORTED: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) const CPU_ID: usize = 4;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) const RSEQ_CS: usize = 8;

/// Where the calling thread's `rseq_cs` field is, if the C library registered the thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn rseq_cs() -> Option<usize> {
    let (offset, size, thread): (*const isize, *const u32, usize);
    // SAFETY: reads two GOT entries, null if the symbols are not defined, and the thread pointer.
    unsafe {
        std::arch::asm!(
            // Null where the C library has no rseq. In each object that names them.
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {0}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {1}, qword ptr [rip + __rseq_size@GOTPCREL]",
            "mov {2}, qword ptr fs:[0]",
            out(reg) offset, out(reg) size, out(reg) thread,
            options(nostack, readonly, preserves_flags)
        );
    }
    // SAFETY: the C library defines both as constants. The area at that offset is this thread's
    // own.
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

/// The CPU the calling thread runs on. `cs` is from [`rseq_cs`].
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn current_cpu(cs: usize) -> u32 {
    // SAFETY: `cs` is from `rseq_cs`, and lies in this thread's rseq area.
    unsafe { ((cs - RSEQ_CS + CPU_ID) as *const u32).read_volatile() }
}

/// Whether the calling thread has a shadow stack.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn shadow_stack() -> bool {
    let pointer: usize;
    // SAFETY: `rdsspq rax`, written as bytes for assemblers that do not know it: reads the shadow
    // stack pointer, and does nothing where there is none.
    unsafe {
        std::arch::asm!(
            "xor eax, eax",
            ".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8",
            out("rax") pointer,
            options(nomem, nostack)
        );
    }
    pointer != 0
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn rseq_cs() -> Option<usize> {
    None
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn current_cpu(_: usize) -> u32 {
    0
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn shadow_stack() -> bool {
    false
}
