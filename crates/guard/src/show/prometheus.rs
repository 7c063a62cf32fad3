// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics of guard as metrics. The README of the crate lists them.

use crate::statistics::{Granted, Preempted, Statistics, VmStatistics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use reprieve_watch::show::prometheus::encode::{Labels, Series, counter, gauge, seconds};
use reprieve_watch::show::prometheus::names::unique;
use reprieve_watch::show::prometheus::{Figures, Served};
use std::fmt::Error;
use std::ops::RangeInclusive;

#[derive(Debug)]
struct Page(Statistics);

type Named<'a> = Vec<(String, &'a VmStatistics)>;

impl Figures for Statistics {
    fn collector(&self, served: &mut Served) -> Box<dyn Collector> {
        let mut statistics = self.clone();
        // The time falls where `watch` counts (a dry run, eevdf) and did not see a vCPU leave its
        // CPU.
        for vm in &mut statistics.vms {
            let earlier = served.on_cpu_ns.get(&vm.pid).copied();
            vm.on_cpu_ns = vm.on_cpu_ns.max(earlier.unwrap_or_default());
        }
        served.on_cpu_ns = statistics.vms.iter().map(|vm| (vm.pid, vm.on_cpu_ns)).collect();
        Box::new(Page(statistics))
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let out = &mut encoder;
        let named = self.0.vms.iter().map(|vm| (vm.pid.into(), vm.name.as_str()));
        let names = unique("pid", named);
        let named: Named = names.into_iter().zip(&self.0.vms).collect();
        vms(out, &named)?;
        preemptions(out, &named)?;
        grants(out, &named)?;
        shares(out, &named)?;
        own(out, &self.0)
    }
}

fn vm(name: &str) -> Labels {
    vec![("vm", name.into())]
}

fn each(named: &Named, figure: impl Fn(&VmStatistics) -> Option<f64>) -> Series<f64> {
    Series(named.iter().filter_map(|(name, own)| Some((vm(name), figure(own)?))).collect())
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
    gauge(
        out,
        "reprieve_guard_vm_weight",
        "Weight of the VM; 100 is the normal one",
        each(named, |vm| Some(vm.weight.into())),
    )
}

fn preemptions(out: &mut DescriptorEncoder, named: &Named) -> Result<(), Error> {
    let by_class = |figure: fn(&Preempted) -> u64| {
        let mut all = vec![];
        for (name, own) in named {
            for p in own.preempted.iter().filter(|p| p.suffered + p.avoided > 0) {
                let labels = vec![("vm", name.clone()), ("class", p.class.name().into())];
                all.push((labels, figure(p) as f64));
            }
        }
        Series(all)
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
    )?;
    counter(
        out,
        "reprieve_guard_announced_preemptions_avoided",
        "The first, in sections that programs of the guest announced",
        each(named, |vm| vm.region.as_ref().map(|region| region.avoided as f64)),
    )?;
    counter(
        out,
        "reprieve_guard_announced_preemptions_suffered",
        "The second, in sections that programs of the guest announced",
        each(named, |vm| vm.region.as_ref().map(|region| region.suffered as f64)),
    )
}

fn grants(out: &mut DescriptorEncoder, named: &Named) -> Result<(), Error> {
    let by_kind = |figure: fn(&Granted) -> f64| {
        let mut all = vec![];
        for (name, own) in named {
            for (kind, granted) in own.grants() {
                all.push((vec![("vm", name.clone()), ("kind", kind.into())], figure(granted)));
            }
        }
        Series(all)
    };
    counter(
        out,
        "reprieve_guard_grants",
        "Times that a vCPU got CPU time out of turn, by kind",
        by_kind(|granted| granted.count as f64),
    )?;
    counter(
        out,
        "reprieve_guard_granted_seconds",
        "CPU time out of turn; it is charged like any other",
        by_kind(|granted| seconds(granted.total_ns)),
    )?;
    gauge(
        out,
        "reprieve_guard_longest_grant_seconds",
        "The longest of them",
        by_kind(|granted| seconds(granted.max_ns)),
    )?;
    counter(
        out,
        "reprieve_guard_grants_expired",
        "Grants that ended because their time was up",
        by_kind(|granted| granted.expired as f64),
    )?;
    counter(
        out,
        "reprieve_guard_grants_refused",
        "Grants that were refused because of debt or budget",
        by_kind(|granted| granted.refused as f64),
    )
}

fn shares(out: &mut DescriptorEncoder, named: &Named) -> Result<(), Error> {
    counter(
        out,
        "reprieve_guard_on_cpu_seconds",
        "Time that the VM's vCPUs were on CPUs",
        each(named, |vm| Some(seconds(vm.on_cpu_ns))),
    )?;
    counter(
        out,
        "reprieve_guard_ticks_waited",
        "Times that the guest's timer expired, mostly for a tick, while its vCPU waited for a CPU",
        each(named, |vm| Some(vm.ticks_waited as f64)),
    )?;
    counter(
        out,
        "reprieve_guard_gave_way",
        "Turns of vCPUs that ended in a critical section where they waited for another one",
        each(named, |vm| Some(vm.gave_way as f64)),
    )
}

