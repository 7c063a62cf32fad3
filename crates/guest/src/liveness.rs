// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a guest still is the one that was attached to.
//!
//! The same boot has the same VMCOREINFO, stack canary and place of memory, and a clock that never goes back. A kernel that has been replaced may leave all that in
//! memory for a while, but its clock stands still while the vCPUs run: then the running kernel is looked for again.

use crate::error::{Error, Result};
use crate::guest::Guest;
use std::time::{Duration, Instant};

/// A guest whose clock has stood still for so long, with vCPU threads that used no CPU time, counts as paused. An idle one wakes up sooner.
const PAUSE: Duration = Duration::from_secs(5);

/// A clock that has stood still for so long on vCPUs that run may be that of a kernel that runs no more.
const STUCK: Duration = Duration::from_secs(2);

/// Another kernel is looked for so long after the last time, and twice as long each time that none is found: it may have to start first.
const SEARCH: Duration = Duration::from_secs(2);
const SEARCH_MAX: Duration = Duration::from_secs(30);

/// What has become of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The same boot; it may be idle.
    Same,
    /// Another kernel, or the same one again, runs or is about to: attach again.
    Rebooted,
    /// The same boot, but its owner has stopped it.
    Paused,
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
    /// Whether this still is the guest. Costs some reads; asks the VMM only after its clock has stood still for seconds.
    ///
    /// # Errors
    /// Only what is no answer: memory that cannot be read at the moment.
    pub fn alive(&self) -> Result<Liveness> {
        if !self.vm.exists() {
            return Ok(Liveness::Gone);
        }
        match self.fingerprint() {
            Ok(now) if now == self.boot => {}
            // Its page tables have gone, or are another kernel's.
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
            let paused = self.vm.paused() != Some(false);
            return Ok(if paused { Liveness::Paused } else { Liveness::Same });
        }
        if clock >= STUCK && run + STUCK / 2 <= clock && self.may_search() {
            // After kexec, or a reset, the memory of the kernel before stays as it was for a while.
            if let Ok(other) = Guest::attach(&self.vm) {
                if other.boot() != self.boot {
                    return Ok(Liveness::Rebooted);
                }
            }
        }
        Ok(Liveness::Same)
    }

    /// How long the guest's clock has stood still, and its vCPU threads.
    pub(crate) fn beat(&self) -> Result<(Duration, Duration)> {
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
