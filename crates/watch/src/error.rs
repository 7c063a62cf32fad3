// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the collector as a whole. A problem with one VM is a state of that VM
//! ([`VmState`](super::model::VmState)), not an error.

/// Why nothing can be watched.
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
