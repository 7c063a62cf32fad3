// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CPU that the calling thread runs on: from its rseq area, which costs two loads; else by
//! asking the C library.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::AtomicIsize;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the C library keeps a thread's rseq area, from the thread pointer; 0: nowhere.
#[cfg(target_arch = "x86_64")]
static AREA: AtomicIsize = AtomicIsize::new(0);

/// At load time.
pub(crate) fn find_out() {
    usable();
    #[cfg(target_arch = "x86_64")]
    {
        let (offset, size): (*const isize, *const u32);
        // SAFETY: reads two GOT entries, null where the C library has no such symbols (before glibc
        // 2.35).
        unsafe {
            std::arch::asm!(
                // In each object that names them: elsewhere, the name would still be required.
                ".weak __rseq_offset",
                ".weak __rseq_size",
                "mov {0}, qword ptr [rip + __rseq_offset@GOTPCREL]",
                "mov {1}, qword ptr [rip + __rseq_size@GOTPCREL]",
                out(reg) offset, out(reg) size,
                options(nostack, pure, readonly, preserves_flags)
            );
            if !offset.is_null() && !size.is_null() && *size != 0 {
                AREA.store(*offset, Ordering::Relaxed);
            }
        }
    }
}

/// `u32::MAX` if the rseq area does not say.
#[cfg(target_arch = "x86_64")]
#[inline]
fn by_rseq() -> u32 {
    let offset = AREA.load(Ordering::Relaxed);
    if offset == 0 {
        return u32::MAX;
    }
    let cpu: u32;
    // SAFETY: reads the area of this thread.
    unsafe {
        std::arch::asm!(
            "mov {0:e}, dword ptr fs:[{1} + 4]",
            out(reg) cpu, in(reg) offset,
            options(nostack, readonly, preserves_flags)
        );
    }
    // Negative: not registered.
    if (cpu as i32) < 0 { u32::MAX } else { cpu }
}

/// The calling thread's rseq area, if the C library has registered it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn rseq_area() -> Option<usize> {
    let pointer: usize;
    // SAFETY: reads the thread pointer.
    unsafe {
        std::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer,
            options(pure, readonly, nostack, preserves_flags));
    }
    let offset = AREA.load(Ordering::Relaxed);
    (by_rseq() != u32::MAX).then(|| pointer.wrapping_add_signed(offset))
}

#[cfg(not(target_arch = "x86_64"))]
fn by_rseq() -> u32 {
    u32::MAX
}

/// The CPU that this thread runs on; `u32::MAX` if nobody knows.
#[inline]
pub(crate) fn current() -> u32 {
    match by_rseq() {
        u32::MAX => ask(),
        cpu => cpu,
    }
}

#[cold]
#[inline(never)]
fn ask() -> u32 {
    // SAFETY: no preconditions; -1 if unknown.
    unsafe { libc::sched_getcpu() as u32 }
}

/// CPUs that the process might use when it first asked.
pub(crate) fn usable() -> u32 {
    static USABLE: AtomicU32 = AtomicU32::new(0);
    match USABLE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: plain data of the size given.
            let cpus = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&set), &mut set);
                libc::CPU_COUNT(&set)
            };
            let cpus = cpus.max(1) as u32;
            USABLE.store(cpus, Ordering::Relaxed);
            cpus
        }
        cpus => cpus,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_cpu_is_known() {
        super::find_out();
        let cpu = super::current();
        assert!(cpu < 1 << 16, "{cpu}");
        assert!(super::usable() >= 1);
    }
}
