// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which entries of the arrays shared with the eBPF program belong to which VM and vCPU.
//!
//! An entry is filled before the program can find it and emptied after it cannot any more. What the program keeps about a vCPU is one thing only
//! if its version was even and the same before and after it was read: [`Slots::vcpu`] sees to that.

use super::raw::{Program, types};
use reprieve_guest::BpfLayout;
use reprieve_guest::layout::VcpuLayout;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard};

/// Where a vCPU's registers are: `enum registers` of `bpf/watch.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Registers {
    None = 0,
    /// At this address of QEMU's, from the instruction pointer on.
    Qemu(u64) = 1,
    QemuSearch = 2,
    Kvm = 3,
}

impl Registers {
    fn number(self) -> u32 {
        match self {
            Registers::None => 0,
            Registers::Qemu(_) => 1,
            Registers::QemuSearch => 2,
            Registers::Kvm => 3,
        }
    }
}

/// RAM segments that the program searches.
pub const SEGMENTS: usize = 16;

/// In place of a `gp_seq`, as in `bpf/watch.h`.
pub const NO_SEQ: u64 = u64::MAX;

/// Reads of one entry before it is taken as it is. The program changes one in well under a microsecond.
const READS: u32 = 10_000;

/// The shared arrays, and who has which entry of them.
pub struct Slots {
    pub program: Arc<Program>,
    free: Mutex<Free>,
}

struct Free {
    vms: VecDeque<u32>,
    vcpus: VecDeque<u32>,
    /// All threads that are watched, for the filter's sake.
    threads: BTreeSet<u32>,
}

/// A VM's entry, freed on drop. Its vCPUs have to be dropped first.
pub struct VmSlot {
    slots: Arc<Slots>,
    pub index: u32,
}

/// A vCPU's entry, which the program finds by its thread. Undone on drop.
pub struct VcpuSlot {
    slots: Arc<Slots>,
    slot: u32,
    tid: u32,
}

impl Slots {
    pub fn new(program: Program) -> Arc<Slots> {
        let free = Free {
            vms: (0..program.vms.len() as u32).collect(),
            vcpus: (0..program.vcpus.len() as u32).collect(),
            threads: BTreeSet::new(),
        };
        Arc::new(Slots { program: Arc::new(program), free: Mutex::new(free) })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An entry for a VM; none if all are taken.
    pub fn add_vm(self: &Arc<Slots>) -> Option<VmSlot> {
        let index = self.free().vms.pop_front()?;
        self.program.vms.put(index as usize, types::vm::default());
        Some(VmSlot { slots: self.clone(), index })
    }

    /// Begins to watch thread `tid` of process `pid`, which is vCPU `index` of `vm`.
    ///
    /// # Errors
    /// When all entries are taken.
    pub fn add_vcpu(
        self: &Arc<Slots>,
        vm: &VmSlot,
        pid: u32,
        tid: u32,
        index: u32,
        registers: Registers,
    ) -> io::Result<VcpuSlot> {
        let full = || io::Error::other("more vCPUs than there is room for");
        let slot = self.free().vcpus.pop_front().ok_or_else(full)?;
        let entry = types::vcpu {
            vm: vm.index,
            tgid: pid,
            index,
            registers: registers.number(),
            ..types::vcpu::default()
        };
        self.program.vcpus.put(slot as usize, entry);
        self.free().threads.insert(tid);
        if let Err(error) = self.program.watch_thread(tid, slot) {
            self.forget(tid, slot);
            return Err(error);
        }
        Ok(VcpuSlot { slots: self.clone(), slot, tid })
    }

    fn forget(&self, tid: u32, slot: u32) {
        let mut free = self.free();
        free.threads.remove(&tid);
        self.program.forget_thread(tid, free.threads.iter().copied());
        // To the end: an event about the old one may still be on its way.
        free.vcpus.push_back(slot);
    }
}

impl VmSlot {
    fn set<T: super::raw::Plain>(&self, offset: usize, value: T) {
        self.slots.program.vms.set_field(self.index as usize, offset, value);
    }

    /// Everything that the program knows about it.
    pub fn get(&self) -> types::vm {
        self.slots.program.vms.get(self.index as usize)
    }

