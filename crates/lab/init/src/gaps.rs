// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of exits and switches, seen from a thread that does nothing but read the clock.
//!
//! Between two readings of such a thread passes the same short time, unless something took its CPU
//! meanwhile: then there is a *gap* as long as that took, entry and exit included.

/// Time during which the thread had its CPU without a gap. Times in ns, by the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub from: u64,
    pub to: u64,
}

/// A cost that was measured many times: the lower quartile, because everything else that takes the
/// CPU at the same time only adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Typical {
    pub ns: u64,
    /// How often it was measured.
    pub count: u64,
}

/// Readings that tell the usual time between two.
const STEPS: usize = 2_000;

/// A gap is so many times as long as the usual time between two readings: more than its jitter.
const GAP: u64 = 4;

/// Most stretches that are kept: a tenth of a second of nothing but gaps.
const MOST: usize = 200_000;

/// Fewest measurements for a result.
const ENOUGH: usize = 20;

/// Reads the clock for `duration_ns`, from now on.
pub fn watch(now: impl Fn() -> u64, duration_ns: u64) -> Vec<Stretch> {
    let mut steps: Vec<u64> = (0..STEPS).map(|_| now()).collect();
    for i in (1..STEPS).rev() {
        steps[i] -= steps[i - 1];
    }
    steps.remove(0);
    let longest = GAP * quartile(&mut steps).unwrap_or(0).max(1);
    let mut stretches = Vec::with_capacity(MOST);
    let mut from = now();
    let (end, mut last) = (from + duration_ns, from);
    while last < end && stretches.len() < MOST {
        let t = now();
        if t - last > longest {
            stretches.push(Stretch { from, to: last });
            from = t;
        }
        last = t;
    }
    stretches.push(Stretch { from, to: last });
    stretches
}

/// The cost of a switch between two CPUs that take turns: the time from the end of a stretch of one
/// to the beginning of the next one of the other. Both have the same clock.
pub fn switch(a: &[Stretch], b: &[Stretch]) -> Option<Typical> {
    let mut all: Vec<(Stretch, bool)> =
        a.iter().map(|&s| (s, true)).chain(b.iter().map(|&s| (s, false))).collect();
    all.sort_by_key(|(stretch, _)| stretch.from);
    let mut switches: Vec<u64> = all
        .windows(2)
        .filter(|w| w[0].1 != w[1].1)
        .map(|w| w[1].0.from.saturating_sub(w[0].0.to))
        .collect();
    // At the same time on two CPUs: they did not take turns.
    let together = switches.iter().filter(|&&ns| ns == 0).count();
    if switches.len() < ENOUGH || together > switches.len() / 4 {
        return None;
    }
    let count = switches.len() as u64;
    Some(Typical { ns: quartile(&mut switches)?, count })
}

/// The time that a call of `operation` takes.
pub fn each(now: impl Fn() -> u64, duration_ns: u64, mut operation: impl FnMut()) -> Typical {
    const BATCH: u64 = 16;
    let end = now() + duration_ns;
    let mut batches = Vec::new();
    while now() < end || batches.is_empty() {
        let from = now();
        for _ in 0..BATCH {
            operation();
        }
        batches.push(now() - from);
    }
    let count = batches.len() as u64 * BATCH;
    Typical { ns: quartile(&mut batches).unwrap_or(0) / BATCH, count }
}

fn quartile(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 4).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_measured_and_simultaneous_cpus_refused() {
        let turns = |offset: u64| -> Vec<Stretch> {
            (0..50)
                .map(|i| i * 6_000 + offset)
                .map(|t| Stretch { from: t, to: t + 2_900 })
                .collect()
        };
        assert_eq!(switch(&turns(0), &turns(3_000)), Some(Typical { ns: 100, count: 99 }));
        assert_eq!(switch(&turns(0), &turns(1)), None);
        assert_eq!(switch(&turns(0), &[]), None);
    }

    #[test]
    fn a_clock_that_jumps_has_gaps() {
        let clock = std::cell::Cell::new(0);
        let now = || {
            let t = clock.get() + 10;
            clock.set(if t % 100_000 == 0 { t + 7_000 } else { t });
            clock.get()
        };
        let stretches = watch(now, 2_000_000);
        let gaps: Vec<u64> = stretches.windows(2).map(|w| w[1].from - w[0].to).collect();
        assert!(gaps.len() > 10 && gaps.iter().all(|&gap| gap == 7_010), "{gaps:?}");
        assert_eq!(each(now, 50_000, || clock.set(clock.get() + 40)).ns, 40);
    }
}
