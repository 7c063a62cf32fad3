// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the scheduler what changes: VMs that come and go, their vCPUs, weights, guests that boot.

use super::program::{Program, types};
use super::weight::{self, Weighed};
use crate::error::Error;
use crate::options::{Options, Policy};
use libc::{SCHED_OTHER, SCHED_RESET_ON_FORK};
use reprieve_guest::layout::{BpfLayout, Spin};
use reprieve_guest::vmm::process;
use reprieve_watch::Which;
use reprieve_watch::cgroup;
use reprieve_watch::vms::discovery::Machines;
use reprieve_watch::vms::finder::Key;
use reprieve_watch::vms::machine::Machine;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the list of VMs is looked at. Guests boot in seconds, and each look takes a CPU from a
/// vCPU, perhaps in a critical section.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often weights and limits of cgroups are read.
const CGROUPS: Duration = Duration::from_secs(5);

/// Ends the thread, and waits for it, when dropped.
pub struct Follower {
    machines: Arc<Machines>,
    program: Arc<Program>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A VM of which the scheduler was told.
#[derive(Clone, Copy)]
pub struct Followed {
    key: Key,
    /// The index of the VM's entry.
    pub index: u32,
}

/// The policies in force.
struct Policies {
    all: Policy,
    /// VMs with another one.
    other: BTreeMap<Key, Policy>,
}

impl Policies {
    fn of(&self, vm: Key) -> Policy {
        self.other.get(&vm).copied().unwrap_or(self.all)
    }
}

struct Shared {
    stop: AtomicBool,
    /// By process: VMs that are followed; what of a VM the kernel schedules, and why.
    told: Mutex<(BTreeMap<u32, Followed>, BTreeMap<u32, String>)>,
    /// Locked after the machines.
    policies: Mutex<Policies>,
}

impl Shared {
    fn policies(&self) -> MutexGuard<'_, Policies> {
        self.policies.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Follower {
    pub fn start(
        machines: Arc<Machines>,
        program: Arc<Program>,
        options: &Options,
    ) -> Result<Follower, Error> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            told: Mutex::default(),
            policies: Mutex::new(Policies { all: options.policy, other: BTreeMap::new() }),
        });
        let mut state = State {
            machines: machines.clone(),
            program: program.clone(),
            shared: shared.clone(),
            known: BTreeMap::new(),
            cgroups_due: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("guard-follow".into())
            .spawn(move || state.run())
            .map_err(|source| Error::Io { what: "starting a thread".into(), source })?;
        Ok(Follower { machines, program, shared, thread: Some(thread) })
    }

    /// By process.
    pub fn vms(&self) -> BTreeMap<u32, Followed> {
        self.shared.told.lock().unwrap_or_else(|e| e.into_inner()).0.clone()
    }

    /// The part of the VM that the kernel schedules, and why.
    pub fn left(&self, pid: u32) -> Option<String> {
        self.shared.told.lock().unwrap_or_else(|e| e.into_inner()).1.get(&pid).cloned()
    }

    /// The policy for the VM.
    pub fn policy(&self, vm: Option<&Followed>) -> Policy {
        let policies = self.shared.policies();
        vm.map_or(policies.all, |vm| policies.of(vm.key))
    }

