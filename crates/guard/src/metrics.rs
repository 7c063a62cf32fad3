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
    fn collector(&self, _: &mut Served) -> Box<dyn Collector> {
        Box::new(Page(self.clone()))
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let (out, all) = (&mut encoder, &self.0);
        let named = all.vms.iter().map(|vm| (vm.pid.into(), vm.name.as_str()));
        let named: Named = unique("pid", named).into_iter().zip(&all.vms).collect();
        vms(out, &named)?;
        grants(out, &named)?;
        // In a dry run, what `watch` counts may fall.
        let on_cpu = |vm: &VmStatistics| (!all.dry_run).then_some(seconds(vm.on_cpu_ns));
        let on_cpu = named.iter().filter_map(|(name, own)| Some((vm(name), on_cpu(own)?)));
        let help = "Time that the VM's vCPUs were on CPUs";
        counter(out, "reprieve_guard_on_cpu_seconds", help, Series(on_cpu.collect()))?;
        own(out, all)
    }
}

/// A figure of a kind of grants.
type Figure = fn(&Granted) -> f64;
type Named<'a> = Vec<(String, &'a VmStatistics)>;

fn vm(name: &str) -> Labels {
    vec![("vm", name.into())]
}

fn vms(out: &mut DescriptorEncoder, named: &Named) -> Result<(), Error> {
    let mut info =
        out.encode_descriptor("reprieve_guard_vm", "A virtual machine", None, MetricType::Info)?;
    for (name, own) in named {
        info.encode_info(&vec![
            ("vm", name.clone()),
            ("pid", own.pid.to_string()),
            ("policy", own.policy.name().into()),
            ("readable", own.readable.to_string()),
            // Not the sentence, of which guests choose parts: each would be a series of its own.
            ("trouble", own.trouble.is_some().to_string()),
        ])?;
    }
    let weights = named.iter().map(|(name, own)| (vm(name), own.weight.into())).collect();
    let help = "Weight of the VM; 100 is the normal one";
    gauge(out, "reprieve_guard_vm_weight", help, Series(weights))?;
    let by_class = |figure: fn(&Preempted) -> u64| {
        let labels = |name: &String, p: &Preempted| {
            vec![("vm", name.clone()), ("class", p.class.name().into())]
        };
        let of_vm = |(name, own): &(String, &VmStatistics)| -> Vec<(Labels, f64)> {
            let all = own.preempted.iter().filter(|p| p.suffered + p.avoided > 0);
            all.map(|p| (labels(name, p), figure(p) as f64)).collect()
        };
        Series(named.iter().flat_map(of_vm).collect())
    };
    counter(
        out,
        "reprieve_guard_preemptions_avoided",
        "Preemptions of vCPUs that were due, and were put off until the vCPU was out of its section",
        by_class(|p| p.avoided),
    )?;
    counter(
        out,
        "reprieve_guard_preemptions_suffered",
        "Preemptions of vCPUs that took place, by what they were doing",
        by_class(|p| p.suffered),
    )
}

fn grants(out: &mut DescriptorEncoder, named: &Named) -> Result<(), Error> {
    let figures: [(&str, &str, Figure); 3] = [
        (
            "reprieve_guard_grants",
            "Times that a vCPU got CPU time out of turn, by kind",
            |granted| granted.count as f64,
        ),
        (
            "reprieve_guard_granted_seconds",
            "CPU time out of turn; it is charged like any other",
            |granted| seconds(granted.total_ns),
        ),
        (
            "reprieve_guard_grants_refused",
            "Grants that were refused because of debt or budget",
            |granted| granted.refused as f64,
        ),
    ];
    for (metric, help, figure) in figures {
        let mut all = vec![];
        for (name, own) in named {
            for (kind, granted) in own.grants() {
                all.push((vec![("vm", name.clone()), ("kind", kind.into())], figure(granted)));
            }
        }
        counter(out, metric, help, Series(all))?;
    }
    Ok(())
}

fn own(out: &mut DescriptorEncoder, all: &Statistics) -> Result<(), Error> {
    let mut info = out.encode_descriptor("reprieve_guard", "guard", None, MetricType::Info)?;
    info.encode_info(&vec![
        ("backend", all.backend.name()),
        ("policy", all.policy.name()),
        ("dry_run", if all.dry_run { "true" } else { "false" }),
    ])?;
    for (metric, help, value) in [
        (
            "reprieve_guard_decisions",
            "Decisions of the scheduler, and its timers",
            all.decisions as f64,
        ),
        ("reprieve_guard_decision_seconds", "Time in them", seconds(all.decisions_ns)),
        ("reprieve_guard_cpu_seconds", "CPU time of the guard process", seconds(all.process_ns)),
    ] {
        counter(out, metric, help, Series(vec![(vec![], value)]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Backend, Policy};
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
            rescued: Granted {
                count: 200,
                total_ns: 50_000_000,
                refused: 20,
                ..Granted::default()
            },
            ..VmStatistics::default()
        };
        let trouble = Some("memory is \x1b[2J encrypted".into());
        let web = VmStatistics { name: "web\x1b[2J".into(), trouble, ..VmStatistics::default() };
        let statistics = Statistics {
            vms: vec![db, web],
            decisions_ns: 40_000_000,
            ..Statistics::new(Backend::SchedExt, Policy::Full)
        };
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
