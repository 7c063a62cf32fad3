// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a guest is still the one that was attached to.
//!
//! The same boot has the same VMCOREINFO, stack canary and map of memory, and a clock that never
//! goes back. A kernel that was replaced may leave all these in memory for a while, but its clock
//! stands still although the vCPUs run: then the running kernel has to be looked for again.

use super::Guest;
use super::attach::Options;
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

/// Time between two searches for another kernel; doubled each time that none is found, as the
/// kernel may have to start first.
const SEARCH: Duration = Duration::from_secs(2);
const SEARCH_MAX: Duration = Duration::from_secs(30);

/// The fate of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The same boot; it may be idle.
    Same,
    /// Another kernel, or the same one again, runs or is about to: attach again.
    Rebooted,
    /// The same boot, but its owner has stopped it.
    Paused,
    /// The boot looks the same, but its clock stands still although the vCPUs run: ask
    /// [`Guest::is_replaced`].
    Doubtful,
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
    /// When another kernel was looked for, and how long to wait then.
    searched: Option<(Instant, Duration)>,
}

impl Guest {
    /// Whether this is still the same boot. Costs some reads.
    ///
    /// [`Liveness::Doubtful`] comes 2 s after the clock stood still, and again after 2 s, 4 s and
    /// so on up to 30 s.
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
        if clock >= STUCK && run + STUCK / 2 <= clock && self.may_search() {
            return Ok(Liveness::Doubtful);
        }
        Ok(Liveness::Same)
    }

    /// Whether another kernel runs. After kexec, or a reset, the memory of the kernel before stays
    /// as it was for a while. Searches all of the guest's memory, which takes as long as
    /// [`Guest::attach_with`].
    pub fn is_replaced(&self, options: &Options) -> bool {
        Guest::attach_with(&self.vm, options).is_ok_and(|other| other.boot() != self.boot)
    }

    /// Differs between boots, even of the same kernel at the same addresses, because the first
    /// task's stack canary is random.
    pub(super) fn fingerprint(&self) -> Result<u64> {
        let (memory, symbols) = (&self.kernel.memory, &self.kernel.symbols);
        let mut page = vec![0; vmcoreinfo::LEN];
        memory.read_physical(self.info_address, &mut page)?;
        let mut hasher = DefaultHasher::new();
        page.hash(&mut hasher);
        let types = self.kernel.known_types();
        let canary = types.and_then(|t| t.offset_of("task_struct", "stack_canary").ok());
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

    fn may_search(&self) -> bool {
        let mut pulse = self.pulse.lock().unwrap_or_else(|e| e.into_inner());
        let wait = match pulse.searched {
            Some((at, wait)) if at.elapsed() < wait => return false,
            Some((at, wait)) if at.elapsed() < 2 * SEARCH_MAX => (wait * 2).min(SEARCH_MAX),
            _ => SEARCH,
        };
        pulse.searched = Some((Instant::now(), wait));
        true
    }

    /// CPU time of the vCPU threads, ns.
    fn run_time(&self) -> u64 {
        let time = |tid: u32| -> Option<u64> {
            let path = format!("/proc/{}/task/{tid}/schedstat", self.vm.pid);
            std::fs::read_to_string(path).ok()?.split_ascii_whitespace().next()?.parse().ok()
        };
        self.threads().iter().filter_map(|v| time(v.tid)).sum()
    }
}
