// SPDX-License-Identifier: MIT OR Apache-2.0
//! `hostile`: whether a guest gets more CPU time by lying to a scheduler that reads its memory.
//!
//! The liar's vCPUs do no work, but are nearly always in a state that such a scheduler is
//! considerate of: preemption off, in an RCU reader. For a part of the time they also owe a
//! quiescent state to a grace period in progress. By reckoning, not measured, that part is a
//! quarter to a half: a grace period begins between two holds of the vCPU on which its kernel
//! thread runs, each vCPU owes it until the end of its own hold, and it ends, and the next begins,
//! when that thread runs again, two holds later. Only memory tells the scheduler all this, and a
//! guest can write there what it likes (also that it owes all the time, which this one does not):
//! that it keeps the state up by its kernel's own means makes no difference to a reader of its
//! memory. Both VMs want all of the CPU time and are entitled to half of it.

use super::guests::{holder, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::{Held, Workload};
use std::time::Duration;

/// Time in the state, µs: hundreds of slices. Between two holds the guest's other threads run, so
/// that it can be started and stopped.
const HOLD_US: u32 = 1_000_000;

pub const HOSTILE: Experiment = Experiment {
    name: "hostile",
    summary: "arithmetic on every vCPU; CPU time of each VM against what it is entitled to",
    competition: "a VM that is in a critical section all the time, and often holds up a grace period",
    source: "ours",
    vms,
    least_phase: Duration::from_secs(10),
    fair: true,
    ..Experiment::NONE
};

fn vms(size: &Size, _: &Options) -> Vms {
    let all = size.all();
    let vcpus = all.len() as u32;
    let load = Workload::Hog { threads: vcpus };
    let subject = vm("honest", vcpus, &all, size.small_memory(vcpus) + 64, load);
    Ok((subject, vec![holder("liar", &all, size, Held::Owing, HOLD_US)]))
}
