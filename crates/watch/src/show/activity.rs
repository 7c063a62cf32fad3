// SPDX-License-Identifier: MIT OR Apache-2.0
//! The activity of vCPUs and VMs between two snapshots.
//!
//! A preemption enters the totals when it ends, so a vCPU that has been off its CPU for a minute
//! would show as idle for that minute. Here the one in progress is added to each snapshot before
//! the two are subtracted: `off(t) = total(t) + in progress at t`. That function counts each
//! nanosecond once, when it passes. It falls where the program noticed
//! late that a vCPU had come or gone, by the time until then: at most a tick of the host. Then the
//! difference is zero.

use super::histogram::{count, difference};
use crate::model::{Class, Histogram, Snapshot, Taker, Vcpu, VcpuNow, VmSnapshot};

/// The activity of a vCPU, or the sum over those of a VM, in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Length of the interval.
    pub elapsed_ns: u64,
    /// Preemptions that ended, per class of [`Class::ALL`].
    pub preemptions: [u64; Class::ALL.len()],
    /// Time off the CPU against the vCPU's will, the preemption in progress included.
    pub off_ns: [u64; Class::ALL.len()],
    /// Preemptions that ended and had hit an RCU reader, whatever their class, and the time they
    /// took.
    pub readers: u64,
    pub readers_ns: u64,
    pub on_ns: u64,
    /// Time for which it waited for a CPU after wake-ups.
    pub woken_ns: u64,
    /// Time off the CPU of preemptions that ended and began because a quota of CPU
    /// time was used up, or of one in progress.
    pub throttled_ns: u64,
}

/// Classes in which others may wait for the vCPU: a section of RCU or of a lock, or an interrupt's
/// work.
pub const CRITICAL: [Class; 5] =
    [Class::Reader, Class::NoPreempt, Class::IrqsOff, Class::Softirq, Class::Hardirq];

/// Position in [`Class::ALL`].
pub fn position(class: Class) -> usize {
    Class::ALL.iter().position(|c| *c == class).unwrap_or(Class::ALL.len() - 1)
}

impl Activity {
    /// Preemptions that ended.
    pub fn total_preemptions(&self) -> u64 {
        self.preemptions.iter().sum()
    }

    /// Time off the CPU in all classes.
    pub fn total_off_ns(&self) -> u64 {
        self.off_ns.iter().sum()
    }

