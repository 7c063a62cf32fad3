// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time dilation: how much slower a VM's clocks run than this machine's.
//!
//! Under TCG a guest executes 10 to 20 times fewer instructions per second than on hardware, but
//! its timers would run at full speed. So a context switch, an exit or an interrupt would take 10
//! to 20 times as large a share of a time slice, and a scheduler would be judged by that. With its
//! clocks slowed by as much, the shares of plain code are those of hardware again; nested switches
//! and exits still cost more: a report says how much. (The idea is DieCast's: Gupta
//! and others, "DieCast: Testing Distributed Systems with an Accurate Scale Model", NSDI 2008.)

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A VM's clocks run at 1/N of this machine's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dilation(u32);

impl Default for Dilation {
    fn default() -> Dilation {
        Dilation::NONE
    }
}

impl Dilation {
    pub const NONE: Dilation = Dilation(1);

    /// The larger end of TCG's loss against hardware, 10 to 20. With 10, a switch of vCPUs takes
    /// several times as much of a slice as on hardware.
    const TCG: u32 = 20;

    /// Largest N. Runs take hours.
    pub const MAX: u32 = 1000;

    /// For a lab host of `cpus` CPUs under TCG on a machine of `here`: a CPU second of the lab host
    /// holds the same work in each size.
    pub fn of_lab_host(cpus: u32, here: u32) -> Dilation {
        let times = (Dilation::TCG * cpus).div_ceil(here.max(1));
        Dilation(times.clamp(Dilation::TCG, Dilation::MAX))
    }

    pub fn new(n: u32) -> Result<Dilation> {
        if (1..=Dilation::MAX).contains(&n) {
            return Ok(Dilation(n));
        }
        Err(Error::Usage(format!("--dilate {n}: give 1 (not at all) to {}", Dilation::MAX)))
    }

    pub fn factor(self) -> u32 {
        self.0
    }

    pub fn is_none(self) -> bool {
        self == Dilation::NONE
    }

    /// How long `time` of the VM's takes on this machine.
    pub fn outside(self, time: Duration) -> Duration {
        time.saturating_mul(self.0)
    }
}

impl fmt::Display for Dilation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.is_none() { f.write_str("not dilated") } else { write!(f, "dilated {}x", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_a_dilated_vm_takes_longer_outside() {
        let ten = Dilation::new(10).unwrap();
        assert_eq!(ten.outside(Duration::from_secs(3)), Duration::from_secs(30));
        assert_eq!(Dilation::NONE.outside(Duration::MAX), Duration::MAX);
        assert_eq!(ten.outside(Duration::MAX), Duration::MAX);
        assert!(Dilation::new(0).is_err() && Dilation::new(1001).is_err());
    }

    #[test]
    fn a_cpu_second_holds_the_same_work_in_each_size() {
        let of = |cpus, here| Dilation::of_lab_host(cpus, here).factor();
        let sizes = [(2, 2), (8, 2), (64, 2), (8, 3), (4, 8), (64, 1)];
        assert_eq!(sizes.map(|(cpus, here)| of(cpus, here)), [20, 80, 640, 54, 20, 1000]);
    }
}
