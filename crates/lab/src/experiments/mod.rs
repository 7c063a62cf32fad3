// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments, one file each, and the list of them.
//!
//! An experiment says which VMs there are for a given [`Size`]; everything else (the settings that
//! are compared, phases, measuring) is common: [`Request::plan`]. To add one, write its file and
//! name it in [`ALL`].

mod apache;
mod asym;
mod bench_grace;
mod churn;
mod clone;
mod crowd;
mod dbench;
mod fairness;
mod guest_threads;
mod guests;
mod hostile;
mod interactive;
mod lowweight;
mod membench;
mod postmark;
mod psearchy;
mod quota;
mod request;
mod size;

pub use request::{Options, PREEMPTION_MODELS, Request, Weights, calibration};
pub use size::{MAX_VCPUS, Machine, Size};

use crate::error::{Error, Result};
use crate::plan::VmPlan;
use std::time::Duration;

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
    /// The shortest phase that answers the experiment's question, where the user gives no length.
    pub least_phase: Duration,
    /// Whether all VMs always want all of the CPUs and have as many vCPUs, so that each is entitled
    /// to the same share: the report then compares.
    pub fair: bool,
    /// Whether the wake-ups of a thread of the host are measured, too.
    pub interactive: bool,
    /// `call_rcu` probes per second and CPU.
    pub callback_probe_hz: u32,
}

impl Experiment {
    /// The rest of an experiment.
    const NONE: Experiment = Experiment {
        name: "",
        summary: "",
        competition: "",
        source: "",
        vms: |_, _| Err(Error::Other("no VMs".into())),
        least_phase: Duration::ZERO,
        fair: false,
        interactive: false,
        callback_probe_hz: 0,
    };
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
    fairness::FAIRNESS,
    hostile::HOSTILE,
    interactive::INTERACTIVE,
    bench_grace::BENCH_GRACE,
    guest_threads::GUEST_THREADS,
];

/// The experiment called `name`.
pub fn find(name: &str) -> Result<&'static Experiment> {
    ALL.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|e| e.name).collect();
        Error::Usage(format!("there is no experiment {name}; there are: {}", names.join(", ")))
    })
}
