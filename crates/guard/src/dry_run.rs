// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dry run of the scheduler: [`Watch`] observes the VMs under the scheduler that is in force, and
//! guard says what it would have acted on. Nothing is scheduled otherwise, so a dry run works on
//! kernels without sched_ext as well.
//!
//! Guard classifies a vCPU by the code that `watch` has, so both see the same sections. But they
//! look at other moments: guard's slices end at other times than those of the scheduler in force.

use crate::backend::{Guard, Observer};
use crate::constants::LATE_NS;
use crate::error::Error;
use crate::options::{Options, Policy};
use crate::statistics::{HeldUp, PutOff, Statistics, VmStatistics, Would, of_class};
use reprieve_watch::model::{Class, Histogram, Preemptions, VmSnapshot};
use reprieve_watch::show::activity::CRITICAL;
use std::time::Duration;

pub struct DryRun(Observer);

impl DryRun {
    pub fn start(options: &Options) -> Result<DryRun, Error> {
        let late = Duration::from_nanos(LATE_NS as u64);
        Ok(DryRun(Observer::start(options, Some(late))?))
    }
}

impl Guard for DryRun {
    fn statistics(&mut self) -> Result<Statistics, Error> {
        Ok(Statistics { dry_run: true, ..self.0.statistics(of_vm)? })
    }

    fn set(&mut self, _: Option<&str>, _: Policy) -> Result<Vec<String>, Error> {
        Err(Error::DryRun)
    }
}

fn of_vm(vm: &VmSnapshot) -> VmStatistics {
    VmStatistics { would: Some(would(vm)), ..VmStatistics::of(vm) }
}

fn would(vm: &VmSnapshot) -> Would {
    let each = || Class::ALL.into_iter().map(|class| put_off(vm, class));
    Would {
        extend: vm.kernel.as_ref().map(|_| each().filter(|put_off| put_off.count > 0).collect()),
        rescue: vm.grace.as_ref().map(|grace| {
            let held = vm.held.clone().unwrap_or_default();
            let began = count(&grace.durations) + grace.unseen + u64::from(grace.current.is_some());
            // The last one may have ended, or begun, since it was counted.
            HeldUp { of: began.max(held.graces), held }
        }),
    }
}

/// Preemptions of the class that would have been put off: all in some classes, and readers in any.
fn put_off(vm: &VmSnapshot, class: Class) -> PutOff {
    let critical = CRITICAL.contains(&class);
    let of = |p: &Preemptions| match critical {
        true => (count(&p.off_cpu), p.off_cpu.total_ns),
        false => (p.readers, p.readers_off_cpu_ns),
    };
    let all = || of_class(vm, class);
    PutOff {
        class,
        count: all().map(|p| of(p).0).sum(),
        off_cpu_ns: all().map(|p| of(p).1).sum(),
        max_off_cpu_ns: all().map(|p| p.off_cpu.max_ns).max().filter(|_| critical),
    }
}

fn count(histogram: &Histogram) -> u64 {
    histogram.counts.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_watch::model::{Grace, Held, Vcpu, VmState};

    const MS: u64 = 1_000_000;

    fn preemptions(class: Class, count: u64, ns: u64) -> Preemptions {
        let off_cpu = Histogram { counts: vec![0, count], total_ns: count * ns, max_ns: ns };
        Preemptions { class, off_cpu, readers: 0, readers_off_cpu_ns: 0 }
    }

    #[test]
    fn critical_sections_would_be_extended_and_late_grace_periods_rescued() {
        let mut idle = preemptions(Class::Idle, 5, MS);
        (idle.readers, idle.readers_off_cpu_ns) = (2, 3 * MS);
        let user = preemptions(Class::User, 50, MS);
        let vcpu = |preemptions| Vcpu { preemptions, on_cpu_ns: 10 * MS, ..Vcpu::default() };
        let held = Held { graces: 29, count: 3, total_ns: 40 * MS, max_ns: 30 * MS };
        let vm = VmSnapshot {
            kernel: Some("6.12".into()),
            vcpus: vec![
                vcpu(vec![user, preemptions(Class::Reader, 3, 2 * MS), idle]),
                vcpu(vec![preemptions(Class::Reader, 1, 5 * MS)]),
            ],
            grace: Some(Grace::default()),
            held: Some(held.clone()),
            ..VmSnapshot::default()
        };
        let (class, max_off_cpu_ns) = (Class::Reader, Some(5 * MS));
        let expected = Would {
            extend: Some(vec![
                PutOff { class, count: 4, off_cpu_ns: 11 * MS, max_off_cpu_ns },
                PutOff { class: Class::Idle, count: 2, off_cpu_ns: 3 * MS, max_off_cpu_ns: None },
            ]),
            // No more are late than there were.
            rescue: Some(HeldUp { held, of: 29 }),
        };
        let statistics = of_vm(&vm);
        assert_eq!(statistics.would, Some(expected));
        let suffered = |class| statistics.preempted.iter().find(|p| p.class == class).unwrap();
        assert_eq!((suffered(Class::User).suffered, suffered(Class::Reader).suffered), (50, 4));
        assert!(statistics.preempted.iter().all(|p| p.avoided == 0), "nothing was done");
        assert_eq!(statistics.on_cpu_ns, 20 * MS);
    }

    #[test]
    fn nothing_is_said_of_a_guest_that_cannot_be_read() {
        let state = VmState::Unreadable("encrypted".into());
        let statistics = of_vm(&VmSnapshot { state, ..VmSnapshot::default() });
        assert_eq!(statistics.would, Some(Would::default()));
        assert!(!statistics.readable);
        assert_eq!(statistics.trouble.as_deref(), Some("encrypted"));
    }
}
