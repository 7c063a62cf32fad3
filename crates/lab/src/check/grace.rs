// SPDX-License-Identifier: MIT OR Apache-2.0
//! The grace periods that `watch` sees last as long as those of the guest's own tracing.

use super::guest_setup::{GuestSetup, few_cpus};
use super::load::Spinner;
use super::{Check, Finding};
use crate::ebpf_watcher::Watched;
use crate::limit::scaled;
use crate::vm::Vm;
use crate::watcher::Totals;
use anyhow::{Result, anyhow};
use reprieve_init::protocol::{Command, Event, Measure, Sample, Workload};
use serde_json::json;
use std::time::{Duration, Instant};

const VCPUS: u32 = 2;

/// The first phase and the longest. A phase that decides nothing tells how long one has to be: what
/// its ends can make does not grow with it.
const PHASE: Duration = Duration::from_secs(5);
const LONGEST_PHASE: Duration = Duration::from_secs(320);

/// A handful of grace periods proves nothing.
const ENOUGH: u64 = 100;

/// How far the means may be apart, besides what the ends of the phase make. A grace period that
/// began before the phase is only seen from outside, so the sums differ by up to one. And on a busy
/// machine the totals are read some time before or after the guest begins or ends.
const APART: f64 = 0.05;

/// The part that the ends may make at most; beyond that the means would prove nothing.
const ENDS: f64 = 0.05;

/// Trace buffer of each vCPU, enough for the longest phase.
const TRACE_KB: u32 = 48 << 10;

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let mut vm = setup.boot("grace", VCPUS, 512, "")?;
    let few = few_cpus();
    vm.threads().pin(&vec![few.clone(); VCPUS as usize], &[])?;
    let measure = Measure { memory_ms: 100, slow_ms: 1_000, trace_kb: TRACE_KB };
    setup.prepare(&mut vm, Workload::FileChurn { workers: VCPUS }, Some(measure))?;
    let mut watched = setup.watch(&vm)?;
    // The spinners preempt vCPUs, for which grace periods then wait.
    let spinners: Vec<Spinner> =
        few.iter().map(|&cpu| Spinner::start(cpu)).collect::<Result<_>>()?;
    let mut length = PHASE;
    let finding = loop {
        let (seen, inside) = phase(setup, &mut vm, &mut watched, length)?;
        if inside.lost > 0 || inside.is_enough() || length >= LONGEST_PHASE {
            break judged(&seen, &inside, length);
        }
        length = length.mul_f64(1.3 * inside.wanting()).min(LONGEST_PHASE);
    };
    drop(spinners);
    vm.shut_down(setup.cancel);
    Ok(finding)
}

