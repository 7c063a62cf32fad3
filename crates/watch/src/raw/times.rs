// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long runs of an eBPF program took: the histogram that each CPU keeps for itself, summed up.

use super::constants::{COST_STEP_BITS, COST_STEPS};
use serde::{Deserialize, Serialize};

/// Run times of a program, over all CPUs. The program reads the clock at the beginning and at the
/// end, so one reading of the clock is in each time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// To the middle of its step, so good to 6 %; `None` before the first run.
    pub median_ns: Option<u64>,
    /// The time that 99 % of the runs do not exceed, likewise.
    pub p99_ns: Option<u64>,
    /// Steps in which there were runs, the shortest first.
    pub steps: Vec<Step>,
}

/// Runs of at least `from_ns` and less than `to_ns`. The last step that a program has
/// ([`COST_STEPS`]) holds all longer ones, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub from_ns: u64,
    pub to_ns: u64,
    pub runs: u64,
}

impl Times {
    /// The times of the runs that each CPU counted, by step.
    pub fn of<'a>(cpus: impl IntoIterator<Item = &'a [u64]>) -> Times {
        let mut all = [0; COST_STEPS];
        for cpu in cpus {
            for (sum, runs) in all.iter_mut().zip(cpu) {
                *sum += runs;
            }
        }
        let steps = all.into_iter().enumerate().filter(|&(_, runs)| runs > 0);
        let steps = steps.map(|(n, runs)| Step { from_ns: from(n), to_ns: from(n + 1), runs });
        let mut times = Times { steps: steps.collect(), ..Times::default() };
        times.median_ns = times.quantile(50);
        times.p99_ns = times.quantile(99);
        times
    }

    pub fn runs(&self) -> u64 {
        self.steps.iter().map(|step| step.runs).sum()
    }

    /// The middle of the step that holds the run that `percent` of all do not exceed.
    fn quantile(&self, percent: u64) -> Option<u64> {
        let rank = (u128::from(self.runs()) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let step = self.steps.iter().find(|step| {
            seen += u128::from(step.runs);
            seen >= rank
        })?;
        Some(step.from_ns + (step.to_ns - step.from_ns) / 2)
    }
}

/// The shortest time in step `n` (`bpf/cost_steps.h` says in which step a time is).
fn from(n: usize) -> u64 {
    let parts = 1 << COST_STEP_BITS;
    match n.checked_sub(parts) {
        None => n as u64,
        Some(above) => ((parts + above % parts) as u64) << (above / parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn watch_cost_step(ns: u64) -> u32;
    }

    fn step(ns: u64) -> usize {
        // SAFETY: takes and returns a number.
        unsafe { watch_cost_step(ns) as usize }
    }

    /// `runs` runs of each time.
    fn times(all: &[(u64, u64)]) -> Times {
        let mut steps = [0; COST_STEPS];
        all.iter().for_each(|&(ns, runs)| steps[step(ns)] += runs);
        Times::of([&steps[..]])
    }

    #[test]
    fn the_program_and_user_space_agree_about_steps() {
        let edges = (0..32).flat_map(|n| {
            let power = 1u64 << n;
            [power.saturating_sub(1), power, power + 1, power + power / 3]
        });
        for ns in (0..5_000).chain(edges).filter(|&ns| ns <= u64::from(u32::MAX)) {
            let n = step(ns);
            assert!(from(n) <= ns && ns < from(n + 1), "{ns} is in step {n}");
        }
        assert_eq!(step(u32::MAX.into()), COST_STEPS - 1);
        assert_eq!(step(u64::MAX), COST_STEPS - 1, "longer ones are in the last step");
    }

    #[test]
    fn quantiles_are_within_a_step_of_the_truth() {
        assert_eq!(Times::of([]), Times::default());
        assert_eq!(times(&[]).median_ns, None);
        let near = |found: Option<u64>, truth: u64| {
            let off = found.unwrap().abs_diff(truth);
            assert!(off * 8 <= truth, "{found:?} instead of {truth}");
        };
        let all: Vec<(u64, u64)> = (1..=1000).map(|n| (n * 10, 1)).collect();
        near(times(&all).median_ns, 5_000);
        near(times(&all).p99_ns, 9_900);
        let rare = times(&[(400, 98), (50_000, 2)]);
        near(rare.median_ns, 400);
        near(rare.p99_ns, 50_000);
    }
}
