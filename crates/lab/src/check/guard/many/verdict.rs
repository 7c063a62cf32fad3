// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict of two looks at everything: who had how much, and what scheduling took.

use super::shares::{Had, Share, shares};
use super::{BUSY, LEFT_OUT, NAPPING, NAPPING_VCPUS, SLICE, Seen, VCPUS};
use crate::check::{Check, Finding};
use anyhow::{Result, bail};
use reprieve_guard::{MAX_EXTEND, Statistics, VmStatistics};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The promise for the median of a decision.
const MEDIAN_NS: u64 = 1_000;

pub(super) fn judge(before: &Seen, after: &Seen) -> Result<Finding> {
    let seconds = (after.at - before.at).as_secs_f64();
    let turns = |vm: usize| -> Vec<u64> {
        after.turns[vm].iter().zip(&before.turns[vm]).map(|(now, old)| now - old).collect()
    };
    let used = |vm: usize| after.used_ns[vm].saturating_sub(before.used_ns[vm]);
    let had: Vec<Had> = (0..BUSY.len())
        .map(|vm| Had {
            weight: BUSY[vm].2,
            vcpus: VCPUS as u64,
            used_ns: used(vm),
            turns: turns(vm).iter().sum(),
        })
        .collect();
    let turn = SLICE + MAX_EXTEND;
    let shares = shares(&had, turn.as_nanos() as u64);
    let all: Vec<u64> = (0..=BUSY.len()).flat_map(turns).collect();
    let mut text = format!(
        "  {} threads that compute, {NAPPING_VCPUS} that nap, for {seconds:.1} s: each got a CPU {} times or more, {} at most\n",
        all.len() - NAPPING_VCPUS,
        all.iter().min().unwrap_or(&0),
        all.iter().max().unwrap_or(&0),
    );
    let (mut passed, mut figures) = (true, Vec::new());
    for (vm, share) in shares.iter().enumerate() {
        let (name, _, weight) = BUSY[vm];
        let own = after.vm(vm)?;
        if u64::from(own.weight) != weight {
            bail!("guard took the weight of {name} to be {}, not {weight}", own.weight);
        }
        passed &= share.right();
        row(&mut text, name, weight, share, own);
        figures.push(figure(name, weight, share, before.vm(vm)?, own));
    }
    let napping = after.vm(BUSY.len())?;
    let told = napping.trouble.as_deref().unwrap_or("nothing");
    let wanted = format!("{LEFT_OUT} of its {NAPPING_VCPUS} vCPUs");
    let right = told.contains(&wanted);
    passed &= right;
    let mark = if right { "" } else { "  <- wrong" };
    writeln!(
        text,
        "  {}, whose vCPUs sleep and wake: {:.1} % of what the others had; guard says of it: {told}{mark}",
        NAPPING.0,
        100.0 * used(BUSY.len()) as f64 / had.iter().map(|h| h.used_ns).sum::<u64>().max(1) as f64,
    )?;
    let costs = costs(&before.guard, &after.guard, seconds, &mut text);
    let figures = json!({
        "threads": all.len(), "seconds": seconds, "fewest_turns": all.iter().min(), "vms": figures, "costs": costs,
    });
    Ok(Finding::new(Check::GuardMany, passed, text, figures))
}

fn row(text: &mut String, name: &str, weight: u64, share: &Share, own: &VmStatistics) {
    let mark = if share.right() { "" } else { "  <- wrong" };
    let _ = writeln!(
        text,
        "  {name}, weight {weight}: {:.2} % of their CPU time, {:.2} due, {:.2} off at most; extended {} times, rescued {}, yielded to {}; refused {}, {}, {}{mark}",
        share.percent,
        share.due,
        share.tolerance,
        own.extended.count,
        own.rescued.count,
        own.yielded.count,
        own.extended.refused,
        own.rescued.refused,
        own.yielded.refused,
    );
}

fn figure(
    name: &str,
    weight: u64,
    share: &Share,
    before: &VmStatistics,
    own: &VmStatistics,
) -> Value {
    let grants: Vec<Value> = own
        .grants()
        .iter()
        .zip(before.grants())
        .map(|((kind, now), (_, old))| {
            json!({
                "kind": kind, "count": now.count - old.count, "total_ns": now.total_ns - old.total_ns,
                "refused": now.refused - old.refused,
            })
        })
        .collect();
    json!({
        "vm": name, "weight": weight, "percent": share.percent, "due": share.due, "tolerance": share.tolerance,
        "on_cpu_ns": own.on_cpu_ns - before.on_cpu_ns,
        "grants": grants,
    })
}

/// The cost of scheduling, which depends on the machine and fails no check.
fn costs(before: &Statistics, after: &Statistics, seconds: f64, text: &mut String) -> Value {
    let times = after.decision_times.since(&before.decision_times);
    let decisions = after.decisions - before.decisions;
    let ns = after.decisions_ns - before.decisions_ns;
    let shown = |ns: Option<u64>| ns.map_or("?".into(), |ns| ns.to_string());
    let kept = times.median_ns.is_some_and(|median| median <= MEDIAN_NS);
    let _ = writeln!(
        text,
        "  {:.0} decisions per second, {} ns on average, {} in the median, 99 % within {}; promised: {MEDIAN_NS} ns in the median, {}",
        decisions as f64 / seconds,
        ns / decisions.max(1),
        shown(times.median_ns),
        shown(times.p99_ns),
        if kept { "kept" } else { "NOT kept" },
    );
    json!({
        "decisions": decisions, "decisions_ns": ns, "median_ns": times.median_ns, "p99_ns": times.p99_ns,
        "promise_kept": kept, "steps": times.steps,
        "process_ns": after.process_ns - before.process_ns,
    })
}
