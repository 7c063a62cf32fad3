// SPDX-License-Identifier: MIT OR Apache-2.0
//! A line per VM and interval, for logs and pipes.

use super::activity::VmActivity;
use super::histogram;
use super::text::{self, count, optional, percent, plain, time};
use crate::model::{CurrentGrace, Snapshot, VcpuNow, VmSnapshot};
use std::fmt::Write as _;

/// The activity since `earlier`, a line per VM.
pub fn text(earlier: Option<&Snapshot>, now: &Snapshot) -> String {
    let mut out = String::new();
    for vm in &now.vms {
        let _ = writeln!(out, "{}", line(&VmActivity::between(earlier, now.time_ns, vm), now, vm));
    }
    for process in &now.processes {
        for domain in &process.domains {
            let (name, domain) = (plain(&process.name), text::domain(domain));
            let _ = writeln!(out, "{} {name} {domain}", process.pid);
        }
    }
    out
}

fn line(activity: &VmActivity, now: &Snapshot, vm: &VmSnapshot) -> String {
    let all = &activity.all;
    let close = |text: String| text.replace(' ', "");
    let mut out = format!(
        "{} {} vcpus={} preemptions/s={} ready={} in-critical={} gp/s={} gp-mean={} gp-p99={}",
        vm.pid,
        plain(&vm.name),
        optional(Some(vm.vcpus.len() as f64).filter(|n| *n > 0.0), |n| n.to_string()),
        count(all.per_second(all.total_preemptions())),
        close(optional(all.ready_share(), percent)),
        close(optional(all.critical_share(), percent)),
        optional(vm.grace.as_ref().map(|_| all.per_second(activity.graces())), count),
        close(optional(activity.grace_mean(), time)),
        close(optional(histogram::quantile(&activity.grace, 0.99), time)),
    );
    if let Some(current) = vm.grace.as_ref().and_then(|grace| grace.current.as_ref()) {
        let age = now.time_ns.saturating_sub(current.began_ns) as f64;
        let more = if current.began_earlier { ">" } else { "" };
        let _ = write!(out, " current-gp={more}{}", close(time(age)));
        for (index, state) in holders(vm, current).into_iter().take(3) {
            let _ = write!(out, "; held by vCPU {index} {}", doing(state, now.time_ns));
        }
    }
    if let Some(state) = text::state(&vm.state) {
        let _ = write!(out, "; {state}");
    }
    out
}

/// The state of a vCPU, as `preempted 41.0 ms in reader at __d_lookup (postmark 733)`.
pub fn doing(state: &VcpuNow, now: u64) -> String {
    let since = |ns: u64| time(now.saturating_sub(ns) as f64);
    match state {
        VcpuNow::Unseen => "not seen yet".into(),
        VcpuNow::Running { since_ns, cpu } => format!("running {} on CPU {cpu}", since(*since_ns)),
        VcpuNow::Halted { since_ns } => format!("halted {}", since(*since_ns)),
        VcpuNow::Ready { since_ns, .. } => format!("woken {} ago, without a CPU", since(*since_ns)),
        VcpuNow::Preempted { since_ns, class, reader, at, throttled, .. } => {
            let reader = if *reader && class.name() != "reader" { " and reader" } else { "" };
            let location = text::location(at);
            let at = if location == text::NONE { String::new() } else { format!(" at {location}") };
            let why = if *throttled { "throttled" } else { "preempted" };
            format!("{why} {} in {}{reader}{at}", since(*since_ns), class.name())
        }
    }
}

/// The vCPUs that owe `current` a quiescent state, those off their CPU first, the longest first.
pub fn holders<'a>(vm: &'a VmSnapshot, current: &CurrentGrace) -> Vec<(u32, &'a VcpuNow)> {
    let rank = |state: &VcpuNow| match state {
        VcpuNow::Preempted { since_ns, .. } | VcpuNow::Ready { since_ns, .. } => (0, *since_ns),
        VcpuNow::Running { since_ns, .. } => (1, *since_ns),
        VcpuNow::Halted { since_ns } => (2, *since_ns),
        VcpuNow::Unseen => (3, 0),
    };
    let mut owing: Vec<_> = vm.vcpus.iter().filter(|v| current.owing.contains(&v.index)).collect();
    owing.sort_by_key(|vcpu| rank(&vcpu.now));
    owing.into_iter().map(|vcpu| (vcpu.index, &vcpu.now)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::busy;

    #[test]
    fn a_line_names_who_holds_the_grace_period_up() {
        let out = text(Some(&busy(1)), &busy(2));
        let line = out.lines().next().unwrap();
        assert_eq!(
            line,
            "4711 db-primary vcpus=2 preemptions/s=203 ready=44% in-critical=49% gp/s=55.0 gp-mean=17.0ms gp-p99=17.0ms \
             current-gp=55.0ms; held by vCPU 0 preempted 41.0 ms in reader at __d_lookup_rcu+0x42 (postmark?[31m 733)"
        );
        assert_eq!(out.lines().count(), 4, "{out}");
    }
}
