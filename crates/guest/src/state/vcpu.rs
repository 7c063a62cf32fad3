// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's CPUs: where the kernel keeps what each is doing.
//!
//! Every CPU has its own copy of some variables, at `__per_cpu_offset[n]` + the variable's address.
//! `preempt_count` and `current_task` are variables of their own up to Linux 6.1 and again since
//! 6.15, and fields of `pcpu_hot` from 6.2 to 6.14.

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::vmm::VcpuThread;
use std::collections::HashMap;

/// CPUs of a guest that are looked at. Linux for x86-64 has at most 8192.
pub(crate) const CPUS_MAX: u32 = 8192;

/// Masks of the bits of `preempt_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptBits {
    /// Depth of disabled preemption: spinlocks, `preempt_disable`.
    pub preempt: u32,
    /// Softirq: the lowest bit is set while one is served; the others count `local_bh_disable`.
    pub softirq: u32,
    /// Depth of counted interrupt disabling; 0 in kernels that do not count it.
    pub hardirq_disable: u32,
    pub hardirq: u32,
    pub nmi: u32,
    /// Set while *no* rescheduling is wanted; 0 where this bit is not in the word.
    pub no_resched: u32,
}

impl PreemptBits {
    /// Until Linux 7.2.
    pub const CLASSIC: PreemptBits = PreemptBits {
        preempt: 0xff,
        softirq: 0xff00,
        hardirq_disable: 0,
        hardirq: 0xf_0000,
        nmi: 0xf0_0000,
        no_resched: 1 << 31,
    };

    /// Since Linux 7.3: `preempt_count` has 64 bits, of which the upper half has only the one about
    /// rescheduling.
    pub const WITH_HARDIRQ_DISABLE: PreemptBits = PreemptBits {
        preempt: 0xff,
        softirq: 0xff00,
        hardirq_disable: 0xff_0000,
        hardirq: 0xf00_0000,
        nmi: 0xf000_0000,
        no_resched: 0,
    };

    /// Recognised by the width of the variable; a narrow one of the new kind by the separate count
    /// of NMIs.
    fn of(kernel: &Kernel) -> PreemptBits {
        if kernel.symbols.get("nmi_nesting").is_some() {
            return PreemptBits {
                nmi: 1 << 28,
                no_resched: 1 << 31,
                ..PreemptBits::WITH_HARDIRQ_DISABLE
            };
        }
        let wide = kernel.types.variable_size("__preempt_count") == Some(8);
        if wide { PreemptBits::WITH_HARDIRQ_DISABLE } else { PreemptBits::CLASSIC }
    }
}

/// Where the variables of all CPUs are.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    pub bits: PreemptBits,
    /// By CPU number, all that the kernel was ready for at boot.
    pub areas: Vec<Area>,
    /// Kernel address of a bit mask.
    present: Option<u64>,
}

/// The APIC id of a CPU that was never there.
const NO_APIC: u16 = 0xffff;

/// The variables of one CPU. Guest-physical addresses, as these are read often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    /// `__per_cpu_offset`.
    pub offset: u64,
    pub preempt_count: u64,
    pub current_task: u64,
    /// Kernel address of `rcu_data`.
    pub rcu_data: Option<u64>,
    /// Low 16 bits of the APIC id, if the kernel says.
    pub apic_id: Option<u16>,
}

