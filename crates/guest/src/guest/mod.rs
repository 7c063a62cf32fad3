// SPDX-License-Identifier: MIT OR Apache-2.0
//! A boot of one guest.

pub(crate) mod attach;
pub(crate) mod liveness;

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::kernel::symbols::{Resolved, Symbols};
use crate::kernel::types::Types;
use crate::kernel::vmcoreinfo::KERNEL_BASE;
use crate::layout::{BpfLayout, Spin, VcpuLayout};
use crate::memory::Memory;
use crate::rcu::Rcu;
use crate::rcu::map::RcuMap;
use crate::state::clock::Clock;
use crate::state::modules::{self, Module};
use crate::state::settings::{Settings, Use};
use crate::state::task::{Task, TaskOffsets};
use crate::state::vcpu::{Area, Cpus};
use crate::vmm::Vm;
use liveness::Pulse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A boot of one guest. Facts that do not change during a boot are read once; everything else is
/// read when it is asked for.
///
/// After a reboot the addresses that it reads belong to something else. [`Guest::alive`] notices
/// that; attach again then.
pub struct Guest {
    vm: Vm,
    kernel: Kernel,
    /// Guest-physical address of VMCOREINFO.
    info_address: u64,
    /// First address of the map of all RAM.
    direct_map: u64,
    cpus: Cpus,
    tasks: TaskOffsets,
    rcu: Option<RcuMap>,
    clock: Clock,
    /// Changes with every boot.
    boot: u64,
    pulse: Mutex<Pulse>,
    modules: Mutex<modules::Cache>,
    /// The cache's.
    modules_bytes: Arc<AtomicUsize>,
    /// Where its kernel spins.
    spins: Vec<Spin>,
}

impl Guest {
    /// The VM, as it was when this was attached, with the layout of memory that proved right.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// `uname -r`.
    pub fn release(&self) -> &str {
        self.kernel.info.release()
    }

    /// Symbols of the kernel itself.
    pub fn symbols(&self) -> &Symbols {
        &self.kernel.symbols
    }

    /// Types of the kernel.
    pub fn types(&self) -> &Types {
        &self.kernel.types
    }

    pub fn memory(&self) -> &Memory {
        &self.kernel.memory
    }

    /// The size of the guest's symbols and types, bytes. The guest chooses how much that is,
    /// within bounds, and it may grow with its modules.
    pub fn kept_bytes(&self) -> usize {
        self.symbols().bytes() + self.types().bytes() + self.modules_bytes.load(Ordering::Relaxed)
    }

    /// A number that changes with every boot.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Timer frequency, if the kernel lets it be known.
    pub fn hz(&self) -> Option<u32> {
        self.clock.hz
    }

    /// Timer ticks since boot, from -300 s on. Stands still while all vCPUs sleep or are off their
    /// CPUs.
    pub fn jiffies(&self) -> Result<u64> {
        self.clock.jiffies(&self.kernel.memory)
    }

    /// The function or variable at a kernel address, of the kernel or of a loaded module.
    pub fn resolve(&self, address: u64) -> Option<Resolved> {
        // Modules lie behind the kernel's image.
        if address > self.kernel.image.end {
            let mut cache = self.modules.lock().unwrap_or_else(|e| e.into_inner());
            return cache.resolve(&self.kernel, address);
        }
        self.kernel.resolve(address)
    }

    /// The loaded modules, in the order of the kernel's list (the latest first). A module that
    /// cannot be read (it is being unloaded) is left out.
    ///
    /// # Errors
    /// [`Error::NoSymbol`] for a kernel without modules.
    pub fn modules(&self) -> Result<Vec<Arc<Module>>> {
        modules::loaded(&self.kernel)
    }

    /// The settings in force. What cannot be read is `None` or unknown.
    pub fn settings(&self) -> Settings {
        Settings::read(&self.kernel)
    }

    /// One more than the highest number of a CPU that is plugged in.
    pub fn vcpus(&self) -> u32 {
        let present = self.cpus.present(&self.kernel.memory).ok();
        let last = present.and_then(|cpus| cpus.last().copied());
        last.map_or(self.cpus.areas.len() as u32, |last| last + 1)
    }