    /// `count` as a rate; NaN, which is shown as a dash, for an interval without length.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.elapsed_ns == 0 { f64::NAN } else { count as f64 * 1e9 / self.elapsed_ns as f64 }
    }

    /// Time for which it wanted a CPU and had none. The guest counts this as steal time.
    pub fn ready_ns(&self) -> u64 {
        self.total_off_ns() + self.woken_ns
    }

    /// The share without a CPU of the time that it wanted one.
    pub fn ready_share(&self) -> Option<f64> {
        share(self.ready_ns(), self.ready_ns() + self.on_ns)
    }

    /// The share for which a quota was used up, of the time without a CPU that it wanted.
    pub fn throttled_share(&self) -> Option<f64> {
        share(self.throttled_ns.min(self.ready_ns()), self.ready_ns())
    }

    /// The share in [`CRITICAL`] classes of the time off the CPU.
    pub fn critical_share(&self) -> Option<f64> {
        let critical = CRITICAL.iter().map(|class| self.off_ns[position(*class)]).sum();
        share(critical, self.total_off_ns())
    }

    /// Makes up for the times that fall (see above): none is less than in `earlier`.
    pub(super) fn hold(&mut self, earlier: &Activity) {
        for (mine, earlier) in self.off_ns.iter_mut().zip(earlier.off_ns) {
            *mine = earlier.max(*mine);
        }
        self.on_ns = self.on_ns.max(earlier.on_ns);
        self.woken_ns = self.woken_ns.max(earlier.woken_ns);
        self.throttled_ns = self.throttled_ns.max(earlier.throttled_ns);
    }

    /// Adds what another vCPU did.
    pub(super) fn add(&mut self, other: &Activity) {
        for (mine, other) in self.preemptions.iter_mut().zip(other.preemptions) {
            *mine += other;
        }
        for (mine, other) in self.off_ns.iter_mut().zip(other.off_ns) {
            *mine += other;
        }
        self.readers += other.readers;
        self.readers_ns += other.readers_ns;
        self.on_ns += other.on_ns;
        self.woken_ns += other.woken_ns;
        self.throttled_ns += other.throttled_ns;
    }

    /// The totals less those of `earlier`.
    fn since(&self, earlier: &Activity) -> Activity {
        Activity {
            elapsed_ns: self.elapsed_ns.saturating_sub(earlier.elapsed_ns),
            preemptions: std::array::from_fn(|i| {
                self.preemptions[i].saturating_sub(earlier.preemptions[i])
            }),
            off_ns: std::array::from_fn(|i| self.off_ns[i].saturating_sub(earlier.off_ns[i])),
            readers: self.readers.saturating_sub(earlier.readers),
            readers_ns: self.readers_ns.saturating_sub(earlier.readers_ns),
            on_ns: self.on_ns.saturating_sub(earlier.on_ns),
            woken_ns: self.woken_ns.saturating_sub(earlier.woken_ns),
            throttled_ns: self.throttled_ns.saturating_sub(earlier.throttled_ns),
        }
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Totals of `vcpu` at `now`, with what is in progress.
pub(super) fn vcpu_totals(vcpu: &Vcpu, now: u64) -> Activity {
    let mut all = Activity { elapsed_ns: now, on_ns: vcpu.on_cpu_ns, ..Activity::default() };
    (all.woken_ns, all.throttled_ns) = (vcpu.wakes.total_ns, vcpu.throttled_ns);
    for preemptions in &vcpu.preemptions {
        let class = position(preemptions.class);
        all.preemptions[class] += count(&preemptions.off_cpu);
        all.off_ns[class] += preemptions.off_cpu.total_ns;
        all.readers += preemptions.readers;
        all.readers_ns += preemptions.readers_off_cpu_ns;
    }
    match &vcpu.now {
        VcpuNow::Preempted { since_ns, class, throttled, .. } => {
            let away = now.saturating_sub(*since_ns);
            all.off_ns[position(*class)] += away;
            all.throttled_ns += if *throttled { away } else { 0 };
        }
        VcpuNow::Ready { since_ns, .. } => all.woken_ns += now.saturating_sub(*since_ns),
        // The stay on the CPU is in the total already.
        VcpuNow::Running { .. } | VcpuNow::Halted { .. } | VcpuNow::Unseen => (),
    }
    all
}

/// A VM in an interval.
#[derive(Clone, Debug, Default)]
pub struct VmActivity {
    /// Sum over the vCPUs.
    pub all: Activity,
    /// Each vCPU, in the order of [`VmSnapshot::vcpus`].
    pub vcpus: Vec<Activity>,
    /// Grace periods that ended, by duration.
    pub grace: Histogram,
    /// Grace periods whose duration was not seen.
    pub grace_unseen: u64,
    /// The processes that took its CPUs, most first.
    pub takers: Vec<Taker>,
}

impl VmActivity {
    /// The activity of `vm` until `now`, when it was as given: since `earlier` where it was there
    /// and its counters have not begun again, else since it was attached to.
    pub fn between(earlier: Option<&Snapshot>, now: u64, vm: &VmSnapshot) -> VmActivity {
        let before =
            earlier.and_then(|e| e.vms.iter().find(|v| v.pid == vm.pid).map(|v| (v, e.time_ns)));
        let before = before.filter(|(old, _)| !restarted(old, vm));
        let begin = before.map(|(_, time)| time).or(earlier.map(|e| e.time_ns));
        let elapsed_ns = now.saturating_sub(begin.unwrap_or(now));
        let mut activity = VmActivity::default();
        activity.all.elapsed_ns = elapsed_ns;
        for vcpu in &vm.vcpus {
            let old = before.and_then(|(old, time)| {
                Some(vcpu_totals(
                    old.vcpus.iter().find(|v| v.index == vcpu.index && v.tid == vcpu.tid)?,
                    time,
                ))
            });
            let mut one = vcpu_totals(vcpu, now).since(&old.unwrap_or_default());
            one.elapsed_ns = elapsed_ns;
            activity.all.add(&one);
            activity.vcpus.push(one);
        }
        activity.takers = vm.takers.clone();
        for taker in &mut activity.takers {
            let old = before.and_then(|(old, _)| old.takers.iter().find(|o| o.pid == taker.pid));
            taker.count = taker.count.saturating_sub(old.map_or(0, |old| old.count));
            taker.total_ns = taker.total_ns.saturating_sub(old.map_or(0, |old| old.total_ns));
        }
        activity.takers.retain(|taker| taker.total_ns > 0);
        activity.takers.sort_by_key(|taker| std::cmp::Reverse(taker.total_ns));
        if let Some(grace) = &vm.grace {
            let old = before.and_then(|(old, _)| old.grace.as_ref());
            activity.grace = match old {
                Some(old) => difference(&grace.durations, &old.durations),
                None => grace.durations.clone(),
            };
            activity.grace_unseen = grace.unseen.saturating_sub(old.map_or(0, |old| old.unseen));
        }
        activity
    }

    /// Grace periods that ended.
    pub fn graces(&self) -> u64 {
        count(&self.grace).saturating_add(self.grace_unseen)
    }

    /// Their mean duration, in nanoseconds; `None` if no duration was seen. The time of an unseen
    /// one that followed another is in that one's duration.
    pub fn grace_mean(&self) -> Option<f64> {
        (count(&self.grace) > 0).then(|| self.grace.total_ns as f64 / self.graces() as f64)
    }
}

/// Whether the counters of `new` are not a continuation of those of `old`: another VM has the
/// process ID, or it was attached to again. Only counts tell: times fall where the program noticed
/// late that a vCPU had gone.
fn restarted(old: &VmSnapshot, new: &VmSnapshot) -> bool {
    let fell = |old: &Histogram, new: &Histogram| count(new) < count(old);
    let preemptions = |v: &Vcpu| v.preemptions.iter().map(|p| count(&p.off_cpu)).sum::<u64>();
    old.name != new.name
        || old.vcpus.iter().any(|o| {
            new.vcpus
                .iter()
                .filter(|n| n.index == o.index && n.tid == o.tid)
                .any(|n| fell(&o.blocks, &n.blocks) || preemptions(n) < preemptions(o))
        })
        || match (&old.grace, &new.grace) {
            (Some(old), Some(new)) => fell(&old.durations, &new.durations),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Grace, Preemptions};
    use crate::show::testing::{histogram, preempted, snapshot, vcpu, vm};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_preemption_in_progress_counts_as_its_time_passes_and_once() {
        let mut one = vcpu(0);
        one.now = preempted(500 * MS, Class::NoPreempt);
        let first = snapshot(1000 * MS, vec![vm(1, "a", vec![one.clone()])]);
        let second = snapshot(2000 * MS, vec![vm(1, "a", vec![one.clone()])]);
        let seen = VmActivity::between(Some(&first), second.time_ns, &second.vms[0]);
        assert_eq!(seen.all.off_ns[position(Class::NoPreempt)], 1000 * MS);
        assert_eq!(seen.all.total_preemptions(), 0);
        // The preemption ends at 2.1 s, after 1.6 s, and the vCPU runs on.
        one.preemptions = vec![Preemptions {
            class: Class::NoPreempt,
            off_cpu: histogram(&[1600 * MS]),
            readers: 0,
            readers_off_cpu_ns: 0,
        }];
        one.now = VcpuNow::Running { since_ns: 2100 * MS, cpu: 0 };
        one.on_cpu_ns = 900 * MS;
        let third = snapshot(3000 * MS, vec![vm(1, "a", vec![one])]);
        let seen = VmActivity::between(Some(&second), third.time_ns, &third.vms[0]);
        assert_eq!(seen.all.off_ns[position(Class::NoPreempt)], 100 * MS);
        assert_eq!(seen.all.on_ns, 900 * MS);
        assert_eq!(seen.all.total_preemptions(), 1);
        assert_eq!(seen.all.ready_share(), Some(0.1));
        assert_eq!(seen.all.critical_share(), Some(1.0));
    }

    #[test]
    fn a_reused_pid_is_another_vm() {
        let mut old = vcpu(0);
        (old.on_cpu_ns, old.blocks) = (900 * MS, histogram(&[MS, MS]));
        let first = snapshot(1000 * MS, vec![vm(1, "a", vec![old.clone()])]);
        let mut new = vcpu(0);
        (new.on_cpu_ns, new.blocks) = (50 * MS, histogram(&[MS]));
        let second = snapshot(2000 * MS, vec![vm(1, "a", vec![new])]);
        let seen = VmActivity::between(Some(&first), second.time_ns, &second.vms[0]);
        assert_eq!(seen.all.on_ns, 50 * MS);
    }

    #[test]
    fn grace_periods_without_a_pause_take_no_more_time_than_passed() {
        let of = |durations: &[u64], unseen| {
            let mut one = vm(1, "a", vec![]);
            one.grace = Some(Grace { durations: histogram(durations), unseen, current: None });
            snapshot(1000 * MS, vec![one])
        };
        let mean = |earlier, later: Snapshot| {
            VmActivity::between(earlier, later.time_ns, &later.vms[0]).grace_mean()
        };
        // 4 ms each: of five, a look every 20 ms sees the first begin and the last end.
        assert_eq!(mean(None, of(&[20 * MS; 50], 200)), Some(4e6));
        let first = of(&[20 * MS; 50], 200);
        assert_eq!(mean(Some(&first), of(&[20 * MS; 60], 240)), Some(4e6));
        assert_eq!(mean(None, of(&[], 10)), None);
    }

    #[test]
    fn a_vcpu_that_left_unseen_is_no_new_vm() {
        let mut one = vcpu(0);
        (one.on_cpu_ns, one.blocks) = (900 * MS, histogram(&[7 * MS]));
        one.now = VcpuNow::Running { since_ns: 990 * MS, cpu: 0 };
        let first = snapshot(1000 * MS, vec![vm(1, "a", vec![one.clone()])]);
        // The vCPU had left its CPU before the first snapshot.
        (one.on_cpu_ns, one.now) = (896 * MS, VcpuNow::Halted { since_ns: 996 * MS });
        let second = snapshot(2000 * MS, vec![vm(1, "a", vec![one])]);
        let seen = VmActivity::between(Some(&first), second.time_ns, &second.vms[0]);
        assert_eq!(seen.all.on_ns, 0);
    }
}
