// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels, QEMU and guest images: fetched or built, and kept in the cache.

use self::kernels::HostAbility;
use crate::process::Cancel;
use crate::progress::Progress;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

pub mod apt;
pub mod archive;
pub mod bzimage;
pub mod cache;
pub mod catalogue;
pub mod closure;
pub mod initramfs;
pub mod kernels;
pub mod key;
pub mod module_build;
pub mod module_order;
mod prepare;
#[cfg(test)]
mod testing;
pub mod tools;

pub use prepare::Images;
pub use reprieve_init::protocol::Program;

/// Cancellation and progress, for everything that takes time.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub cancel: &'a Cancel,
    pub progress: &'a dyn Progress,
}

/// The files that executing a plan needs, as plain paths, so that they can be rewritten for the
/// inside of a lab host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageSet {
    pub qemu: Qemu,
    /// The key is the plan's name of the guest kernel (`deb:6.12`, a path).
    pub guests: BTreeMap<String, GuestImage>,
}

/// How to start QEMU: `argv[0]` with the leading arguments, and the environment it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qemu {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub version: String,
}

/// The image of a lab host, and the paths of the files in it.
#[derive(Clone, Debug)]
pub struct LabHostImage {
    pub image: GuestImage,
    /// The abilities of its kernel, if it came with its configuration.
    pub ability: Option<HostAbility>,
    /// How to start this program in the lab host.
    pub program: Vec<String>,
    /// The plan's images, with their paths in the lab host.
    pub inside: ImageSet,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestImage {
    /// `uname -r` of the kernel.
    pub release: String,
    /// The file that QEMU boots: the kernel unpacked, at the address of its build (no KASLR); or
    /// the bzImage.
    pub kernel: PathBuf,
    /// The bzImage. A lab host has none.
    #[serde(skip)]
    pub vmlinuz: PathBuf,
    pub initrd: PathBuf,
    /// The initramfs, if it has no other name than that of this descriptor: nothing is left behind.
    #[serde(skip)]
    _file: Option<Arc<File>>,
}
