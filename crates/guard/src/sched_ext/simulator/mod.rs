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
use guest::Habit;
use kernel::{Current, Machine, Mask, machine};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Kicks reach the CPU.
    Kick(usize),
    Reschedule(usize),
    EnqueueAgain(usize),
    Tick(usize),
    /// The CPU's timer expires, if that start of it is the last.
    Timer(usize, u64),
    /// The vCPU has done what it planned.
    Work(usize, u64),
    /// Something wakes the vCPU, on that CPU.
    Wake(usize, usize),
    /// The vCPU has spun for long, if it still does.
    Yield(usize),
    /// The vCPU's tick is due, if it waits for a CPU still.
    GuestTick(usize, u64),
    /// Threads of other classes come to the CPU or go, for those times in the mean.
    Ordinary(usize, u64, u64),
}

/// The scheduler has one set of variables. So a test has one host at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A host that guard schedules.
struct Host {
    _alone: MutexGuard<'static, ()>,
}

impl Host {
    fn new(cpus: usize, seed: u64) -> Host {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let options = Options::default();
        native::native_load(&settings(&options, cpus, cpus));
        Machine::make(cpus, seed);
        assert_eq!(native::guard_init(), 0);
        for cpu in 0..cpus {
            machine(|m| m.here = cpu);
            assert_eq!(native::guard_start_timer(std::ptr::null_mut()), 0);
        }
        Host { _alone: alone }
    }

    fn vm(&self, weight: u32, full: u32) -> usize {
        machine(|m| m.add_vm(weight, full))
    }

    fn add(&self, vm: usize, habit: Habit) -> usize {
        let vcpu = self.add_untold(vm, habit);
        self.tell(vcpu);
        vcpu
    }

    /// A vCPU that the scheduler takes for any thread. It wakes up soon.
    fn add_untold(&self, vm: usize, habit: Habit) -> usize {
        machine(|m| {
            let cpu = m.vcpus.len() % m.cpus.len();
            let vcpu = m.add_vcpu(vm, habit, cpu);
            let first = m.now + m.random.below(1_000_000);
            m.at(first, Event::Wake(vcpu, cpu));
            vcpu
        })
    }

    fn tell(&self, vcpu: usize) {
        native::native_add_vcpu(machine(|m| m.vcpus[vcpu].pid as u32), vcpu as u32);
    }

    /// The vCPU may run on those CPUs only. It is on the first of them, or sleeps.
    fn pin(&self, vcpu: usize, cpus: impl IntoIterator<Item = usize>) {
        let cpus: Vec<usize> = cpus.into_iter().collect();
        let pid = machine(|m| {
            let pid = m.vcpus[vcpu].pid;
            if !m.threads[pid].task.is_queued() {
                m.threads[pid].cpu = cpus[0];
            }
            pid
        });
        kernel::set_mask(pid, Mask::of(cpus));
    }

    /// Threads of other classes run on the CPU for `runs`, and not for `rests`, in the mean.
    fn ordinary(&self, cpu: usize, runs: u64, rests: u64) {
        machine(|m| m.at(m.now, Event::Ordinary(cpu, runs, rests)));
    }

    fn run(&self, time: u64) {
        let end = machine(|m| m.now + time);
        while let Some(event) = machine(|m| m.next(end)) {
            handle(event);
        }
    }

    fn vcpu_ran(&self, vcpu: usize) -> u64 {
        machine(|m| m.ran(m.vcpus[vcpu].pid))
    }

    fn ran(&self, vm: usize) -> u64 {
        machine(|m| m.vms[vm].vcpus.clone()).into_iter().map(|vcpu| self.vcpu_ran(vcpu)).sum()
    }

    /// The longest that a vCPU of the VM has waited for a CPU.
    fn longest_wait(&self, vm: usize) -> u64 {
        machine(|m| {
            let all = m.vms[vm].vcpus.iter().map(|&vcpu| &m.threads[m.vcpus[vcpu].pid]);
            let waits = all.map(|one| one.waits.map_or(0, |at| m.now - at).max(one.longest_wait));
            waits.max().unwrap_or(0)
        })
    }
}

fn handle(event: Event) {
    match event {
        Event::Kick(cpu) => kernel::kicked(cpu),
        Event::Reschedule(cpu) => kernel::schedule(cpu, false),
        Event::EnqueueAgain(cpu) => kernel::enqueue_again(cpu),
        Event::Tick(cpu) => kernel::tick(cpu),
        Event::Timer(cpu, start) => {
            let counts = machine(|m| {
                m.here = cpu;
                m.update_current(cpu);
                m.cpus[cpu].timer == start
            });
            if counts {
                native::native_timer(cpu as u32);
            }
        }
        Event::Work(vcpu, plan) => {
            let cpu = machine(|m| {
                let pid = m.vcpus[vcpu].pid;
                let cpu = m.threads[pid].cpu;
                m.here = cpu;
                (m.vcpus[vcpu].plan == plan && m.work(vcpu)).then_some(cpu)
            });
            if let Some(cpu) = cpu {
                kernel::schedule(cpu, true);
            }
        }
        Event::Wake(vcpu, here) => {
            let wakes = machine(|m| {
                let pid = m.vcpus[vcpu].pid;
                (!m.threads[pid].task.is_queued() && m.is_woken(vcpu)).then_some(pid)
            });
            if let Some(pid) = wakes {
                kernel::wake(pid, here);
            }
        }
        Event::Yield(vcpu) => {
            let pid = |m: &Machine, vcpu: usize| m.vcpus[vcpu].pid;
            let (from, to) = machine(|m| (pid(m, vcpu), m.yields_to(vcpu).map(|to| pid(m, to))));
            if let Some(to) = to {
                kernel::yield_to(machine(|m| m.threads[from].cpu), from, to);
            }
        }
        Event::GuestTick(vcpu, plan) => {
            let due = machine(|m| {
                let pid = m.vcpus[vcpu].pid;
                m.here = m.threads[pid].cpu;
                (m.vcpus[vcpu].plan == plan).then_some(pid)
            });
            if let Some(pid) = due {
                native::native_tick(pid as u32);
            }
        }
        Event::Ordinary(cpu, runs, rests) => {
            machine(|m| {
                m.cpus[cpu].ordinary = !m.cpus[cpu].ordinary;
                let mean = if m.cpus[cpu].ordinary { runs } else { rests };
                let time = m.now + 1 + m.random.below(2 * mean);
                m.at(time, event);
            });
            kernel::schedule(cpu, false);
        }
    }
}
