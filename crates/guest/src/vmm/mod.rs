// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual machines as their host sees them: a process, its vCPU threads, and where in its memory
//! the guest's RAM is.
//!
//! Reading a VM changes nothing in it: `/proc` says everything, and nobody asks the VMM. A [`Vm`]
//! is a snapshot; threads that are plugged in later show in a new one.
//!
//! [`Vmm`] is the interface to one kind of VMM. Only guests of QEMU are read.

pub mod cmdline;
pub mod maps;
mod other;
pub mod process;
mod qemu;
pub mod ram;
mod threads;

use crate::error::{Error, Result};

/// A running virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The VMM's process.
    pub pid: u32,
    /// When that process started, clock ticks since the host's boot: tells it from a later one with
    /// the same number.
    pub start_time: u64,
    /// QEMU's `-name` (libvirt's domain name).
    pub name: Option<String>,
    pub kind: Kind,
    /// RAM by guest-physical address, sorted, without overlap. May be wrong about the hole below 4
    /// GiB; [`crate::Guest::attach`] corrects that.
    pub memory: Vec<Segment>,
    /// vCPU threads by vCPU number.
    pub vcpus: Vec<VcpuThread>,
    /// How its memory is encrypted (`sev-snp-guest`, ...), if it is: then it cannot be read.
    pub encrypted: Option<String>,
    /// Other layouts of the same memory that are possible, best first.
    pub(crate) alternatives: Vec<Vec<Segment>>,
}

/// The engine that runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    Qemu(Accel),
    /// Another VMM, by its program, whose guests are not read.
    Other(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accel {
    Kvm,
    Tcg,
}

/// A run of guest RAM. Addresses and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub gpa: u64,
    pub len: u64,
    /// Address in the VMM's process.
    pub hva: u64,
}

impl Segment {
    /// First guest-physical address behind it.
    pub fn end(&self) -> u64 {
        self.gpa.saturating_add(self.len)
    }
}

/// The host's thread that is a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    pub index: u32,
    pub tid: u32,
}

/// A kind of VMM: how its processes are recognised and read.
pub trait Vmm {
    /// For messages.
    fn name(&self) -> &'static str;

    /// Whether `process` is one of this kind.
    fn owns(&self, process: &process::Process) -> bool;

    /// Everything about the VM of `process`.
    fn describe(&self, process: &process::Process) -> Result<Vm>;

    /// The VM's name, without the rest.
    fn name_of(&self, process: &process::Process) -> Option<String>;

    /// Its vCPU threads as of now; those of `vm` if they cannot be found anew.
    fn vcpus(&self, vm: &Vm) -> Vec<VcpuThread>;
}

/// The kinds of VMM that are known.
pub fn kinds() -> &'static [&'static (dyn Vmm + Sync)] {
    &[&qemu::Qemu, &other::Other]
}

/// All VMs on this host that this process can see, by process id. A VM that cannot be described (it
/// is ending, or belongs to somebody else) is left out.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn list() -> Result<Vec<Vm>> {
    let mut vms = Vec::new();
    for process in process::all()? {
        if let Some(kind) = kinds().iter().find(|kind| kind.owns(&process)) {
            vms.extend(kind.describe(&process));
        }
    }
    Ok(vms)
}

/// The VM with process id or name `query`.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Ambiguous`], [`Error::NotVmm`], or what keeps that VM from being
/// described.
pub fn find(query: &str) -> Result<Vm> {
    let owner = |p: &process::Process| kinds().iter().find(|kind| kind.owns(p)).copied();
    if let Ok(pid) = query.parse::<u32>() {
        let process = process::Process::read(pid).ok_or(Error::Gone { pid })?;
        return match owner(&process) {
            Some(kind) => kind.describe(&process),
            None => Err(Error::NotVmm { pid, program: process.program() }),
        };
    }
    let mut vms = Vec::new();
    for process in process::all()? {
        if let Some(kind) = owner(&process) {
            vms.push((kind.name_of(&process), kind, process));
        }
    }
    let named: Vec<_> = vms.iter().filter(|(name, ..)| name.as_deref() == Some(query)).collect();
    match named.as_slice() {
        [(_, kind, process)] => kind.describe(process),
        [] => Err(Error::NotFound {
            query: query.into(),
            names: vms.iter().filter_map(|(name, ..)| name.clone()).collect(),
        }),
        several => Err(Error::Ambiguous {
            query: query.into(),
            pids: several.iter().map(|(.., process)| process.pid).collect(),
        }),
    }
}

impl Vm {
    /// The VM of process `pid`.
    ///
    /// # Errors
    /// As [`find`].
    pub fn of_process(pid: u32) -> Result<Vm> {
        find(&pid.to_string())
    }

    /// Whether the VMM's process still is the one described.
    pub fn exists(&self) -> bool {
        !process::is_gone(self.pid, self.start_time)
    }

    /// Its vCPU threads as of now: CPUs may have been plugged in since.
    pub fn vcpus_now(&self) -> Vec<VcpuThread> {
        match self.kind {
            Kind::Qemu(_) => qemu::Qemu.vcpus(self),
            Kind::Other(_) => other::Other.vcpus(self),
        }
    }

    /// The name, or the process id.
    pub fn title(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.pid.to_string())
    }
}
