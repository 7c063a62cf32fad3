// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of what to watch, and how closely.

use super::vms::stand_in::StandIn;
use std::time::Duration;

/// The virtual machines to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// Every one on this host, also those that come later.
    #[default]
    All,
    /// VMs whose process ID or name is in the list, whenever they come.
    Named(Vec<String>),
}

impl Which {
    /// Whether the VM of process `pid` with this name is wanted.
    pub fn wants(&self, pid: u32, name: Option<&str>) -> bool {
        match self {
            Which::All => true,
            Which::Named(queries) => queries.iter().any(|query| names(query, pid, name)),
        }
    }
}

/// Whether `query` is the name or the process ID of a VM.
pub fn names(query: &str, pid: u32, name: Option<&str>) -> bool {
    query.parse() == Ok(pid) || Some(query) == name
}

/// How to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub vms: Which,
    /// How often VMs that came, ended or rebooted are looked for. At least 100 ms.
    pub interval: Duration,
    /// Keep every context switch and every grace period as an [`Event`](super::model::Event), for a
    /// recording.
    pub events: bool,
    /// Count for how long preempted vCPUs hold up grace periods that are older than this
    /// ([`VmSnapshot::held`](super::model::VmSnapshot::held)).
    pub late: Option<Duration>,
    /// Give up all of root's rights that watching does not need, for good, in the calling thread
    /// and those that it starts from then on. For a program that does nothing else.
    pub confine: bool,
    /// For tests: processes that count as VMs.
    pub stand_ins: Vec<StandIn>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            vms: Which::All,
            interval: Duration::from_secs(1),
            events: false,
            late: None,
            confine: false,
            stand_ins: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_by_its_process_or_its_name() {
        let which = Which::Named(vec!["db".into(), "4711".into()]);
        assert!(which.wants(1, Some("db")));
        assert!(which.wants(4711, None));
        assert!(!which.wants(4712, Some("web")));
        assert!(Which::All.wants(1, None));
    }
}
