// SPDX-License-Identifier: MIT OR Apache-2.0
//! The grace periods that `watch` sees last as long as those of the guest's own tracing.

use super::guest_setup::{GuestSetup, few_cpus};
use super::load::Spinner;
use super::{Check, Finding};
use anyhow::{Result, anyhow};
use reprieve_lab::limit::scaled;
use reprieve_lab::protocol::{Command, Event, Measure, Sample, Workload};
use reprieve_lab::watcher::{Totals, Watching};
use serde_json::json;
use std::time::{Duration, Instant};

const VCPUS: u32 = 2;
const PHASE: Duration = Duration::from_secs(5);

/// A handful of grace periods proves nothing. On a slow machine it takes several phases.
const ENOUGH: u64 = 100;
const MOST_PHASES: u32 = 100;

/// How far the means may be apart, besides what the ends of the phases make. A grace period that
/// began before a phase is only seen from outside, so the sums differ by up to one per phase. And
/// on a busy machine the totals are read some time before or after the guest begins or ends.
const APART: f64 = 0.05;

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let mut vm = setup.boot("grace", VCPUS, 512, "")?;
    let few = few_cpus();
    vm.threads().pin(&vec![few.clone(); VCPUS as usize], &[])?;
    let measure =
        Measure { memory_ms: 100, slow_ms: 1_000, trace_kb: 8 << 10, callback_probe_hz: 0 };
    setup.prepare(&mut vm, Workload::FileChurn { workers: VCPUS }, Some(measure))?;
    let mut watched = setup.watch(&vm)?;
    // They preempt vCPUs, for which grace periods then wait.
    let spinners: Vec<Spinner> =
        few.iter().map(|&cpu| Spinner::start(cpu)).collect::<Result<_>>()?;
    let mut seen = Totals::default();
    let mut inside = Inside::default();
    let mut phases = 0;
    for phase in 0..MOST_PHASES {
        phases += 1;
        setup.progress.timed("grace periods, overcommitted", PHASE);
        let mut totals: Vec<Result<(Totals, Duration), String>> = Vec::new();
        let command = Command::Phase { phase, duration_ms: PHASE.as_millis() as u64 };
        let sent = Instant::now();
        let done = vm.call(&command, scaled(PHASE * 20), setup.cancel, |event| {
            match event {
                Event::PhaseStarted { .. } | Event::LoadStopped { .. } => {
                    totals.push(watched.totals().map(|totals| (totals, sent.elapsed())));
                }
                Event::Sample { sample: Sample::GracePeriod { start_ns, end_ns, .. }, .. } => {
                    let ns = end_ns.saturating_sub(start_ns);
                    inside.count += 1;
                    inside.sum_ns += ns;
                    inside.longest_ns = inside.longest_ns.max(ns);
                }
                _ => {}
            }
            Ok(())
        })?;
        let totals: Vec<_> =
            totals.into_iter().collect::<Result<_, _>>().map_err(|e| anyhow!(e))?;
        let (Event::PhaseDone { result, .. }, [(before, began), (after, ended)]) =
            (done, &totals[..])
        else {
            return Err(anyhow!("the guest did not report every step of the phase"));
        };
        seen = seen.plus(&after.since(before));
        inside.lost += result.cost.trace_lost;
        inside.elsewhere += elsewhere(*began, *ended, Duration::from_nanos(result.elapsed_ns));
        if inside.count >= ENOUGH {
            break;
        }
    }
    drop(spinners);
    vm.shut_down();
    Ok(judged(&seen, &inside, phases))
}

/// Grace periods as the guest's own tracing has them.
#[derive(Default)]
struct Inside {
    count: u64,
    sum_ns: u64,
    longest_ns: u64,
    /// Trace events lost.
    lost: u64,
    /// For how long at most only one of the two looked.
    elsewhere: Duration,
}

/// For how long a phase that lasted `elapsed` and the time between two readings of the totals may
/// not overlap. `began` and `ended`: when these were done, since the phase was asked for. The phase
/// is somewhere between that and `ended`.
fn elsewhere(began: Duration, ended: Duration, elapsed: Duration) -> Duration {
    let spare = ended.saturating_sub(elapsed);
    spare.max(began) + spare
}

fn judged(seen: &Totals, inside: &Inside, phases: u64) -> Finding {
    let mean = |ns: u64, count: u64| if count > 0 { ns as f64 / 1e6 / count as f64 } else { 0.0 };
    // A grace period that began and ended between two looks is not seen: its time is counted to the
    // one before, which was in progress at the first look.
    let counted = seen.grace_periods + seen.grace_periods_unseen;
    let (from_inside, from_outside) =
        (mean(inside.sum_ns, inside.count), mean(seen.grace_periods_ns, counted));
    let apart = if inside.count > 0 { from_outside / from_inside - 1.0 } else { f64::INFINITY };
    let preemptions = seen.preempted().count;
    let ends = phases * inside.longest_ns + inside.elsewhere.as_nanos() as u64;
    let ends = ends as f64 / inside.sum_ns.max(1) as f64;
    let passed = apart.abs() <= APART + ends && inside.count >= ENOUGH && inside.lost == 0;
    let text = format!(
        "  from inside {} of {from_inside:.2} ms on average, from outside {counted} of {from_outside:.2} ms: {:+.1} % (up to {:.1} % may come from the ends of {phases} phases); {} of them too short to be seen apart, {preemptions} preemptions\n",
        inside.count,
        100.0 * apart,
        100.0 * ends,
        seen.grace_periods_unseen
    );
    let figures = json!({
        "inside": inside.count, "inside_mean_ms": from_inside, "outside": seen.grace_periods, "outside_mean_ms": from_outside,
        "apart": apart, "phase_ends": ends, "unseen": seen.grace_periods_unseen, "preemptions": preemptions, "trace_lost": inside.lost,
    });
    Finding::new(Check::Grace, passed, text, figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lies_between_its_command_and_the_last_reading() {
        let ms = Duration::from_millis;
        // The guest may have begun at once, or 100 ms before the totals were read at its end.
        assert_eq!(elsewhere(ms(20), ms(5_100), ms(5_000)), ms(200));
        // The totals were first read when two of its five seconds may have been over.
        assert_eq!(elsewhere(ms(2_000), ms(5_010), ms(5_000)), ms(2_010));
        assert_eq!(elsewhere(ms(0), ms(4_999), ms(5_000)), ms(0));
    }

    #[test]
    fn only_what_the_ends_of_the_phases_explain_is_accepted() {
        let inside = |elsewhere_ms| Inside {
            count: 147,
            sum_ns: 8_511_000_000,
            longest_ns: 508_000_000,
            lost: 0,
            elsewhere: Duration::from_millis(elsewhere_ms),
        };
        let seen = |ms: u64| Totals {
            grace_periods: 155,
            grace_periods_ns: ms * 1_000_000,
            ..Totals::default()
        };
        // A second beyond the two grace periods at the ends, on a busy machine and on a quiet one.
        assert!(judged(&seen(10_584), &inside(1_000), 2).passed);
        assert!(!judged(&seen(10_584), &inside(50), 2).passed);
        assert!(!judged(&seen(4_000), &inside(1_000), 2).passed);
    }
}
