// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest whose RAM is an array: its RCU's state in the first page, then a page for each CPU's
//! variables and one for each CPU's only task. Every word is 8 bytes; where a guest has a shorter
//! one, it is the lower part (x86-64).

use reprieve_watch::{StandIn, StandInLeaf, StandInVcpu};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// CPUs of a leaf of the RCU tree, as in Linux by default.
const LEAF: usize = 16;
/// Where the guest has its RAM mapped.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const PAGE: usize = 4096 / size_of::<u64>();
/// A grace period is in progress, the first.
const FIRST: u64 = 5;
const EFLAGS_IF: u64 = 0x200;
const IN_USER_MODE: u64 = 3;

/// Turns of loops without meaning: a few us, and some ten.
const SHORT: u32 = 2_000;
const LONG: u32 = 20_000;
/// Sections between two ticks.
const TICK: u32 = 8;

#[derive(Clone, Copy)]
pub struct Guest {
    words: &'static [AtomicU64],
    pub cpus: usize,
}

/// A CPU's variables, and its task.
struct Cpu {
    preempt_count: &'static AtomicU64,
    current_task: &'static AtomicU64,
    /// From QEMU's `eip` to its `hflags`: those that are read.
    rip: &'static AtomicU64,
    eflags: &'static AtomicU64,
    hflags: &'static AtomicU64,
    pid: &'static AtomicU64,
    nesting: &'static AtomicU64,
}

impl Guest {
    /// A guest with `cpus` CPUs, whose memory is never freed. Each CPU of one that `lies` is always
    /// in a reader with preemption off, and owes a grace period that never ends.
    pub fn new(cpus: usize, lies: bool) -> Guest {
        let words: Vec<AtomicU64> = (0..(1 + 2 * cpus) * PAGE).map(|_| AtomicU64::new(0)).collect();
        let guest = Guest { words: words.leak(), cpus };
        guest.seq().store(FIRST, Relaxed);
        for leaf in 0..guest.leaves() {
            guest.qsmask(leaf).store(guest.all(leaf), Relaxed);
        }
        for cpu in 0..cpus {
            let own = guest.cpu(cpu);
            let task = DIRECT_MAP + (address(own.pid) - address(&guest.words[0]));
            own.current_task.store(task, Relaxed);
            own.pid.store(1 + cpu as u64, Relaxed);
            own.eflags.store(EFLAGS_IF, Relaxed);
            own.preempt_count.store(u64::from(lies), Relaxed);
            own.nesting.store(u64::from(lies), Relaxed);
        }
        guest
    }

