// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a guest is still the one that was attached to.
//!
//! The same boot has the same VMCOREINFO, stack canary and map of memory, and a clock that never
//! goes back. A kernel that was replaced may leave all these in memory for a while, but its clock
//! stands still although the vCPUs run.

use super::Guest;
use crate::error::{Error, Result};
use crate::kernel::vmcoreinfo;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// A guest counts as paused when its clock has stood still for so long and its vCPU threads used no
/// CPU time. An idle guest wakes up sooner.
const PAUSE: Duration = Duration::from_secs(5);

/// A clock that has stood still for so long although the vCPUs run may belong to a kernel that no
/// longer runs.
const STUCK: Duration = Duration::from_secs(2);

/// The fate of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The same boot; it may be idle.
    Same,
    /// Another kernel, or the same one again, runs or is about to: attach again.
    Rebooted,
    /// The same boot, but its owner has stopped it.
    Paused,
    /// The boot looks the same, but its clock stands still although vCPUs run: another kernel may
    /// run (kexec, a reset), or the vCPU that keeps the time has no CPU.
    Stuck,
    /// The VMM has ended. A VM that migrated away ends here too.
    Gone,
}

/// Signs of life when they were last seen to change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulse {
    jiffies: u64,
    jiffies_at: Option<Instant>,
    /// CPU time of the vCPU threads, ns.
    run: u64,
    run_at: Option<Instant>,
}

impl Guest {
    /// Whether this is still the same boot. Costs some reads.
    ///
    /// # Errors
    /// Memory that cannot be read at the moment.
    pub fn alive(&self) -> Result<Liveness> {
        if !self.vm.exists() {
            return Ok(Liveness::Gone);
        }
        match self.fingerprint() {
            Ok(now) if now == self.boot => {}
            // Its page tables are gone, or another kernel's.
            Ok(_) | Err(Error::NotMapped { .. } | Error::NotRam { .. } | Error::Corrupt { .. }) => {
                return Ok(Liveness::Rebooted);
            }
            Err(Error::Gone { .. }) => return Ok(Liveness::Gone),
            Err(e) => return Err(e),
        }
        let (clock, run) = match self.beat() {
            Ok(silence) => silence,
            // A clock that goes backwards is another boot's.
            Err(Error::Corrupt { .. }) => return Ok(Liveness::Rebooted),
            Err(Error::Gone { .. }) => return Ok(Liveness::Gone),
            Err(e) => return Err(e),
        };
        if clock.min(run) >= PAUSE {
            return Ok(Liveness::Paused);
        }
        if clock >= STUCK && run + STUCK / 2 <= clock {
            return Ok(Liveness::Stuck);
        }
        Ok(Liveness::Same)
    }

    /// Differs between boots, even of the same kernel at the same addresses, because the first
    /// task's stack canary is random.
    pub(super) fn fingerprint(&self) -> Result<u64> {
        let (memory, symbols) = (&self.kernel.memory, &self.kernel.symbols);
        let mut page = vec![0; vmcoreinfo::LEN];
        memory.read_physical(self.info_address, &mut page)?;
        let mut hasher = DefaultHasher::new();
        page.hash(&mut hasher);
        let canary = self.kernel.types.offset_of("task_struct", "stack_canary").ok();
        if let (Some(offset), Some(task)) = (canary, symbols.get("init_task")) {
            memory.u64(task.address.wrapping_add(offset))?.hash(&mut hasher);
        }
        if let Some(base) = symbols.get("page_offset_base") {
            memory.u64(base.address)?.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// How long the guest's clock has stood still, and its vCPU threads.
    pub(super) fn beat(&self) -> Result<(Duration, Duration)> {
        let (jiffies, run, now) = (self.jiffies()?, self.run_time(), Instant::now());
        let mut pulse = self.pulse.lock().unwrap_or_else(|e| e.into_inner());
        if pulse.jiffies_at.is_some() && jiffies < pulse.jiffies {
            return Err(Error::corrupt("jiffies", "they went back"));
        }
        if jiffies != pulse.jiffies {
            (pulse.jiffies, pulse.jiffies_at) = (jiffies, Some(now));
        }
        if run != pulse.run {
            (pulse.run, pulse.run_at) = (run, Some(now));
        }
        let since = |at: &mut Option<Instant>| at.get_or_insert(now).elapsed();
        Ok((since(&mut pulse.jiffies_at), since(&mut pulse.run_at)))
    }

    /// CPU time of the vCPU threads, ns.
    fn run_time(&self) -> u64 {
        let time = |tid: u32| -> Option<u64> {
            let path = format!("/proc/{}/task/{tid}/schedstat", self.vm.pid);
            std::fs::read_to_string(path).ok()?.split_ascii_whitespace().next()?.parse().ok()
        };
        self.vm.vcpus.iter().filter_map(|v| time(v.tid)).sum()
    }
}
