// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of VMs and vCPUs in the arrays shared with the eBPF program.
//!
//! An entry is filled before the program can find it, and emptied when the program can no longer
//! find it. A copy of a vCPU's entry is consistent only if its version was even and the same before
//! and after the copy: [`VcpuSlot::get`] checks that.

use crate::raw::constants::{MAX_SEGMENTS, NO_SEQ};
use crate::raw::{Program, types};
use reprieve_guest::BpfLayout;
use reprieve_guest::layout::{RcuLayout, Spin, SpinsFor, VcpuLayout};
use reprieve_guest::vmm::process;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::offset_of;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// Where a vCPU's registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    None,
    /// In QEMU's memory; the address of the instruction pointer, which the others follow.
    Qemu(u64),
    /// In QEMU's memory, at an address that is not found yet.
    QemuSearch,
    Kvm,
}

impl Registers {
    fn number(self) -> types::registers {
        match self {
            Registers::None => types::registers::REGISTERS_NONE,
            Registers::Qemu(_) => types::registers::REGISTERS_QEMU,
            Registers::QemuSearch => types::registers::REGISTERS_QEMU_SEARCH,
            Registers::Kvm => types::registers::REGISTERS_KVM,
        }
    }
}

/// Reads of one entry before it is taken as it is. The program changes one in well under a
/// microsecond.
const READS: u32 = 10_000;

/// The shared arrays, and which entries are free.
pub struct Slots {
    pub program: Arc<Program>,
    free: Mutex<Free>,
}

/// The entry that was given back last is used last: an event of the old vCPU may still be in the
/// buffer.
struct Free {
    vms: VecDeque<u32>,
    vcpus: VecDeque<u32>,
    /// All watched threads, with their entries: several may share a bit of the filter.
    threads: BTreeMap<u32, u32>,
}

/// A VM's entry, freed on drop. Its vCPUs have to be dropped first.
pub struct VmSlot {
    slots: Arc<Slots>,
    pub index: u32,
    /// The user who runs the VM.
    pub user: u32,
}

/// A vCPU's entry, which the program finds by its thread. Freed on drop.
pub struct VcpuSlot {
    slots: Arc<Slots>,
    slot: u32,
    tid: u32,
}

impl Slots {
    pub fn new(program: Program) -> Arc<Slots> {
        let free = Free {
            vms: (0..program.vms.elements() as u32).collect(),
            vcpus: (0..program.vcpus.elements() as u32).collect(),
            threads: BTreeMap::new(),
        };
        Arc::new(Slots { program: Arc::new(program), free: Mutex::new(free) })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An entry for the VM of process `pid`; none if there is no room for it, or no such process.
    pub fn add_vm(self: &Arc<Slots>, pid: u32) -> Option<VmSlot> {
        let user = process::user(pid)?;
        let index = self.free().vms.pop_front()?;
        self.program.vms.put(index as usize, types::vm::default());
        Some(VmSlot { slots: self.clone(), index, user })
    }

    /// Begins to watch thread `tid` of process `pid`, which is vCPU `index` of `vm`. If the thread
    /// is watched already, that was another one with its number, which has ended.
    ///
    /// # Errors
    /// When there is no room for another vCPU, or when that is no thread of that process: nobody
    /// takes another VM's vCPUs out of sight.
    pub fn add_vcpu(
        self: &Arc<Slots>,
        vm: &VmSlot,
        pid: u32,
        tid: u32,
        index: u32,
        registers: Registers,
    ) -> io::Result<VcpuSlot> {
        if !Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
            let why = format!("{tid} is no thread of process {pid}");
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let room = self.program.vcpus.elements();
        let full = || io::Error::other(format!("none of the {room} entries is left"));
        let slot = self.free().vcpus.pop_front().ok_or_else(full)?;
        let entry = types::vcpu {
            vm: vm.index,
            tgid: pid,
            tid,
            index,
            registers: registers.number(),
            ..types::vcpu::default()
        };
        self.program.vcpus.put(slot as usize, entry);
        self.free().threads.insert(tid, slot);
        if let Err(error) = self.program.watch_thread(tid, slot) {
            self.forget(tid, slot);
            return Err(error);
        }
        Ok(VcpuSlot { slots: self.clone(), slot, tid })
    }

    fn forget(&self, tid: u32, slot: u32) {
        let mut free = self.free();
        // Unless a later thread with its number is watched.
        if free.threads.get(&tid) == Some(&slot) {
            free.threads.remove(&tid);
            self.program.forget_thread(tid, free.threads.keys().copied());
        }
        free.vcpus.push_back(slot);
    }
}

/// When the vCPU of `entry`, which had given up its CPU, was woken; `None`: it waits for no CPU.
pub fn woken(entry: &types::vcpu) -> Option<u64> {
    let waits = entry.doing == types::doing::DOING_BLOCKED && entry.woken > entry.since;
    waits.then_some(entry.woken)
}

impl VmSlot {
    fn set<T: crate::raw::Plain>(&self, offset: usize, value: T) {
        self.slots.program.vms.set_field(self.index as usize, offset, value);
    }

