// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory microbenchmark of [RP]: allocate in the kernel and free through `call_rcu`, on each
//! CPU at a rate.
//!
//! Threads of the kernel module do the work; its source explains their pace.

use super::{Done, Load};
use crate::kmod;
use crate::sys::{Result, now_ns};

pub fn prepare() -> Result<Box<dyn Load>> {
    if !kmod::is_loaded() {
        return Err("membench needs the kernel module reprieve_load, which is not loaded".into());
    }
    kmod::command("membench prepare")?;
    Ok(Box::new(Membench))
}

struct Membench;

impl Load for Membench {
    fn start(&mut self) -> Result<u64> {
        kmod::command("membench start")?;
        Ok(now_ns())
    }

    fn stop(&mut self) -> Result<Done> {
        kmod::command("membench stop")?;
        let end_ns = now_ns();
        let stats = kmod::stats()?;
        Ok(Done {
            end_ns,
            operations: stats.pairs as f64,
            unit: "pair",
            notice: (stats.failed > 0)
                .then(|| format!("membench found no memory {} times and paused", stats.failed)),
        })
    }
}

impl Drop for Membench {
    fn drop(&mut self) {
        if let Err(e) = kmod::command("membench end") {
            eprintln!("reprieve-init: {e}");
        }
    }
}
