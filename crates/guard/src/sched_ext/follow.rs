// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the scheduler what changes: VMs that come and go, their vCPUs, weights, guests that boot.

use super::program::{Program, types};
use super::weight::{self, Weighed};
use crate::error::Error;
use crate::options::Policy;
use crate::undo::slice::{self, SHORT};
use libc::{SCHED_OTHER, SCHED_RESET_ON_FORK};
use reprieve_guest::BpfLayout;
use reprieve_guest::vmm::process;
use reprieve_watch::Which;
use reprieve_watch::cgroup;
use reprieve_watch::vms::discovery::Machines;
use reprieve_watch::vms::finder::Key;
use reprieve_watch::vms::machine::Machine;
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the list of VMs is looked at. Guests boot in seconds, and each look takes a CPU from a
/// vCPU, perhaps in a critical section.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often weights and limits of cgroups are read.
const CGROUPS: Duration = Duration::from_secs(5);

pub struct Follower {
    machines: Arc<Machines>,
    /// The policy of VMs that come.
    pub policy: Policy,
    /// VMs of which the scheduler was told.
    known: BTreeMap<Key, Known>,
    due: Instant,
    cgroups_due: Instant,
}

/// The scheduler's knowledge of a VM.
pub struct Known {
    /// The VM's name, or its process ID.
    name: String,
    /// The index of the VM's entry.
    pub index: u32,
    pub policy: Policy,
    /// The user who runs the VM.
    user: u32,
    vcpus: Vec<Vcpu>,
    boot: Option<u64>,
    /// The weight that the VM's cgroups give.
    weighed: Weighed,
    /// A CPU limit of its cgroups: the kernel schedules it.
    limit: Option<PathBuf>,
}

#[derive(PartialEq)]
struct Vcpu {
    tid: u32,
    /// The index of its entry.
    slot: u32,
    /// Its CPU in the guest.
    cpu: Option<u32>,
}

impl Follower {
    pub fn new(machines: Arc<Machines>, policy: Policy) -> Follower {
        let now = Instant::now();
        Follower { machines, policy, known: BTreeMap::new(), due: now, cgroups_due: now }
    }

    /// By process.
    pub fn vms(&self) -> BTreeMap<u32, &Known> {
        self.known.iter().map(|(key, known)| (key.pid, known)).collect()
    }

    /// By process, the part of a VM that the kernel schedules, and why.
    pub fn left(&self) -> BTreeMap<u32, String> {
        let machines = self.machines.lock();
        let running = machines.values().filter(|machine| machine.runs());
        running.filter_map(|machine| Some((machine.key.pid, self.left_of(machine)?))).collect()
    }

    /// At once; see [`Guard::set`](crate::Guard::set).
    pub fn set(
        &mut self,
        program: &Program,
        vm: Option<&str>,
        policy: Policy,
    ) -> Result<Vec<String>, Error> {
        // VMs that have just come.
        self.due = Instant::now();
        self.look(program);
        let mut chosen = self.chosen(vm)?;
        chosen.iter_mut().for_each(|known| known.apply(program, policy));
        let names = chosen.iter().map(|known| known.name.clone()).collect();
        if vm.is_none() {
            self.policy = policy;
        }
        Ok(names)
    }

    /// The VMs with this name or process ID. A VM of which the scheduler was not told yet is
    /// refused: the policy would be lost.
    fn chosen(&mut self, vm: Option<&str>) -> Result<Vec<&mut Known>, Error> {
        let which = vm.map_or(Which::All, |vm| Which::Named(vec![vm.into()]));
        let there: Vec<String> = self.known.values().map(|known| known.name.clone()).collect();
        let wanted = |of: &(&Key, &mut Known)| which.wants(of.0.pid, Some(&of.1.name));
        let chosen: Vec<&mut Known> =
            self.known.iter_mut().filter(wanted).map(|(_, known)| known).collect();
        match vm {
            Some(vm) if chosen.is_empty() => {
                let there = if there.is_empty() { "none".into() } else { there.join(", ") };
                Err(Error::NoVm { asked: vm.into(), there })
            }
            _ => Ok(chosen),
        }
    }

