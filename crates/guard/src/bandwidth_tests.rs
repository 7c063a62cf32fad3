// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the budget of cgroups with a CPU limit (`bpf/guard_bandwidth.h`) through generated
//! histories.

use super::policy_tests::{MS, Random, S, US};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Bandwidth {
    quota: u64,
    period: u64,
    burst: u64,
    since: u64,
    left: i64,
}

#[link(name = "guard_policy", kind = "static")]
unsafe extern "C" {
    fn guard_bandwidth_set(of: *mut Bandwidth, quota: u64, period: u64, burst: u64, now: u64);
    fn guard_bandwidth_refill(of: *mut Bandwidth, now: u64) -> u64;
    fn guard_bandwidth_take(of: *mut Bandwidth, ns: u64) -> u64;
    fn guard_bandwidth_settle(of: *mut Bandwidth, taken: u64, used: u64);
    fn guard_bandwidth_wait(of: *const Bandwidth, now: u64) -> u64;
}

// SAFETY, of all calls below: the pointer is that of a value of its type that nobody else uses.
impl Bandwidth {
    fn new(quota: u64, period: u64, burst: u64, now: u64) -> Bandwidth {
        let mut new = Bandwidth::default();
        new.set(quota, period, burst, now);
        new
    }

    fn set(&mut self, quota: u64, period: u64, burst: u64, now: u64) {
        // SAFETY: see above.
        unsafe { guard_bandwidth_set(self, quota, period, burst, now) }
    }

    fn refill(&mut self, now: u64) -> u64 {
        // SAFETY: see above.
        unsafe { guard_bandwidth_refill(self, now) }
    }

    fn take(&mut self, ns: u64) -> u64 {
        // SAFETY: see above.
        unsafe { guard_bandwidth_take(self, ns) }
    }

    fn settle(&mut self, taken: u64, used: u64) {
        // SAFETY: see above.
        unsafe { guard_bandwidth_settle(self, taken, used) }
    }

    fn wait(&self, now: u64) -> u64 {
        // SAFETY: see above.
        unsafe { guard_bandwidth_wait(self, now) }
    }
}

const SLICE: u64 = 3 * MS;
const START: u64 = 1000 * S;

/// What CPUs that always have something to run get of a budget in `periods` periods; each run is up
/// to `late` longer than what it took.
fn greedy(cpus: usize, of: &mut Bandwidth, periods: u64, late: u64, random: &mut Random) -> u64 {
    let mut running: Vec<Option<(u64, u64, u64)>> = vec![None; cpus];
    let mut used = 0;
    let mut now = of.since;
    let end = now + periods * of.period;
    while now < end {
        of.refill(now);
        for cpu in &mut running {
            if let Some((began, taken, ends)) = *cpu {
                if now < ends {
                    continue;
                }
                of.settle(taken, now - began);
                used += now - began;
                *cpu = None;
            }
            let taken = of.take(SLICE);
            if taken > 0 {
                *cpu = Some((now, taken, now + taken + random.below(late + 1)));
            }
        }
        now += 50 * US;
    }
    used + running.iter().flatten().map(|&(began, ..)| now - began).sum::<u64>()
}

#[test]
fn use_is_bounded_by_the_quota_of_all_periods_and_the_burst() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let period = MS * (5 + random.below(200));
        let quota = MS + random.below(3 * period);
        let burst = random.below(quota + 1);
        let cpus = 1 + random.below(8) as usize;
        let late = random.below(4 * MS);
        let periods = 20 + random.below(80);
        let mut of = Bandwidth::new(quota, period, burst, START);
        let used = greedy(cpus, &mut of, periods, late, &mut random);
        // Each CPU may be in one run that is not settled, and be late in it.
        let over = cpus as u64 * (SLICE + late + 50 * US);
        assert!(used <= quota * periods + burst + over, "seed {seed}: {used} of {of:?}");
        // Nothing of it is lost, where the CPUs can use it.
        let can = (quota * periods).min(cpus as u64 * period * periods * 9 / 10);
        assert!(used + over + quota >= can.saturating_sub(can / 50), "seed {seed}: {used}, {can}");
    }
}

#[test]
fn what_is_left_over_is_kept_up_to_the_burst() {
    for burst in [0, 5 * MS, 20 * MS] {
        let mut of = Bandwidth::new(20 * MS, 100 * MS, burst, START);
        assert_eq!(of.take(8 * MS), 8 * MS);
        assert_eq!(of.refill(START + 100 * MS - 1), 0);
        assert_eq!(of.refill(START + 100 * MS), 1);
        assert_eq!(of.left as u64, 20 * MS + burst.min(12 * MS));
        assert_eq!(of.refill(START + 1000 * S), (1000 * S - 100 * MS) / (100 * MS));
        assert_eq!(of.left as u64, 20 * MS + burst);
    }
}

