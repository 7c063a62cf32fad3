// SPDX-License-Identifier: MIT OR Apache-2.0
//! One boot of one guest.

use crate::error::{Error, Result};
use crate::kernel::symbols::{Resolved, Symbols};
use crate::kernel::types::Types;
use crate::kernel::vmcoreinfo::{KERNEL_BASE, VmCoreInfo};
use crate::layout::{BpfLayout, TaskOffsets, VcpuLayout};
use crate::liveness::Pulse;
use crate::memory::Memory;
use crate::modules::Cache;
use crate::rcu::map::RcuMap;
use crate::rcu::{Rcu, grace::RcuData};
use crate::task::Task;
use crate::vcpu::{Area, Cpus, PreemptCount};
use crate::vmm::{VcpuThread, Vm};
use std::ops::Range;
use std::sync::Mutex;

/// One boot of one guest: what can be worked out once is; everything else is read when it is asked for.
///
/// After a reboot it reads memory that means something else by now. [`Guest::alive`] tells; attach again then.
pub struct Guest {
    pub(crate) vm: Vm,
    pub(crate) memory: Memory,
    pub(crate) info: VmCoreInfo,
    /// Guest-physical address of VMCOREINFO.
    pub(crate) info_address: u64,
    pub(crate) symbols: Symbols,
    pub(crate) types: Option<Types>,
    /// Kernel addresses of the kernel's image.
    pub(crate) image: Range<u64>,
    /// First address of the map of all RAM.
    pub(crate) direct_map: u64,
    pub(crate) cpus: Cpus,
    pub(crate) task: Option<TaskOffsets>,
    pub(crate) rcu: Option<RcuMap>,
    /// Guest-physical address of `jiffies_64`.
    pub(crate) jiffies: u64,
    pub(crate) hz: Option<u32>,
    /// Changes with every boot.
    pub(crate) boot: u64,
    pub(crate) pulse: Mutex<Pulse>,
    /// vCPU threads when they were last looked for.
    pub(crate) threads: Mutex<Vec<VcpuThread>>,
    pub(crate) modules: Mutex<Cache>,
}

impl Guest {
    /// The VM, as it was when this was attached, with the layout of memory that proved right.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// `uname -r`.
    pub fn release(&self) -> &str {
        self.info.release()
    }

    pub fn info(&self) -> &VmCoreInfo {
        &self.info
    }

    /// Symbols of the kernel itself.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Types of the kernel; `None` if it carries none and none were given.
    pub fn types(&self) -> Option<&Types> {
        self.types.as_ref()
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// A number that changes with every boot.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Timer frequency, if the kernel lets it be known.
    pub fn hz(&self) -> Option<u32> {
        self.hz
    }

    /// Timer ticks since boot, from -300 s on. Stands still while all vCPUs sleep or are off their CPUs.
    pub fn jiffies(&self) -> Result<u64> {
        self.memory.u64_physical(self.jiffies)
    }

    /// The function or variable at a kernel address, of the kernel or of a loaded module.
    pub fn resolve(&self, address: u64) -> Option<Resolved> {
        if self.image.contains(&address) {
            return self.symbols.resolve(address);
        }
        // Modules lie behind the kernel's image.
        if address > self.image.end { self.resolve_in_modules(address) } else { None }
    }

    /// The number of CPUs that the guest could address: those plugged in have numbers below it.
    pub fn vcpus(&self) -> u32 {
        let present = self.cpus.present(&self.memory).ok();
        let last = present.and_then(|cpus| cpus.last().copied());
        last.map_or(self.cpus.areas.len() as u32, |last| last + 1)
    }

    /// CPUs that are plugged in, ascending.
    pub fn present(&self) -> Result<Vec<u32>> {
        self.cpus.present(&self.memory)
    }

    /// CPUs that the guest runs on now, ascending.
    pub fn online(&self) -> Result<Vec<u32>> {
        self.cpus.online(&self.memory)
    }

    /// CPU `n` of the guest.
    ///
    /// # Errors
    /// [`Error::NoCpu`] if the guest's kernel could never have that CPU; one that is only not plugged in has a view.
    pub fn vcpu(&self, n: u32) -> Result<VcpuView<'_>> {
        Ok(VcpuView { guest: self, cpu: n, area: self.area(n)? })
    }

