// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulator that runs the scheduler: `bpf/guard.bpf.c` itself, compiled for this process
//! (`native/guard.c`), on a simulated kernel ([`kernel`]) beside simulated guests ([`guest`]).
//! Events follow each other in simulated time, and a seed decides all chances: a run repeats
//! exactly.
//!
//! The simulator lacks:
//!
//! - what costs time on a real host: caches, switches, exits, the scheduler itself
//! - two CPUs at once: whatever the scheduler does takes no time, so races do not happen
//! - the deadline server, NUMA nodes, siblings, hot-plugged CPUs
//! - the verifier
//! - of guests all but ticks, RCU, and one spin lock each; readers that are preempted

mod guest;
mod kernel;
mod native;
mod tests;

use super::program::{settings, types};
use crate::options::Options;
use guest::{Habit, Yields};
use kernel::{Machine, machine};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The scheduler has one set of variables. So a test has one host at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A host that guard schedules.
struct Host {
    _alone: MutexGuard<'static, ()>,
}

impl Host {
    fn new(cpus: usize, seed: u64) -> Host {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        native::native_load(&settings(&Options::default(), cpus, cpus));
        *machine() = Machine::new(cpus, seed);
        assert_eq!(native::guard_init(), 0);
        Host { _alone: alone }
    }

    /// A VM of so many vCPUs.
    fn vcpus(&self, weight: u32, policy: u32, habit: Habit, count: usize) -> usize {
        let vm = machine().add_vm(weight, policy);
        (0..count).for_each(|_| self.tell(self.add(vm, habit)));
        vm
    }

    /// A vCPU that the scheduler takes for any thread. It wakes up soon.
    fn add(&self, vm: usize, habit: Habit) -> usize {
        let mut m = machine();
        let cpu = m.vcpus.len() % m.cpus.len();
        let vcpu = m.add_vcpu(vm, habit, cpu);
        let first = m.random.u64(..1_000_000);
        m.after(first, move || kernel::wake(vcpu, cpu));
        vcpu
    }

    fn tell(&self, vcpu: usize) {
        native::native_add_vcpu(vcpu as u32, vcpu as u32);
    }

    /// The VM's vCPUs may run on those CPUs only. Each is on the first of them, or sleeps.
    fn pin(&self, vm: usize, cpus: impl IntoIterator<Item = usize> + Clone) {
        for vcpu in self.of(vm) {
            kernel::set_mask(vcpu, cpus.clone().into_iter().collect());
        }
    }

    fn run(&self, time: u64) {
        let end = machine().now + time;
        let next = || machine().next(end);
        while let Some(event) = next() {
            event();
        }
    }

    /// The VM's vCPUs.
    fn of(&self, vm: usize) -> Vec<usize> {
        machine().vms[vm].vcpus.clone()
    }

    fn ran(&self, vm: usize) -> u64 {
        self.of(vm).into_iter().map(|vcpu| machine().ran(vcpu)).sum()
    }

    /// The longest that a vCPU of the VM has waited for a CPU.
    fn longest_wait(&self, vm: usize) -> u64 {
        let m = machine();
        let all = m.vms[vm].vcpus.iter().map(|&vcpu| &m.threads[vcpu]);
        let waits = all.map(|one| one.waits.map_or(0, |at| m.now - at).max(one.longest_wait));
        waits.max().unwrap_or(0)
    }

    fn told<R>(&self, vm: usize, of: impl FnOnce(&types::did) -> R) -> R {
        native::guest(vm, |guest| of(&guest.did))
    }

    /// Mean and 90th percentile of the VM's grace periods.
    fn graces(&self, vm: usize) -> (u64, u64) {
        let mut all = machine().vms[vm].graces.clone();
        all.sort_unstable();
        (all.iter().sum::<u64>() / all.len() as u64, all[all.len() * 9 / 10])
    }
}
