// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of the watcher's figures: what the guest did when it lost its CPUs, and its grace
//! periods as seen from outside.
//!
//! Shares are shares of time, not of counts: most preemptions last microseconds and do no harm.

use crate::report::load::Run;
use crate::report::metric::{Better, Measured, Metric, row};
use crate::watcher::{Totals, WatchOutcome};
use std::collections::BTreeSet;

const GROUP: &str = "Seen from outside";

/// The classes in the order of the table; those that did not occur in a run are left out.
const CLASSES: [(&str, &str); 10] = [
    ("user", "Preempted in user mode"),
    ("kernel", "... in preemptible kernel code"),
    ("reader", "... in an RCU reader"),
    ("no-preempt", "... with preemption off"),
    ("spinning", "... spinning for another vCPU"),
    ("irqs-off", "... with interrupts off"),
    ("softirq", "... in a softirq"),
    ("hardirq", "... in an interrupt"),
    ("idle", "... in the idle task"),
    ("unknown", "... in an unknown state"),
];

/// The classes of critical sections that others wait for.
const NEEDED: [&str; 5] = ["reader", "no-preempt", "irqs-off", "softirq", "hardirq"];
/// The class of those that only wait for another vCPU.
const SPINNING: &str = "spinning";

/// Each phase's totals with its length, s.
fn seen<'a>(m: &'a Measured) -> impl Iterator<Item = (&'a Totals, f64)> {
    m.hosts().filter_map(|host| match &host.outside {
        Some(WatchOutcome::Seen(totals)) => Some((&**totals, host.elapsed_ns as f64 / 1e9)),
        _ => None,
    })
}

/// Sum of the first over sum of the second part.
fn over(m: &Measured, parts: impl Fn(&Totals, f64) -> (f64, f64)) -> Option<f64> {
    let all = seen(m).map(|(totals, seconds)| parts(totals, seconds));
    let (a, b) = all.fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    (b > 0.0).then(|| a / b)
}

/// A grace period that was too short to be seen has its time counted to the one before.
fn gp_mean(m: &Measured) -> Option<f64> {
    let all = |t: &Totals| (t.grace_periods + t.grace_periods_unseen) as f64;
    over(m, |t, _| (t.grace_periods_ns as f64 / 1e6, all(t)))
}

/// The mean from inside, of the same time as the figures from outside.
fn mean_inside(m: &Measured) -> Option<f64> {
    Some(m.durations().filter(|_| !m.is_cut())?.mean())
}

/// The paper's measure: preemptions of readers.
pub(super) fn readers() -> Vec<Metric> {
    vec![
        row(GROUP, "reader_preemptions", "Reader preemptions", "1/s", Better::Lower, |m| {
            over(m, |t, seconds| (t.readers.count as f64, seconds))
        }),
        row(GROUP, "reader_preempted", "Readers, of preempted time", "%", Better::Lower, |m| {
            over(m, |t, _| (100.0 * t.readers.ns as f64, t.preempted().ns as f64))
        }),
    ]
}

/// [ECS]'s measure: preemptions in critical sections, of which a scheduler can avoid nearly all. A
/// class that did not occur is a zero, since to have none is the aim.
fn critical() -> Vec<Metric> {
    const LABEL: &str = "Critical-section preemptions";
    let all = [&NEEDED[..], &[SPINNING]].concat();
    let rate = |key: &str, label: &str, classes: Vec<&'static str>| {
        row(GROUP, key, label, "1/s", Better::Lower, move |m| {
            over(m, |t, seconds| {
                let counts = classes.iter().filter_map(|&class| t.classes.get(class));
                (counts.map(|preempted| preempted.count as f64).sum(), seconds)
            })
        })
    };
    let mut rows = vec![
        rate("critical_preemptions", LABEL, all.clone()),
        rate(
            "critical_preemptions.not_spinning",
            "... of vCPUs that did not spin",
            NEEDED.to_vec(),
        ),
    ];
    let classes = CLASSES.iter().filter(|(class, _)| all.contains(class));
    rows.extend(
        classes.map(|&(class, label)| {
            rate(&format!("critical_preemptions.{class}"), label, vec![class])
        }),
    );
    rows
}

/// The same of sections that programs of the guest announced.
fn announced() -> Vec<Metric> {
    vec![
        row(
            GROUP,
            "announced_preemptions",
            "Preemptions in announced sections",
            "1/s",
            Better::Lower,
            |m| over(m, |t, seconds| (t.announced.count as f64, seconds)),
        ),
        row(
            GROUP,
            "announced_preempted",
            "Announced sections, of preempted time",
            "%",
            Better::Lower,
            |m| over(m, |t, _| (100.0 * t.announced.ns as f64, t.preempted().ns as f64)),
        ),
    ]
}

/// The rows, if the run had a watcher.
pub(super) fn rows(run: &Run) -> Vec<Metric> {
    let outsides = || run.phases.iter().filter_map(|p| p.end.as_ref()?.1.outside.as_ref());
    if outsides().next().is_none() {
        return Vec::new();
    }
    let totals = || {
        outsides().filter_map(|outside| match outside {
            WatchOutcome::Seen(totals) => Some(totals),
            WatchOutcome::Missing(_) => None,
        })
    };
    let mut rows = readers();
    rows.extend(critical());
    if run.plan.subject.workload.needs_region() {
        rows.extend(announced());
    }
    let occurred: BTreeSet<&str> =
        totals().flat_map(|totals| totals.classes.keys().map(String::as_str)).collect();
    for (class, label) in CLASSES.iter().filter(|(class, _)| occurred.contains(class)) {
        rows.push(row(
            GROUP,
            &format!("preempted.{class}"),
            label,
            "%",
            Better::Neither,
            move |m| {
                over(m, |t, _| {
                    let ns = t.classes.get(*class).map_or(0, |c| c.ns);
                    (100.0 * ns as f64, t.preempted().ns as f64)
                })
            },
        ));
    }
    rows.extend([
        row(GROUP, "gp_mean_outside", "GP mean, from outside", "ms", Better::Lower, gp_mean),
        row(GROUP, "gp_difference", "... against from inside", "%", Better::Neither, |m| {
            Some(100.0 * (gp_mean(m)? / mean_inside(m)? - 1.0))
        }),
        row(GROUP, "outside_cost", "Watching, of one CPU", "%", Better::Lower, |m| {
            over(m, |t, seconds| (t.cost_ns as f64 / 1e7, seconds))
        }),
        row(GROUP, "outside_lost", "Events missed", "", Better::Lower, |m| {
            seen(m).map(|(t, _)| t.lost as f64).reduce(|a, b| a + b)
        }),
    ]);
    rows
}

/// Why phases were not watched, one notice per reason.
pub(in crate::report) fn notices(run: &Run) -> Vec<String> {
    let ended = run.phases.iter().filter_map(|p| p.end.as_ref());
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for (_, host) in ended.clone() {
        let Some(WatchOutcome::Missing(why)) = &host.outside else { continue };
        match reasons.iter_mut().find(|(other, _)| other == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    let all = ended.count();
    let notice = |(why, count)| {
        format!("seen from outside: not available in {count} of {all} phases: {why}")
    };
    reasons.into_iter().map(notice).collect()
}
