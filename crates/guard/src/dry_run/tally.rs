// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the snapshots of a VM to what guard's policies would have acted on: the rules of
//! `bpf/guard_extend.bpf.h` (which sections are extended) over preemptions that took place.
//!
//! Totals never fall while the VM is there: those of a vCPU that is taken out of it are kept.

use crate::options::Policy;
use crate::statistics::{HeldUp, Preempted, PutOff, VmStatistics, Would};
use reprieve_watch::model::{Class, Held, Histogram, Preemptions, Vcpu, VmSnapshot, VmState};
use std::collections::BTreeMap;

/// A VM since it was found.
#[derive(Default)]
pub struct Tally {
    /// As of the last snapshot, by number and thread.
    vcpus: BTreeMap<(u32, u32), Totals>,
    /// Totals of vCPUs that were taken out.
    former: Totals,
    /// The guest's memory, and its RCU, were found at some time.
    read: bool,
    rcu: bool,
    /// Grace periods that were seen to begin.
    graces: u64,
    held: Held,
}

/// Totals of one vCPU, or several.
#[derive(Clone, Debug, Default)]
struct Totals {
    classes: BTreeMap<Class, OfClass>,
    announced: u64,
    announced_off_cpu_ns: u64,
    throttled: u64,
    throttled_ns: u64,
    blocks: u64,
    on_cpu_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfClass {
    count: u64,
    off_cpu_ns: u64,
    max_ns: u64,
    readers: u64,
    readers_off_cpu_ns: u64,
}

impl Tally {
    /// Takes a snapshot that is younger than the last one.
    pub fn note(&mut self, vm: &VmSnapshot) {
        let now = vm.vcpus.iter().map(|vcpu| ((vcpu.index, vcpu.tid), Totals::of(vcpu)));
        let before = std::mem::replace(&mut self.vcpus, now.collect());
        for (vcpu, last) in before {
            // A vCPU that begins anew has another entry in the arrays of `watch`.
            if self.vcpus.get(&vcpu).is_none_or(|now| now.switches() < last.switches()) {
                self.former.add(&last);
            }
        }
        self.read |= vm.kernel.is_some();
        if let Some(grace) = &vm.grace {
            self.rcu = true;
            let now = u64::from(grace.current.is_some());
            self.graces = self.graces.max(count(&grace.durations) + grace.unseen + now);
        }
        if let Some(held) = &vm.held {
            self.held = held.clone();
        }
    }

    /// The statistics of `vm`, the snapshot that was noted last.
    pub fn statistics(&self, vm: &VmSnapshot, policy: Policy, max_extend_ns: u64) -> VmStatistics {
        let mut all = self.former.clone();
        self.vcpus.values().for_each(|vcpu| all.add(vcpu));
        let suffered = |class| all.classes.get(&class).map_or(0, |of| of.count);
        VmStatistics {
            pid: vm.pid,
            name: vm.name.clone(),
            readable: vm.state == VmState::Watching,
            trouble: match &vm.state {
                VmState::Unreadable(why) => Some(why.clone()),
                VmState::Attaching => Some("its guest is not found yet".into()),
                _ => None,
            },
            policies: vec![policy],
            vcpus: vm.vcpus.len() as u32,
            on_cpu_ns: all.on_cpu_ns,
            preempted: Class::ALL
                .map(|class| Preempted { class, suffered: suffered(class), avoided: 0 })
                .into(),
            would: Some(self.would(vm, &all, policy, max_extend_ns)),
            ..VmStatistics::default()
        }
    }

    fn would(&self, vm: &VmSnapshot, all: &Totals, policy: Policy, max_extend_ns: u64) -> Would {
        let extends = self.read && policy.extends();
        let extend = extends.then(|| all.put_off());
        let (announced, announced_off_cpu_ns) =
            if extends { (all.announced, all.announced_off_cpu_ns) } else { (0, 0) };
        let those = extend.iter().flatten();
        let times = those.map(|put_off| put_off.count).sum::<u64>() + announced;
        Would {
            extend,
            announced,
            announced_off_cpu_ns,
            granted_at_most_ns: times.saturating_mul(max_extend_ns),
            rescue: (self.rcu && policy.rescues()).then_some(HeldUp {
                graces: self.held.graces,
                // The last one may have ended, or begun, since it was counted.
                of: self.graces.max(self.held.graces),
                count: self.held.count,
                total_ns: self.held.total_ns,
                max_ns: self.held.max_ns,
            }),
            throttled: all.throttled,
            throttled_off_cpu_ns: all.throttled_ns,
            blind: vm.blind.clone(),
        }
    }
}

impl Totals {
    fn of(vcpu: &Vcpu) -> Totals {
        Totals {
            classes: vcpu.preemptions.iter().map(|p| (p.class, OfClass::of(p))).collect(),
            announced: vcpu.announced,
            announced_off_cpu_ns: vcpu.announced_off_cpu_ns,
            throttled: vcpu.throttled,
            throttled_ns: vcpu.throttled_ns,
            blocks: count(&vcpu.blocks),
            on_cpu_ns: vcpu.on_cpu_ns,
        }
    }

