// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses and offsets that an eBPF program needs to read a guest.
//!
//! The addresses are computed once per boot of the guest. Host addresses are addresses in the VMM's
//! process, for `bpf_probe_read_user` while one of its threads is current. Offsets and lengths are
//! in bytes.
//!
//! From a guest's task address to a host address: an address in `kernel_image` is `phys_base` +
//! (address - `kernel_base`), one from `direct_map` on is address - `direct_map`; the segment that
//! holds this guest-physical address says where it is in the host. [`BpfLayout::host_address`] is
//! that algorithm, to check an eBPF program against.

pub use crate::state::spins::{Spin, SpinsFor};
use crate::state::task::COMM_LEN;
pub use crate::state::task::TaskOffsets;
pub use crate::state::vcpu::PreemptBits;
use crate::vmm::Segment;
use std::ops::Range;

/// Addresses and offsets for one boot of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfLayout {
    /// The VMM's process.
    pub pid: u32,
    /// Changes with every boot.
    pub boot: u64,
    /// By guest CPU number; only those that are a vCPU now.
    pub vcpus: Vec<VcpuLayout>,
    pub preempt_bits: PreemptBits,
    /// RAM, sorted by guest-physical address.
    pub segments: Vec<Segment>,
    /// First address of the kernel's map of all RAM (`page_offset_base`).
    pub direct_map: u64,
    /// `__START_KERNEL_map`.
    pub kernel_base: u64,
    /// Guest-physical address of `kernel_base`; wraps.
    pub phys_base: u64,
    /// Kernel addresses of the kernel's image (CPU 0's idle task is there).
    pub kernel_image: Range<u64>,
    pub task: TaskOffsets,
    pub rcu: Option<RcuLayout>,
    /// Host address of `jiffies_64`.
    pub jiffies: Option<u64>,
    /// Code in which a CPU spins for another one, or kicks it.
    pub spins: Vec<Spin>,
}

/// A vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuLayout {
    /// Number in the guest.
    pub cpu: u32,
    /// The host's thread, if it is known.
    pub tid: Option<u32>,
    /// Host address of the CPU's `preempt_count` (u32; what its bits mean is in [`PreemptBits`]).
    pub preempt_count: u64,
    /// Host address of the CPU's pointer to its current task (u64, a kernel address of the guest).
    pub current_task: u64,
    /// Host address of `gp_seq` in its `rcu_data` (u64): the grace period that the CPU noticed
    /// last.
    pub rcu_data_gp_seq: Option<u64>,
    /// `__per_cpu_offset` of the CPU.
    pub per_cpu_offset: u64,
    /// The guest tracks user mode on this CPU (`nohz_full`): it is quiescent there to its RCU.
    pub tracks_user: bool,
}

/// Grace-period state. Host addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RcuLayout {
    /// `rcu_state.gp_seq` (u64): the low two bits are the phase (0: idle), the rest counts grace
    /// periods.
    pub gp_seq: u64,
    /// `rcu_state.jiffies_force_qs` (u64): when the kthread next scans for quiescent states.
    pub fqs_due: Option<u64>,
    /// The kthread's `task_struct`.
    pub kthread_task: Option<u64>,
    /// The kthread's CPU (u32), and whether it is runnable (`on_rq`, u32 or u8: not zero).
    pub kthread_cpu: Option<u64>,
    pub kthread_on_rq: Option<u64>,
    /// Its `__state` (u32): 0 if it is runnable, `TASK_WAKING` (0x200) from the moment when it is
    /// woken until its CPU has queued it. One that sleeps may be `on_rq` since Linux 6.12.
    pub kthread_state: Option<u64>,
    /// Offsets in `task_struct` of what `gp_tasks` points to, and of the number of the CPU.
    pub node_entry: Option<u32>,
    pub task_cpu: Option<u32>,
    /// The leaves of the tree, which say which CPUs still owe a quiescent state.
    pub leaves: Vec<NodeLayout>,
}

/// A leaf `rcu_node`. Host addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLayout {
    /// u64: bit `n` is CPU `first_cpu + n`; set while it owes a quiescent state.
    pub qsmask: u64,
    /// u64, kernel address: not zero while tasks preempted in a reader hold up the grace period.
    pub gp_tasks: Option<u64>,
    pub first_cpu: u32,
    pub last_cpu: u32,
}

impl BpfLayout {
    /// How much of a `task_struct`, from its start, has the fields that [`BpfLayout::task`] tells
    /// of, bytes.
    pub fn task_bytes(&self) -> u32 {
        let TaskOffsets { pid, comm, rcu_nesting } = self.task;
        let words = [Some(pid), rcu_nesting].into_iter().flatten();
        words.map(|at| at + 4).fold(comm + COMM_LEN as u32, u32::max)
    }

    /// The address in the VMM of `len` bytes at the kernel address `address` (of a task).
    pub fn host_address(&self, address: u64, len: u64) -> Option<u64> {
        let physical = if self.kernel_image.contains(&address) {
            (address - self.kernel_base).wrapping_add(self.phys_base)
        } else {
            address.checked_sub(self.direct_map)?
        };
        let segment = crate::memory::segment_of(&self.segments, physical)?;
        let offset = physical - segment.gpa;
        (segment.len - offset >= len).then(|| segment.hva + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_found_in_the_image_and_in_the_direct_map() {
        let layout = BpfLayout {
            pid: 1,
            boot: 1,
            vcpus: vec![],
            preempt_bits: PreemptBits::CLASSIC,
            segments: vec![
                Segment { gpa: 0, len: 0x1000_0000, hva: 0x7000_0000_0000 },
                Segment { gpa: 1 << 32, len: 0x1000, hva: 0x7100_0000_0000 },
            ],
            direct_map: 0xffff_8880_0000_0000,
            kernel_base: 0xffff_ffff_8000_0000,
            phys_base: 0x0100_0000u64.wrapping_sub(0x0200_0000),
            kernel_image: 0xffff_ffff_8200_0000..0xffff_ffff_8300_0000,
            task: TaskOffsets { pid: 0, comm: 0, rcu_nesting: None },
            rcu: None,
            jiffies: None,
            spins: vec![],
        };
        assert_eq!(layout.task_bytes(), 16);
        let at = |address, len| layout.host_address(address, len);
        assert_eq!(at(0xffff_ffff_8200_0010, 8), Some(0x7000_0100_0010));
        assert_eq!(at(0xffff_8880_0000_0010, 8), Some(0x7000_0000_0010));
        assert_eq!(at(0xffff_8881_0000_0ff8, 8), Some(0x7100_0000_0ff8));
        assert_eq!(at(0xffff_8881_0000_0ff9, 8), None, "ends behind RAM");
        assert_eq!(at(0xffff_8880_2000_0000, 8), None, "in the hole");
        assert_eq!(at(0x1000, 8), None, "user space");
    }
}