#[test]
fn a_debt_is_repaid_and_bounded() {
    let mut of = Bandwidth::new(20 * MS, 100 * MS, 0, START);
    let taken = of.take(SLICE);
    of.settle(taken, 50 * MS);
    assert_eq!(of.left, -30 * MS as i64);
    assert_eq!(of.take(SLICE), 0);
    // The quota of the next period repays 20 ms of it, that of the second the rest.
    assert_eq!(of.wait(START + 40 * MS), 160 * MS);
    of.refill(START + 100 * MS);
    assert_eq!((of.take(SLICE), of.wait(START + 100 * MS)), (0, 100 * MS));
    of.refill(START + 200 * MS);
    assert_eq!(of.take(S), 10 * MS);
    // However long it ran, the wait ends.
    of.settle(0, 1000 * S);
    let wait = of.wait(START + 200 * MS);
    assert!((4 * S..=6 * S).contains(&wait), "{wait}");
    of.refill(START + 200 * MS + wait);
    assert!(of.left > 0, "{of:?}");
}

#[test]
fn the_wait_is_to_the_first_moment_with_budget() {
    let mut random = Random(7);
    for _ in 0..10_000 {
        let period = MS + random.below(S);
        let mut of = Bandwidth::new(MS + random.below(period), period, 0, START);
        let (taken, used) = (of.take(S), random.below(10 * period));
        of.settle(taken, used);
        let now = START + random.below(period);
        let wait = of.wait(now);
        if wait > 0 {
            let mut early = of;
            early.refill(now + wait - 1);
            assert!(early.left <= 0, "{of:?}");
        }
        of.refill(now + wait);
        assert!(of.left > 0, "{of:?}");
    }
}

#[test]
fn clocks_that_differ_or_jump_add_no_budget() {
    let mut of = Bandwidth::new(20 * MS, 100 * MS, 10 * MS, START);
    of.take(20 * MS);
    for back in [1, 100 * MS, 500 * S] {
        assert_eq!(of.refill(START - back), 0);
        assert_eq!(of.left, 0);
    }
    of.refill(START + 10_000 * S);
    assert_eq!(of.left as u64, 30 * MS);
    // The clock may be anywhere, and wraps around.
    let mut of = Bandwidth::new(20 * MS, 100 * MS, 0, u64::MAX - 50 * MS);
    of.take(20 * MS);
    assert_eq!(of.refill(49 * MS), 0);
    assert_eq!(of.refill(50 * MS), 1);
    assert_eq!(of.left as u64, 20 * MS);
}

#[test]
fn a_new_limit_forgives_no_debt() {
    let mut of = Bandwidth::new(20 * MS, 100 * MS, 0, START);
    let taken = of.take(S);
    of.settle(taken, 60 * MS);
    assert_eq!(of.left, -40 * MS as i64);
    of.set(50 * MS, 100 * MS, 0, START + 10 * MS);
    assert_eq!(of.left, -40 * MS as i64);
    of.refill(START + 110 * MS);
    assert_eq!(of.take(S), 10 * MS);
    // What was taken under a larger limit comes back as no more than the new one.
    let mut of = Bandwidth::new(500 * MS, 100 * MS, 0, START);
    let taken = of.take(S);
    of.set(MS, 100 * MS, 0, START);
    of.settle(taken, 0);
    assert_eq!(of.left as u64, MS);
}

/// A program that adapts the limit does so more often than once per period.
#[test]
fn a_limit_that_is_changed_all_the_time_has_its_quota() {
    let (quota, period) = (20 * MS, 100 * MS);
    let mut of = Bandwidth::new(quota, period, 0, START);
    let mut used = of.take(S);
    of.settle(used, used + 5 * MS);
    used += 5 * MS;
    for n in 1..=1000 {
        let now = START + n * 30 * MS;
        let period = [period, period + MS][n as usize % 2];
        of.set(quota, period, 0, now);
        of.refill(now);
        // A limit that is set anew gives a cgroup without debt its quota at once: it has some.
        let took = of.take(MS);
        of.settle(took, 6 * took);
        used += 6 * took;
    }
    let due = 30_000 * MS / period * quota;
    assert!((due / 2..=2 * due).contains(&used), "{used} where {due} are due");
}

/// Who changes the length of the period all the time has no more periods.
#[test]
fn a_period_that_is_changed_all_the_time_adds_no_budget() {
    let mut of = Bandwidth::new(10 * MS, S, 0, START);
    let taken = of.take(S);
    of.settle(taken, 2 * S);
    let debt = of.left;
    let mut now = START;
    while now < START + S {
        now += MS;
        of.set(MS, 10 * MS, 0, now);
        of.refill(now);
        of.set(10 * MS, S, 0, now);
        of.refill(now);
    }
    let gained = (of.left - debt) as u64;
    assert!(gained <= 100 * MS + 10 * MS, "{gained} where a tenth of a second is due at most");
}

#[test]
fn no_value_divides_by_zero_or_overflows() {
    let odd = [0, 1, MS, 1 << 44, 1 << 50, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    for quota in odd {
        for period in odd {
            for burst in odd {
                let mut of = Bandwidth::new(quota, period, burst, START);
                for now in odd {
                    of.refill(now);
                    for time in odd {
                        let taken = of.take(time);
                        assert!(taken <= time);
                        of.settle(taken, now);
                        of.settle(taken, 0);
                        of.wait(now);
                        let most = (quota.min(1 << 50) + burst.min(1 << 50)) as i64;
                        assert!(of.left <= most, "{of:?}");
                    }
                }
            }
        }
    }
}
