// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: why a guest, or a part of it, cannot be read.

pub type Result<T> = std::result::Result<T, Error>;

/// Why a guest, or something in it, cannot be read. A program that watches many VMs reports it and
/// goes on without this one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No VM of that name or process id.
    #[error("no VM {query:?} on this host{}", known(.names))]
    NotFound { query: String, names: Vec<String> },

    /// Several VMs of that name.
    #[error("{query:?} names several VMs, of processes {pids:?}: give the process id")]
    Ambiguous { query: String, pids: Vec<u32> },

    /// A process that is no VMM this crate knows.
    #[error(
        "process {pid} ({program}) is not a VMM that can be read; QEMU (qemu-system-x86_64, qemu-kvm) is"
    )]
    NotVmm { pid: u32, program: String },

    /// The VMM ended, or its process id belongs to another process by now.
    #[error("the VMM (process {pid}) has ended")]
    Gone { pid: u32 },

    /// This process may not look into the VMM.
    #[error(
        "not allowed to read {what}: run as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    )]
    Permission { what: String },

    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },

    /// Where guest-physical memory is in the VMM's memory could not be found out.
    #[error("RAM of process {pid} not found: {reason}")]
    Layout { pid: u32, reason: String },

    /// Nothing in the guest's memory is a Linux kernel.
    #[error(
        "no running Linux kernel found in the guest's memory ({reason}): it is still in its firmware or boot loader, it runs another system, \
        its kernel is built without CONFIG_VMCORE_INFO, or its memory is encrypted"
    )]
    NoKernel {
        reason: String,
        /// All of its memory was searched, also what the host has swapped out.
        whole: bool,
    },

    /// The guest's kernel says that its memory is encrypted (SEV, TDX).
    #[error("the guest's memory is encrypted ({how}): its host cannot read it")]
    Encrypted { how: String },

    /// A kernel that cannot be read as it is.
    #[error("guest kernel {release}: {what}")]
    Unsupported { release: String, what: String },

    /// The content of the guest's memory contradicts itself.
    #[error("{what} of the guest makes no sense: {detail}")]
    Corrupt { what: &'static str, detail: String },

    /// [`Options::stop`](crate::Options::stop) was set.
    #[error("given up, as was asked for")]
    Stopped,

    #[error("guest address {address:#x} is not mapped")]
    NotMapped { address: u64 },

    #[error("guest-physical address {address:#x} is not RAM")]
    NotRam { address: u64 },

    /// The host cannot get the page, as it may be in a file.
    #[error("guest-physical address {address:#x} cannot be read now: {source}")]
    Unreadable { address: u64, source: std::io::Error },

    #[error("the guest's kernel has no symbol {name}")]
    NoSymbol { name: String },

    #[error("the guest's kernel has no type or field {name}")]
    NoType { name: String },

    /// Types are needed and the kernel brings none.
    #[error("the guest's kernel {release} carries no types (CONFIG_DEBUG_INFO_BTF is off)")]
    NoTypes { release: String },

    #[error("the guest has no CPU {cpu}")]
    NoCpu { cpu: u32 },
}

impl Error {
    /// For `map_err`: `what` could not be read or written.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| match source.kind() {
            std::io::ErrorKind::PermissionDenied => Error::Permission { what },
            _ => Error::Io { what, source },
        }
    }

    pub(crate) fn corrupt(what: &'static str, detail: impl Into<String>) -> Error {
        Error::Corrupt { what, detail: detail.into() }
    }
}

fn known(names: &[String]) -> String {
    // Names are what whoever started a VMM chose: no line feeds.
    let names: Vec<String> = names.iter().map(|name| name.escape_debug().to_string()).collect();
    if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) }
}
