// SPDX-License-Identifier: MIT OR Apache-2.0
//! What exits and switches cost this guest; see [`gaps`].

use crate::protocol::Cost;
use crate::sys::{self, Context, Result, now_ns};
use reprieve_init::gaps::{self, Stretch, Typical};
use std::thread;
use std::time::Duration;

/// Longest measurement.
const LONGEST: Duration = Duration::from_secs(60);

/// Measures `cost` for `duration`; `None` if it cannot be told from other things.
pub fn measure(cost: Cost, duration: Duration) -> Result<Option<Typical>> {
    let ns = duration.min(LONGEST).as_nanos() as u64;
    match cost {
        Cost::Exit => Ok(exit(ns)),
        Cost::Switch => {
            let stretches = on_cpus(&[0, 1], ns)?;
            Ok(gaps::switch(&stretches[0], &stretches[1]))
        }
    }
}

/// CPUID always leaves a VM; without a hypervisor below, it does not.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // safe in newer Rust
fn exit(ns: u64) -> Option<Typical> {
    const HYPERVISOR: u32 = 1 << 31;
    // SAFETY: all x86-64 processors have the instruction, and it changes no memory.
    let cpuid = |leaf| unsafe { std::arch::x86_64::__cpuid(leaf) };
    (cpuid(1).ecx & HYPERVISOR != 0).then(|| {
        gaps::each(now_ns, ns, || {
            std::hint::black_box(cpuid(0));
        })
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn exit(_: u64) -> Option<Typical> {
    None
}

/// A thread on each of `cpus` reads the clock; all at the same time.
fn on_cpus(cpus: &[u32], ns: u64) -> Result<Vec<Vec<Stretch>>> {
    let watch = |cpu: u32| {
        let run = move || sys::pin(cpu).map(|()| gaps::watch(now_ns, ns));
        thread::Builder::new().name(format!("clock{cpu}")).spawn(run).context("starting a thread")
    };
    let threads = cpus.iter().map(|&cpu| watch(cpu)).collect::<Result<Vec<_>>>()?;
    // Both are waited for before the first error is returned.
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    ended.into_iter().map(|end| end.map_err(|_| "a measuring thread died".to_string())?).collect()
}
