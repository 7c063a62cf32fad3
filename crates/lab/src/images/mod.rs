// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels, QEMU and guest images: where they come from and where they are kept.

use crate::process::Cancel;
use crate::progress::Progress;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub mod apt;
pub mod archive;
pub mod bzimage;
pub mod cache;
pub mod catalogue;
pub mod closure;
pub mod initramfs;
pub mod kernels;
pub mod key;
pub mod kmodules;
pub mod module;
mod prepare;
mod sandbox;
#[cfg(test)]
mod testing;
pub mod tools;
pub mod version;

pub use prepare::Images;

/// What a workload runs beside the init: a program from Debian's package of the same name, this program, or a kernel module of the lab's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `/usr/bin/postmark` in the guest.
    Postmark,
    /// `/usr/bin/dbench` in the guest, with its load file `/usr/share/dbench/client.txt` (25 MiB).
    Dbench,
    /// The kernel module `reprieve_hold`.
    Hold,
    /// This program, with the libraries it needs; how to start it is in [`REPRIEVE_ARGV`](reprieve_init::protocol::REPRIEVE_ARGV).
    Reprieve,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Postmark => "postmark",
            Program::Dbench => "dbench",
            Program::Hold => "reprieve_hold",
            Program::Reprieve => "reprieve",
        }
    }
}

/// Something in the cache, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    pub name: String,
    /// What it is, e.g. `kernel`.
    pub what: String,
    /// Size on disk.
    pub bytes: u64,
    /// When it was made or last used, seconds since 1970.
    pub used_unix_s: u64,
}

/// What everything that takes time is given: how to be stopped, and whom to tell.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub cancel: &'a Cancel,
    pub progress: &'a dyn Progress,
}

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