fn own(out: &mut DescriptorEncoder, statistics: &Statistics) -> Result<(), Error> {
    let one = |value| Series(vec![(vec![], value)]);
    let mut info = out.encode_descriptor("reprieve_guard", "guard", None, MetricType::Info)?;
    info.encode_info(&vec![
        ("backend", statistics.backend.name()),
        ("policy", statistics.policy.name()),
        ("dry_run", if statistics.dry_run { "true" } else { "false" }),
    ])?;
    counter(
        out,
        "reprieve_guard_decisions",
        "Decisions of the scheduler, and its timers",
        one(statistics.decisions as f64),
    )?;
    counter(
        out,
        "reprieve_guard_decision_seconds",
        "Time in them",
        one(seconds(statistics.decisions_ns)),
    )?;
    decision_times(out, statistics)?;
    counter(
        out,
        "reprieve_guard_cpu_seconds",
        "CPU time of the guard process",
        one(seconds(statistics.process_ns)),
    )?;
    counter(
        out,
        "reprieve_guard_restarts",
        "Times that it was loaded again because CPUs came or went",
        one(statistics.restarts as f64),
    )
}

/// Bounds at each power of two are edges of the program's own steps, so the counts are exact.
const DECISION_NS: RangeInclusive<u32> = 6..=20;

fn decision_times(out: &mut DescriptorEncoder, statistics: &Statistics) -> Result<(), Error> {
    let times = &statistics.decision_times;
    if times.steps.is_empty() {
        return Ok(());
    }
    let mut buckets: Vec<(f64, u64)> =
        DECISION_NS.map(|power| (seconds(1 << power), 0)).chain([(f64::INFINITY, 0)]).collect();
    for step in &times.steps {
        let fits = |(bound, _): &&mut (f64, u64)| seconds(step.to_ns) <= *bound;
        if let Some((_, runs)) = buckets.iter_mut().find(fits) {
            *runs += step.runs;
        }
    }
    let mut metric = out.encode_descriptor(
        "reprieve_guard_decision_duration_seconds",
        "Time of one decision, with one reading of the clock",
        None,
        MetricType::Histogram,
    )?;
    let sum = seconds(statistics.decisions_ns);
    metric.encode_histogram::<NoLabelSet>(sum, times.runs(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use crate::show::testing::guarded;
    use crate::statistics::Statistics;
    use reprieve_watch::show::prometheus::testing::{asked, documented, served};
    use reprieve_watch::show::prometheus::{self, Served};

    fn text(statistics: &Statistics) -> String {
        prometheus::text(statistics, &mut Served::default()).unwrap()
    }

    #[test]
    fn figures_are_in_base_units() {
        let page = text(&guarded(10));
        for line in [
            "reprieve_guard_info{backend=\"sched-ext\",policy=\"full\",dry_run=\"false\"} 1",
            "reprieve_guard_vm_info{vm=\"db-primary\",pid=\"4711\",policy=\"full\",readable=\"true\",trouble=\"false\"} 1",
            "reprieve_guard_vm_weight{vm=\"db-primary\"} 200.0",
            "reprieve_guard_preemptions_avoided_total{vm=\"db-primary\",class=\"reader\"} 300.0",
            "reprieve_guard_preemptions_suffered_total{vm=\"db-primary\",class=\"reader\"} 10.0",
            "reprieve_guard_announced_preemptions_avoided_total{vm=\"db-primary\"} 40.0",
            "reprieve_guard_announced_preemptions_suffered_total{vm=\"db-primary\"} 2.0",
            "reprieve_guard_grants_total{vm=\"db-primary\",kind=\"rescued\"} 200.0",
            "reprieve_guard_granted_seconds_total{vm=\"db-primary\",kind=\"rescued\"} 0.05",
            "reprieve_guard_longest_grant_seconds{vm=\"db-primary\",kind=\"rescued\"} 0.0003",
            "reprieve_guard_on_cpu_seconds_total{vm=\"db-primary\"} 9.0",
            "reprieve_guard_decision_seconds_total 0.04",
            "reprieve_guard_decision_duration_seconds_bucket{le=\"2.56e-7\"} 0",
            "reprieve_guard_decision_duration_seconds_bucket{le=\"5.12e-7\"} 95000",
            "reprieve_guard_decision_duration_seconds_bucket{le=\"+Inf\"} 100000",
            "reprieve_guard_decision_duration_seconds_sum 0.04",
            "reprieve_guard_cpu_seconds_total 0.01",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
        assert!(page.lines().all(|l| l.starts_with('#') || l.starts_with("reprieve_")), "{page}");
        assert!(!page.contains('\x1b'), "{page}");
    }

    #[test]
    fn time_on_cpus_does_not_fall() {
        let (mut statistics, mut served) = (guarded(10), Served::default());
        for on_cpu_ns in [9_000_000_000, 8_000_000_000] {
            statistics.vms[0].on_cpu_ns = on_cpu_ns;
            let page = prometheus::text(&statistics, &mut served).unwrap();
            let line = "reprieve_guard_on_cpu_seconds_total{vm=\"db-primary\"} 9.0";
            assert!(page.lines().any(|l| l == line), "{page}");
        }
    }

    #[test]
    fn the_documentation_lists_every_metric_and_no_other() {
        let text_of = include_str!("../../README.md");
        assert_eq!(documented(text_of), served(&text(&guarded(10))));
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_exist() {
        let dashboard = include_str!("../../../../packaging/grafana/reprieve-guard.json");
        let (asked, served) = (asked(dashboard), served(&text(&guarded(10))));
        assert!(asked.len() > 10, "{asked:?}");
        assert!(asked.is_subset(&served), "{:?}", asked.difference(&served));
    }
}
