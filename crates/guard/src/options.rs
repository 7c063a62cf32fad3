// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard's options: what guard may do, and to whom.

use crate::constants;
use crate::error::Error;
use reprieve_watch::{StandIn, Which};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The treatment of preempted vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Nothing: fair by weight, VMs first, then their vCPUs. The yardstick.
    Plain,
    /// A vCPU in a critical section keeps its CPU until it leaves the section. A preempted vCPU
    /// that holds up its guest's grace period is scheduled next.
    #[default]
    Full,
}

impl Policy {
    pub const ALL: [Policy; 2] = [Policy::Plain, Policy::Full];

    /// The name on the command line, in JSON and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Plain => "plain",
            Policy::Full => "full",
        }
    }
}

/// The scheduler of the vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// A scheduler of our own, loaded into the kernel.
    #[default]
    SchedExt,
    /// The stock scheduler, through the slices of single threads.
    Eevdf,
}

impl Backend {
    pub const ALL: [Backend; 2] = [Backend::SchedExt, Backend::Eevdf];

    /// The name on the command line, in JSON and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::SchedExt => "sched-ext",
            Backend::Eevdf => "eevdf",
        }
    }
}

/// The most that can be reserved: the kernel keeps time for ordinary and real-time threads.
pub const RESERVE_MOST: u8 = 75;

/// The longest time by which a slice is extended .
pub const MAX_EXTEND: Duration = Duration::from_nanos(constants::MAX_EXTEND_NS as u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub backend: Backend,
    pub policy: Policy,
    /// The age of a grace period from which on a vCPU that holds it up may be ahead of its turn by
    /// twice that. No bound of grace periods: a vCPU that is further ahead waits.
    pub max_hold: Duration,
    /// The share of a CPU that vCPUs have where ordinary or real-time threads would take all, in
    /// percent ([`Backend::SchedExt`]).
    pub reserve: u8,
    /// The VMs whose slices may be shortened ([`Backend::Eevdf`]), or that a dry run is about.
    pub vms: Which,
    /// Decide and count, but change nothing.
    pub dry_run: bool,
    /// For tests: processes that count as VMs ([`Backend::SchedExt`]).
    pub stand_ins: Vec<StandIn>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backend: Backend::default(),
            policy: Policy::default(),
            max_hold: Duration::from_millis(20),
            reserve: 50,
            vms: Which::All,
            dry_run: false,
            stand_ins: Vec::new(),
        }
    }
}

impl Options {
    /// # Errors
    /// [`Error::Option`] for a value that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        let eevdf = self.backend == Backend::Eevdf;
        let holds = Duration::from_millis(1)..=Duration::from_secs(1);
        let refusals = [
            (!holds.contains(&self.max_hold), "--max-hold", "from 1ms to 1s"),
            (self.reserve > RESERVE_MOST, "--reserve", "from 0% to 75%"),
            (
                self.dry_run && eevdf,
                "--dry-run",
                "the backend eevdf gives all vCPUs short slices, so a dry run has nothing to show: leave out one of the two",
            ),
            (
                self.dry_run && self.policy == Policy::Plain,
                "--policy",
                "plain acts on nothing, so a dry run of it has nothing to show: leave it out",
            ),
            (
                !self.dry_run && !eevdf && self.vms != Which::All,
                "--vm",
                "the scheduler has all VMs: start it without, then choose its policy with `reprieve guard set --vm`; or use --dry-run, or --backend eevdf",
            ),
        ];
        let refused = refusals.into_iter().find(|refusal| refusal.0);
        refused.map_or(Ok(()), |(_, what, why)| Err(Error::Option { what, why }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let dry = Options { dry_run: true, ..Options::default() };
        let named = Options { vms: Which::Named(vec!["db".into()]), ..Options::default() };
        let eevdf = Options { backend: Backend::Eevdf, ..named.clone() };
        for right in [Options { dry_run: true, ..named.clone() }, eevdf, Options::default()] {
            assert!(right.check().is_ok(), "{right:?}");
        }
        let long = Options { max_hold: Duration::from_secs(2), ..Options::default() };
        for (options, option) in [
            (long, "--max-hold: from 1ms to 1s"),
            (Options { policy: Policy::Plain, ..dry.clone() }, "--policy: plain"),
            (named, "--vm: "),
        ] {
            let said = options.check().unwrap_err().to_string();
            assert!(said.starts_with(option), "{said}");
        }
    }
}
