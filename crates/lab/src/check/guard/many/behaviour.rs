// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actions of a played guest's vCPU, and what its memory says meanwhile.

use super::memory::{Cpu, DIRECT_MAP, LEAF, Memory, SPIN};
use clap::ValueEnum;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Behaviour {
    /// User mode, readers and sections without preemption in turn; grace periods one after the
    /// other, which end when every CPU has reported.
    Honest,
    /// Always in a reader with preemption off.
    Reader,
    /// Always owing a grace period that never ends.
    Owing,
    /// Both, with a reader that was preempted and a grace-period kthread that CPU 0 runs all the
    /// time.
    Both,
    /// Always spinning for another CPU, and owing a grace period that never ends.
    Spinning,
    /// Any number in any word, all the time.
    Wild,
    /// As honest ones, but they sleep all the time.
    Napping,
}

/// Turns of loops without meaning: a few us, and some ten.
const SHORT: u32 = 2_000;
const LONG: u32 = 20_000;
/// Sections between two ticks.
const TICK: u32 = 8;
const NAP: Duration = Duration::from_millis(1);
const IN_KERNEL: u64 = 0;
const IN_USER_MODE: u64 = 3;
const EFLAGS_IF: u64 = 0x200;
/// A grace period is in progress, the first.
const FIRST: u64 = 5;

impl Behaviour {
    pub fn name(self) -> String {
        self.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
    }

    /// Whether guard is told addresses of nothing.
    pub fn astray(self) -> bool {
        self == Behaviour::Wild
    }

    /// Whether CPU 0 runs the grace-period kthread.
    pub fn runs_kthread(self) -> bool {
        self == Behaviour::Both
    }

    /// Fills the memory before anybody runs.
    pub fn prepare(self, memory: &Memory) {
        let rcu = memory.rcu();
        for n in 0..memory.cpus {
            let cpu = memory.cpu(n);
            cpu.current_task.store(memory.guest_address(cpu.pid), Relaxed);
            cpu.pid.store(1 + n as u64, Relaxed);
            cpu.task_cpu.store(n as u64, Relaxed);
            cpu.eflags.store(EFLAGS_IF, Relaxed);
            let kthread = n == 0 && self.runs_kthread();
            if matches!(self, Behaviour::Reader | Behaviour::Both) && !kthread {
                cpu.preempt_count.store(1, Relaxed);
                cpu.nesting.store(1, Relaxed);
            }
            if self == Behaviour::Spinning {
                cpu.preempt_count.store(1, Relaxed);
                cpu.rip.store(SPIN + 0x10, Relaxed);
            }
        }
        if self == Behaviour::Reader {
            return;
        }
        rcu.gp_seq.store(FIRST, Relaxed);
        for leaf in 0..memory.leaves() {
            memory.qsmask(leaf).store(memory.all(leaf), Relaxed);
            if self == Behaviour::Both {
                let blocked = memory.cpu(leaf * LEAF).node_entry;
                memory.gp_tasks(leaf).store(memory.guest_address(blocked), Relaxed);
            }
        }
        if self == Behaviour::Both {
            rcu.kthread_on_rq.store(1, Relaxed);
        }
    }

    /// Runs as CPU `n`, for ever.
    pub fn live(self, memory: &Memory, n: usize) {
        let cpu = memory.cpu(n);
        let mut random = fastrand::Rng::with_seed(n as u64);
        loop {
            match self {
                Behaviour::Honest => work(memory, &cpu, n),
                Behaviour::Napping => {
                    work(memory, &cpu, n);
                    std::thread::sleep(NAP);
                }
                Behaviour::Wild => confuse(memory, &cpu, n, &mut random),
                Behaviour::Reader | Behaviour::Owing | Behaviour::Both | Behaviour::Spinning => {
                    spend(LONG)
                }
            }
        }
    }
}

