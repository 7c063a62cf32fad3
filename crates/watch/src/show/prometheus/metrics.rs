// SPDX-License-Identifier: MIT OR Apache-2.0
//! A snapshot in the OpenMetrics text format.
//!
//! Times are in seconds, counters end in `_total` and only grow while `watch` runs. Each VM is
//! named by the label `vm`, which is unique.

use super::encode::{Series, counter, gauge, histogram, seconds};
use super::names::unique;
use crate::model::*;
use crate::show::activity::{Activity, position, vcpu_totals};
use crate::show::histogram::add;
use crate::show::text::plain;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::HashMap;
use std::fmt::Error;

#[derive(Debug)]
pub struct Page {
    snapshot: Snapshot,
    /// Per VM.
    totals: Vec<Activity>,
    ready_ns: HashMap<(u32, u32), u64>,
}

/// The totals that were served last, by the VMM's process, and of which vCPUs. For Prometheus a
/// counter that falls has begun anew: it would count all of it once more. When a vCPU is taken out,
/// those of all do begin anew.
#[derive(Debug, Default)]
pub struct Served {
    activities: HashMap<u32, (Vec<u32>, Activity)>,
    /// Ready time by process and vCPU.
    ready_ns: HashMap<(u32, u32), u64>,
    /// Time on a CPU that guard counts, by process.
    pub on_cpu_ns: HashMap<u32, u64>,
}

/// A VM under its unique name, with the totals over its vCPUs.
struct Named<'a> {
    name: String,
    vm: &'a VmSnapshot,
    totals: &'a Activity,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let out = &mut encoder;
        let named = self.named();
        vms(out, &named)?;
        preemptions(out, &named)?;
        self.ready(out, &named)?;
        grace_periods(out, &named, self.snapshot.time_ns)?;
        runtime(out, &self.snapshot.processes)?;
        cost(out, &self.snapshot)
    }
}

impl Page {
    pub fn new(snapshot: Snapshot, served: &mut Served) -> Page {
        let (now, before) = (snapshot.time_ns, std::mem::take(&mut served.activities));
        let ready_before = std::mem::take(&mut served.ready_ns);
        let mut all = vec![];
        for vm in &snapshot.vms {
            let there: Vec<u32> = vm.vcpus.iter().map(|vcpu| vcpu.tid).collect();
            let same = |(tids, _): &&(Vec<u32>, _)| tids.iter().all(|tid| there.contains(tid));
            let earlier = before.get(&vm.pid).filter(same);
            let mut totals = totals(vm, now);
            if let Some((_, earlier)) = earlier {
                totals.hold(earlier);
            }
            for vcpu in &vm.vcpus {
                let (key, ready) = ((vm.pid, vcpu.index), vcpu_totals(vcpu, now).ready_ns());
                let least = earlier.and_then(|_| ready_before.get(&key).copied());
                served.ready_ns.insert(key, ready.max(least.unwrap_or_default()));
            }
            all.push(totals.clone());
            served.activities.insert(vm.pid, (there, totals));
        }
        Page { ready_ns: served.ready_ns.clone(), snapshot, totals: all }
    }

    fn ready(&self, out: &mut DescriptorEncoder, named: &[Named]) -> Result<(), Error> {
        let mut all = vec![];
        for n in named {
            for vcpu in &n.vm.vcpus {
                let labels = vec![("vm", n.name.clone()), ("vcpu", vcpu.index.to_string())];
                let ready = self.ready_ns.get(&(n.vm.pid, vcpu.index)).copied();
                all.push((labels, seconds(ready.unwrap_or_default())));
            }
        }
        counter(
            out,
            "reprieve_vcpu_ready_seconds",
            "Time that a vCPU wanted a CPU and had none, preempted or woken; counts as it passes",
            Series(all),
        )
    }

    fn named(&self) -> Vec<Named<'_>> {
        let vms = &self.snapshot.vms;
        let names = unique("pid", vms.iter().map(|vm| (vm.pid.into(), vm.name.as_str())));
        let named = |((name, vm), totals)| Named { name, vm, totals };
        names.into_iter().zip(vms).zip(&self.totals).map(named).collect()
    }
}