    /// At once; see [`Guard::set`](crate::Guard::set).
    pub fn set(&self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
        let machines = self.machines.lock();
        let known = self.vms();
        let name = |machine: &Machine| machine.name.clone().unwrap_or(machine.key.pid.to_string());
        let running = || machines.values().filter(|machine| machine.runs());
        let which = vm.map_or(Which::All, |vm| Which::Named(vec![vm.into()]));
        let chosen: Vec<&Machine> =
            running().filter(|m| which.wants(m.key.pid, m.name.as_deref())).collect();
        if let (Some(vm), true) = (vm, chosen.is_empty()) {
            let there: Vec<String> = running().map(name).collect();
            let there = if there.is_empty() { "none".into() } else { there.join(", ") };
            return Err(Error::NoVm { asked: vm.into(), there });
        }
        let mut policies = self.shared.policies();
        if vm.is_none() {
            *policies = Policies { all: policy, other: BTreeMap::new() };
        }
        for key in chosen.iter().map(|machine| machine.key) {
            policies.other.insert(key, policy);
            if let Some(vm) = known.get(&key.pid).filter(|vm| vm.key == key) {
                apply(&self.program, vm.index, policy);
            }
        }
        Ok(chosen.into_iter().map(name).collect())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct State {
    machines: Arc<Machines>,
    program: Arc<Program>,
    shared: Arc<Shared>,
    known: BTreeMap<Key, Known>,
    cgroups_due: Instant,
}

/// The scheduler's knowledge of a VM.
struct Known {
    index: u32,
    /// Thread, entry and CPU in the guest of each vCPU.
    vcpus: Vec<(u32, u32, Option<u32>)>,
    boot: Option<u64>,
    /// The weight that the VM's cgroups give.
    weighed: Weighed,
    /// A CPU limit of its cgroups: the kernel schedules it.
    limit: Option<PathBuf>,
}

/// Tells the scheduler the policy for the VM with this entry.
fn apply(program: &Program, index: u32, policy: Policy) {
    let full = u32::from(policy == Policy::Full);
    program.guests.set_field(index as usize, offset_of!(types::guest, full), full);
}

impl State {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.follow();
            std::thread::park_timeout(INTERVAL);
        }
        for known in self.known.values() {
            release(known);
        }
    }

    fn follow(&mut self) {
        let start = Instant::now();
        let cgroups = start >= self.cgroups_due;
        if cgroups {
            self.cgroups_due = start + CGROUPS;
        }
        let machines = self.machines.clone();
        let machines = machines.lock();
        let runs = |key: &Key| machines.get(key).is_some_and(|machine| machine.runs());
        let gone: Vec<Key> = self.known.keys().filter(|key| !runs(key)).copied().collect();
        gone.into_iter().for_each(|key| self.forget(key));
        self.shared.policies().other.retain(|key, _| runs(key));
        // VMs with an entry.
        let running = || {
            let running = machines.values().filter(|machine| machine.runs());
            running.filter(|machine| machine.user().is_some())
        };
        let weighed: BTreeMap<Key, Weighed> =
            running().map(|machine| (machine.key, self.weigh(machine, cgroups))).collect();
        let mut sharing = BTreeMap::<(u32, &str), u32>::new();
        for machine in running() {
            if let Some(user) = machine.user() {
                *sharing.entry((user, &weighed[&machine.key].cgroup)).or_default() += 1;
            }
        }
        for machine in running() {
            let of = &weighed[&machine.key];
            // Root's own divide nothing.
            let user = machine.user().filter(|&user| user != 0);
            let vms = user.map_or(1, |user| sharing[&(user, of.cgroup.as_str())]);
            self.tell(machine, cgroups, of, of.among(vms));
        }
        let followed =
            |(&key, known): (&Key, &Known)| (key.pid, Followed { key, index: known.index });
        let followed = self.known.iter().map(followed).collect();
        let running = machines.values().filter(|machine| machine.runs());
        let left = running.filter_map(|machine| Some((machine.key.pid, self.left(machine)?)));
        let told = (followed, left.collect());
        *self.shared.told.lock().unwrap_or_else(|e| e.into_inner()) = told;
    }

    /// The part of the VM that the kernel schedules, and why.
    fn left(&self, machine: &Machine) -> Option<String> {
        if let Some(trouble) = &machine.trouble {
            return Some(format!("{trouble}; the kernel schedules them"));
        }
        let limit = self.known.get(&machine.key)?.limit.as_ref()?;
        Some(format!("the kernel schedules it, for the CPU limit in {}", limit.display()))
    }

