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

/// An experiment. Sizes and competitors follow [`Size`].
pub trait Experiment: Sync {
    fn name(&self) -> &'static str;
    /// The workload of the guest under test, one line.
    fn summary(&self) -> &'static str;
    /// The competitors, one line.
    fn competition(&self) -> &'static str;
    /// The paper and section that it comes from, or `ours`.
    fn source(&self) -> &'static str;
    /// The guest under test and its competitors.
    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)>;
    /// The shortest phase that answers the experiment's question, where the user gives no length.
    fn least_phase(&self) -> Duration {
        Duration::ZERO
    }
    /// Whether all VMs always want all of the CPUs and have as many vCPUs, so that each is entitled
    /// to the same share: the report then compares.
    fn fair(&self) -> bool {
        false
    }
    /// Whether the wake-ups of a thread of the host are measured, too.
    fn interactive(&self) -> bool {
        false
    }
    /// `call_rcu` probes per second and CPU.
    fn callback_probe_hz(&self) -> u32 {
        0
    }
}

/// All experiments, in the order in which `lab list` shows them.
pub static ALL: &[&dyn Experiment] = &[
    &postmark::Postmark,
    &membench::Membench,
    &clone::Clone,
    &asym::Asym,
    &lowweight::LowWeight,
    &apache::Apache,
    &dbench::Dbench,
    &churn::Churn,
    &quota::Quota,
    &quota::QuotaAsym,
    &crowd::Crowd,
    &psearchy::Psearchy,
    &fairness::Fairness,
    &hostile::Hostile,
    &interactive::Interactive,
    &bench_grace::BenchGrace,
    &guest_threads::GuestThreads,
];

/// The experiment called `name`.
pub fn find(name: &str) -> Result<&'static dyn Experiment> {
    ALL.iter().copied().find(|e| e.name() == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|e| e.name()).collect();
        Error::Usage(format!("there is no experiment {name}; there are: {}", names.join(", ")))
    })
}