    /// Looks what has changed, if it is time.
    pub fn look(&mut self, program: &Program) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + INTERVAL;
        let cgroups = now >= self.cgroups_due;
        if cgroups {
            self.cgroups_due = now + CGROUPS;
        }
        let machines = self.machines.clone();
        let machines = machines.lock();
        let running = || machines.values().filter(|machine| machine.runs());
        let runs = |key: &Key| machines.get(key).is_some_and(Machine::runs);
        self.known.retain(|key, known| runs(key) || known.forget(program));
        // Asking for it starts a thread.
        let default_slice = LazyCell::<Option<Duration>>::new(|| slice::default().ok());
        running().for_each(|machine| self.tell(program, machine, cgroups, &default_slice));
        let mut sharing = BTreeMap::<(u32, &str), u32>::new();
        // Root's own divide nothing.
        for known in self.known.values().filter(|known| known.user != 0) {
            *sharing.entry((known.user, &known.weighed.cgroup)).or_default() += 1;
        }
        for known in self.known.values() {
            let vms = sharing.get(&(known.user, known.weighed.cgroup.as_str()));
            let weight = known.weighed.among(vms.copied().unwrap_or(1));
            known.set(program, offset_of!(types::guest, weight), weight);
        }
    }

    fn left_of(&self, machine: &Machine) -> Option<String> {
        if let Some(trouble) = &machine.trouble {
            return Some(format!("{trouble}; the kernel schedules them"));
        }
        let limit = self.known.get(&machine.key)?.limit.as_ref()?;
        Some(format!(
            "the kernel schedules it in short slices, for the CPU limit in {}",
            limit.display()
        ))
    }

    /// Tells of a VM; weights and limits are read anew if `cgroups`.
    fn tell(
        &mut self,
        program: &Program,
        machine: &Machine,
        cgroups: bool,
        default_slice: &LazyCell<Option<Duration>>,
    ) {
        // Without an entry, the kernel schedules it.
        let (Some(index), Some(user)) = (machine.index(), machine.user()) else { return };
        let pid = machine.key.pid;
        let vcpu = |v: &reprieve_watch::vms::machine::Vcpu| Vcpu {
            tid: v.slot.tid(),
            slot: v.slot.index(),
            cpu: v.cpu,
        };
        let vcpus: Vec<Vcpu> = machine.vcpus.iter().map(vcpu).collect();
        let layout = machine.layout();
        let boot = layout.map(|layout| layout.boot);
        let before = self.known.remove(&machine.key);
        let (weighed, limit) = match &before {
            Some(before) if !cgroups => (before.weighed.clone(), before.limit.clone()),
            _ => {
                let limited = |vcpu: &Vcpu| cgroup::limited_thread(vcpu.tid);
                (weight::of_process(pid), vcpus.iter().find_map(limited))
            }
        };
        let policy = before.as_ref().map_or(self.policy, |before| before.policy);
        let same =
            before.as_ref().is_some_and(|b| (b.index, &b.vcpus, b.boot) == (index, &vcpus, boot));
        if before.as_ref().is_none_or(|before| before.index != index) {
            let weight = weight::NORMAL;
            program.guests.put(index as usize, types::guest { weight, ..Default::default() });
        }
        let before = before.map(|before| before.vcpus).unwrap_or_default();
        let name = machine.name.clone().unwrap_or(pid.to_string());
        let mut known = Known { name, index, policy, user, vcpus, boot, weighed, limit };
        if !same {
            known.set(program, offset_of!(types::guest, ready), 0u32);
            known.apply(program, policy);
            let is_known = |tid| known.vcpus.iter().any(|vcpu| vcpu.tid == tid);
            // Other threads of the VMM's may have been taken for vCPUs.
            for tid in before.iter().map(|old| old.tid).filter(|&tid| !is_known(tid)) {
                if process::has_thread(pid, tid) {
                    switch(tid, SCHED_EXT, SCHED_OTHER);
                }
            }
            layout.inspect(|layout| known.describe(program, layout));
            program.changed();
        }
        // Somebody may have changed the policy of a thread and back.
        if cgroups || !same {
            for vcpu in known.vcpus.iter().filter(|vcpu| process::has_thread(pid, vcpu.tid)) {
                if known.limit.is_none() {
                    // The slice of a limit that is gone: a thread of sched_ext would keep it.
                    if slice::get(vcpu.tid).is_ok_and(|slice| slice == SHORT) {
                        let _ = slice::set(vcpu.tid, None);
                    }
                    switch(vcpu.tid, SCHED_OTHER, SCHED_EXT);
                    continue;
                }
                // sched_ext keeps no limit. A short slice is the next best.
                switch(vcpu.tid, SCHED_EXT, SCHED_OTHER);
                if let Some(default) = **default_slice {
                    let _ = slice::shorten(vcpu.tid, default, SHORT);
                }
            }
        }
        self.known.insert(machine.key, known);
    }

    /// All threads are ordinary ones again.
    pub fn release(&self) {
        for vcpu in self.known.values().flat_map(|known| &known.vcpus) {
            switch(vcpu.tid, SCHED_EXT, SCHED_OTHER);
        }
    }
}

