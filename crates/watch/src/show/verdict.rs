// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether it is bad for a VM here: its grace periods and its waits for a CPU beside those of its
//! own best minute, and why it waits.
//!
//! How long a grace period takes depends on the guest and the machine, so no fixed limit tells a
//! long one.

use super::activity::VmActivity;
use super::text::{percent, plain, time};
use crate::model::{Snapshot, VmSnapshot};
use std::collections::HashMap;

/// Nanoseconds of the times that are compared.
const MINUTE: u64 = 60_000_000_000;
/// Fewer grace periods make no mean.
const GRACES: u64 = 10;
/// From this on a VM is slower than in its best minute.
const SLOW: f64 = 1.5;
/// A VM that waits for less of the time that it wants a CPU does not wait.
const WAITS: f64 = 0.01;

/// The best minutes of VMs, by process.
#[derive(Default)]
pub struct Best {
    begin: Option<Snapshot>,
    grace_ns: HashMap<u32, f64>,
}

impl Best {
    /// Takes a snapshot that is younger than the last one.
    pub fn note(&mut self, now: &Snapshot) {
        let begin = self.begin.get_or_insert_with(|| now.clone());
        if now.time_ns.saturating_sub(begin.time_ns) < MINUTE {
            return;
        }
        self.grace_ns.retain(|pid, _| now.vms.iter().any(|vm| vm.pid == *pid));
        for vm in now.vms.iter().filter(|vm| begin.vms.iter().any(|b| b.pid == vm.pid)) {
            let activity = VmActivity::between(Some(begin), now.time_ns, vm);
            let Some(mean) = grace_mean(&activity) else { continue };
            self.grace_ns.entry(vm.pid).and_modify(|best| *best = best.min(mean)).or_insert(mean);
        }
        self.begin = Some(now.clone());
    }

    /// The verdict on `vm` and what it did.
    pub fn verdict(&self, vm: &VmSnapshot, activity: &VmActivity) -> String {
        let best = self.grace_ns.get(&vm.pid).copied();
        let ratio = best.and_then(|best| Some((best, grace_mean(activity)? / best)));
        let waits = activity.all.ready_share().filter(|share| *share >= WAITS);
        let compared = match (ratio, &vm.grace) {
            (_, None) => "its grace periods cannot be read".into(),
            (None, _) if best.is_none() => "no minute to compare grace periods with yet".into(),
            (None, _) => "too few grace periods to compare".into(),
            (Some((best, ratio)), _) if ratio >= SLOW => format!(
                "SLOW: grace periods take {ratio:.1} times the {} of its best minute",
                time(best)
            ),
            (Some((best, _)), _) => format!("grace periods as in its best minute ({})", time(best)),
        };
        let waits = waits.map_or("hardly waits for a CPU".into(), |share| {
            format!(
                "waits for a CPU {} of the time that it wants one{}",
                percent(share),
                why(activity)
            )
        });
        format!("{compared}; {waits}")
    }
}

fn grace_mean(activity: &VmActivity) -> Option<f64> {
    activity.grace_mean().filter(|_| activity.graces() >= GRACES)
}

/// The reason for most of the wait.
fn why(activity: &VmActivity) -> String {
    if activity.all.throttled_share().is_some_and(|share| share >= 0.5) {
        return ", mostly since its quota (cpu.max) is used up".into();
    }
    match activity.takers.first() {
        Some(taker) => format!(", most of it taken by {}", plain(&taker.name)),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Grace, Vcpu};
    use crate::show::testing::{busy, histogram, snapshot, vcpu, vm};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_verdict_compares_with_the_best_minute_and_names_the_cause() {
        let (mut best, mut durations, mut on_ns, mut off) = (Best::default(), vec![], 0, vec![]);
        let mut minute = |n: u64, each: u64, throttled: u64| {
            durations.extend([each * MS; 20]);
            on_ns += 10_000 * MS;
            off.extend([30_000 * MS * u64::from(throttled > 0)]);
            let mut one = Vcpu { on_cpu_ns: on_ns, throttled_ns: throttled, ..vcpu(0) };
            one.preemptions = vec![crate::model::Preemptions {
                class: crate::model::Class::User,
                off_cpu: histogram(&off),
                readers: 0,
                readers_off_cpu_ns: 0,
            }];
            let grace = Grace { durations: histogram(&durations), ..Grace::default() };
            let seen = VmSnapshot { grace: Some(grace), ..vm(1, "a", vec![one]) };
            snapshot(n * MINUTE, vec![seen])
        };
        let all: Vec<Snapshot> =
            [(1, 9, 0), (2, 20, 0), (3, 7, 0), (4, 8, 0), (5, 21, 29_000 * MS)]
                .map(|(n, each, throttled)| minute(n, each, throttled))
                .into();
        let said: Vec<String> = (0..all.len())
            .map(|n| {
                best.note(&all[n]);
                let before = n.checked_sub(1).map(|n| &all[n]);
                let vm = &all[n].vms[0];
                best.verdict(vm, &VmActivity::between(before, all[n].time_ns, vm))
            })
            .collect();
        assert_eq!(said[0], "no minute to compare grace periods with yet; hardly waits for a CPU");
        assert_eq!(
            said[3],
            "grace periods as in its best minute (7.00 ms); hardly waits for a CPU"
        );
        assert_eq!(
            said[4],
            "SLOW: grace periods take 3.0 times the 7.00 ms of its best minute; \
             waits for a CPU 75 % of the time that it wants one, mostly since its quota (cpu.max) is used up"
        );
    }

    #[test]
    fn who_took_the_cpu_is_named() {
        let (first, second) = (busy(1), busy(2));
        let vm = &second.vms[0];
        let activity = VmActivity::between(Some(&first), second.time_ns, vm);
        assert_eq!((activity.takers[0].count, activity.takers[0].total_ns), (100, 300 * MS));
        let said = Best::default().verdict(vm, &activity);
        assert!(
            said.ends_with("44 % of the time that it wants one, most of it taken by web-1"),
            "{said}"
        );
    }
}
