// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why nothing can be watched. What goes wrong with one VM is no error but that VM's state ([`VmState`](super::model::VmState)).

/// Nothing can be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("watching needs {what}: {hint}")]
    Missing { what: &'static str, hint: &'static str },
    #[error("the kernel refuses the eBPF program ({step}): {message}")]
    Bpf { step: &'static str, message: String },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
}
