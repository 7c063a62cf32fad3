// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual machines as their host sees them: a process, its vCPU threads, and where in its memory
//! the guest's RAM is.
//!
//! Reading a VM changes nothing in it: `/proc` says everything, and nobody asks the VMM. A [`Vm`]
//! is a snapshot; threads that are plugged in later show in a new one.
//!
//! The VMM is QEMU.

pub mod cmdline;
pub mod maps;
pub mod process;
pub mod qemu;
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
    pub accel: Accel,
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

/// The VM with process id or name `query`.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Ambiguous`], [`Error::NotVmm`], or what keeps that VM from being
/// described.
pub fn find(query: &str) -> Result<Vm> {
    if let Ok(pid) = query.parse::<u32>() {
        let process = process::Process::read(pid).ok_or(Error::Gone { pid })?;
        return match qemu::owns(&process) {
            true => qemu::describe(&process),
            false => Err(Error::NotVmm { pid, program: process.program() }),
        };
    }
    let vms = process::all()?.filter(qemu::owns);
    let vms: Vec<_> = vms.map(|process| (qemu::name_of(&process), process)).collect();
    let named: Vec<_> = vms.iter().filter(|(name, _)| name.as_deref() == Some(query)).collect();
    match named.as_slice() {
        [(_, process)] => qemu::describe(process),
        [] => Err(Error::NotFound {
            query: query.into(),
            names: vms.iter().filter_map(|(name, _)| name.clone()).collect(),
        }),
        several => Err(Error::Ambiguous {
            query: query.into(),
            pids: several.iter().map(|(_, process)| process.pid).collect(),
        }),
    }
}

impl Vm {
    /// Whether the VMM's process still is the one described.
    pub fn exists(&self) -> bool {
        !process::is_gone(self.pid, self.start_time)
    }

    /// Its vCPU threads as of now: CPUs may have been plugged in since. Those of before if they
    /// cannot be found anew.
    pub fn vcpus_now(&self) -> Vec<VcpuThread> {
        let named = threads::named(self.pid);
        if named.is_empty() { self.vcpus.clone() } else { named }
    }

    /// The name, or the process id.
    pub fn title(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.pid.to_string())
    }
}
