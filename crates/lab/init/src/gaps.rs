// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of interrupts and switches, seen from a thread that does nothing but read the clock.
//!
//! Between two readings of such a thread passes the same short time, unless something took its CPU
//! meanwhile: then there is a *gap* as long as that took, entry and exit included. Timer interrupts
//! come at the same time of every tick, which tells their gaps from others: on a busy machine, or
//! an emulated one, there may be more of those.

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

/// Parts of a tick: gaps that come with the tick are all in one of them. A hypervisor delivers some
/// ticks late, so larger parts are tried as well.
const PARTS: [usize; 6] = [128, 64, 32, 16, 8, 4];

/// No interrupt is shorter, on any hardware: shorter gaps are jitter, mostly of an emulated CPU.
const SHORTEST: u64 = 500;

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

/// The cost of a timer interrupt: of the gaps that come with each tick of `tick_ns`.
pub fn timer(stretches: &[Stretch], tick_ns: u64) -> Option<Typical> {
    PARTS.iter().find_map(|&parts| timer_in(stretches, tick_ns, parts))
}

fn timer_in(stretches: &[Stretch], tick_ns: u64, parts: usize) -> Option<Typical> {
    let first = stretches.first()?.from / tick_ns;
    let ticks = (stretches.last()?.to / tick_ns - first) as usize;
    if ticks < ENOUGH {
        return None;
    }
    // For each part of the tick, the gaps in it, of each tick: only where the timer interrupts do
    // all ticks have one.
    let mut gaps = vec![vec![0u64; ticks + 1]; parts];
    for pair in stretches.windows(2) {
        let (from, to) = (pair[0].to, pair[1].from);
        if to - from < SHORTEST {
            continue;
        }
        let part = (from % tick_ns) as usize * parts / tick_ns as usize;
        gaps[part][(from / tick_ns - first) as usize] += to - from;
    }
    let mut costs: Vec<u64> = gaps.iter_mut().filter_map(|part| quartile(part)).collect();
    costs.sort_unstable();
    let (cost, elsewhere) = (*costs.last()?, *costs.get((parts * 9 / 10).min(parts - 2))?);
    let count = ticks as u64;
    (cost > 2 * elsewhere).then_some(Typical { ns: cost - elsewhere, count })
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

    /// Stretches with the given gaps (start, length), in order.
    fn with_gaps(gaps: &[(u64, u64)], end: u64) -> Vec<Stretch> {
        let mut from = 0;
        let mut all = Vec::new();
        for &(start, length) in gaps {
            all.push(Stretch { from, to: start });
            from = start + length;
        }
        all.push(Stretch { from, to: end });
        all
    }

    #[test]
    fn a_timers_gaps_are_told_from_others() {
        const TICK: u64 = 4_000_000;
        // A multiplicative generator (Park and Miller).
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state * 48_271 % 0x7fff_ffff;
            state % limit
        };
        let mut gaps = Vec::new();
        for tick in 1..500 {
            gaps.push((tick * TICK + 1_000 + below(2_000), 2_500 + below(100)));
            // Four times as many others, all of them longer.
            for _ in 0..4 {
                gaps.push((tick * TICK + 100_000 + below(TICK - 700_000), 300_000));
            }
        }
        gaps.sort_unstable();
        gaps.dedup_by(|b, a| b.0 <= a.0 + a.1);
        let found = timer(&with_gaps(&gaps, 500 * TICK), TICK).unwrap();
        assert!((2_500..2_600).contains(&found.ns) && found.count == 500, "{found:?}");
        // Without the timer's gaps nothing is made up.
        gaps.retain(|(_, length)| *length == 300_000);
        assert_eq!(timer(&with_gaps(&gaps, 500 * TICK), TICK), None);
    }

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