    fn add(&mut self, other: &Totals) {
        for (class, of) in &other.classes {
            let mine = self.classes.entry(*class).or_default();
            mine.count += of.count;
            mine.off_cpu_ns += of.off_cpu_ns;
            mine.max_ns = mine.max_ns.max(of.max_ns);
            mine.readers += of.readers;
            mine.readers_off_cpu_ns += of.readers_off_cpu_ns;
        }
        self.announced += other.announced;
        self.announced_off_cpu_ns += other.announced_off_cpu_ns;
        self.throttled += other.throttled;
        self.throttled_ns += other.throttled_ns;
        self.blocks += other.blocks;
        self.on_cpu_ns += other.on_cpu_ns;
    }

    /// Times that a vCPU left its CPU and was back.
    fn switches(&self) -> u64 {
        self.classes.values().map(|of| of.count).sum::<u64>() + self.blocks
    }

    /// Preemptions of each class that `extend` would have put off, where there are any.
    fn put_off(&self) -> Vec<PutOff> {
        let each = Class::ALL.iter().filter_map(|class| Some((*class, self.classes.get(class)?)));
        let critical = each.map(|(class, of)| of.critical(class));
        critical.filter(|put_off| put_off.count > 0).collect()
    }
}

impl OfClass {
    fn of(preemptions: &Preemptions) -> OfClass {
        OfClass {
            count: count(&preemptions.off_cpu),
            off_cpu_ns: preemptions.off_cpu.total_ns,
            max_ns: preemptions.off_cpu.max_ns,
            readers: preemptions.readers,
            readers_off_cpu_ns: preemptions.readers_off_cpu_ns,
        }
    }

