// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend that loads a scheduler of our own (`bpf/guard.bpf.c`).
//!
//! It builds on [`Watch`], which finds the VMs and keeps what the eBPF programs need to know of
//! them in arrays; the scheduler uses the same arrays. A thread (`follow`) tells the scheduler what
//! it needs beyond that: which threads are vCPUs, the weights of VMs, where guests keep their RCU's
//! state.
//!
//! The kernel detaches the scheduler when this process ends, however it ends, and then every thread
//! is scheduled as before.

mod check;
mod domains;
mod follow;
mod hints;
mod program;
mod regions;
mod rules;
mod weight;

use crate::backend::Guard;
use crate::error::Error;
use crate::options::{Backend, Change, Options};
use crate::statistics::{
    Granted, HintStatistics, LimitStatistics, Preempted, RegionStatistics, Statistics, VmStatistics,
};
pub use check::{kept_limits, ticks_hidden, timers_in_threads, unkept_limit};
use follow::{Followed, Follower};
use hints::Hints;
use program::{Program, types};
use regions::Regions;
use reprieve_watch::Watch;
use reprieve_watch::cgroup;
use reprieve_watch::model::{Class, VmSnapshot, VmState};
use reprieve_watch::publish::Server;
use reprieve_watch::raw::clock;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct SchedExt {
    /// Dropped first: what it says is no longer true. Or why there is none.
    hints: Result<Hints, String>,
    /// Reads the arrays of `watch`.
    regions: Regions,
    /// Dropped before the program: it tells the program about VMs.
    follower: Follower,
    /// Before the arrays that it shares with `watch`.
    program: Arc<Program>,
    watch: Watch,
    limited: cgroup::Limited,
    options: Options,
    started_ns: u64,
    process_ns: u64,
    restarts: u64,
}

impl SchedExt {
    pub fn start(options: &Options) -> Result<SchedExt, Error> {
        check::host(options)?;
        let process_ns = clock::process_ns();
        let watch = Watch::start(&reprieve_watch::Options {
            interval: options.interval,
            stand_ins: options.stand_ins.clone(),
            ..reprieve_watch::Options::default()
        })?;
        let (machines, slots, kvm) = watch.parts();
        let mut server = serve(options);
        let maps = server.as_ref().ok().map(Server::shared_maps);
        let program = Arc::new(Program::load(options, &slots.program, &kvm, maps)?);
        program.help_threads(&[options.policy]);
        let follower = Follower::start(machines.clone(), program.clone(), options)?;
        program.attach()?;
        let page = server.as_ref().ok().map(Server::view).transpose();
        let regions = page.and_then(|page| Regions::serve(machines, slots, page));
        let regions = regions
            .map_err(|source| Error::Io { what: "serving guests' regions".into(), source })?;
        if let (Ok(server), false) = (&mut server, options.only_vms) {
            server.set_guarded();
        }
        let hints = server.and_then(|server| {
            Hints::serve(server).map_err(|error| format!("hints: starting a thread: {error}"))
        });
        let (options, started_ns) = (options.clone(), clock::now_ns());
        Ok(SchedExt {
            hints,
            regions,
            follower,
            program,
            watch,
            limited: cgroup::Limited::default(),
            options,
            started_ns,
            process_ns,
            restarts: 0,
        })
    }
}

impl Guard for SchedExt {
    fn statistics(&mut self) -> Result<Statistics, Error> {
        let snapshot = self.watch.snapshot()?;
        let followed = self.follower.vms();
        let vms = snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone);
        let vms = vms.map(|vm| self.vm(vm, &followed)).collect();
        let (decisions, decisions_ns, decision_times) = self.program.cost();
        let (load, task_groups) = self.program.weights();
        Ok(Statistics {
            time_ns: snapshot.time_ns,
            elapsed_ns: snapshot.time_ns.saturating_sub(self.started_ns),
            backend: Backend::SchedExt,
            policy: self.options.policy,
            dry_run: false,
            vms,
            hints: self.hint_statistics(),
            limits: self.limits(),
            user_limits_lost: self.program.users_limits_lost(),
            load,
            task_groups,
            decisions,
            decisions_ns,
            decision_times,
            functions: self.program.functions(),
            process_ns: clock::process_ns().saturating_sub(self.process_ns),
            restarts: self.restarts,
        })
    }

    fn set(&mut self, vm: Option<&str>, change: &Change) -> Result<Vec<String>, Error> {
        self.follower.set(vm, change)
    }

    fn ended(&mut self) -> Option<String> {
        if let Some(refused) = self.follower.refused() {
            return Some(refused);
        }
        let ended = self.program.ended()?;
        if !ended.restart {
            return Some(ended.why);
        }
        // CPUs came or went: the kernel wants the scheduler to begin anew, with those there are.
        self.restarts += 1;
        let (_, slots, kvm) = self.watch.parts();
        let again = self.program.load_again(&self.options, &slots.program, &kvm);
        again.err().map(|error| format!("{}, and it cannot be loaded again: {error}", ended.why))
    }
}

