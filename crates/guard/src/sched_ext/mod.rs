// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend that loads a scheduler of our own (`bpf/guard.bpf.c`).
//!
//! The backend builds on [`Watch`], which finds the VMs and keeps what the eBPF programs need to
//! know of them in arrays; the scheduler uses the same arrays. A thread (`follow`) tells the
//! scheduler what it needs beyond that: which threads are vCPUs, the weights of VMs, where guests
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
use crate::options::{Backend, Options, Policy};
use crate::statistics::{Granted, Preempted, RegionStatistics, Statistics, VmStatistics};
use crate::undo::supervisor::Supervisor;
use crate::undo::{self, server};
pub use check::{ticks_hidden, timers_in_threads};
use follow::{Followed, Follower};
use program::{Program, types};
use regions::Regions;
use reprieve_watch::Watch;
use reprieve_watch::model::{Class, VmSnapshot, VmState};
use reprieve_watch::raw::clock;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct SchedExt {
    /// Reads the arrays of `watch`.
    regions: Regions,
    /// Dropped before the program: it tells the program about VMs.
    follower: Follower,
    /// Before the arrays that it shares with `watch`.
    program: Arc<Program>,
    watch: Watch,
    options: Options,
    started_ns: u64,
    process_ns: u64,
    /// Dropped last: gives back what is reserved.
    supervisor: Supervisor,
}

impl SchedExt {
    pub fn start(options: &Options) -> Result<SchedExt, Error> {
        check::host()?;
        let supervisor = undo::begin()?;
        let process_ns = clock::process_ns();
        let watch = Watch::start(&reprieve_watch::Options {
            interval: options.interval,
            stand_ins: options.stand_ins.clone(),
            ..reprieve_watch::Options::default()
        })?;
        let (machines, slots, kvm) = watch.parts();
        let program = Arc::new(Program::load(options, &slots.program, &kvm)?);
        let follower = Follower::start(machines.clone(), program.clone(), options)?;
        program.attach()?;
        reserve(options)?;
        let regions = Regions::serve(machines, slots)
            .map_err(|source| Error::Io { what: "serving guests' regions".into(), source })?;
        let (options, started_ns) = (options.clone(), clock::now_ns());
        Ok(SchedExt {
            regions,
            follower,
            program,
            watch,
            options,
            started_ns,
            process_ns,
            supervisor,
        })
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
    fn statistics(&mut self) -> Result<Statistics, Error> {
        let snapshot = self.watch.snapshot()?;
        let followed = self.follower.vms();
        let vms = snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone);
        let vms = vms.map(|vm| self.vm(vm, &followed)).collect();
        let (decisions, decisions_ns, decision_times) = self.program.cost();
        Ok(Statistics {
            time_ns: snapshot.time_ns,
            elapsed_ns: snapshot.time_ns.saturating_sub(self.started_ns),
            vms,
            decisions,
            decisions_ns,
            decision_times,
            process_ns: clock::process_ns().saturating_sub(self.process_ns),
            ..Statistics::new(Backend::SchedExt, self.options.policy)
        })
    }

    fn set(&mut self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
        self.follower.set(vm, policy)
    }

    fn ended(&mut self) -> Option<String> {
        if self.supervisor.is_gone() {
            return Some("its supervisor ended, which gives back what is reserved".into());
        }
        self.program.ended()
    }
}

impl SchedExt {
    fn vm(&self, vm: &VmSnapshot, followed: &BTreeMap<u32, Followed>) -> VmStatistics {
        let followed = followed.get(&vm.pid);
        let guest = followed.map(|vm| self.program.guests.get(vm.index as usize));
        let guest = guest.unwrap_or_default();
        let preempted = Class::ALL
            .into_iter()
            .zip(guest.did.avoided)
            .map(|(class, avoided)| Preempted { class, suffered: suffered(vm, class), avoided });
        let region = self.regions.trouble(vm.pid).map(|trouble| RegionStatistics {
            suffered: suffered_announced(vm),
            avoided: guest.did.avoided[Class::ALL.len()],
            trouble,
        });
        let readable = vm.state == VmState::Watching && guest.ready == 1;
        VmStatistics {
            pid: vm.pid,
            name: vm.name.clone(),
            readable,
            trouble: match &vm.state {
                VmState::Unreadable(why) => Some(why.clone()),
                VmState::Watching if !readable => {
                    Some("its RCU cannot be read: it is scheduled like `plain`".into())
                }
                _ => self.follower.left(vm.pid),
            },
            policy: self.follower.policy(followed),
            weight: guest.weight,
            vcpus: vm.vcpus.len() as u32,
            on_cpu_ns: guest.did.on_cpu_ns,
            preempted: preempted.collect(),
            region,
            extended: granted(&guest.did.extended),
            rescued: granted(&guest.did.rescued),
            yielded: granted(&guest.did.yielded),
            gave_way: guest.did.gave_way,
            ..VmStatistics::default()
        }
    }
}

/// Preemptions of the class since the VM was found, or lost a vCPU.
fn suffered(vm: &VmSnapshot, class: Class) -> u64 {
    let all = vm.vcpus.iter().flat_map(|vcpu| &vcpu.preemptions);
    let those = all.filter(|preemptions| preemptions.class == class);
    those.map(|preemptions| preemptions.off_cpu.counts.iter().sum::<u64>()).sum()
}

/// The same, of those in sections that programs of the guest announced.
fn suffered_announced(vm: &VmSnapshot) -> u64 {
    vm.vcpus.iter().map(|vcpu| vcpu.announced).sum()
}

fn granted(granted: &types::granted) -> Granted {
    Granted {
        count: granted.count,
        total_ns: granted.total_ns,
        max_ns: granted.max_ns,
        refused: granted.refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_watch::model::{Histogram, Preemptions, Vcpu};

    fn vcpu(index: u32, preempted: u64) -> Vcpu {
        let off_cpu = Histogram { counts: vec![0, preempted], ..Histogram::default() };
        let class = Class::Softirq;
        Vcpu {
            index,
            tid: 100 + index,
            preemptions: vec![Preemptions { class, off_cpu, readers: 0, readers_off_cpu_ns: 0 }],
            announced: preempted / 2,
            ..Vcpu::default()
        }
    }

    #[test]
    fn preemptions_of_all_vcpus_count() {
        let vm = VmSnapshot { vcpus: vec![vcpu(0, 4), vcpu(1, 10)], ..VmSnapshot::default() };
        let of = |class| suffered(&vm, class);
        assert_eq!((of(Class::Softirq), of(Class::User), suffered_announced(&vm)), (14, 0, 7));
    }
}
