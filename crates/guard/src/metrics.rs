// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics of guard as metrics, for the server of [`reprieve_watch::show`]. The README of
//! the crate lists them.

use crate::statistics::{Granted, Preempted, Statistics, VmStatistics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use reprieve_watch::show::prometheus::encode::{Labels, Series, counter, gauge, seconds};
use reprieve_watch::show::prometheus::names::unique;
use reprieve_watch::show::prometheus::{Figures, Served};
use std::fmt::Error;

#[derive(Debug)]
struct Page(Statistics);

impl Figures for Statistics {
    fn collector(&self, served: &mut Served) -> Box<dyn Collector> {
        let mut page = Page(self.clone());
        // For Prometheus a counter that falls has begun anew. What `watch` counts may fall.
        for vm in &mut page.0.vms {
            let least = served.on_cpu_ns.entry(vm.pid).or_default();
            *least = vm.on_cpu_ns.max(*least);
            vm.on_cpu_ns = *least;
        }
        Box::new(page)
    }
}

/// The series of a VM, without its name.
type Of = fn(&VmStatistics) -> Vec<(Labels, f64)>;

/// Counters of VMs: name, help, series.
const COUNTERS: [(&str, &str, Of); 6] = [
    (
        "reprieve_guard_preemptions_avoided",
        "Preemptions of vCPUs that were due, and were put off until the vCPU was out of its section",
        |vm| by_class(vm, |p| p.avoided),
    ),
    (
        "reprieve_guard_preemptions_suffered",
        "Preemptions of vCPUs that took place, by what they were doing",
        |vm| by_class(vm, |p| p.suffered),
    ),
    ("reprieve_guard_grants", "Times that a vCPU got CPU time out of turn, by kind", |vm| {
        by_kind(vm, |granted| granted.count as f64)
    }),
    (
        "reprieve_guard_granted_seconds",
        "CPU time out of turn; it is charged like any other",
        |vm| by_kind(vm, |granted| seconds(granted.total_ns)),
    ),
    ("reprieve_guard_grants_refused", "Grants that were refused because of debt or budget", |vm| {
        by_kind(vm, |granted| granted.refused as f64)
    }),
    ("reprieve_guard_on_cpu_seconds", "Time that the VM's vCPUs were on CPUs", |vm| {
        vec![(vec![], seconds(vm.on_cpu_ns))]
    }),
];

fn by_class(vm: &VmStatistics, figure: fn(&Preempted) -> u64) -> Vec<(Labels, f64)> {
    let all = vm.preempted.iter().filter(|p| p.suffered + p.avoided > 0);
    all.map(|p| (vec![("class", p.class.name().into())], figure(p) as f64)).collect()
}

fn by_kind(vm: &VmStatistics, figure: fn(&Granted) -> f64) -> Vec<(Labels, f64)> {
    let figure = |(kind, granted): (&str, _)| (vec![("kind", kind.into())], figure(granted));
    vm.grants().map(figure).into()
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let (out, all) = (&mut encoder, &self.0);
        let named = all.vms.iter().map(|vm| (vm.pid.into(), vm.name.as_str()));
        let named: Vec<(String, &VmStatistics)> =
            unique("pid", named).into_iter().zip(&all.vms).collect();
        let what = "A virtual machine";
        let mut info = out.encode_descriptor("reprieve_guard_vm", what, None, MetricType::Info)?;
        for (name, vm) in &named {
            info.encode_info(&vec![
                ("vm", name.clone()),
                ("pid", vm.pid.to_string()),
                ("policy", vm.policy.name().into()),
                ("readable", vm.readable.to_string()),
                // Not the sentence, of which guests choose parts: each would be its own series.
                ("trouble", vm.trouble.is_some().to_string()),
            ])?;
        }
        let series = |of: Of| {
            let of_vm = |(name, vm): &(String, &VmStatistics)| {
                let named =
                    |(labels, value)| ([vec![("vm", name.clone())], labels].concat(), value);
                of(vm).into_iter().map(named).collect::<Vec<(Labels, f64)>>()
            };
            Series(named.iter().flat_map(of_vm).collect())
        };
        let weight = series(|vm| vec![(vec![], vm.weight.into())]);
        let help = "Weight of the VM; 100 is the normal one";
        gauge(out, "reprieve_guard_vm_weight", help, weight)?;
        for (metric, help, of) in COUNTERS {
            counter(out, metric, help, series(of))?;
        }
        let mut info = out.encode_descriptor("reprieve_guard", "guard", None, MetricType::Info)?;
        info.encode_info(&vec![
            ("backend", all.backend.name()),
            ("policy", all.policy.name()),
            ("dry_run", if all.dry_run { "true" } else { "false" }),
        ])?;
        let (decisions, time) = ("Decisions of the scheduler, and its timers", "Time in them");
        for (metric, help, value) in [
            ("reprieve_guard_decisions", decisions, all.decisions as f64),
            ("reprieve_guard_decision_seconds", time, seconds(all.decisions_ns)),
            ("reprieve_guard_cpu_seconds", "CPU time of guard", seconds(all.process_ns)),
        ] {
            counter(out, metric, help, Series(vec![(vec![], value)]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Did;
    use reprieve_watch::model::Class;
    use reprieve_watch::show::prometheus::testing::{asked, documented, served};
    use reprieve_watch::show::prometheus::text;

    /// The metrics of a guard with two VMs.
    fn page() -> String {
        let class = Class::Reader;
        let db = VmStatistics {
            pid: 4711,
            name: "db-primary".into(),
            readable: true,
            weight: 200,
            on_cpu_ns: 9_000_000_000,
            preempted: vec![Preempted { class, suffered: 10, avoided: 300 }],
            did: Did {
                rescued: Granted { count: 200, total_ns: 50_000_000, ..Granted::default() },
                ..Did::default()
            },
            ..VmStatistics::default()
        };
        let trouble = Some("memory is \x1b[2J encrypted".into());
        let web = VmStatistics { name: "web\x1b[2J".into(), trouble, ..VmStatistics::default() };
        let statistics =
            Statistics { vms: vec![db, web], decisions_ns: 40_000_000, ..Statistics::default() };
        text(&statistics, &mut Served::default()).unwrap()
    }

    #[test]
    fn figures_are_in_base_units() {
        let page = page();
        for line in [
            "reprieve_guard_info{backend=\"sched-ext\",policy=\"full\",dry_run=\"false\"} 1",
            "reprieve_guard_vm_info{vm=\"db-primary\",pid=\"4711\",policy=\"full\",readable=\"true\",trouble=\"false\"} 1",
            "reprieve_guard_vm_weight{vm=\"db-primary\"} 200.0",
            "reprieve_guard_preemptions_avoided_total{vm=\"db-primary\",class=\"reader\"} 300.0",
            "reprieve_guard_preemptions_suffered_total{vm=\"db-primary\",class=\"reader\"} 10.0",
            "reprieve_guard_granted_seconds_total{vm=\"db-primary\",kind=\"rescued\"} 0.05",
            "reprieve_guard_on_cpu_seconds_total{vm=\"db-primary\"} 9.0",
            "reprieve_guard_decision_seconds_total 0.04",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        assert!(page.ends_with("# EOF\n") && !page.contains('\x1b'), "{page}");
    }

    #[test]
    fn the_documentation_and_the_dashboard_have_metrics_that_exist() {
        let served = served(&page());
        assert_eq!(documented(include_str!("../README.md")), served);
        let asked = asked(include_str!("../../../packaging/grafana/reprieve-guard.json"));
        assert!(asked.len() > 7, "{asked:?}");
        assert!(asked.is_subset(&served), "{:?}", asked.difference(&served));
    }
}
