// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time of each VM against its entitlement, where each VM wants more than its share.
//!
//! Shares are of the CPU time that the VMs got together: what other work took is nobody's share.

use crate::plan::{Scenario, VmPlan};
use crate::report::load::{Phase, Run};
use crate::report::metric::{Better, Measured, Metric, quotient, row};
use std::rc::Rc;

const GROUP: &str = "Fairness";

/// Seconds of CPU time that a share is given in.
const OF: f64 = 10.0;

/// A VM: the end of its rows' keys, its name in labels, its share by its weight, and its name in a
/// phase.
type Vm = (String, String, f64, Rc<dyn Fn(&Phase, &Run) -> Option<String>>);

/// CPU time in a phase, ns: what a VM got, of what all VMs got.
type Got = (f64, f64);

/// A figure of the phases' CPU times, with the VM's share by entitlement, 0 to 1.
type Figure = fn(&[Got], f64) -> Option<f64>;

/// The rows of all VMs. `subject`: name of the guest under test in a phase.
pub fn rows(run: &Run, subject: impl Fn(&Phase, &Run) -> Option<String> + 'static) -> Vec<Metric> {
    let all: u32 = run.plan.vms().map(|vm| vm.cgroup.weight).sum();
    let entitled = |vm: &VmPlan| f64::from(vm.cgroup.weight) / f64::from(all);
    let tested = ("_subject".into(), "tested guest".into());
    let mut vms: Vec<Vm> =
        vec![(tested.0, tested.1, entitled(&run.plan.subject), Rc::new(subject))];
    vms.extend(run.plan.competitors.iter().map(|vm| {
        let name = vm.name.clone();
        let of = move |_: &Phase, _: &Run| Some(name.clone());
        (format!(".{}", vm.name), vm.name.clone(), entitled(vm), Rc::new(of) as _)
    }));
    let entitled = entitled(&run.plan.subject);
    let mut rows = each(&vms, "cpu_seconds", "CPU time of a phase", "s", |got, _| {
        quotient(got.iter().map(|(ns, _)| (ns / 1e9, 1.0)))
    });
    rows.extend(each(&vms, "cpu_of_10", "CPU seconds of 10", "s", |got, _| Some(OF * share(got)?)));
    rows.push(row(GROUP, "cpu_of_10_entitled", "Entitled to", "s", Better::Neither, move |m| {
        Some(OF * entitlement(m, entitled))
    }));
    // Alone, the tested guest is entitled to all, and the others do not run.
    rows.extend(each(&vms, "cpu_deviation", "Beyond its entitlement", "%", |got, entitled| {
        Some(100.0 * (share(got)? / entitled - 1.0)).filter(|_| entitled < 1.0)
    }));
    rows
}

/// A row per VM.
fn each(vms: &[Vm], key: &str, label: &str, unit: &str, figure: Figure) -> Vec<Metric> {
    let of_vm = |(suffix, vm, entitled, name): &Vm| {
        let (key, label) = (format!("{key}{suffix}"), format!("{label}, {vm}"));
        let (name, entitled) = (name.clone(), *entitled);
        row(GROUP, &key, &label, unit, Better::Neither, move |m| {
            let got = m.phases.iter().filter_map(|p| {
                let (_, host) = p.end.as_ref()?;
                let all: u64 = host.cpu_ns.values().sum();
                Some((*host.cpu_ns.get(&name(p, m.run)?)? as f64, all as f64))
            });
            figure(&got.collect::<Vec<_>>(), entitlement(m, entitled))
        })
    };
    vms.iter().map(of_vm).collect()
}

fn share(got: &[Got]) -> Option<f64> {
    quotient(got.iter().copied())
}

/// Alone everything, else `share`.
fn entitlement(m: &Measured, share: f64) -> f64 {
    let over = m.phases.iter().all(|p| p.scenario == Scenario::Overcommit);
    if over { share } else { 1.0 }
}