    /// Preemptions in a critical section: all of some classes, and readers in any.
    fn critical(&self, class: Class) -> PutOff {
        match class {
            Class::Reader | Class::NoPreempt | Class::IrqsOff | Class::Softirq | Class::Hardirq => {
                PutOff {
                    class,
                    count: self.count,
                    off_cpu_ns: self.off_cpu_ns,
                    max_off_cpu_ns: Some(self.max_ns),
                }
            }
            Class::User | Class::Kernel | Class::Idle | Class::Unknown => PutOff {
                class,
                count: self.readers,
                off_cpu_ns: self.readers_off_cpu_ns,
                max_off_cpu_ns: None,
            },
        }
    }
}

fn count(histogram: &Histogram) -> u64 {
    histogram.counts.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_watch::model::{CurrentGrace, Grace};

    const MS: u64 = 1_000_000;
    const MAX_EXTEND: u64 = MS;

    fn preemptions(class: Class, count: u64, ns: u64) -> Preemptions {
        let off_cpu =
            Histogram { counts: vec![0, count], total_ns: count * ns, max_ns: ns.min(count * ns) };
        Preemptions { class, off_cpu, readers: 0, readers_off_cpu_ns: 0 }
    }

    fn vcpu(index: u32, preemptions: Vec<Preemptions>) -> Vcpu {
        Vcpu { index, tid: 100 + index, preemptions, on_cpu_ns: 10 * MS, ..Vcpu::default() }
    }

    fn vm(vcpus: Vec<Vcpu>) -> VmSnapshot {
        VmSnapshot {
            pid: 7,
            name: "db".into(),
            vmm: "qemu-kvm".into(),
            state: VmState::Watching,
            kernel: Some("6.12".into()),
            blind: vec!["something".into()],
            vcpus,
            grace: Some(Grace::default()),
            held: Some(Held::default()),
            ..VmSnapshot::default()
        }
    }

    /// The statistics after these snapshots.
    fn after(snapshots: &[VmSnapshot], policy: Policy) -> (VmStatistics, Would) {
        let mut tally = Tally::default();
        snapshots.iter().for_each(|vm| tally.note(vm));
        let statistics = tally.statistics(snapshots.last().unwrap(), policy, MAX_EXTEND);
        let would = statistics.would.clone().unwrap();
        (statistics, would)
    }

    #[test]
    fn critical_sections_would_be_extended() {
        let mut idle = preemptions(Class::Idle, 5, MS);
        (idle.readers, idle.readers_off_cpu_ns) = (2, 3 * MS);
        let mut first = vcpu(
            0,
            vec![
                preemptions(Class::User, 50, MS),
                preemptions(Class::Kernel, 9, MS),
                preemptions(Class::Reader, 3, 2 * MS),
                idle,
                preemptions(Class::Unknown, 1, MS),
            ],
        );
        (first.announced, first.announced_off_cpu_ns) = (4, 8 * MS);
        let second = vcpu(1, vec![preemptions(Class::Reader, 1, 5 * MS)]);
        let (statistics, would) = after(&[vm(vec![first, second])], Policy::Extend);
        let expected = [
            PutOff {
                class: Class::Reader,
                count: 4,
                off_cpu_ns: 11 * MS,
                max_off_cpu_ns: Some(5 * MS),
            },
            PutOff { class: Class::Idle, count: 2, off_cpu_ns: 3 * MS, max_off_cpu_ns: None },
        ];
        assert_eq!(would.extend.as_deref(), Some(&expected[..]));
        assert_eq!((would.announced, would.announced_off_cpu_ns), (4, 8 * MS));
        assert_eq!(would.granted_at_most_ns, 10 * MAX_EXTEND);
        assert_eq!(would.rescue, None, "not chosen");
        assert_eq!(would.blind, ["something"]);
        let preempted = |class| statistics.preempted.iter().find(|p| p.class == class).unwrap();
        assert_eq!((preempted(Class::User).suffered, preempted(Class::Reader).suffered), (50, 4));
        assert!(statistics.preempted.iter().all(|p| p.avoided == 0), "nothing was done");
        assert_eq!((statistics.on_cpu_ns, statistics.extended.count), (20 * MS, 0));
    }

    #[test]
    fn late_grace_periods_would_be_rescued() {
        let grace = |ended: u64| Grace {
            durations: Histogram { counts: vec![0, 0, ended], ..Histogram::default() },
            unseen: 1,
            current: None,
        };
        let held = Held { graces: 2, count: 3, total_ns: 40 * MS, max_ns: 30 * MS };
        let seen = VmSnapshot { grace: Some(grace(5)), held: Some(held), ..vm(vec![]) };
        let expected = HeldUp { graces: 2, of: 6, count: 3, total_ns: 40 * MS, max_ns: 30 * MS };
        let (_, would) = after(std::slice::from_ref(&seen), Policy::Rescue);
        assert_eq!((would.rescue.as_ref(), &would.extend), (Some(&expected), &None));
        // While the guest reboots it cannot be read; what was counted stays.
        let booting = VmSnapshot { grace: None, kernel: None, ..seen.clone() };
        let (_, would) = after(&[seen, booting], Policy::Full);
        assert_eq!(would.rescue, Some(expected));
        assert_eq!(would.extend, Some(vec![]));
    }

    #[test]
    fn no_more_grace_periods_are_late_than_there_were() {
        let grace = Grace {
            durations: Histogram { counts: vec![28], ..Histogram::default() },
            unseen: 0,
            current: Some(CurrentGrace::default()),
        };
        let of = |late, current: bool| {
            let held = Held { graces: late, count: 29, total_ns: MS, max_ns: MS };
            let grace =
                Grace { current: grace.current.clone().filter(|_| current), ..grace.clone() };
            let seen = VmSnapshot { grace: Some(grace), held: Some(held), ..vm(vec![]) };
            after(&[seen], Policy::Rescue).1.rescue.unwrap().of
        };
        assert_eq!((of(29, true), of(5, true), of(5, false), of(29, false)), (29, 29, 28, 29));
    }

    #[test]
    fn throttled_preemptions_are_told_apart() {
        let throttled = Vcpu { throttled: 3, throttled_ns: 9 * MS, ..vcpu(0, vec![]) };
        let (_, would) = after(&[vm(vec![throttled, vcpu(1, vec![])])], Policy::Full);
        assert_eq!((would.throttled, would.throttled_off_cpu_ns), (3, 9 * MS));
    }

    #[test]
    fn nothing_is_said_of_a_guest_that_was_never_read() {
        let unreadable = VmSnapshot {
            state: VmState::Unreadable("encrypted".into()),
            kernel: None,
            grace: None,
            ..vm(vec![vcpu(0, vec![preemptions(Class::Unknown, 7, MS)])])
        };
        let (statistics, would) = after(&[unreadable], Policy::Full);
        assert_eq!((would.extend, would.rescue), (None, None));
        assert!(!statistics.readable);
        assert_eq!(statistics.trouble.as_deref(), Some("encrypted"));
    }

    #[test]
    fn totals_do_not_fall_when_vcpus_go() {
        let one = |count| vcpu(0, vec![preemptions(Class::Softirq, count, MS)]);
        let other = vcpu(1, vec![preemptions(Class::Softirq, 10, 2 * MS)]);
        let count = |snapshots: &[VmSnapshot]| {
            let (_, would) = after(snapshots, Policy::Extend);
            would.extend.unwrap()[0].clone()
        };
        let both = vm(vec![one(3), other.clone()]);
        assert_eq!(count(std::slice::from_ref(&both)).count, 13);
        let without = vm(vec![one(4)]);
        let seen = count(&[both.clone(), without.clone(), without.clone()]);
        assert_eq!((seen.count, seen.max_off_cpu_ns), (14, Some(2 * MS)));
        // Plugged in again, it counts from the beginning.
        let again = vcpu(1, vec![preemptions(Class::Softirq, 1, MS)]);
        assert_eq!(count(&[both.clone(), without, vm(vec![one(5), again.clone()])]).count, 16);
        assert_eq!(count(&[both, vm(vec![one(5), again])]).count, 16, "between two snapshots");
    }
}