    /// Has the program read nothing of the guest from now on.
    pub fn unready(&self) {
        self.set(offset_of!(types::vm, ready), 0u32);
    }

    /// Tells the program where things are in the guest that runs now. The vCPUs have to know their addresses already.
    pub fn ready(&self, layout: &BpfLayout) {
        self.unready();
        let bits = &layout.preempt_bits;
        let image = &layout.kernel_image;
        let serving = bits.softirq & bits.softirq.wrapping_neg();
        let words: [(usize, u32); 9] = [
            (offset_of!(types::vm, task_pid), layout.task.pid),
            (offset_of!(types::vm, task_comm), layout.task.comm),
            (offset_of!(types::vm, task_nesting), layout.task.rcu_nesting.unwrap_or(0)),
            (offset_of!(types::vm, hardirq), bits.hardirq | bits.nmi),
            (offset_of!(types::vm, softirq_serving), serving),
            (offset_of!(types::vm, no_preempt), bits.preempt | bits.softirq),
            (offset_of!(types::vm, irqs_off), bits.hardirq_disable),
            (offset_of!(types::vm, segments_used), layout.segments.len().min(SEGMENTS) as u32),
            (offset_of!(types::vm, pad), 0),
        ];
        for (offset, value) in words {
            self.set(offset, value);
        }
        let longs: [(usize, u64); 8] = [
            (offset_of!(types::vm, gp_seq), layout.rcu.as_ref().map_or(0, |rcu| rcu.gp_seq)),
            (offset_of!(types::vm, direct_map), layout.direct_map),
            (offset_of!(types::vm, image), image.start),
            (offset_of!(types::vm, image_bytes), image.end.saturating_sub(image.start)),
            (
                offset_of!(types::vm, image_physical),
                image.start.wrapping_sub(layout.kernel_base).wrapping_add(layout.phys_base),
            ),
            // Another boot counts its grace periods anew.
            (offset_of!(types::vm, seq), NO_SEQ),
            (offset_of!(types::vm, began), 0),
            (offset_of!(types::vm, began_seq), NO_SEQ),
        ];
        for (offset, value) in longs {
            self.set(offset, value);
        }
        for (n, segment) in layout.segments.iter().take(SEGMENTS).enumerate() {
            let at = offset_of!(types::vm, segments) + n * size_of::<types::segment>();
            self.set(at + offset_of!(types::segment, physical), segment.gpa);
            self.set(at + offset_of!(types::segment, bytes), segment.len);
            self.set(at + offset_of!(types::segment, host), segment.hva);
        }
        self.set(offset_of!(types::vm, ready), 1u32);
    }
}

impl Drop for VmSlot {
    fn drop(&mut self) {
        self.unready();
        self.slots.free().vms.push_back(self.index);
    }
}

impl VcpuSlot {
    pub fn tid(&self) -> u32 {
        self.tid
    }

    fn set<T: super::raw::Plain>(&self, offset: usize, value: T) {
        self.slots.program.vcpus.set_field(self.slot as usize, offset, value);
    }

    /// Everything that the program knows about it, as of one moment.
    pub fn get(&self) -> types::vcpu {
        let entries = &self.slots.program.vcpus;
        let version =
            || entries.get_field::<u64>(self.slot as usize, offset_of!(types::vcpu, version));
        for _ in 0..READS {
            let before = version();
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            let entry = entries.get(self.slot as usize);
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            if before % 2 == 0 && version() == before {
                return entry;
            }
            std::hint::spin_loop();
        }
        entries.get(self.slot as usize)
    }

    /// Where the CPU's words are in the guest that runs now; `None`: nowhere.
    pub fn place(&self, layout: Option<&VcpuLayout>) {
        let (count, task) = layout.map_or((0, 0), |l| (l.preempt_count, l.current_task));
        self.set(offset_of!(types::vcpu, preempt_count), count);
        self.set(offset_of!(types::vcpu, current_task), task);
    }

    pub fn registers(&self, registers: Registers) {
        if let Registers::Qemu(address) = registers {
            self.set(offset_of!(types::vcpu, env), address);
        }
        self.set(offset_of!(types::vcpu, registers), registers.number());
    }
}

impl Drop for VcpuSlot {
    fn drop(&mut self) {
        self.slots.forget(self.tid, self.slot);
    }
}
