// SPDX-License-Identifier: MIT OR Apache-2.0
//! A backend's statistics: the schema of `guard --json`. Counters are totals since it was attached,
//! or since the VM was found, and never fall, but for time on CPUs, as `watch` counts it. Times are
//! nanoseconds.

use crate::options::{Backend, Policy};
use reprieve_watch::model::{Class, Held, Preemptions, VmSnapshot, VmState};
use reprieve_watch::raw::Times;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Since the backend was attached.
    pub elapsed_ns: u64,
    pub backend: Backend,
    pub policy: Policy,
    /// Nothing is changed: the statistics say what would have been done.
    pub dry_run: bool,
    pub vms: Vec<VmStatistics>,
    /// Runs of the backend's decisions, and the time in them, where the backend measures it.
    pub decisions: u64,
    pub decisions_ns: u64,
    /// How long each of them took; empty where that is not measured.
    pub decision_times: Times,
    /// CPU time of guard's own process.
    pub process_ns: u64,
}

/// A virtual machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VmStatistics {
    /// The process ID of the VMM.
    pub pid: u32,
    pub name: String,
    /// Whether its guest can be read; else why not.
    pub readable: bool,
    pub trouble: Option<String>,
    /// The policy in force for the VM.
    pub policy: Policy,
    /// Beside other VMs; 100 is the normal one, and 0 says that the backend does not know.
    pub weight: u32,
    pub vcpus: u32,
    /// CPU time of its vCPUs.
    pub on_cpu_ns: u64,
    /// By what it was doing.
    pub preempted: Vec<Preempted>,
    /// Programs of the guest with hints, if the VM has a region for them.
    pub region: Option<RegionStatistics>,
    #[serde(flatten)]
    pub did: Did,
    /// In a dry run of [`Backend::SchedExt`]; then nothing was avoided or granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<Would>,
}

/// The help that the backend gave a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Did {
    /// Slices extended because of a critical section, and those of them that ended because the time
    /// was up.
    pub extended: Granted,
    /// Turns given to vCPUs that held up a grace period; `refused` for debt.
    pub rescued: Granted,
    /// Turns given to vCPUs for which another vCPU of the VM gave up its CPU (KVM's directed
    /// yields); `refused` for debt.
    pub yielded: Granted,
    /// Turns of a vCPU that ended although it was in a critical section, since it waited there for
    /// another one, which waited for a CPU: they are among the preemptions suffered.
    pub gave_way: u64,
    /// vCPUs that have short slices, with [`Backend::Eevdf`].
    pub short: u32,
}

impl VmStatistics {
    /// What `watch` sees of a VM for which nothing was done.
    pub(crate) fn of(vm: &VmSnapshot) -> VmStatistics {
        let suffered = |class| of_class(vm, class).map(|p| p.off_cpu.counts.iter().sum::<u64>());
        let preempted = |class| Preempted { class, suffered: suffered(class).sum(), avoided: 0 };
        VmStatistics {
            pid: vm.pid,
            name: vm.name.clone(),
            readable: vm.state == VmState::Watching,
            trouble: match &vm.state {
                VmState::Unreadable(why) => Some(why.clone()),
                VmState::Attaching => Some("its guest is not found yet".into()),
                _ => None,
            },
            vcpus: vm.vcpus.len() as u32,
            on_cpu_ns: vm.vcpus.iter().map(|vcpu| vcpu.on_cpu_ns).sum(),
            preempted: Class::ALL.map(preempted).into(),
            ..VmStatistics::default()
        }
    }

    /// The grants out of turn, with the names of their kinds.
    pub fn grants(&self) -> [(&'static str, &Granted); 3] {
        let Did { extended, rescued, yielded, .. } = &self.did;
        [("extended", extended), ("rescued", rescued), ("yielded", yielded)]
    }
}

/// The preemptions of each vCPU in that class, since the VM was found or lost a vCPU.
pub(crate) fn of_class(vm: &VmSnapshot, class: Class) -> impl Iterator<Item = &Preemptions> {
    vm.vcpus.iter().flat_map(|vcpu| &vcpu.preemptions).filter(move |p| p.class == class)
}

/// Announcements by programs with hints inside a guest, and the host's answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegionStatistics {
    /// Preemptions in non-preemptable sections that programs announced: those that took place,
    /// whatever the guest's kernel did at the time, and those that were due and were put off until
    /// the section was over.
    pub suffered: u64,
    pub avoided: u64,
    /// Why nothing is told, if so.
    pub trouble: Option<String>,
}

/// Preemptions of one class.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Preempted {
    pub class: Class,
    /// Preemptions that took place.
    pub suffered: u64,
    /// Preemptions that were due, and were put off until the vCPU was out of it.
    pub avoided: u64,
}

/// Events that a scheduler would have acted on, had it been loaded: events under the one in
/// force. What could not be done for this guest is `None`.
/// Preemptions count when they end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Would {
    /// Preemptions that `extend` would have put off, by class; only classes that occurred.
    pub extend: Option<Vec<PutOff>>,
    pub rescue: Option<HeldUp>,
}

/// Preemptions of one class that took place, and would have been put off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutOff {
    pub class: Class,
    pub count: u64,
    /// How long the vCPUs were off their CPUs then, and so was what waits for them.
    pub off_cpu_ns: u64,
    /// The longest; `None` where it is not known.
    pub max_off_cpu_ns: Option<u64>,
}

/// Grace periods that were late while a preempted vCPU owed them a quiescent state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    #[serde(flatten)]
    pub held: Held,
    /// All grace periods that ended.
    pub of: u64,
}

/// Time that was granted ahead of its turn. It is charged like any other.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Granted {
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    /// Wanted, and refused because of debt or budget.
    pub refused: u64,
}