    /// CPUs that are plugged in, ascending.
    pub fn present(&self) -> Result<Vec<u32>> {
        self.cpus.present(&self.kernel.memory)
    }

    /// Kernel address of the `task_struct` of the current task of CPU `cpu`.
    ///
    /// # Errors
    /// [`Error::NoCpu`] if the guest's kernel could never have that CPU; one that is only not
    /// plugged in has a task.
    pub fn current_task(&self, cpu: u32) -> Result<u64> {
        self.kernel.memory.u64_physical(self.cpus.area(cpu)?.current_task)
    }

    /// The task whose `task_struct` is at `address`.
    pub fn task(&self, address: u64) -> Result<Task> {
        Task::read(&self.kernel.memory, &self.tasks, address)
    }

    /// The guest's RCU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the RCU of kernels for one CPU (`TINY_RCU`), which keeps no such
    /// state.
    pub fn rcu(&self) -> Result<Rcu<'_>> {
        let map = self.rcu.as_ref().ok_or_else(|| Error::Unsupported {
            release: self.release().into(),
            what: "it has no tree RCU that can be read".into(),
        })?;
        Ok(Rcu { kernel: &self.kernel, map, clock: &self.clock, tasks: &self.tasks })
    }

    /// Where each CPU has whether its user mode is tracked, as of a per-CPU variable.
    fn tracking(&self) -> Result<u64> {
        let offset = self.kernel.types.offset_of("context_tracking", "active")?;
        Ok(self.kernel.symbols.address("context_tracking")?.wrapping_add(offset))
    }

    /// The vCPU threads' and the guest's addresses for eBPF programs, as of now.
    ///
    /// # Errors
    /// One of the addresses is not RAM.
    pub fn layout(&self) -> Result<BpfLayout> {
        let present = self.present()?;
        let threads = self.vm.vcpus_now();
        let tids = self.cpus.threads(&present, &threads);
        let memory = &self.kernel.memory;
        let host = |physical: u64| {
            memory.host_address(physical).ok_or(Error::NotRam { address: physical })
        };
        // In a guest that tracks some CPUs. Where the kernel does not say of which, all are.
        let tracks_user = self.settings().context_tracking == Use::Yes;
        let tracking = self.tracking().ok();
        let is_tracked = |area: &Area| {
            let active = tracking.and_then(|at| memory.u8(at.wrapping_add(area.offset)).ok());
            active.is_none_or(|active| active != 0)
        };
        let vcpu = |(&cpu, tid): (&u32, Option<u32>)| -> Result<VcpuLayout> {
            let area = self.cpus.area(cpu)?;
            let rcu_data = area.rcu_data.filter(|_| self.rcu.is_some());
            let gp_seq = rcu_data.zip(self.rcu.as_ref()).and_then(|(data, rcu)| {
                memory.host_address_of(data.wrapping_add(rcu.data_gp_seq)).ok()
            });
            Ok(VcpuLayout {
                cpu,
                tid,
                preempt_count: host(area.preempt_count)?,
                current_task: host(area.current_task)?,
                rcu_data_gp_seq: gp_seq,
                per_cpu_offset: area.offset,
                tracks_user: tracks_user && is_tracked(area),
            })
        };
        Ok(BpfLayout {
            pid: self.vm.pid,
            boot: self.boot,
            vcpus: present.iter().zip(tids).map(vcpu).collect::<Result<_>>()?,
            preempt_bits: self.cpus.bits,
            segments: self.kernel.memory.segments().to_vec(),
            direct_map: self.direct_map,
            kernel_base: KERNEL_BASE,
            phys_base: self.kernel.info.phys_base()?,
            kernel_image: self.kernel.image.clone(),
            task: self.tasks,
            rcu: self.rcu().ok().map(|rcu| rcu.layout()).transpose()?,
            jiffies: self.kernel.memory.host_address(self.clock.address),
            spins: self.spins.clone(),
        })
    }
}
