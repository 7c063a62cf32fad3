// SPDX-License-Identifier: MIT OR Apache-2.0
//! `postmark`: [RP] experiment 1, figure 2.

use super::guests::{bursty_pair, membench, postmark};
use super::{Experiment, Options, Size, Vms};

pub const POSTMARK: Experiment = Experiment {
    name: "postmark",
    summary: "Postmark's transactions on tmpfs, a process per vCPU",
    competition: "a membench VM and two bursty VMs",
    source: "[RP] experiment 1",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let [lower, upper] = size.halves();
    let vcpus = lower.len() as u32;
    let subject = postmark(vcpus, &lower, size, options);
    let mut others = vec![membench(vcpus, &upper, size, options)];
    others.extend(bursty_pair(size, options));
    Ok((subject, others))
}
