// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that stand in for VMs, for tests with more vCPUs than guests could be booted for.
//!
//! A thread of such a process counts as a vCPU, and the process's own memory as its guest's. From
//! here on nothing knows the difference: a stand-in has the entries of a VM in the arrays that the
//! eBPF programs read, and the programs read its memory as they read a guest's. What is left out is
//! what comes before: finding the VMM and reading the guest's kernel.

use reprieve_guest::BpfLayout;
use reprieve_guest::layout::{NodeLayout, PreemptBits, RcuLayout, TaskOffsets, VcpuLayout};
use reprieve_guest::vmm::Segment;
use serde::{Deserialize, Serialize};

/// All of them, as a test describes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandIns {
    pub vms: Vec<StandIn>,
}

/// A process. Addresses are addresses in it, unless the comment says guest; lengths and offsets
/// are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandIn {
    pub pid: u32,
    pub name: String,
    /// By number in the guest.
    pub vcpus: Vec<StandInVcpu>,
    /// The memory that plays the guest's RAM, and where the guest has it mapped.
    pub ram: u64,
    pub ram_bytes: u64,
    pub direct_map: u64,
    /// Offsets in a task.
    pub task_pid: u32,
    pub task_nesting: u32,
    pub gp_seq: u64,
    pub leaves: Vec<StandInLeaf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandInVcpu {
    pub tid: u32,
    pub preempt_count: u64,
    pub current_task: u64,
    /// The address of the instruction pointer, which the other registers follow as in QEMU.
    pub registers: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandInLeaf {
    pub qsmask: u64,
    pub first_cpu: u32,
    pub last_cpu: u32,
}

impl StandIns {
    pub fn vcpus(&self) -> usize {
        self.vms.iter().map(|vm| vm.vcpus.len()).sum()
    }
}

impl StandIn {
    /// As if it had been read in a guest: a classic `preempt_count`, all of RAM in one piece, and a
    /// kernel image of which nothing is looked for.
    pub fn layout(&self) -> BpfLayout {
        let vcpus = (0..).zip(&self.vcpus).map(|(cpu, vcpu)| VcpuLayout {
            cpu,
            tid: Some(vcpu.tid),
            preempt_count: vcpu.preempt_count,
            current_task: vcpu.current_task,
            rcu_data_gp_seq: None,
            per_cpu_offset: 0,
            tracks_user: false,
        });
        let leaves = self.leaves.iter().map(|leaf| NodeLayout {
            qsmask: leaf.qsmask,
            gp_tasks: None,
            first_cpu: leaf.first_cpu,
            last_cpu: leaf.last_cpu,
        });
        const KERNEL: u64 = 0xffff_ffff_8000_0000;
        BpfLayout {
            pid: self.pid,
            boot: 1,
            vcpus: vcpus.collect(),
            preempt_bits: PreemptBits::CLASSIC,
            segments: vec![Segment { gpa: 0, len: self.ram_bytes, hva: self.ram }],
            direct_map: self.direct_map,
            kernel_base: KERNEL,
            phys_base: 0,
            kernel_image: KERNEL..KERNEL,
            task: TaskOffsets { pid: self.task_pid, comm: 0, rcu_nesting: Some(self.task_nesting) },
            rcu: Some(RcuLayout {
                gp_seq: self.gp_seq,
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
impl StandIn {
    /// A stand-in with a vCPU that is thread `tid`.
    pub fn example(pid: u32, tid: u32) -> StandIn {
        StandIn {
            pid,
            name: "many".into(),
            vcpus: vec![StandInVcpu { tid, preempt_count: 8, current_task: 16, registers: 24 }],
            ram: 0x7000_0000,
            ram_bytes: 0x4000,
            direct_map: 0xffff_8880_0000_0000,
            task_pid: 0,
            task_nesting: 8,
            gp_seq: 0x7000_0000,
            leaves: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_found_in_what_plays_the_ram() {
        let stand_in = StandIn::example(1, 2);
        let layout = stand_in.layout();
        assert_eq!(layout.host_address(0xffff_8880_0000_2000, 4096), Some(0x7000_2000));
        assert_eq!(layout.host_address(0xffff_8880_0000_3008, 4096), None, "ends behind RAM");
        assert_eq!(layout.host_address(0xffff_ffff_8000_0000, 8), None, "there is no image");
        assert_eq!(layout.vcpus[0].tid, Some(2));
    }
}
