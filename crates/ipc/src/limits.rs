// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits: the kernel's, where `/proc` tells them, else its defaults.

use crate::file;
use crate::space::layout::CHUNK;

/// The limits of the three kinds, by their kernel names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub semmsl: u64,
    pub semmns: u64,
    pub semopm: u64,
    pub semmni: u64,
    pub msgmax: u64,
    pub msgmnb: u64,
    pub msgmni: u64,
    pub shmmax: u64,
    pub shmall: u64,
    pub shmmni: u64,
}

fn read(name: &str) -> Vec<u64> {
    let text = file::read(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&text).split_whitespace().map_while(|word| word.parse().ok()).collect()
}

impl Limits {
    pub(crate) fn of_this_system() -> Limits {
        let one = |name, default: u64| read(name).first().copied().unwrap_or(default);
        let [semmsl, semmns, semopm, semmni] =
            <[u64; 4]>::try_from(read("sem")).unwrap_or([32000, 1_024_000_000, 500, 32000]);
        Limits {
            semmsl: semmsl.min(65536),
            semmns,
            // More would not fit into a transaction.
            semopm: semopm.min(500),
            semmni,
            // More would not fit into a chunk.
            msgmax: one("msgmax", 8192).min(CHUNK / 2),
            msgmnb: one("msgmnb", 16384),
            msgmni: one("msgmni", 32000),
            shmmax: one("shmmax", u64::MAX - (1 << 24)),
            shmall: one("shmall", u64::MAX - (1 << 24)),
            shmmni: one("shmmni", 4096),
        }
    }
}
