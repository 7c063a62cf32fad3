// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments.
//!
//! An experiment says which VMs there are for a given [`Size`]; everything else (the settings that
//! are compared, phases, measuring) is common: [`Request::plan`]. To add one, add it to [`ALL`].

mod all;
mod guests;
mod request;
mod size;

pub use all::ALL;
pub use guests::bursty;
pub use request::{Options, PREEMPTION_MODELS, Request, Weights};
pub use size::{MAX_VCPUS, Machine, Size};

use crate::error::{Error, Result};
use crate::plan::VmPlan;

/// The guest under test and its competitors.
pub type Vms = (VmPlan, Vec<VmPlan>);

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
}

/// The experiment called `name`.
pub fn find(name: &str) -> Result<&'static Experiment> {
    ALL.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|e| e.name).collect();
        Error::Usage(format!("there is no experiment {name}; there are: {}", names.join(", ")))
    })
}
