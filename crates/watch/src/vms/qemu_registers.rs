// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where QEMU keeps the registers of a vCPU that it emulates (TCG): its `CPUX86State`.
//!
//! QEMU gives neither its address nor its layout. But the code that QEMU generates keeps the
//! address in RBP, so the eBPF program stores the RBP of a vCPU's thread when the thread is
//! interrupted. About every second candidate is right; for the others, RBP has its meaning in
//! QEMU's own code. A candidate is accepted if it contains, where QEMU's layout has them, the
//! interrupt descriptor table, segments and flags of a Linux kernel in 64-bit mode, and in kernel
//! mode the per-CPU base of that CPU. The guest runs on meanwhile.

use crate::raw::read_process;

/// Fields of `CPUX86State` behind the general registers, which come first: `eip`, `eflags`, three
/// words and two halves for lazy flags, `hflags`, `hflags2`, then segments of 24 bytes (selector,
/// base, limit, flags): ES, CS, SS, DS, FS, GS, LDT, TR, GDT, IDT.
const EFLAGS: usize = 8;
const CC_OP: usize = 40;
const DF: usize = 44;
const HFLAGS: usize = 48;
const SEGMENTS: usize = 56;
const SEGMENT: usize = 24;
const LENGTH: usize = SEGMENTS + 10 * SEGMENT;

/// Bytes of general registers: sixteen, or 32 where QEMU knows APX.
const LAYOUTS: [usize; 2] = [16 * 8, 32 * 8];

/// Address of the instruction pointer in the `CPUX86State` at `candidate` in process `pid`, if
/// there is one there, of the CPU whose per-CPU area is at `per_cpu`.
pub fn registers_at(pid: u32, candidate: u64, per_cpu: u64) -> Option<u64> {
    let mut bytes = [0; LAYOUTS[1] + LENGTH];
    read_process(pid, candidate, &mut bytes).ok()?;
    let layout = LAYOUTS.into_iter().find(|&skip| is_linux(&bytes[skip..], per_cpu))?;
    Some(candidate + layout as u64)
}

fn is_linux(bytes: &[u8], per_cpu: u64) -> bool {
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let u32_at = |at: usize| u64_at(at) as u32;
    let segment = |n: usize| SEGMENTS + n * SEGMENT;
    let (eflags, hflags) = (u64_at(EFLAGS), u32_at(HFLAGS));
    // Arithmetic flags and the direction flag are elsewhere while QEMU emulates.
    let flags = eflags >> 22 == 0 && eflags & 2 != 0 && eflags & 0xcd5 == 0;
    let lazy = matches!(u32_at(DF) as i32, 1 | -1) && u32_at(CC_OP) < 256;
    // Protected mode, long mode.
    let mode = hflags & (1 << 7) != 0 && hflags & (1 << 14) != 0;
    let level = hflags & 3;
    let code = u32_at(segment(1));
    let (idt_base, idt_limit) = (u64_at(segment(9) + 8), u32_at(segment(9) + 16));
    let idt = idt_base >> 47 == 0x1ffff && idt_limit == 0xfff;
    let gdt = u64_at(segment(8) + 8) >> 47 == 0x1ffff;
    let own = match level {
        // At the first instructions of an entry GS still is the user's: seen again later.
        0 => code & 3 == 0 && u64_at(segment(5) + 8) == per_cpu,
        3 => code & 3 == 3 && u64_at(0) >> 47 == 0,
        _ => false,
    };
    flags && lazy && mode && idt && gdt && own
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The registers of QEMU 7.2 and 10.0 in kernel mode of a Linux guest.
    fn state(per_cpu: u64) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        let mut put =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, 0xffff_ffff_8110_0000);
        put(EFLAGS, 0x202);
        put(CC_OP, 30 | 1 << 32);
        put(HFLAGS, 1 << 7 | 1 << 14 | 1 << 15);
        put(SEGMENTS + SEGMENT, 0x10);
        put(SEGMENTS + 5 * SEGMENT + 8, per_cpu);
        put(SEGMENTS + 8 * SEGMENT + 8, 0xffff_fe00_0000_1000);
        put(SEGMENTS + 9 * SEGMENT + 8, 0xffff_fe00_0000_0000);
        put(SEGMENTS + 9 * SEGMENT + 16, 0xfff);
        bytes
    }

    #[test]
    fn registers_are_recognised_by_what_a_running_linux_has_in_them() {
        let per_cpu = 0xffff_8880_3dc0_0000;
        let good = state(per_cpu);
        assert!(is_linux(&good, per_cpu));
        assert!(!is_linux(&good, per_cpu + 0x10_0000), "another CPU's");
        assert!(!is_linux(&vec![0; LENGTH], 0));
        let idt = SEGMENTS + 9 * SEGMENT;
        for (at, byte) in
            [(EFLAGS, 0x41), (DF, 0x41), (HFLAGS + 1, 0), (idt + 15, 0), (idt + 16, 0)]
        {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(!is_linux(&bad, per_cpu), "byte {at}");
        }
        let mut user = good.clone();
        user[..8].copy_from_slice(&0x7f00_0000_1000u64.to_le_bytes());
        user[HFLAGS] |= 3;
        user[SEGMENTS + SEGMENT] = 0x33;
        assert!(is_linux(&user, per_cpu));
    }

    #[test]
    fn own_memory_is_no_guests_registers() {
        let own = vec![0u8; 4096];
        assert_eq!(registers_at(std::process::id(), own.as_ptr() as u64, 0), None);
        assert_eq!(registers_at(std::process::id(), 8, 0), None);
    }
}