fn totals(vm: &VmSnapshot, now: u64) -> Activity {
    let mut all = Activity::default();
    for vcpu in &vm.vcpus {
        all.add(&vcpu_totals(vcpu, now));
    }
    all
}

/// Name and help of a metric, and what it says of each.
type Figure<T> = (&'static str, &'static str, fn(&T) -> f64);

/// A series per VM that has the figure.
fn each<'a, T>(named: &'a [Named<'a>], figure: impl Fn(&'a Named<'a>) -> Option<T>) -> Series<T> {
    let series = |n: &'a Named<'a>| Some((vec![("vm", n.name.clone())], figure(n)?));
    Series(named.iter().filter_map(series).collect())
}

/// Several series per VM, told apart by one more label.
fn split<T, const N: usize>(
    named: &[Named],
    label: &'static str,
    figures: impl Fn(&Named) -> [Option<(&'static str, T)>; N],
) -> Series<T> {
    let mut all = vec![];
    for n in named {
        for (value, figure) in figures(n).into_iter().flatten() {
            all.push((vec![("vm", n.name.clone()), (label, value.into())], figure));
        }
    }
    Series(all)
}

fn state(state: &VmState) -> &'static str {
    match state {
        VmState::Attaching => "attaching",
        VmState::Watching => "watching",
        VmState::Paused => "paused",
        VmState::Unreadable(_) => "unreadable",
        VmState::Gone => "gone",
    }
}

/// How many of the vCPUs that `wanted` picks are in which state; nothing before they are known.
fn by_state(vm: &VmSnapshot, wanted: impl Fn(&Vcpu) -> bool) -> [Option<(&'static str, f64)>; 5] {
    let mut numbers =
        ["running", "preempted", "halted", "ready", "unseen"].map(|state| (state, 0.0));
    for vcpu in vm.vcpus.iter().filter(|v| wanted(v)) {
        let state = match vcpu.now {
            VcpuNow::Running { .. } => 0,
            VcpuNow::Preempted { .. } => 1,
            VcpuNow::Halted { .. } => 2,
            VcpuNow::Ready { .. } => 3,
            VcpuNow::Unseen => 4,
        };
        numbers[state].1 += 1.0;
    }
    numbers.map(|number| (!vm.vcpus.is_empty()).then_some(number))
}

fn vms(out: &mut DescriptorEncoder, named: &[Named]) -> Result<(), Error> {
    let mut info =
        out.encode_descriptor("reprieve_vm", "A virtual machine", None, MetricType::Info)?;
    for Named { name, vm, .. } in named {
        // KubeVirt's, which has no underscore in either.
        let (namespace, short) = vm.name.split_once('_').unwrap_or_default();
        let kubevirt = !namespace.is_empty() && !short.is_empty() && !short.contains('_');
        let both = (plain(namespace), plain(short));
        let (namespace, short) = if kubevirt { both } else { Default::default() };
        info.encode_info(&vec![
            ("vm", name.clone()),
            ("pid", vm.pid.to_string()),
            ("vmm", plain(&vm.vmm)),
            ("kernel", vm.kernel.as_deref().map_or(String::new(), plain)),
            ("state", state(&vm.state).into()),
            ("reason", vm.reason.as_deref().map_or(String::new(), plain)),
            ("namespace", namespace),
            ("name", short),
        ])?;
    }
    let vcpus = split(named, "state", |n| by_state(n.vm, |_| true));
    gauge(out, "reprieve_vm_vcpus", "vCPUs by what they are doing now", vcpus)
}

fn preemptions(out: &mut DescriptorEncoder, named: &[Named]) -> Result<(), Error> {
    let occurred = |n: &Named, class| {
        n.totals.off_ns[position(class)] > 0 || n.totals.preemptions[position(class)] > 0
    };
    counter(
        out,
        "reprieve_vcpu_off_cpu_seconds",
        "Time that vCPUs were off their CPU against their will, by what they were doing; counts as it passes",
        split(named, "class", |n| {
            Class::ALL.map(|class| {
                occurred(n, class)
                    .then(|| (class.name(), seconds(n.totals.off_ns[position(class)])))
            })
        }),
    )?;
    histogram(
        out,
        "reprieve_vcpu_preemption_seconds",
        "Preemptions of vCPUs that have ended, by what they were doing and how long they took",
        split(named, "class", |n| {
            Class::ALL.map(|class| {
                let ended = n.totals.preemptions[position(class)] > 0;
                ended.then(|| (class.name(), of_class(n.vm, class)))
            })
        }),
    )?;
    const TOTALS: [Figure<Activity>; 4] = [
        (
            "reprieve_vcpu_reader_preemptions",
            "Preemptions that hit an RCU reader, whatever the class",
            |all| all.readers as f64,
        ),
        (
            "reprieve_vcpu_reader_off_cpu_seconds",
            "Time that vCPUs were off their CPU in an RCU reader; counts when the preemption ends",
            |all| seconds(all.readers_ns),
        ),
        (
            "reprieve_vcpu_throttled_seconds",
            "Time that vCPUs were off their CPU because a quota of CPU time was used up",
            |all| seconds(all.throttled_ns),
        ),
        ("reprieve_vcpu_on_cpu_seconds", "Time that vCPUs were on a CPU", |all| seconds(all.on_ns)),
    ];
    for (name, help, figure) in TOTALS {
        counter(out, name, help, each(named, |n| Some(figure(n.totals))))?;
    }
    Ok(())
}

/// The preemptions of all vCPUs that were in `class`.
fn of_class(vm: &VmSnapshot, class: Class) -> Histogram {
    let mut all = Histogram::default();
    for preemptions in vm.vcpus.iter().flat_map(|v| &v.preemptions).filter(|p| p.class == class) {
        add(&mut all, &preemptions.off_cpu);
    }
    all
}

fn grace_periods(out: &mut DescriptorEncoder, named: &[Named], now: u64) -> Result<(), Error> {
    histogram(
        out,
        "reprieve_grace_period_seconds",
        "Grace periods of the guest that began and ended while watched, by duration",
        each(named, |n| Some(&n.vm.grace.as_ref()?.durations)),
    )?;
    counter(
        out,
        "reprieve_grace_periods_unseen",
        "Grace periods that ended too fast for both ends to be seen",
        each(named, |n| Some(n.vm.grace.as_ref()?.unseen as f64)),
    )?;
    gauge(
        out,
        "reprieve_grace_period_age_seconds",
        "Age of the grace period in progress, 0 without one",
        each(named, |n| {
            let current = n.vm.grace.as_ref()?.current.as_ref();
            Some(current.map_or(0.0, |c| seconds(now.saturating_sub(c.began_ns))))
        }),
    )?;
    gauge(
        out,
        "reprieve_grace_period_owing_vcpus",
        "vCPUs that the grace period in progress waits for, by what they are doing now",
        split(named, "state", |n| {
            let Some(grace) = &n.vm.grace else { return [None; 5] };
            let owes =
                |vcpu: &Vcpu| grace.current.as_ref().is_some_and(|c| c.owing.contains(&vcpu.index));
            by_state(n.vm, owes)
        }),
    )
}

fn runtime(out: &mut DescriptorEncoder, processes: &[Process]) -> Result<(), Error> {
    let series = |figure: fn(&Domain) -> f64| {
        let mut all = vec![];
        for process in processes {
            for domain in &process.domains {
                let labels = vec![
                    ("process", plain(&process.name)),
                    ("pid", process.pid.to_string()),
                    ("domain", domain.index.to_string()),
                ];
                all.push((labels, figure(domain)));
            }
        }
        Series(all)
    };
    const GAUGES: [Figure<Domain>; 4] = [
        ("callbacks_waiting", "Callbacks that wait for a grace period", |d| {
            d.callbacks_waiting as f64
        }),
        ("waiting_bytes", "Memory that waits for a grace period", |d| d.bytes_waiting as f64),
        ("grace_period_age_seconds", "Age of the grace period in progress, 0 without one", |d| {
            d.current_age_ns.map_or(0.0, seconds)
        }),
        ("laggards", "Threads that the grace period in progress waits for", |d| {
            d.laggards.len() as f64
        }),
    ];
    for (name, help, figure) in GAUGES {
        gauge(out, &format!("reprieve_runtime_{name}"), help, series(figure))?;
    }
    let graces = series(|d| d.grace_periods as f64);
    counter(out, "reprieve_runtime_grace_periods", "Grace periods", graces)
}

fn cost(out: &mut DescriptorEncoder, snapshot: &Snapshot) -> Result<(), Error> {
    let cost = &snapshot.cost;
    let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    out.encode_descriptor("reprieve_build", "The reprieve that watches", None, MetricType::Info)?
        .encode_info(&build)?;
    let one = |value| Series(vec![(vec![], value)]);
    for (name, help, value) in [
        ("switches", "Context switches of vCPUs that were looked at", cost.switches as f64),
        ("switch_seconds", "Time in the eBPF program at these switches", seconds(cost.switch_ns)),
        ("cpu_seconds", "CPU time of the watch process", seconds(cost.process_ns)),
        ("events_lost", "Events that were lost", cost.lost as f64),
    ] {
        counter(out, &format!("reprieve_watch_{name}"), help, one(value))?;
    }
    gauge(
        out,
        "reprieve_watch_snapshot_timestamp_seconds",
        "When these figures were taken",
        one(seconds(snapshot.wall)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::prometheus;
    use crate::show::prometheus::testing::{asked, documented, served};
    use crate::show::testing::{busy, preempted, snapshot, vcpu, vm};

    fn page(snapshot: Snapshot) -> String {
        prometheus::text(&snapshot, &mut Served::default()).unwrap()
    }

    #[test]
    fn figures_are_in_base_units() {
        let page = page(busy(10));
        for line in [
            "reprieve_vm_info{vm=\"db-primary\",pid=\"4711\",vmm=\"qemu-kvm\",kernel=\"6.12.117+deb12-cloud-amd64\",state=\"watching\",reason=\"\",namespace=\"\",name=\"\"} 1",
            "reprieve_vcpu_ready_seconds_total{vm=\"db-primary\",vcpu=\"0\"} 5.841",
            "reprieve_vcpu_throttled_seconds_total{vm=\"db-primary\"} 0.25",
            "reprieve_vm_vcpus{vm=\"db-primary\",state=\"preempted\"} 1.0",
            "reprieve_vcpu_preemption_seconds_sum{vm=\"db-primary\",class=\"no-preempt\"} 1.6",
            "reprieve_vcpu_preemption_seconds_count{vm=\"db-primary\",class=\"reader\"} 100",
            "reprieve_vcpu_preemption_seconds_bucket{le=\"+Inf\",vm=\"db-primary\",class=\"reader\"} 100",
            "reprieve_vcpu_preemption_seconds_bucket{le=\"0.008192\",vm=\"db-primary\",class=\"reader\"} 0",
            "reprieve_vcpu_preemption_seconds_bucket{le=\"0.016384\",vm=\"db-primary\",class=\"reader\"} 100",
            // 100 that ended, 12 ms each, and 41 ms of the one in progress.
            "reprieve_vcpu_off_cpu_seconds_total{vm=\"db-primary\",class=\"reader\"} 1.241",
            "reprieve_vcpu_reader_preemptions_total{vm=\"db-primary\"} 120.0",
            "reprieve_grace_period_seconds_count{vm=\"db-primary\"} 550",
            "reprieve_grace_period_age_seconds{vm=\"db-primary\"} 0.055",
            "reprieve_grace_period_owing_vcpus{vm=\"db-primary\",state=\"preempted\"} 1.0",
            "reprieve_runtime_waiting_bytes{process=\"cache-server\",pid=\"99\",domain=\"0\"} 7340032.0",
            "reprieve_watch_cpu_seconds_total 0.06",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn a_counter_does_not_fall() {
        const SECOND: u64 = 1_000_000_000;
        let mut served = Served::default();
        let mut off_cpu = |at: u64, class, since, tid| {
            let one = Vcpu { now: preempted(since, class), tid, ..vcpu(0) };
            let seen = snapshot(at, vec![vm(1, "a", vec![one])]);
            let page = prometheus::text(&seen, &mut served).unwrap();
            let prefix = "reprieve_vcpu_off_cpu_seconds_total{vm=\"a\",class=\"user\"} ";
            let line = page.lines().find_map(|line| line.strip_prefix(prefix));
            line.unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(off_cpu(5 * SECOND, Class::User, SECOND, 7), 4.0);
        // The vCPU had run meanwhile, which was seen late.
        assert_eq!(off_cpu(6 * SECOND, Class::User, 3 * SECOND, 7), 4.0);
        assert_eq!(off_cpu(8 * SECOND, Class::Reader, 7 * SECOND, 7), 4.0);
        assert_eq!(off_cpu(9 * SECOND, Class::User, 2 * SECOND, 7), 7.0);
        // Another thread: the counters begin anew.
        assert_eq!(off_cpu(9 * SECOND, Class::User, 8 * SECOND, 8), 1.0);
    }

    #[test]
    fn kubevirts_names_are_split_and_no_others() {
        let labels = |name: &str| {
            let page = page(snapshot(1, vec![vm(1, name, vec![])]));
            let line = page.lines().find(|line| line.starts_with("reprieve_vm_info{")).unwrap();
            line.split_once("reason=").unwrap().1.to_owned()
        };
        assert_eq!(labels("shop_db-1"), "\"\",namespace=\"shop\",name=\"db-1\"} 1");
        for other in ["db", "_db", "shop_", "a_b_c"] {
            assert_eq!(labels(other), "\"\",namespace=\"\",name=\"\"} 1", "{other}");
        }
    }

    #[test]
    fn names_that_are_the_same_stay_apart() {
        let page = page(snapshot(1, vec![vm(1, "a", vec![vcpu(0)]), vm(2, "a", vec![vcpu(0)])]));
        let mut series: Vec<&str> = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
            .collect();
        let all = series.len();
        series.sort();
        series.dedup();
        assert_eq!(series.len(), all);
        assert!(page.contains("vm=\"a (pid 2)\""), "{page}");
    }

    #[test]
    fn a_name_cannot_forge_a_metric() {
        let page = page(snapshot(1, vec![vm(1, "a\"} 1\nforged 1\n\\", vec![vcpu(0)])]));
        assert!(page.lines().all(|l| l.starts_with('#') || l.starts_with("reprieve_")), "{page}");
        assert!(page.contains("vm=\"a\\\"} 1?forged 1?\\\\\""), "{page}");
    }

    #[test]
    fn the_documentation_lists_every_metric_and_no_other() {
        let text = include_str!("../../../../../docs/watch.md");
        assert_eq!(documented(text), served(&page(busy(10))));
    }

    #[test]
    fn the_rules_ask_for_metrics_that_exist() {
        let rules = include_str!("../../../../../packaging/prometheus/reprieve-watch.rules.yml");
        let expressions = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
        let asked: std::collections::BTreeSet<String> =
            expressions.flat_map(crate::show::prometheus::testing::names).collect();
        let served = served(&page(busy(10)));
        assert!(asked.len() > 3 && asked.is_subset(&served), "{asked:?}");
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_exist() {
        let dashboard = include_str!("../../../../../packaging/grafana/reprieve-watch.json");
        let (asked, served) = (asked(dashboard), served(&page(busy(10))));
        assert!(asked.len() > 10, "{asked:?}");
        assert!(asked.is_subset(&served), "{:?}", asked.difference(&served));
        // The time of unseen grace periods is in the sum that the mean comes from.
        assert!(dashboard.contains("rate(reprieve_grace_periods_unseen_total{"));
        // Time off the CPU leaves out waits after wake-ups.
        assert!(dashboard.contains("rate(reprieve_vcpu_ready_seconds_total{"));
    }
}