/// The grace periods of a phase, as seen from outside and from inside.
fn phase(
    setup: &GuestSetup,
    vm: &mut Vm,
    watched: &mut Watched,
    length: Duration,
) -> Result<(Totals, Inside)> {
    setup.progress.timed("grace periods, overcommitted", length);
    let mut inside = Inside::default();
    let mut totals: Vec<Result<(Totals, Duration), String>> = Vec::new();
    let command = Command::Phase { phase: 0, duration_ms: length.as_millis() as u64 };
    let sent = Instant::now();
    let done = vm.call(&command, scaled(length * 20), setup.cancel, |event| {
        match event {
            Event::PhaseStarted { .. } | Event::LoadStopped { .. } => {
                totals.push(watched.totals().map(|totals| (totals, sent.elapsed())));
            }
            Event::Sample { sample: Sample::GracePeriod(period), .. } => {
                let ns = period.end_ns.saturating_sub(period.start_ns);
                inside.count += 1;
                inside.sum_ns += ns;
                inside.longest_ns = inside.longest_ns.max(ns);
            }
            _ => {}
        }
        Ok(())
    })?;
    let totals: Vec<_> = totals.into_iter().collect::<Result<_, _>>().map_err(|e| anyhow!(e))?;
    let (Event::PhaseDone { result, .. }, [(before, began), (after, ended)]) = (done, &totals[..])
    else {
        return Err(anyhow!("the guest did not report every step of the phase"));
    };
    inside.lost = result.cost.trace_lost;
    inside.elsewhere = elsewhere(*began, *ended, Duration::from_nanos(result.elapsed_ns));
    Ok((after.since(before), inside))
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

impl Inside {
    /// The part of the sum that the ends of the phase may make.
    fn ends(&self) -> f64 {
        let ends = self.longest_ns + self.elsewhere.as_nanos() as u64;
        ends as f64 / self.sum_ns.max(1) as f64
    }

    /// Whether the means of the phase can be compared.
    fn is_enough(&self) -> bool {
        self.wanting() <= 1.0
    }

    /// How many times as long the phase should have been.
    fn wanting(&self) -> f64 {
        (self.ends() / ENDS).max(ENOUGH as f64 / self.count.max(1) as f64)
    }
}

/// For how long a phase that lasted `elapsed` and the time between two readings of the totals may
/// not overlap. `began` and `ended`: when these were done, since the phase was asked for. The phase
/// is somewhere between that and `ended`.
fn elsewhere(began: Duration, ended: Duration, elapsed: Duration) -> Duration {
    let spare = ended.saturating_sub(elapsed);
    spare.max(began) + spare
}

fn judged(seen: &Totals, inside: &Inside, length: Duration) -> Finding {
    let mean = |ns: u64, count: u64| if count > 0 { ns as f64 / 1e6 / count as f64 } else { 0.0 };
    // A grace period that began and ended between two looks is not seen: its time is counted to the
    // one before, which was in progress at the first look.
    let counted = seen.grace_periods + seen.grace_periods_unseen;
    let (from_inside, from_outside) =
        (mean(inside.sum_ns, inside.count), mean(seen.grace_periods_ns, counted));
    let apart = if inside.count > 0 { from_outside / from_inside - 1.0 } else { f64::INFINITY };
    let preemptions = seen.preempted().count;
    let ends = inside.ends();
    let decided = inside.is_enough() && inside.lost == 0;
    let undecided = match decided {
        true => "",
        false => ": undecided, for too few grace periods, too long ends or lost events",
    };
    let passed = decided && apart.abs() <= APART + ends;
    let text = format!(
        "  from inside {} of {from_inside:.2} ms on average, from outside {counted} of {from_outside:.2} ms: {:+.1} % (up to {:.1} % may come from the ends of the phase of {} s){undecided}; {} of them too short to be seen apart, {preemptions} preemptions\n",
        inside.count,
        100.0 * apart,
        100.0 * ends,
        length.as_secs(),
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

    fn inside(seconds: u64, elsewhere_ms: u64) -> Inside {
        Inside {
            count: 17 * seconds,
            sum_ns: seconds * 900_000_000,
            longest_ns: 508_000_000,
            lost: 0,
            elsewhere: Duration::from_millis(elsewhere_ms),
        }
    }

    fn passes(inside: &Inside, seen_ms: u64) -> bool {
        let seen = Totals {
            grace_periods: inside.count,
            grace_periods_ns: seen_ms * 1_000_000,
            ..Totals::default()
        };
        judged(&seen, inside, PHASE).passed
    }

    #[test]
    fn no_more_than_the_ends_of_the_phase_explain_is_accepted() {
        // On a quiet machine: 36 s inside, of which the ends make 1.6 %.
        let quiet = inside(40, 50);
        assert!(passes(&quiet, 36_000) && passes(&quiet, 38_300) && passes(&quiet, 33_700));
        assert!(!passes(&quiet, 38_500) && !passes(&quiet, 33_500));
        // On a busy one they could explain a quarter, so that nothing is decided.
        let busy = inside(10, 2_000);
        assert!(!passes(&busy, 9_000) && !passes(&busy, 10_500));
        // As with too few grace periods, or lost ones.
        assert!(!passes(&Inside { count: ENOUGH - 1, ..inside(40, 50) }, 36_000));
        assert!(!passes(&Inside { lost: 1, ..inside(40, 50) }, 36_000));
    }
}
