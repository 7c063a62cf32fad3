// SPDX-License-Identifier: MIT OR Apache-2.0
//! `churn`: files created and removed in a loop; a simple load for comparing guest settings.

use super::guests::{churn, hogs};
use super::{Experiment, Options, Size, Vms};

pub const CHURN: Experiment = Experiment {
    name: "churn",
    summary: "a file created and removed on tmpfs, in a loop on every vCPU",
    competition: "three hog VMs",
    source: "ours",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let subject = churn(size, options);
    let others = hogs(subject.vcpus, &size.all(), size);
    Ok((subject, others))
}
