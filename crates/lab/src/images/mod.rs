// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels, QEMU and guest images: where they come from and where they are kept.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything that executing a plan needs from the file system, as plain paths: it can be written down, and rewritten for the inside of a
/// lab host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageSet {
    pub qemu: Qemu,
    /// By the plan's name for the guest kernel (`deb:6.12`, a path).
    pub guests: BTreeMap<String, GuestImage>,
}

/// How to start QEMU: `argv[0]` with the leading arguments, and the environment it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qemu {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestImage {
    /// `uname -r` of the kernel.
    pub release: String,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}