impl Cpus {
    pub fn new(kernel: &Kernel) -> Result<Cpus> {
        let memory = &kernel.memory;
        let (preempt_count, current_task) = hot(kernel)?;
        let address = |name: &str| kernel.symbols.get(name).map(|s| s.address);
        let count = match address("nr_cpu_ids") {
            Some(at) => memory.u32(at)?,
            None => 1,
        };
        if count == 0 || count > CPUS_MAX {
            return Err(Error::corrupt("nr_cpu_ids", format!("{count} CPUs")));
        }
        let area = |cpu: u32| -> Result<Area> {
            let offset = match address("__per_cpu_offset") {
                Some(table) => memory.u64(table.wrapping_add(8 * u64::from(cpu)))?,
                // A kernel for one CPU.
                None => 0,
            };
            let own = |at: u64| offset.wrapping_add(at);
            let apic = address("x86_cpu_to_apicid").and_then(|at| memory.u16(own(at)).ok());
            Ok(Area {
                offset,
                preempt_count: memory.translate(own(preempt_count))?,
                current_task: memory.translate(own(current_task))?,
                rcu_data: address("rcu_data").map(own),
                apic_id: apic,
            })
        };
        let mut areas = Vec::new();
        for cpu in 0..count {
            match area(cpu) {
                Ok(area) => areas.push(area),
                // CPU 0 exists. Others may be possible only in theory.
                Err(e) if cpu == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(Cpus { bits: PreemptBits::of(kernel), areas, present: address("__cpu_present_mask") })
    }

    /// The variables of CPU `n`.
    pub fn area(&self, n: u32) -> Result<&Area> {
        self.areas.get(n as usize).ok_or(Error::NoCpu { cpu: n })
    }

    /// CPUs that are plugged in, ascending.
    pub fn present(&self, memory: &Memory) -> Result<Vec<u32>> {
        let count = self.areas.len() as u32;
        let Some(address) = self.present else { return Ok((0..count).collect()) };
        let bytes = memory.bytes(address, count.div_ceil(64) as usize * 8)?;
        let set = |cpu: &u32| bytes[*cpu as usize / 8] & (1 << (cpu % 8)) != 0;
        Ok((0..count).filter(set).collect())
    }

    /// The threads that run the guest's CPUs `present` (ascending), of the VMM's in order.
    pub fn threads(&self, present: &[u32], threads: &[VcpuThread]) -> Vec<Option<u32>> {
        let indices: Vec<u32> = threads.iter().map(|v| v.index).collect();
        let tids: HashMap<u32, u32> = threads.iter().rev().map(|v| (v.index, v.tid)).collect();
        let found = self.vmm_indices(present, &indices);
        found.into_iter().map(|index| tids.get(&index?).copied()).collect()
    }

    /// The VMM's numbers of the guest's CPUs `present`, given all of the VMM's in order.
    fn vmm_indices(&self, present: &[u32], vmm: &[u32]) -> Vec<Option<u32>> {
        let apic = |&cpu: &u32| self.areas.get(cpu as usize)?.apic_id.filter(|&id| id != NO_APIC);
        let ids: Vec<u16> = present.iter().filter_map(apic).collect();
        // The guest numbers CPUs without gaps, in the order in which they were plugged in; the VMM
        // numbers them by APIC id, and has gaps where none is plugged in.
        if ids.len() == present.len() && ids.len() == vmm.len() {
            let mut sorted = ids.clone();
            sorted.sort_unstable();
            let before = |mine: &u16| sorted.partition_point(|id| id < mine);
            return ids.iter().map(|id| vmm.get(before(id)).copied()).collect();
        }
        // In the same order, and without a gap so far, the numbers are the same. A crash kernel's
        // only CPU is 0 to it, and any of the VMM's.
        let same = ids.first().is_none_or(|&id| id == 0) && ids.is_sorted();
        let at = |&cpu: &u32| vmm.get(cpu as usize).copied().filter(|&n| n == cpu && same);
        present.iter().map(at).collect()
    }
}

/// Addresses of `preempt_count` and of the pointer to the current task, as of per-CPU variables.
fn hot(kernel: &Kernel) -> Result<(u64, u64)> {
    let symbols = &kernel.symbols;
    if let Some(count) = symbols.get("__preempt_count") {
        return Ok((count.address, symbols.address("current_task")?));
    }
    let hot = symbols.address("pcpu_hot").map_err(|_| Error::NoSymbol {
        name: "__preempt_count or pcpu_hot (the kernel is built without CONFIG_KALLSYMS_ALL)"
            .into(),
    })?;
    let field =
        |name| Ok::<u64, Error>(hot.wrapping_add(kernel.types.offset_of("pcpu_hot", name)?));
    Ok((field("preempt_count")?, field("current_task")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpus_are_matched_by_apic_id_when_plugged_in_out_of_order() {
        let area = |apic_id| Area {
            offset: 0,
            preempt_count: 0,
            current_task: 0,
            rcu_data: None,
            apic_id,
        };
        let cpus = |ids: &[Option<u16>]| Cpus {
            bits: PreemptBits::CLASSIC,
            areas: ids.iter().copied().map(area).collect(),
            present: None,
        };
        let index_of = |cpus: &Cpus, cpu: u32, present: &[u32], vmm: &[u32]| {
            let all = cpus.vmm_indices(present, vmm);
            present.iter().position(|&other| other == cpu).and_then(|at| all[at])
        };
        let plain = cpus(&[Some(0), Some(1), Some(4)]);
        assert_eq!(index_of(&plain, 2, &[0, 2], &[0, 2]), Some(2));
        assert_eq!(index_of(&plain, 1, &[0, 2], &[0, 2]), None);
        let swapped = cpus(&[Some(0), Some(3), Some(1)]);
        assert_eq!(index_of(&swapped, 1, &[0, 1, 2], &[0, 1, 3]), Some(3));
        assert_eq!(index_of(&swapped, 2, &[0, 1, 2], &[0, 1, 3]), Some(1));
        assert_eq!(index_of(&cpus(&[None, None]), 1, &[0, 1], &[0, 1]), Some(1));
        // A vCPU is missing in the middle of the VMM's.
        let gap = cpus(&[Some(0), Some(2), Some(3), Some(NO_APIC)]);
        let all = [0, 1, 2].map(|cpu| index_of(&gap, cpu, &[0, 1, 2], &[0, 2, 3]));
        assert_eq!(all, [Some(0), Some(2), Some(3)]);
        // The guest has fewer than the VMM, or does not say yet which one has come.
        assert_eq!(index_of(&plain, 1, &[0, 1], &[0, 1, 2, 3]), Some(1));
        assert_eq!(index_of(&gap, 1, &[0, 1], &[0, 2, 3]), None);
        let with_new =
            |vmm: [u32; 4]| [0, 1, 2, 3].map(|cpu| index_of(&gap, cpu, &[0, 1, 2, 3], &vmm));
        assert_eq!(with_new([0, 1, 2, 3]), [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(with_new([0, 1, 3, 5]), [Some(0), Some(1), None, None]);
        // A crash kernel runs on one CPU, whichever crashed.
        assert_eq!(index_of(&cpus(&[Some(3)]), 0, &[0], &[0, 1, 2, 3]), None);
        assert_eq!(index_of(&cpus(&[Some(0)]), 0, &[0], &[0, 1, 2, 3]), Some(0));
    }
}