impl Known {
    fn set<T: reprieve_watch::raw::Plain>(&self, program: &Program, field: usize, value: T) {
        program.guests.set_field(self.index as usize, field, value);
    }

    fn apply(&mut self, program: &Program, policy: Policy) {
        self.policy = policy;
        let full = u32::from(policy == Policy::Full);
        self.set(program, offset_of!(types::guest, full), full);
    }

    /// The VM has ended. Returns that it is not to be kept.
    fn forget(&self, program: &Program) -> bool {
        self.set(program, offset_of!(types::guest, ready), 0u32);
        program.changed();
        false
    }

    /// Says where the guest keeps what the scheduler reads.
    fn describe(&self, program: &Program, layout: &BpfLayout) {
        if let Some(rcu) = rcu(layout, &self.vcpus) {
            self.set(program, offset_of!(types::guest, rcu), rcu);
            // Another boot counts its grace periods anew.
            self.set(program, offset_of!(types::guest, grace), types::grace::default());
            self.set(program, offset_of!(types::guest, ready), 1u32);
        }
    }
}

/// Where the guest keeps its RCU's state, if that is known. What is beyond the scheduler's tables
/// is not rescued.
fn rcu(layout: &BpfLayout, vcpus: &[Vcpu]) -> Option<types::rcu> {
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
    for vcpu in vcpus {
        if let Some(entry) = vcpu.cpu.and_then(|cpu| rcu.slots.get_mut(cpu as usize)) {
            *entry = vcpu.slot + 1;
        }
    }
    Some(rcu)
}

const SCHED_EXT: libc::c_int = 7;

/// Gives the thread scheduling policy `to` in place of `from`. One with another policy has that for
/// a reason (a real-time priority), and keeps it. One that has ended needs none.
fn switch(tid: u32, from: libc::c_int, to: libc::c_int) {
    let tid = tid as libc::pid_t;
    // SAFETY: no memory is passed.
    let now = unsafe { libc::sched_getscheduler(tid) };
    if now >= 0 && now & !SCHED_RESET_ON_FORK == from {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: `parameters` is valid for the read.
        unsafe { libc::sched_setscheduler(tid, to | (now & SCHED_RESET_ON_FORK), &parameters) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{SCHED_BATCH, SCHED_IDLE};

    #[test]
    fn a_policy_for_a_vm_that_is_not_known_yet_is_refused() {
        let (machines, key) = (Arc::<Machines>::default(), Key { pid: 4711, start_time: 0 });
        machines.lock().insert(key, Machine::new(key, Some("db".into())));
        let mut follower = Follower::new(machines, Policy::Full);
        for vm in ["db", "4711"] {
            let refused = follower.chosen(Some(vm)).err().unwrap().to_string();
            assert!(refused.contains(vm) && refused.contains("there are none"), "{refused}");
        }
        let (name, weighed) = ("db".into(), weight::of_process(key.pid));
        let (policy, vcpus, boot, limit) = (Policy::Full, vec![], None, None);
        let known = Known { name, index: 0, policy, user: 0, vcpus, boot, weighed, limit };
        follower.known.insert(key, known);
        for vm in [Some("db"), Some("4711"), None] {
            assert_eq!(follower.chosen(vm).unwrap().len(), 1);
        }
        let refused = follower.chosen(Some("web")).err().unwrap().to_string();
        assert!(refused.ends_with("there are db"), "{refused}");
    }

    #[test]
    fn only_ordinary_threads_are_taken_from_their_class_and_given_back() {
        std::thread::spawn(|| {
            // SAFETY: no memory is passed.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            let before = policy() & !SCHED_RESET_ON_FORK;
            for flag in [0, SCHED_RESET_ON_FORK] {
                switch(0, before, SCHED_BATCH | flag);
                assert_eq!(policy(), SCHED_BATCH | flag);
                switch(0, SCHED_OTHER, SCHED_IDLE);
                assert_eq!(policy(), SCHED_BATCH | flag, "it has another policy");
                switch(0, SCHED_BATCH, before);
                assert_eq!(policy(), before | flag);
            }
        })
        .join()
        .unwrap();
    }
}
