// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods, and the CPU time RCU spends on them, from a stream of trace events.
//!
//! A grace period lasts from the entry of `rcu_gp_init` to the entry of `rcu_gp_cleanup`, both
//! called by the grace-period kthread only, one grace period after the other. The kthread also
//! calls `rcu_gp_init` after a spurious wake-up; only the last call before a cleanup counts. Grace
//! periods that began before the stream or end after it are dropped; of one that had not ended at
//! the end of a phase its age is known ([`in_progress`]), else the longest would leave no trace.
//!
//! CPU time is the time during which, on some vCPU, either one of RCU's threads ran or the RCU
//! softirq (in interrupt context or in ksoftirqd), summed over the vCPUs, clipped to the grace
//! period. RCU's threads are `rcu_preempt` or `rcu_sched` (grace periods), `rcuc/*` (callbacks),
//! `rcub/*` (boosting), `rcuog/*`, `rcuop/*`, `rcuos/*` (offloaded callbacks) and `rcu_exp*`
//! (expedited grace periods). Not counted: RCU's part of the scheduling-clock interrupt,
//! inter-processor interrupts, threads and kworkers of SRCU and Tasks RCU. The guest's clock runs
//! on while the hypervisor has preempted the vCPU, so an interval includes such pauses and
//! overcommit makes it longer. The cleanup itself, and the callbacks that become ready by it, count
//! for the next grace period if it follows at once, else for none.

/// An event on one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Init,
    Cleanup,
    ThreadOn,
    ThreadOff,
    SoftirqOn,
    SoftirqOff,
}

/// A completed grace period, times as in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracePeriod {
    pub start_ns: u64,
    pub end_ns: u64,
    pub cpu_ns: u64,
}

/// State of one vCPU: whether RCU runs on it, and since when.
#[derive(Clone, Copy, Default)]
struct Cpu {
    thread: bool,
    softirq: bool,
    since: u64,
}

/// Turns events, in order of time, into grace periods.
pub struct Tracker {
    cpus: Vec<Cpu>,
    /// CPU time of finished intervals.
    closed: u64,
    /// Beginning of the current grace period, and RCU's CPU time up to then.
    open: Option<(u64, u64)>,
}

impl Tracker {
    pub fn new(cpus: usize) -> Tracker {
        Tracker { cpus: vec![Cpu::default(); cpus], closed: 0, open: None }
    }

    /// Takes the next event; returns the grace period that it completes.
    pub fn event(&mut self, time: u64, cpu: usize, kind: Kind) -> Option<GracePeriod> {
        match kind {
            Kind::Init => {
                self.open = Some((time, self.spent(time)));
                None
            }
            Kind::Cleanup => {
                let (start_ns, before) = self.open.take()?;
                let cpu_ns = self.spent(time).saturating_sub(before);
                Some(GracePeriod { start_ns, end_ns: time, cpu_ns })
            }
            _ => {
                let c = self.cpus.get_mut(cpu)?;
                let was = c.thread || c.softirq;
                match kind {
                    Kind::ThreadOn => c.thread = true,
                    Kind::ThreadOff => c.thread = false,
                    Kind::SoftirqOn => c.softirq = true,
                    _ => c.softirq = false,
                }
                match (was, c.thread || c.softirq) {
                    (false, true) => c.since = time,
                    (true, false) => self.closed += time.saturating_sub(c.since),
                    _ => {}
                }
                None
            }
        }
    }

    /// When the grace period began that has not ended.
    pub fn open(&self) -> Option<u64> {
        self.open.map(|(start_ns, _)| start_ns)
    }

    /// RCU's CPU time so far, over all vCPUs.
    fn spent(&self, now: u64) -> u64 {
        let running = self.cpus.iter().filter(|c| c.thread || c.softirq);
        self.closed + running.map(|c| now.saturating_sub(c.since)).sum::<u64>()
    }
}

/// When the grace period began that was in progress at `at`: one of those that have `ended`, or the
/// one that began at `open` and has not.
pub fn in_progress(ended: &[GracePeriod], open: Option<u64>, at: u64) -> Option<u64> {
    let later = ended.iter().filter(|gp| gp.end_ns > at).map(|gp| gp.start_ns);
    later.chain(open).find(|&start_ns| start_ns <= at)
}

/// Whether a thread of this name is one of RCU's, so that its time counts.
pub fn is_rcu_thread(name: &str) -> bool {
    matches!(name, "rcu_preempt" | "rcu_sched")
        || ["rcuc/", "rcub/", "rcuog/", "rcuop/", "rcuos/", "rcu_exp"]
            .iter()
            .any(|p| name.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(events: &[(u64, usize, Kind)]) -> Vec<(u64, u64, u64)> {
        let mut t = Tracker::new(2);
        events
            .iter()
            .filter_map(|(time, cpu, kind)| t.event(*time, *cpu, *kind))
            .map(|g| (g.start_ns, g.end_ns, g.cpu_ns))
            .collect()
    }

    use Kind::*;

    #[test]
    fn cpu_time_is_clipped_and_counted_once() {
        let all = run(&[
            (0, 0, ThreadOn),
            (10, 0, Init),
            (15, 0, SoftirqOn), // interrupts the thread: the same CPU, counted once
            (18, 0, SoftirqOff),
            (20, 0, ThreadOff),
            (30, 1, SoftirqOn),
            (36, 1, SoftirqOff),
            (90, 0, ThreadOn),
            (100, 0, Cleanup),
            (110, 0, ThreadOff),
        ]);
        assert_eq!(all, [(10, 100, 10 + 6 + 10)]);
    }

    #[test]
    fn spurious_wakeups_restart_the_grace_period() {
        assert_eq!(run(&[(1, 0, Init), (50, 0, Init), (60, 0, Cleanup)]), [(50, 60, 0)]);
    }

    #[test]
    fn grace_periods_without_beginning_or_end_are_dropped() {
        assert_eq!(
            run(&[(5, 0, Cleanup), (6, 0, Init), (9, 0, Cleanup), (10, 0, Init)]),
            [(6, 9, 0)]
        );
    }

    #[test]
    fn what_was_in_progress_is_found_whether_or_not_it_ended_later() {
        let mut t = Tracker::new(1);
        let events = [(6, Init), (9, Cleanup), (10, Init), (50, Cleanup), (60, Init)];
        let ended: Vec<_> = events.iter().filter_map(|(at, kind)| t.event(*at, 0, *kind)).collect();
        assert_eq!(t.open(), Some(60));
        let at = |at| in_progress(&ended, t.open(), at);
        assert_eq!(
            [5, 8, 9, 30, 55, 60, 99].map(at),
            [None, Some(6), None, Some(10), None, Some(60), Some(60)]
        );
        t.event(70, 0, Cleanup);
        assert_eq!(t.open(), None);
    }

    #[test]
    fn unmatched_ends_and_unknown_cpus_do_no_harm() {
        assert_eq!(
            run(&[
                (1, 0, ThreadOff),
                (1, 7, ThreadOn),
                (2, 0, Init),
                (3, 1, SoftirqOff),
                (4, 0, Cleanup)
            ]),
            [(2, 4, 0)]
        );
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        for name in ["rcu_preempt", "rcuc/0", "rcub/1", "rcuog/0", "rcuop/12", "rcu_exp_gp_kthr"] {
            assert!(is_rcu_thread(name), "{name}");
        }
        for name in
            ["rcu_tasks_kthre", "rcu_gp", "kworker/0:1-rcu", "rcu_tasks_rude_", "rcu_par_gp"]
        {
            assert!(!is_rcu_thread(name), "{name}");
        }
    }
}
