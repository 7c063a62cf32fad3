// SPDX-License-Identifier: MIT OR Apache-2.0
//! `membench`: [RP] experiment 1, figure 3.

use super::guests::{bursty_pair, membench, postmark};
use super::{Experiment, Options, Size, Vms};

pub const MEMBENCH: Experiment = Experiment {
    name: "membench",
    summary: "kernel threads that allocate 1 KiB and free it through call_rcu, 2500 times per second per CPU",
    competition: "a Postmark VM and two bursty VMs",
    source: "[RP] experiment 1",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let [lower, upper] = size.halves();
    let vcpus = upper.len() as u32;
    let subject = membench(vcpus, &upper, size, options);
    let mut others = vec![postmark(vcpus, &lower, size, options)];
    others.extend(bursty_pair(size, options));
    Ok((subject, others))
}
