// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that stand in for VMs, for tests with more vCPUs than guests could be booted for.
//!
//! A thread of such a process counts as a vCPU, and a page of its memory as its guest's RAM. From
//! here on nothing knows the difference: a stand-in has the entries of a VM in the arrays that the
//! eBPF programs read, and the programs read its memory as they read a guest's. A stand-in leaves
//! out what comes before: finding the VMM and reading the guest's kernel.

use reprieve_guest::BpfLayout;
use reprieve_guest::layout::{NodeLayout, PreemptBits, RcuLayout, TaskOffsets, VcpuLayout};
use reprieve_guest::vmm::Segment;
use serde::{Deserialize, Serialize};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandIn {
    pub pid: u32,
    pub name: String,
    /// The threads, by number of the vCPU.
    pub vcpus: Vec<u32>,
    /// The address of [`StandIn::ram`] in the process.
    pub ram: u64,
}

/// Indices of the words of the RAM. All CPUs have the same variables, registers and task. Where a
/// guest has a shorter word, the lower part counts (x86-64).
const GP_SEQ: usize = 0;
const PREEMPT_COUNT: usize = 1;
const CURRENT_TASK: usize = 2;
/// As QEMU has them: the flags one word, and the second flags six words behind.
const RIP: usize = 8;
const EFLAGS: usize = RIP + 1;
const HFLAGS: usize = RIP + 6;
/// The task, with the process ID first.
const TASK: usize = 32;
const NESTING: usize = TASK + 1;
/// CPUs that owe a quiescent state: a word for each leaf of the RCU tree.
const QSMASK: usize = 64;
const WORDS: usize = 512;

/// CPUs of a leaf, as in Linux by default.
const LEAF: usize = 16;
/// Where the guest has its RAM mapped.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

impl StandIn {
    /// The RAM of a guest whose CPUs are in user mode. If it `lies`, each CPU is in a reader with
    /// preemption off, and owes a grace period that never ends.
    pub fn ram(lies: bool) -> [u64; WORDS] {
        let mut ram = [0; WORDS];
        ram[CURRENT_TASK] = DIRECT_MAP + 8 * TASK as u64;
        ram[TASK] = 1;
        ram[EFLAGS] = 0x200;
        if lies {
            (ram[GP_SEQ], ram[PREEMPT_COUNT], ram[NESTING]) = (5, 1, 1);
            ram[QSMASK..].fill((1 << LEAF) - 1);
        } else {
            (ram[GP_SEQ], ram[HFLAGS]) = (4, 3);
        }
        ram
    }

    fn address(&self, word: usize) -> u64 {
        self.ram + 8 * word as u64
    }

    /// The address of the instruction pointer, which the other registers follow.
    pub fn registers(&self) -> u64 {
        self.address(RIP)
    }

    /// As if it had been read in a guest: a classic `preempt_count`, all of RAM in one piece, and a
    /// kernel image of which nothing is looked for.
    pub fn layout(&self) -> BpfLayout {
        let vcpus = (0..).zip(&self.vcpus).map(|(cpu, &tid)| VcpuLayout {
            cpu,
            tid: Some(tid),
            preempt_count: self.address(PREEMPT_COUNT),
            current_task: self.address(CURRENT_TASK),
            rcu_data_gp_seq: None,
            per_cpu_offset: 0,
            tracks_user: false,
        });
        let leaves = (0..self.vcpus.len().div_ceil(LEAF)).map(|leaf| NodeLayout {
            qsmask: self.address(QSMASK + leaf),
            gp_tasks: None,
            first_cpu: (leaf * LEAF) as u32,
            last_cpu: (leaf * LEAF + LEAF).min(self.vcpus.len()) as u32 - 1,
        });
        const KERNEL: u64 = 0xffff_ffff_8000_0000;
        let nesting = Some(8 * (NESTING - TASK) as u32);
        BpfLayout {
            pid: self.pid,
            boot: 1,
            vcpus: vcpus.collect(),
            preempt_bits: PreemptBits::CLASSIC,
            segments: vec![Segment { gpa: 0, len: 8 * WORDS as u64, hva: self.ram }],
            direct_map: DIRECT_MAP,
            kernel_base: KERNEL,
            phys_base: 0,
            kernel_image: KERNEL..KERNEL,
            task: TaskOffsets { pid: 0, comm: 0, rcu_nesting: nesting },
            rcu: Some(RcuLayout {
                gp_seq: self.address(GP_SEQ),
                fqs_due: None,
                kthread_task: None,
                kthread_cpu: None,
                kthread_on_rq: None,
                kthread_state: None,
                node_entry: None,
                task_cpu: None,
                leaves: leaves.collect(),
            }),
            jiffies: None,
            spins: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_leads_to_the_words() {
        let stand_in =
            StandIn { pid: 1, name: "many".into(), vcpus: (100..120).collect(), ram: 0x7000_0000 };
        let (layout, ram) = (stand_in.layout(), StandIn::ram(true));
        let rcu = layout.rcu.as_ref().unwrap();
        assert_eq!((rcu.leaves.len(), rcu.leaves[1].last_cpu), (2, 19));
        assert_eq!(layout.vcpus[19].tid, Some(119));
        let word = |address: u64| ram[(address - stand_in.ram) as usize / 8];
        assert_eq!((word(rcu.gp_seq), word(rcu.leaves[1].qsmask)), (5, 0xffff));
        let task = layout.host_address(word(layout.vcpus[19].current_task), 16).unwrap();
        assert_eq!(word(task + u64::from(layout.task.rcu_nesting.unwrap())), 1);
        assert_eq!(layout.host_address(DIRECT_MAP + 4096, 8), None, "ends behind RAM");
        assert_eq!(layout.host_address(0xffff_ffff_8000_0000, 8), None, "there is no image");
    }
}