    fn forget(&mut self, key: Key) {
        let Some(known) = self.known.remove(&key) else { return };
        self.program.guests.set_field(known.index as usize, offset_of!(types::guest, ready), 0u32);
        for &(tid, slot, _) in &known.vcpus {
            self.program.remove_vcpu(tid, slot);
        }
        self.program.changed();
    }

    /// The weight by the VM's cgroups, which are read anew if `anew`.
    fn weigh(&self, machine: &Machine, anew: bool) -> Weighed {
        match self.known.get(&machine.key) {
            Some(known) if !anew => known.weighed.clone(),
            _ => weight::of_process(machine.key.pid),
        }
    }

    fn tell(&mut self, machine: &Machine, cgroups: bool, weighed: &Weighed, weight: u32) {
        let Some(index) = machine.index() else { return };
        let entry = index as usize;
        let vcpus: Vec<(u32, u32, Option<u32>)> =
            machine.vcpus.iter().map(|v| (v.slot.tid(), v.slot.index(), v.cpu)).collect();
        let layout = machine.layout();
        let boot = layout.map(|layout| layout.boot);
        let limit = match self.known.get(&machine.key) {
            Some(known) if !cgroups => known.limit.clone(),
            _ => vcpus.iter().find_map(|&(tid, ..)| cgroup::limited_thread(tid)),
        };
        // sched_ext keeps no limit. Somebody may have changed the policy of a thread and back.
        if cgroups || !self.known.contains_key(&machine.key) {
            let policy = if limit.is_some() { given_back } else { taken };
            let pid = machine.key.pid;
            let threads = vcpus.iter().filter(|(tid, ..)| process::has_thread(pid, *tid));
            threads.for_each(|&(tid, ..)| switch(tid, policy));
        }
        // Only what does not change who it is: its guest's state stays.
        if let Some(known) = self.known.get_mut(&machine.key) {
            if (known.index, &known.vcpus, known.boot) == (index, &vcpus, boot) {
                self.program.guests.set_field(entry, offset_of!(types::guest, weight), weight);
                (known.weighed, known.limit) = (weighed.clone(), limit);
                return;
            }
        }
        let known = self.known.get(&machine.key);
        let guests = &self.program.guests;
        if known.is_none_or(|known| known.index != index) {
            guests.put(entry, types::guest::default());
        }
        guests.set_field(entry, offset_of!(types::guest, ready), 0u32);
        guests.set_field(entry, offset_of!(types::guest, weight), weight);
        apply(&self.program, index, self.shared.policies().of(machine.key));
        let before = known.map(|known| known.vcpus.clone()).unwrap_or_default();
        for &(tid, slot, _) in &before {
            if !vcpus.iter().any(|v| (v.0, v.1) == (tid, slot)) {
                self.program.remove_vcpu(tid, slot);
                // The thread may be another of the VMM's, which had been taken for a vCPU.
                if process::has_thread(machine.key.pid, tid) {
                    switch(tid, given_back);
                }
            }
        }
        for &(tid, slot, _) in &vcpus {
            if !before.iter().any(|v| (v.0, v.1) == (tid, slot)) {
                // A full table: the kernel schedules the thread.
                if self.program.add_vcpu(tid, slot).is_ok() && limit.is_none() {
                    switch(tid, taken);
                }
            }
        }
        if let Some(layout) = layout {
            guests.set_field(entry, offset_of!(types::guest, spins), spins(layout));
            if let Some(rcu) = rcu(layout, &vcpus) {
                guests.set_field(entry, offset_of!(types::guest, rcu), rcu);
                // Another boot counts its grace periods anew.
                guests.set_field(entry, offset_of!(types::guest, grace), types::grace::default());
                guests.set_field(entry, offset_of!(types::guest, ready), 1u32);
            }
        }
        self.program.changed();
        let weighed = weighed.clone();
        self.known.insert(machine.key, Known { index, vcpus, boot, weighed, limit });
    }
}