    /// Everything that the program knows about it.
    pub fn get(&self) -> types::vm {
        self.slots.program.vms.get(self.index as usize)
    }

    /// Stops the program from reading the guest.
    pub fn unready(&self) {
        self.set(offset_of!(types::vm, ready), 0u32);
    }

    /// Tells the program where programs of the guest announce their sections; 0: nowhere.
    pub fn set_region(&self, address: u64) {
        self.set(offset_of!(types::vm, region), address);
    }

    /// Tells the program the addresses and offsets of the guest that runs now. The addresses of its
    /// vCPUs are set before ([`VcpuSlot::set_addresses`]).
    pub fn ready(&self, layout: &BpfLayout) {
        self.unready();
        let bits = &layout.preempt_bits;
        let image = &layout.kernel_image;
        let serving = bits.softirq & bits.softirq.wrapping_neg();
        let words: [(usize, u32); 9] = [
            (offset_of!(types::vm, task_pid), layout.task.pid),
            (offset_of!(types::vm, task_comm), layout.task.comm),
            (offset_of!(types::vm, task_nesting), layout.task.rcu_nesting.unwrap_or(0)),
            (offset_of!(types::vm, task_bytes), layout.task_bytes()),
            (offset_of!(types::vm, hardirq), bits.hardirq | bits.nmi),
            (offset_of!(types::vm, softirq_serving), serving),
            (offset_of!(types::vm, no_preempt), bits.preempt | bits.softirq),
            (offset_of!(types::vm, irqs_off), bits.hardirq_disable),
            (offset_of!(types::vm, segments_used), layout.segments.len().min(MAX_SEGMENTS) as u32),
        ];
        for (offset, value) in words {
            self.set(offset, value);
        }
        let longs: [(usize, u64); 9] = [
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
            (offset_of!(types::vm, held_seq), NO_SEQ),
        ];
        for (offset, value) in longs {
            self.set(offset, value);
        }
        self.set(offset_of!(types::vm, spins), spins(layout));
        for (n, segment) in layout.segments.iter().take(MAX_SEGMENTS).enumerate() {
            let at = offset_of!(types::vm, segments) + n * size_of::<types::segment>();
            self.set(at + offset_of!(types::segment, physical), segment.gpa);
            self.set(at + offset_of!(types::segment, bytes), segment.len);
            self.set(at + offset_of!(types::segment, host), segment.hva);
        }
        self.set(offset_of!(types::vm, ready), 1u32);
    }
}

/// The code in which the guest's CPUs spin for each other.
fn spins(layout: &BpfLayout) -> types::spins {
    let mut all = types::spins::default();
    for (entry, Spin { code, why }) in all.code.iter_mut().zip(&layout.spins) {
        let bytes = (code.end - code.start) as u32;
        let why = match why {
            SpinsFor::Answer => types::spins_for::SPINS_FOR_ANSWER,
            SpinsFor::Owner => types::spins_for::SPINS_FOR_OWNER,
            SpinsFor::Kick => types::spins_for::SPINS_NO_MORE,
        };
        *entry = types::spin { start: code.start, bytes, why };
        all.used += 1;
    }
    all
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

    /// The index of its entry.
    pub fn index(&self) -> u32 {
        self.slot
    }

    fn set<T: crate::raw::Plain>(&self, offset: usize, value: T) {
        self.slots.program.vcpus.set_field(self.slot as usize, offset, value);
    }

    /// Whether it is without a CPU and wants one.
    pub fn wants_cpu(&self) -> bool {
        let entry = self.get();
        entry.doing == types::doing::DOING_PREEMPTED || woken(&entry).is_some()
    }

    /// Everything that the program knows about it, as of one moment; its class as it is booked when
    /// the vCPU comes back.
    pub fn get(&self) -> types::vcpu {
        let entries = &self.slots.program.vcpus;
        let version =
            || entries.get_field::<u64>(self.slot as usize, offset_of!(types::vcpu, version));
        for _ in 0..READS {
            let before = version();
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            let mut entry = entries.get(self.slot as usize);
            if before % 2 == 0 {
                let late = self.slots.program.late_class(self.slot, &entry);
                entry.class = late.unwrap_or(entry.class);
            }
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            if before % 2 == 0 && version() == before {
                return entry;
            }
            std::hint::spin_loop();
        }
        entries.get(self.slot as usize)
    }

    /// Tells the program the addresses of the CPU's variables in the guest that runs now, among
    /// them those that its RCU keeps for the CPU; `None`: it has none.
    pub fn set_addresses(&self, layout: Option<&VcpuLayout>, rcu: Option<&RcuLayout>) {
        let (count, task) = layout.map_or((0, 0), |l| (l.preempt_count, l.current_task));
        let noticed = layout.and_then(|l| l.rcu_data_gp_seq);
        let leaf = layout.zip(rcu).and_then(|(l, rcu)| {
            let leaf = rcu.leaves.iter().find(|n| (n.first_cpu..=n.last_cpu).contains(&l.cpu))?;
            Some((leaf.qsmask, 1u64.checked_shl(l.cpu - leaf.first_cpu)?))
        });
        let (mask, bit) = leaf.unwrap_or_default();
        self.set(offset_of!(types::vcpu, preempt_count), count);
        self.set(offset_of!(types::vcpu, current_task), task);
        self.set(offset_of!(types::vcpu, qsbit), bit);
        self.set(offset_of!(types::vcpu, qsmask), mask);
        self.set(offset_of!(types::vcpu, noticed), noticed.unwrap_or(0));
        let tracks_user = layout.is_some_and(|l| l.tracks_user);
        self.set(offset_of!(types::vcpu, tracks_user), u32::from(tracks_user));
    }

    pub fn set_registers(&self, registers: Registers) {
        if let Registers::Qemu(address) = registers {
            self.set(offset_of!(types::vcpu, env), address);
        }
        self.set(offset_of!(types::vcpu, registers), registers.number().0);
    }
}

impl Drop for VcpuSlot {
    fn drop(&mut self) {
        self.slots.forget(self.tid, self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Settings;

    #[test]
    fn a_thread_is_watched_for_its_own_process() {
        let settings = Settings { vcpus: 4, vms: 2, ..Settings::default() };
        let slots = Slots::new(Program::load(&settings).unwrap());
        let pid = std::process::id();
        let vm = slots.add_vm(pid).unwrap();
        // SAFETY: no preconditions.
        let tid = unsafe { libc::gettid() } as u32;
        let add = |pid, tid| slots.add_vcpu(&vm, pid, tid, 0, Registers::None);
        let first = add(pid, tid).unwrap();
        assert_eq!(slots.program.entry_of(tid), Some(first.index()));
        // Another process says that the thread is a vCPU of its own.
        assert!(add(1, tid).is_err());
        assert_eq!(slots.program.entry_of(tid), Some(first.index()));
        // As if a thread with the same number were watched before the end of this one was noticed.
        let second = add(pid, tid).unwrap();
        drop(first);
        assert_eq!(slots.program.entry_of(tid), Some(second.index()));
        drop(second);
        assert_eq!(slots.program.entry_of(tid), None);
    }
}
