// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments, one file each, and the list of them.
//!
//! An experiment says which VMs there are for a given [`Size`]; everything else (the settings that
//! are compared, phases, measuring) is common: [`Request::plan`]. To add one, write its file and
//! name it in [`ALL`].

mod apache;
mod asym;
mod churn;
mod clone;
mod crowd;
mod dbench;
mod guest_threads;
mod guests;
mod lowweight;
mod membench;
mod postmark;
mod psearchy;
mod quota;
mod request;
mod size;

pub use guests::bursty;
pub use request::{Options, PREEMPTION_MODELS, Request, Weights, calibration};
pub use size::{MAX_VCPUS, Machine, Size};

use crate::error::{Error, Result};
use crate::plan::VmPlan;

/// The guest under test and its competitors.
pub type Vms = Result<(VmPlan, Vec<VmPlan>)>;

/// An experiment. Sizes and competitors follow [`Size`].
pub struct Experiment {
    pub name: &'static str,
    /// The workload of the guest under test, one line.
    pub summary: &'static str,
    /// The competitors, one line.
    pub competition: &'static str,
    /// The paper and section that it comes from, or `ours`.
    pub source: &'static str,
    pub vms: fn(&Size, &Options) -> Vms,
    /// `call_rcu` probes per second and CPU.
    pub callback_probe_hz: u32,
}

/// All experiments, in the order in which `lab list` shows them.
pub static ALL: &[Experiment] = &[
    postmark::POSTMARK,
    membench::MEMBENCH,
    clone::CLONE,
    asym::ASYM,
    lowweight::LOWWEIGHT,
    apache::APACHE,
    dbench::DBENCH,
    churn::CHURN,
    quota::QUOTA,
    quota::QUOTA_ASYM,
    crowd::CROWD,
    psearchy::PSEARCHY,
    guest_threads::GUEST_THREADS,
];

/// The experiment called `name`.
pub fn find(name: &str) -> Result<&'static Experiment> {
    ALL.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|e| e.name).collect();
        Error::Usage(format!("there is no experiment {name}; there are: {}", names.join(", ")))
    })
}