    fn seq(&self) -> &'static AtomicU64 {
        &self.words[0]
    }

    fn leaves(&self) -> usize {
        self.cpus.div_ceil(LEAF)
    }

    /// The CPUs of the leaf that owe a quiescent state.
    fn qsmask(&self, leaf: usize) -> &'static AtomicU64 {
        &self.words[8 + leaf]
    }

    /// All CPUs of the leaf.
    fn all(&self, leaf: usize) -> u64 {
        (1 << (self.cpus - leaf * LEAF).min(LEAF)) - 1
    }

    fn cpu(&self, cpu: usize) -> Cpu {
        let own = &self.words[(1 + cpu) * PAGE..];
        let task = &self.words[(1 + self.cpus + cpu) * PAGE..];
        Cpu {
            preempt_count: &own[0],
            current_task: &own[1],
            rip: &own[8],
            eflags: &own[9],
            hflags: &own[14],
            pid: &task[0],
            nesting: &task[1],
        }
    }

    /// From one tick of an honest CPU to the next: user mode, readers and sections without
    /// preemption in turn.
    fn work(&self, cpu: usize) {
        let own = self.cpu(cpu);
        for _ in 0..TICK {
            own.hflags.store(IN_USER_MODE, Relaxed);
            spend(LONG);
            own.hflags.store(0, Relaxed);
            own.nesting.store(1, Relaxed);
            spend(SHORT);
            own.nesting.store(0, Relaxed);
            own.preempt_count.store(1, Relaxed);
            spend(SHORT);
            own.preempt_count.store(0, Relaxed);
        }
        let seq = self.seq().load(SeqCst);
        self.qsmask(cpu / LEAF).fetch_and(!(1 << (cpu % LEAF)), SeqCst);
        let owing = |leaf| self.qsmask(leaf).load(SeqCst) != 0;
        if seq & 3 == 0 || (0..self.leaves()).any(owing) {
            return;
        }
        // A single one of the CPUs that see the end begins the next grace period.
        let (idle, next) = ((seq | 3) + 1, (seq | 3) + 2);
        if self.seq().compare_exchange(seq, idle, SeqCst, SeqCst).is_ok() {
            for leaf in 0..self.leaves() {
                self.qsmask(leaf).store(self.all(leaf), SeqCst);
            }
            self.seq().store(next, SeqCst);
        }
    }

    /// Runs as the CPU, for ever.
    pub fn live(&self, cpu: usize, lies: bool) -> ! {
        loop {
            if lies { spend(LONG) } else { self.work(cpu) }
        }
    }

    /// The description of the guest for guard.
    pub fn describe(&self, name: &str, tids: &[u32]) -> StandIn {
        let vcpus = tids.iter().enumerate().map(|(cpu, &tid)| {
            let own = self.cpu(cpu);
            StandInVcpu {
                tid,
                preempt_count: address(own.preempt_count),
                current_task: address(own.current_task),
                registers: address(own.rip),
            }
        });
        let leaves = (0..self.leaves()).map(|leaf| StandInLeaf {
            qsmask: address(self.qsmask(leaf)),
            first_cpu: (leaf * LEAF) as u32,
            last_cpu: (leaf * LEAF + LEAF).min(self.cpus) as u32 - 1,
        });
        let first = self.cpu(0);
        StandIn {
            pid: std::process::id(),
            name: name.into(),
            vcpus: vcpus.collect(),
            ram: address(&self.words[0]),
            ram_bytes: size_of_val(self.words) as u64,
            direct_map: DIRECT_MAP,
            task_pid: 0,
            task_nesting: (address(first.nesting) - address(first.pid)) as u32,
            gp_seq: address(self.seq()),
            leaves: leaves.collect(),
        }
    }
}

fn address(word: &AtomicU64) -> u64 {
    std::ptr::from_ref(word) as u64
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
        let guest = Guest::new(LEAF + 2, false);
        for cpu in (0..guest.cpus).rev() {
            assert_eq!(guest.seq().load(Relaxed), FIRST, "CPU {cpu} has not reported");
            guest.work(cpu);
        }
        assert_eq!(guest.seq().load(Relaxed), FIRST + 4, "the next one is in progress");
        assert_eq!(guest.qsmask(1).load(Relaxed), guest.all(1));
    }

    #[test]
    fn guard_is_told_where_the_words_are() {
        let guest = Guest::new(20, true);
        let told = guest.describe("many", &(100..120).collect::<Vec<u32>>());
        let layout = told.layout();
        let rcu = layout.rcu.as_ref().unwrap();
        assert_eq!((rcu.leaves.len(), rcu.leaves[1].last_cpu), (2, 19));
        assert_eq!((guest.all(0), guest.all(1)), (0xffff, 0xf));
        let cpu = guest.cpu(19);
        let task = layout.host_address(cpu.current_task.load(Relaxed), 4096).unwrap();
        assert_eq!(task + u64::from(layout.task.pid), address(cpu.pid));
        assert_eq!(task + u64::from(layout.task.rcu_nesting.unwrap()), address(cpu.nesting));
        assert_eq!(layout.vcpus[19].preempt_count, address(cpu.preempt_count));
        // As QEMU has them: the flags one word, and the second flags six words behind.
        assert_eq!(address(cpu.hflags) - told.vcpus[19].registers, 48);
    }
}
