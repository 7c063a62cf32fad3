// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods last as long from outside as the guest's own tracing says.

use super::load::Spinner;
use super::stage::{Stage, few_cpus};
use super::{Check, Finding};
use anyhow::{Result, anyhow};
use reprieve_lab::outside::{Totals, Watching};
use reprieve_lab::protocol::{Command, Event, Measure, Sample, Workload};
use serde_json::json;
use std::time::Duration;

const VCPUS: u32 = 2;
const PHASE: Duration = Duration::from_secs(5);

/// A handful of grace periods proves nothing, and the one that began before the phase is only seen from outside.
const ENOUGH: u64 = 100;
const MOST_PHASES: u32 = 10;

/// How far the means may be apart.
const APART: f64 = 0.05;

pub fn check(stage: &Stage) -> Result<Finding> {
    let mut vm = stage.boot("grace", VCPUS, 512, "")?;
    let few = few_cpus();
    vm.threads().pin(&vec![few.clone(); VCPUS as usize], &[])?;
    let measure =
        Measure { memory_ms: 100, slow_ms: 1_000, trace_kb: 8 << 10, callback_probe_hz: 0 };
    stage.prepare(&mut vm, Workload::FileChurn { workers: VCPUS }, Some(measure))?;
    let mut watched = stage.watch(&vm)?;
    // So that vCPUs are preempted, and grace periods wait for them.
    let spinners: Vec<Spinner> =
        few.iter().map(|&cpu| Spinner::start(cpu)).collect::<Result<_>>()?;
    let mut seen = Totals::default();
    let (mut inside, mut sum, mut lost) = (0u64, 0u64, 0u64);
    for phase in 0..MOST_PHASES {
        stage.progress.timed("grace periods, overcommitted", PHASE);
        let mut totals: Vec<Result<Totals, String>> = Vec::new();
        let command = Command::Phase { phase, duration_ms: PHASE.as_millis() as u64 };
        let done = vm.call(&command, PHASE * 20, stage.cancel, |event| {
            match event {
                Event::PhaseStarted { .. } | Event::LoadStopped { .. } => {
                    totals.push(watched.totals())
                }
                Event::Sample { sample: Sample::GracePeriod { start_ns, end_ns, .. }, .. } => {
                    inside += 1;
                    sum += end_ns.saturating_sub(start_ns);
                }
                _ => {}
            }
            Ok(())
        })?;
        let totals: Vec<Totals> =
            totals.into_iter().collect::<Result<_, _>>().map_err(|e| anyhow!(e))?;
        let (Event::PhaseDone { result, .. }, [before, after]) = (done, &totals[..]) else {
            return Err(anyhow!("the guest left out a step of the phase"));
        };
        seen = seen.plus(&after.since(before));
        lost += result.cost.trace_lost;
        if inside >= ENOUGH {
            break;
        }
    }
    drop(spinners);
    vm.shut_down();
    let mean = |ns: u64, count: u64| if count > 0 { ns as f64 / 1e6 / count as f64 } else { 0.0 };
    // Where one began and ended between two looks, its time is in that of the one before, which was still in progress at the first.
    let counted = seen.grace_periods + seen.grace_periods_unseen;
    let (from_inside, from_outside) = (mean(sum, inside), mean(seen.grace_periods_ns, counted));
    let apart = if inside > 0 { from_outside / from_inside - 1.0 } else { f64::INFINITY };
    let preemptions = seen.preempted().count;
    let passed = apart.abs() <= APART && inside >= ENOUGH && lost == 0;
    let text = format!(
        "  from inside {inside} of {from_inside:.2} ms on average, from outside {counted} of {from_outside:.2} ms: {:+.1} %; {} of them too short to be seen apart, {preemptions} preemptions\n",
        100.0 * apart,
        seen.grace_periods_unseen
    );
    let figures = json!({
        "inside": inside, "inside_mean_ms": from_inside, "outside": seen.grace_periods, "outside_mean_ms": from_outside,
        "apart": apart, "unseen": seen.grace_periods_unseen, "preemptions": preemptions, "trace_lost": lost,
    });
    Ok(Finding::new(Check::Grace, passed, text, figures))
}
