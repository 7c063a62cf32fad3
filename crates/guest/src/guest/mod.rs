// SPDX-License-Identifier: MIT OR Apache-2.0
//! A boot of one guest.

pub(crate) mod attach;
pub(crate) mod liveness;

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::kernel::symbols::{Resolved, Symbols};
use crate::kernel::types::Types;
use crate::kernel::vmcoreinfo::{KERNEL_BASE, VmCoreInfo};
use crate::layout::{BpfLayout, Spin, VcpuLayout};
use crate::memory::Memory;
use crate::rcu::map::RcuMap;
use crate::rcu::{Rcu, grace::RcuData};
use crate::state::clock::Clock;
use crate::state::features::{Paravirt, Settings, Use};
use crate::state::modules::{self, Module};
use crate::state::task::{Task, TaskOffsets};
use crate::state::vcpu::{Area, Cpus, PreemptCount};
use crate::vmm::{VcpuThread, Vm};
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
    tasks: Option<TaskOffsets>,
    rcu: Option<RcuMap>,
    clock: Clock,
    /// Changes with every boot.
    boot: u64,
    pulse: Mutex<Pulse>,
    /// vCPU threads when they were last looked for.
    threads: Mutex<Vec<VcpuThread>>,
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

    pub fn info(&self) -> &VmCoreInfo {
        &self.kernel.info
    }

    /// Symbols of the kernel itself.
    pub fn symbols(&self) -> &Symbols {
        &self.kernel.symbols
    }

    /// Types of the kernel; `None` if it carries none and none were given.
    pub fn types(&self) -> Option<&Types> {
        self.kernel.known_types()
    }

    pub fn memory(&self) -> &Memory {
        &self.kernel.memory
    }

    /// The size of the guest's symbols and types, bytes. The guest chooses how much that is,
    /// within bounds, and it may grow with its modules.
    pub fn kept_bytes(&self) -> usize {
        let types = self.types().map_or(0, Types::bytes);
        self.symbols().bytes() + types + self.modules_bytes.load(Ordering::Relaxed)
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
    /// [`Error::NoTypes`]; [`Error::NoSymbol`] for a kernel without modules.
    pub fn modules(&self) -> Result<Vec<Arc<Module>>> {
        modules::loaded(&self.kernel)
    }

    /// The paravirtual features in use. What cannot be read is unknown.
    pub fn paravirt(&self) -> Paravirt {
        Paravirt::read(&self.kernel)
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

    /// CPUs that are online in the guest, ascending.
    pub fn online(&self) -> Result<Vec<u32>> {
        self.cpus.online(&self.kernel.memory)
    }

    /// CPU `n` of the guest.
    ///
    /// # Errors
    /// [`Error::NoCpu`] if the guest's kernel could never have that CPU; one that is only not
    /// plugged in has a view.
    pub fn vcpu(&self, n: u32) -> Result<VcpuView<'_>> {
        Ok(VcpuView { guest: self, cpu: n, area: self.cpus.area(n)? })
    }

    /// The vCPU threads when they were last looked for: at the last [`Guest::layout`], else when
    /// this was attached.
    pub fn threads(&self) -> Vec<VcpuThread> {
        self.threads.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The task whose `task_struct` is at `address`.
    pub fn task(&self, address: u64) -> Result<Task> {
        Task::read(&self.kernel.memory, self.task_offsets()?, address)
    }

    fn task_offsets(&self) -> Result<&TaskOffsets> {
        self.kernel.types()?;
        self.tasks.as_ref().ok_or_else(|| self.unsupported("its tasks cannot be read"))
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported { release: self.release().into(), what: what.into() }
    }

    /// The guest's RCU.
    ///
    /// # Errors
    /// [`Error::NoTypes`]; [`Error::Unsupported`] for the RCU of kernels for one CPU (`TINY_RCU`),
    /// which keeps no such state.
    pub fn rcu(&self) -> Result<Rcu<'_>> {
        let tasks = self.task_offsets()?;
        let Some(map) = &self.rcu else {
            return Err(self.unsupported("it has no tree RCU that can be read"));
        };
        let (kernel, clock, cpus) = (&self.kernel, &self.clock, &self.cpus);
        Ok(Rcu { kernel, map, clock, cpus, tasks })
    }

    /// Where each CPU has whether its user mode is tracked, as of a per-CPU variable.
    fn tracking(&self) -> Result<u64> {
        let offset = self.kernel.types()?.offset_of("context_tracking", "active")?;
        Ok(self.kernel.symbols.address("context_tracking")?.wrapping_add(offset))
    }

    /// The vCPU threads' and the guest's addresses for eBPF programs, as of now.
    ///
    /// # Errors
    /// [`Error::NoTypes`], or that one of the addresses is not RAM.
    pub fn layout(&self) -> Result<BpfLayout> {
        let present = self.present()?;
        let threads = self.vm.vcpus_now();
        *self.threads.lock().unwrap_or_else(|e| e.into_inner()) = threads.clone();
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
                memory.host_address_of(data.wrapping_add(rcu.data.gp_seq)).ok()
            });
            Ok(VcpuLayout {
                cpu,
                tid,
                preempt_count: host(area.preempt_count)?,
                current_task: host(area.current_task)?,
                rcu_data: rcu_data.map(|a| memory.host_address_of(a)).transpose()?,
                rcu_data_address: rcu_data,
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
            task: *self.task_offsets()?,
            rcu: self.rcu().ok().map(|rcu| rcu.layout()).transpose()?,
            jiffies: self.kernel.memory.host_address(self.clock.address),
            spins: self.spins.clone(),
            hz: self.clock.hz,
        })
    }
}

/// A CPU of a guest. Each call reads it anew.
#[derive(Clone, Copy)]
pub struct VcpuView<'a> {
    guest: &'a Guest,
    cpu: u32,
    area: &'a Area,
}

impl VcpuView<'_> {
    /// Its number in the guest.
    pub fn number(&self) -> u32 {
        self.cpu
    }

    /// The host's thread that runs it, if it is known.
    pub fn tid(&self) -> Option<u32> {
        let present = self.guest.present().ok()?;
        self.guest.cpus.thread(self.cpu, &present, &self.guest.threads())
    }

    /// Its `preempt_count`.
    pub fn preempt_count(&self) -> Result<PreemptCount> {
        let raw = self.guest.kernel.memory.u32_physical(self.area.preempt_count)?;
        Ok(PreemptCount { raw, bits: self.guest.cpus.bits })
    }

    /// Kernel address of its current task's `task_struct`.
    pub fn current_task_address(&self) -> Result<u64> {
        self.guest.kernel.memory.u64_physical(self.area.current_task)
    }

    /// Its current task. If that changes while it is read, it is read again.
    pub fn current_task(&self) -> Result<Task> {
        let mut address = self.current_task_address()?;
        for _ in 0..4 {
            let task = self.guest.task(address)?;
            let after = self.current_task_address()?;
            if after == address {
                return Ok(task);
            }
            address = after;
        }
        self.guest.task(address)
    }

    /// Address of its `preempt_count` in the VMM.
    pub fn preempt_count_host(&self) -> Option<u64> {
        self.guest.kernel.memory.host_address(self.area.preempt_count)
    }

    /// Address of its pointer to the current task in the VMM.
    pub fn current_task_host(&self) -> Option<u64> {
        self.guest.kernel.memory.host_address(self.area.current_task)
    }

    /// Its `rcu_data`.
    pub fn rcu_data(&self) -> Result<RcuData> {
        self.guest.rcu()?.data(self.cpu)
    }
}
