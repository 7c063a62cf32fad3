// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's clock: `jiffies_64` and the length of a tick.

use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::Memory;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Guest-physical address of `jiffies_64`.
    pub address: u64,
    /// Timer frequency, if the kernel lets it be known.
    pub hz: Option<u32>,
}

impl Clock {
    /// `jiffies`: the kernel address of `jiffies_64`.
    pub fn new(kernel: &Kernel, jiffies: u64) -> Result<Clock> {
        Ok(Clock { address: kernel.memory.translate(jiffies)?, hz: hz(kernel) })
    }

    pub fn jiffies(&self, memory: &Memory) -> Result<u64> {
        memory.u64_physical(self.address)
    }
}

/// Timer frequency: from the length of a tick, or from the clock source that counts ticks.
fn hz(kernel: &Kernel) -> Option<u32> {
    let tick = || kernel.memory.u64(kernel.symbols.get("tick_nsec")?.address).ok();
    let clock = || {
        let source = kernel.symbols.get("clocksource_jiffies")?.address;
        let field = |name: &str| {
            let offset = kernel.types.offset_of("clocksource", name).ok()?;
            kernel.memory.u32(source.wrapping_add(offset)).ok()
        };
        Some(u64::from(field("mult")?.checked_shr(field("shift")?)?))
    };
    let plausible = |ns: &u64| (100_000..=20_000_000).contains(ns);
    let ns = tick().filter(plausible).or_else(|| clock().filter(plausible))?;
    u32::try_from((1_000_000_000 + ns / 2) / ns).ok()
}
