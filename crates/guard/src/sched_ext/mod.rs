// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend that loads a scheduler of our own (`bpf/guard.bpf.c`).
//!
//! The backend builds on [`Watch`], which finds the VMs and keeps what the eBPF programs need to
//! know of them in arrays; the scheduler uses the same arrays. `follow` tells the scheduler what it
//! needs beyond that: which threads are vCPUs, the weights of VMs, where guests
//! keep their RCU's state.
//!
//! The kernel detaches the scheduler when this process ends, however it ends, and then every thread
//! is scheduled as before.

mod check;
mod follow;
mod program;
mod regions;
#[cfg(test)]
mod simulator;
mod weight;

use crate::backend::{Guard, Observer};
use crate::error::Error;
use crate::options::{Options, Policy};
use crate::statistics::{Did, Granted, RegionStatistics, Statistics, VmStatistics};
use crate::undo::supervisor::Supervisor;
use crate::undo::{self, server};
pub use check::{ticks_hidden, timers_in_threads};
use follow::Follower;
use program::{Program, types};
use regions::Regions;
use reprieve_watch::model::{Class, VmSnapshot, VmState};

pub struct SchedExt {
    /// Reads the arrays of `watch`.
    regions: Regions,
    follower: Follower,
    /// Before the arrays that it shares with `watch`.
    program: Program,
    observer: Observer,
    /// Dropped last: gives back what is reserved.
    supervisor: Supervisor,
}

impl SchedExt {
    pub fn start(options: &Options) -> Result<SchedExt, Error> {
        check::host()?;
        let supervisor = undo::begin()?;
        let observer = Observer::start(options, None)?;
        let (machines, slots, kvm) = observer.watch.parts();
        let mut program = Program::load(options, &slots.program, &kvm)?;
        let follower = Follower::new(machines.clone(), options.policy);
        program.attach()?;
        reserve(options)?;
        let regions = Regions::serve(machines, slots)
            .map_err(|source| Error::Io { what: "serving guests' regions".into(), source })?;
        Ok(SchedExt { regions, follower, program, observer, supervisor })
    }
}

impl Drop for SchedExt {
    fn drop(&mut self) {
        self.follower.release();
    }
}

/// Reserves time for vCPUs on each CPU. The kernel takes it while a scheduler is attached.
fn reserve(options: &Options) -> Result<(), Error> {
    server::reserve(options.reserve).map_err(|source| match source.kind() {
        std::io::ErrorKind::ResourceBusy => Error::Unsupported {
            why: format!(
                "the kernel cannot reserve {} % of each CPU beside the threads with deadlines: give a smaller --reserve",
                options.reserve
            ),
        },
        _ => Error::Io { what: "reserving CPU time for vCPUs".into(), source },
    })
}

impl Guard for SchedExt {
    fn look(&mut self) -> Result<(), Error> {
        self.follower.look(&self.program);
        Ok(())
    }

    fn statistics(&mut self) -> Result<Statistics, Error> {
        let SchedExt { regions, follower, program, observer, .. } = self;
        let (known, mut left) = (follower.vms(), follower.left());
        let mut statistics = observer.statistics(|vm| {
            let guest = known.get(&vm.pid).map(|known| program.guests.get(known.index as usize));
            let region = regions.trouble(vm.pid);
            let policy = known.get(&vm.pid).map_or(follower.policy, |known| known.policy);
            of_vm(vm, &guest.unwrap_or_default(), policy, left.remove(&vm.pid), region)
        })?;
        statistics.policy = follower.policy;
        (statistics.decisions, statistics.decisions_ns, statistics.decision_times) = program.cost();
        Ok(statistics)
    }

    fn set(&mut self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
        self.follower.set(&self.program, vm, policy)
    }

    fn ended(&mut self) -> Option<String> {
        if self.supervisor.is_gone() {
            return Some("its supervisor ended, which gives back what is reserved".into());
        }
        self.program.ended()
    }
}

/// `left`: the part of the VM that the kernel schedules. `region`: whether it has one, and its
/// trouble.
fn of_vm(
    vm: &VmSnapshot,
    guest: &types::guest,
    policy: Policy,
    left: Option<String>,
    region: Option<Option<String>>,
) -> VmStatistics {
    let types::did { avoided, extended, rescued, yielded, gave_way } = guest.did;
    let mut of = VmStatistics { policy, weight: guest.weight, ..VmStatistics::of(vm) };
    for (preempted, avoided) in of.preempted.iter_mut().zip(avoided) {
        preempted.avoided = avoided;
    }
    of.region = region.map(|trouble| RegionStatistics {
        suffered: vm.vcpus.iter().map(|vcpu| vcpu.announced).sum(),
        avoided: avoided[Class::ALL.len()],
        trouble,
    });
    of.readable = vm.state == VmState::Watching && guest.ready == 1;
    if vm.state == VmState::Watching && !of.readable {
        of.trouble = Some("its RCU cannot be read: it is scheduled like `plain`".into());
    }
    of.trouble = left.or(of.trouble);
    let [extended, rescued, yielded] = [extended, rescued, yielded].map(granted);
    of.did = Did { extended, rescued, yielded, gave_way, short: 0 };
    of
}

fn granted(types::granted { count, total_ns, max_ns, refused }: types::granted) -> Granted {
    Granted { count, total_ns, max_ns, refused }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_watch::model::{Histogram, Preemptions, Vcpu};

    #[test]
    fn preemptions_of_all_vcpus_count() {
        let vcpu = |count: u64| {
            let off_cpu = Histogram { counts: vec![0, count], ..Histogram::default() };
            let class = Class::Softirq;
            let preemptions = Preemptions { class, off_cpu, readers: 0, readers_off_cpu_ns: 0 };
            Vcpu { preemptions: vec![preemptions], announced: count / 2, ..Vcpu::default() }
        };
        let vm = VmSnapshot { vcpus: vec![vcpu(4), vcpu(10)], ..VmSnapshot::default() };
        let mut guest = types::guest::default();
        guest.did.avoided[..].fill(3);
        let of = of_vm(&vm, &guest, Policy::Full, None, Some(None));
        let suffered = |class| of.preempted.iter().find(|p| p.class == class).unwrap().suffered;
        assert_eq!((suffered(Class::Softirq), suffered(Class::User)), (14, 0));
        let region = of.region.unwrap();
        assert_eq!((region.suffered, region.avoided, of.preempted[0].avoided), (7, 3, 3));
    }
}
