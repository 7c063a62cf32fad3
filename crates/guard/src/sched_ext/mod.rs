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

use crate::backend::Guard;
use crate::error::Error;
use crate::options::{Options, Policy};
use crate::statistics::{Did, Granted, RegionStatistics, Statistics, VmStatistics};
use crate::undo::supervisor::Supervisor;
use crate::undo::{self, server};
pub use check::{ticks_hidden, timers_in_threads};
use follow::Follower;
use program::{Program, types};
use regions::Regions;
use reprieve_watch::Watch;
use reprieve_watch::model::{Class, VmSnapshot, VmState};

pub struct SchedExt {
    /// Reads the arrays of `watch`.
    regions: Regions,
    follower: Follower,
    /// Before the arrays that it shares with `watch`.
    program: Program,
    watch: Watch,
    /// Dropped last: gives back what is reserved.
    supervisor: Supervisor,
}

impl SchedExt {
    pub fn start(options: &Options) -> Result<SchedExt, Error> {
        check::host()?;
        let supervisor = undo::begin()?;
        let watch = Watch::start(&options.watch())?;
        let (machines, slots, kvm) = watch.parts();
        let mut program = Program::load(options, &slots.program, &kvm)?;
        let follower = Follower::new(machines.clone(), options.policy);
        program.attach()?;
        reserve(options)?;
        let regions = Regions::serve(machines, slots)
            .map_err(|source| Error::Io { what: "serving guests' regions".into(), source })?;
        Ok(SchedExt { regions, follower, program, watch, supervisor })
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
        std::io::ErrorKind::ResourceBusy => Error::Unsupported(
            "the kernel cannot reserve that beside the threads with deadlines: give a smaller --reserve".into(),
        ),
        _ => Error::Io { what: "reserving CPU time for vCPUs".into(), source },
    })
}

impl Guard for SchedExt {
    fn look(&mut self) -> Result<(), Error> {
        self.follower.look(&self.program);
        Ok(())
    }

    fn statistics(&mut self) -> Result<Statistics, Error> {
        let SchedExt { regions, follower, program, watch, .. } = self;
        let mut statistics = Statistics::of(&watch.snapshot()?, |vm| {
            let known = follower.known(vm.pid);
            let guest = known.map(|known| program.guests.get(known.index as usize));
            let policy = known.map_or(follower.policy, |known| known.policy);
            let (left, region) = (follower.left(vm.pid), regions.trouble(vm.pid));
            of_vm(vm, &guest.unwrap_or_default(), policy, left, region)
        });
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