/// From one tick to the next.
fn work(memory: &Memory, cpu: &Cpu, n: usize) {
    for _ in 0..TICK {
        cpu.hflags.store(IN_USER_MODE, Relaxed);
        spend(LONG);
        cpu.hflags.store(IN_KERNEL, Relaxed);
        cpu.nesting.store(1, Relaxed);
        spend(SHORT);
        cpu.nesting.store(0, Relaxed);
        cpu.preempt_count.store(1, Relaxed);
        spend(SHORT);
        cpu.preempt_count.store(0, Relaxed);
    }
    let rcu = memory.rcu();
    rcu.jiffies.fetch_add(1, Relaxed);
    let bit = 1 << (n % LEAF);
    let seq = rcu.gp_seq.load(SeqCst);
    memory.qsmask(n / LEAF).fetch_and(!bit, SeqCst);
    let owing = |leaf| memory.qsmask(leaf).load(SeqCst) != 0;
    if seq & 3 == 0 || (0..memory.leaves()).any(owing) {
        return;
    }
    // A single one of the vCPUs that see the end begins the next grace period.
    let (idle, next) = ((seq | 3) + 1, (seq | 3) + 2);
    if rcu.gp_seq.compare_exchange(seq, idle, SeqCst, SeqCst).is_ok() {
        for leaf in 0..memory.leaves() {
            memory.qsmask(leaf).store(memory.all(leaf), SeqCst);
        }
        rcu.gp_seq.store(next, SeqCst);
    }
}

/// A step of a guest whose words mean nothing.
fn confuse(memory: &Memory, cpu: &Cpu, n: usize, random: &mut fastrand::Rng) {
    let rcu = memory.rcu();
    let words: [&AtomicU64; 16] = [
        cpu.preempt_count,
        cpu.current_task,
        cpu.rip,
        cpu.eflags,
        cpu.hflags,
        cpu.pid,
        cpu.nesting,
        cpu.task_cpu,
        rcu.gp_seq,
        rcu.jiffies,
        rcu.fqs_due,
        rcu.kthread_cpu,
        rcu.kthread_on_rq,
        rcu.kthread_state,
        memory.qsmask(n / LEAF),
        memory.gp_tasks(n / LEAF),
    ];
    for word in words {
        let any = random.u64(..);
        // Small numbers, addresses in and just outside its RAM, and anything.
        let value = match any & 7 {
            0 => any >> 32 & 0xff,
            1 | 2 => DIRECT_MAP + (any >> 24) % (4096 * (2 * memory.cpus as u64 + 2)),
            3 => 0,
            4 => u64::MAX,
            _ => random.u64(..),
        };
        word.store(value, Relaxed);
        spend(SHORT / 8);
    }
}

fn spend(turns: u32) {
    for turn in 0..turns {
        black_box(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_ends_when_every_cpu_has_reported() {
        let memory = Memory::new(LEAF + 2);
        Behaviour::Honest.prepare(&memory);
        let seq = || memory.rcu().gp_seq.load(Relaxed);
        for n in (0..memory.cpus).rev() {
            assert_eq!(seq(), FIRST, "CPU {n} has not reported");
            work(&memory, &memory.cpu(n), n);
        }
        assert_eq!(seq(), FIRST + 4, "the next one is in progress");
        assert_eq!(memory.qsmask(1).load(Relaxed), memory.all(1));
    }

    #[test]
    fn who_owes_for_ever_does_so_from_the_start() {
        let memory = Memory::new(4);
        Behaviour::Both.prepare(&memory);
        assert_eq!(memory.qsmask(0).load(Relaxed), 0xf);
        assert_eq!(memory.cpu(3).preempt_count.load(Relaxed), 1);
        assert_ne!(memory.gp_tasks(0).load(Relaxed), 0);
        let told = memory.describe("both", &[1, 2, 3, 4], false);
        let task = told.layout().host_address(memory.cpu(0).current_task.load(Relaxed), 4096);
        assert_eq!(task, Some(memory.first_task()), "the kthread runs");
    }
}
