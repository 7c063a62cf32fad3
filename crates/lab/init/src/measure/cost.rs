// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of measuring: of one trace event, and of sampling.
//!
//! Trace event: a cheap system call is timed in a loop, first as it is, then with a kprobe on its
//! entry that records into our trace instance; the cost is the difference per call of the medians
//! of several rounds. A kprobe is the most expensive event that is recorded here (tracepoints cost
//! less), so this is an upper bound per event. Switches and softirqs that the filter drops cost
//! even less and are not included.
//!
//! Sampling: the kernel charges a thread for the time during which its vCPU was preempted, so the
//! CPU time of a sampling thread grows with overcommit though its work does not. Preemption hits
//! few samples, so the median CPU time of a sample does not contain it; the cost is the median
//! times the number of samples.

use super::trace::{Trace, add_kprobe};
use crate::sys::{Result, getppid, now_ns};
use std::sync::OnceLock;

const EVENT: &str = "reprieve/cost";
const FUNCTIONS: [&str; 3] = ["__x64_sys_getppid", "__arm64_sys_getppid", "sys_getppid"];
const ROUNDS: usize = 9;
const CALLS: u32 = 1_000;

/// Nanoseconds per event; measured at the first call.
pub fn trace_event_ns(trace: &Trace) -> Result<f64> {
    static COST: OnceLock<f64> = OnceLock::new();
    if let Some(cost) = COST.get() {
        return Ok(*cost);
    }
    let mut attempts = FUNCTIONS.iter().map(|function| add_kprobe("cost", function));
    if !attempts.any(|a| a.is_ok()) {
        return Err("no kprobe on getppid: the cost of a trace event is not known".into());
    }
    // The first rounds warm up caches, or a translator.
    let rounds = |count: usize| -> Result<Vec<f64>> {
        let mut all = Vec::new();
        for _ in 0..count {
            trace.start()?;
            all.push(per_call());
            trace.stop()?;
        }
        Ok(all)
    };
    let plain = rounds(ROUNDS)?;
    trace.enable(EVENT, true)?;
    let traced = rounds(ROUNDS);
    trace.enable(EVENT, false)?;
    let cost = (median(traced?) - median(plain)).max(0.0);
    Ok(*COST.get_or_init(|| cost))
}

/// CPU time that `samples` samples took if each took the median of `each`, ns.
pub fn sampling_ns(each: impl Iterator<Item = u64>, samples: u64) -> u64 {
    (median(each.map(|ns| ns as f64).collect()) * samples as f64) as u64
}

fn per_call() -> f64 {
    let start = now_ns();
    for _ in 0..CALLS {
        getppid();
    }
    (now_ns() - start) as f64 / f64::from(CALLS)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn median_ignores_outliers() {
        assert_eq!(super::median(vec![5.0, 1.0, 900.0]), 5.0);
        assert_eq!(super::median(Vec::new()), 0.0);
    }

    #[test]
    fn stolen_time_is_no_cost_of_sampling() {
        let alone = [40_000, 38_000, 42_000, 41_000, 39_000];
        let overcommitted = [40_000, 4_038_000, 42_000, 8_041_000, 39_000];
        assert_eq!(super::sampling_ns(alone.into_iter(), 100), 4_000_000);
        assert_eq!(super::sampling_ns(overcommitted.into_iter(), 100), 4_200_000);
        assert_eq!(super::sampling_ns(std::iter::empty(), 0), 0);
    }
}