    pub(crate) fn area(&self, n: u32) -> Result<&Area> {
        self.cpus.areas.get(n as usize).ok_or(Error::NoCpu { cpu: n })
    }

    /// The vCPU threads when they were last looked for: at the last [`Guest::layout`], else when this was attached.
    pub fn threads(&self) -> Vec<VcpuThread> {
        self.threads.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The task whose `task_struct` is at `address`.
    pub fn task(&self, address: u64) -> Result<Task> {
        Task::read(&self.memory, self.task_offsets()?, address)
    }

    fn task_offsets(&self) -> Result<&TaskOffsets> {
        self.task.as_ref().ok_or_else(|| self.no_types())
    }

    pub(crate) fn no_types(&self) -> Error {
        Error::NoTypes { release: self.release().into() }
    }

    /// The guest's RCU.
    ///
    /// # Errors
    /// [`Error::NoTypes`]; [`Error::Unsupported`] for the RCU of kernels for one CPU (`TINY_RCU`), which keeps no such state.
    pub fn rcu(&self) -> Result<Rcu<'_>> {
        match &self.rcu {
            Some(map) => Ok(Rcu { guest: self, map }),
            None if self.types.is_none() => Err(self.no_types()),
            None => Err(Error::Unsupported {
                release: self.release().into(),
                what: "it has no tree RCU that can be read".into(),
            }),
        }
    }

    /// The vCPU threads' and the guest's addresses for eBPF programs, as of now.
    ///
    /// # Errors
    /// [`Error::NoTypes`], or that one of the addresses is not RAM.
    pub fn layout(&self) -> Result<BpfLayout> {
        let present = self.present()?;
        let threads = self.vm.vcpus_now();
        *self.threads.lock().unwrap_or_else(|e| e.into_inner()) = threads.clone();
        let host = |physical: u64| {
            self.memory.host_address(physical).ok_or(Error::NotRam { address: physical })
        };
        let vcpu = |&cpu: &u32| -> Result<VcpuLayout> {
            let area = self.area(cpu)?;
            let rcu_data = area.rcu_data.filter(|_| self.rcu.is_some());
            Ok(VcpuLayout {
                cpu,
                tid: self.cpus.thread(cpu, &present, &threads),
                preempt_count: host(area.preempt_count)?,
                current_task: host(area.current_task)?,
                rcu_data: rcu_data.map(|a| self.memory.host_address_of(a)).transpose()?,
                rcu_data_address: rcu_data,
                per_cpu_offset: area.offset,
            })
        };
        Ok(BpfLayout {
            pid: self.vm.pid,
            boot: self.boot,
            vcpus: present.iter().map(vcpu).collect::<Result<_>>()?,
            preempt_bits: self.cpus.bits,
            segments: self.memory.segments().to_vec(),
            direct_map: self.direct_map,
            kernel_base: KERNEL_BASE,
            phys_base: self.info.phys_base()?,
            kernel_image: self.image.clone(),
            task: *self.task_offsets()?,
            rcu: self.rcu().ok().map(|rcu| rcu.layout()).transpose()?,
            jiffies: self.memory.host_address(self.jiffies),
            hz: self.hz,
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
        let raw = self.guest.memory.u32_physical(self.area.preempt_count)?;
        Ok(PreemptCount { raw, bits: self.guest.cpus.bits })
    }

    /// Kernel address of its current task's `task_struct`.
    pub fn current_task_address(&self) -> Result<u64> {
        self.guest.memory.u64_physical(self.area.current_task)
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

    /// `__per_cpu_offset`: what to add to the address of a per-CPU variable.
    pub fn per_cpu_base(&self) -> u64 {
        self.area.offset
    }

    /// Kernel address of this CPU's copy of the per-CPU variable `name`.
    pub fn per_cpu(&self, name: &str) -> Result<u64> {
        Ok(self.area.offset.wrapping_add(self.guest.symbols.address(name)?))
    }

    /// Where its `preempt_count` is in the VMM.
    pub fn preempt_count_host(&self) -> Option<u64> {
        self.guest.memory.host_address(self.area.preempt_count)
    }

    /// Where its pointer to the current task is in the VMM.
    pub fn current_task_host(&self) -> Option<u64> {
        self.guest.memory.host_address(self.area.current_task)
    }

    /// Its `rcu_data`.
    pub fn rcu_data(&self) -> Result<RcuData> {
        self.guest.rcu()?.data(self.cpu)
    }
}