/// The server of hints, or why there is none.
fn serve(options: &Options) -> Result<Server, String> {
    let socket = options.hints.as_deref().ok_or_else(String::new)?;
    Server::start(socket).map_err(|error| format!("hints are not served: {error}"))
}

impl SchedExt {
    fn hint_statistics(&self) -> HintStatistics {
        let all = self.program.threads.get(0);
        let [_, sections, readers] = all.avoided;
        HintStatistics {
            counts: self.hints.as_ref().map(Hints::counts).unwrap_or_default(),
            extended: granted(&all.extended),
            avoided_in_section: sections,
            avoided_in_reader: readers,
            trouble: self.hints_trouble(),
        }
    }

    fn limits(&mut self) -> Vec<LimitStatistics> {
        let all = self.program.bandwidths();
        let ids: Vec<u64> = all.iter().map(|limit| limit.cgroup).collect();
        let paths = self.limited.paths(&ids);
        let limit = |limit: types::bandwidth| LimitStatistics {
            cgroup: paths.get(&limit.cgroup).map(|path| path.display().to_string()),
            id: limit.cgroup,
            quota_ns: limit.quota_ns,
            period_ns: limit.period_ns,
            burst_ns: limit.burst_ns,
            periods: limit.periods,
            throttled: limit.throttled,
            throttled_ns: limit.throttled_ns,
            used_ns: limit.used_ns,
        };
        all.into_iter().map(limit).collect()
    }

    fn hints_trouble(&self) -> Option<String> {
        match &self.hints {
            Ok(hints) => hints.failed(),
            Err(why) => Some(why.clone()).filter(|why| !why.is_empty()),
        }
    }

    fn vm(&self, vm: &VmSnapshot, followed: &BTreeMap<u32, Followed>) -> VmStatistics {
        let followed = followed.get(&vm.pid);
        let guest = followed.map(|vm| self.program.guests.get(vm.index as usize));
        let guest = guest.unwrap_or_default();
        let preempted = Class::ALL
            .into_iter()
            .zip(guest.avoided)
            .map(|(class, avoided)| Preempted { class, suffered: suffered(vm, class), avoided });
        let region = self.regions.statistics(vm.pid).map(|region| RegionStatistics {
            suffered: suffered_announced(vm),
            avoided: guest.avoided[Class::ALL.len()],
            ..region
        });
        let readable = vm.state == VmState::Watching && guest.ready == 1;
        let treatment = self.follower.treatment(followed, &vm.name);
        let rescues = treatment.policies.iter().any(|policy| policy.rescues());
        let of_graces = |ns: u64| Some(ns).filter(|&ns| readable && rescues && ns > 0);
        VmStatistics {
            pid: vm.pid,
            name: vm.name.clone(),
            readable,
            trouble: match &vm.state {
                VmState::Unreadable(why) => Some(why.clone()),
                VmState::Watching if !readable => {
                    Some("its RCU cannot be read: it is scheduled like `plain`".into())
                }
                _ => self.follower.short(vm.pid),
            },
            rescue_share: rescues.then_some(treatment.rescue_share),
            policies: treatment.policies,
            weight: guest.weight,
            vcpus: vm.vcpus.len() as u32,
            on_cpu_ns: guest.on_cpu_ns,
            entitled_ns: Some(guest.entitled_ns),
            preempted: preempted.collect(),
            region,
            extended: granted(&guest.extended),
            quiesced: granted(&guest.quiesced),
            rescued: granted(&guest.rescued),
            grace_mean_ns: of_graces(guest.grace_ns),
            late_ns: of_graces(guest.late_ns),
            yielded: granted(&guest.yielded),
            ticks_waited: guest.ticks,
            spun: guest.spun,
            gave_way: guest.gave_way,
            shortened: Granted::default(),
            would: None,
        }
    }
}

/// Preemptions of the class since the VM was found, also of vCPUs that were taken out of it.
fn suffered(vm: &VmSnapshot, class: Class) -> u64 {
    let all = vm.counted().flat_map(|vcpu| &vcpu.preemptions);
    let those = all.filter(|preemptions| preemptions.class == class);
    those.map(|preemptions| preemptions.off_cpu.counts.iter().sum::<u64>()).sum()
}

/// The same, of those in sections that programs of the guest announced.
fn suffered_announced(vm: &VmSnapshot) -> u64 {
    vm.counted().map(|vcpu| vcpu.announced).sum()
}

fn granted(granted: &types::granted) -> Granted {
    Granted {
        count: granted.count,
        total_ns: granted.total_ns,
        max_ns: granted.max_ns,
        expired: granted.expired,
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
    fn preemptions_do_not_fall_when_vcpus_go() {
        let counts = |vcpus: Vec<Vcpu>, former: Option<Vcpu>| {
            let vm = VmSnapshot { vcpus, former, ..VmSnapshot::default() };
            let of = |class| suffered(&vm, class);
            (of(Class::Softirq), of(Class::User), suffered_announced(&vm))
        };
        assert_eq!(counts(vec![vcpu(0, 4), vcpu(1, 10)], None), (14, 0, 7));
        assert_eq!(counts(vec![vcpu(0, 6)], Some(vcpu(0, 10))), (16, 0, 8));
    }
}