/// The code in which the guest's CPUs spin for each other.
fn spins(layout: &BpfLayout) -> types::spins {
    let mut all = types::spins::default();
    for (entry, Spin { code, for_owner }) in all.code.iter_mut().zip(&layout.spins) {
        let bytes = (code.end - code.start) as u32;
        *entry = types::spin { start: code.start, bytes, for_owner: u32::from(*for_owner) };
        all.used += 1;
    }
    all
}

/// Where the guest keeps its RCU's state, if that is known. What is beyond the scheduler's tables
/// is not rescued.
fn rcu(layout: &BpfLayout, vcpus: &[(u32, u32, Option<u32>)]) -> Option<types::rcu> {
    let of = layout.rcu.as_ref()?;
    let mut rcu = types::rcu {
        node_entry: of.node_entry.unwrap_or(0),
        task_cpu: of.task_cpu.unwrap_or(0),
        kthread_task: of.kthread_task.unwrap_or(0),
        kthread_cpu: of.kthread_cpu.unwrap_or(0),
        kthread_on_rq: of.kthread_on_rq.unwrap_or(0),
        kthread_state: of.kthread_state.unwrap_or(0),
        fqs_due: of.fqs_due.unwrap_or(0),
        jiffies: layout.jiffies.unwrap_or(0),
        ..types::rcu::default()
    };
    for (entry, leaf) in rcu.leaves.iter_mut().zip(&of.leaves) {
        *entry = types::leaf {
            qsmask: leaf.qsmask,
            gp_tasks: leaf.gp_tasks.unwrap_or(0),
            first_cpu: leaf.first_cpu,
            cpus: leaf.last_cpu - leaf.first_cpu + 1,
        };
        rcu.leaves_used += 1;
    }
    for &(_, slot, cpu) in vcpus {
        if let Some(entry) = cpu.and_then(|cpu| rcu.slots.get_mut(cpu as usize)) {
            *entry = slot + 1;
        }
    }
    Some(rcu)
}

const SCHED_EXT: libc::c_int = 7;

/// Gives the thread the scheduling policy that `policy` makes of its own, if any. One that has
/// ended needs none.
fn switch(tid: u32, policy: fn(libc::c_int) -> Option<libc::c_int>) {
    let tid = tid as libc::pid_t;
    // SAFETY: no memory is passed.
    let now = unsafe { libc::sched_getscheduler(tid) };
    if let Some(policy) = (now >= 0).then(|| policy(now)).flatten() {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: `parameters` is valid for the read.
        unsafe { libc::sched_setscheduler(tid, policy, &parameters) };
    }
}

/// The policy of a vCPU's thread while guard schedules it. One with another policy than the
/// usual one has that for a reason (a real-time priority), and keeps it.
fn taken(policy: libc::c_int) -> Option<libc::c_int> {
    let keeps = policy & SCHED_RESET_ON_FORK;
    (policy & !SCHED_RESET_ON_FORK == SCHED_OTHER).then_some(SCHED_EXT | keeps)
}

/// The policy of a vCPU's thread afterwards.
fn given_back(policy: libc::c_int) -> Option<libc::c_int> {
    let keeps = policy & SCHED_RESET_ON_FORK;
    (policy & !SCHED_RESET_ON_FORK == SCHED_EXT).then_some(SCHED_OTHER | keeps)
}

/// The threads are ordinary ones again.
fn release(known: &Known) {
    for &(tid, ..) in &known.vcpus {
        switch(tid, given_back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_threads_are_taken_from_their_class_and_given_back() {
        for flag in [0, SCHED_RESET_ON_FORK] {
            assert_eq!(taken(SCHED_OTHER | flag), Some(SCHED_EXT | flag));
            assert_eq!(given_back(SCHED_EXT | flag), Some(SCHED_OTHER | flag));
            for other in [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_BATCH, libc::SCHED_IDLE] {
                assert_eq!((taken(other | flag), given_back(other | flag)), (None, None));
            }
        }
        // Left by a guard that was killed: it is ordinary again afterwards.
        assert_eq!(taken(SCHED_EXT), None);
    }
}
