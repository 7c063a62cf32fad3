// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that plays a guest's RAM: its RCU's state in the first page, then a page for each CPU's
//! variables and one for each CPU's only task. Every word is 8 bytes; where a guest has a shorter
//! one, it is the lower part (x86-64).

use reprieve_watch::{StandIn, StandInLeaf, StandInVcpu};
use std::sync::atomic::AtomicU64;

/// CPUs of a leaf of the RCU tree, as in Linux by default.
pub const LEAF: usize = 16;

/// Where the guest has its RAM mapped.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

/// Kernel code in which its CPUs spin for each other.
pub const SPIN: u64 = 0xffff_ffff_8123_4000;
const SPIN_BYTES: u64 = 0x100;

/// An address that no process has.
const NOWHERE: u64 = 0xdead_0000_0000;

const PAGE: usize = 4096 / size_of::<u64>();

#[derive(Clone, Copy)]
pub struct Memory {
    words: &'static [AtomicU64],
    pub cpus: usize,
}

/// A CPU's variables, and its task.
pub struct Cpu {
    pub preempt_count: &'static AtomicU64,
    pub current_task: &'static AtomicU64,
    /// From QEMU's `eip` to its `hflags`: those that are read.
    pub rip: &'static AtomicU64,
    pub eflags: &'static AtomicU64,
    pub hflags: &'static AtomicU64,
    pub pid: &'static AtomicU64,
    pub nesting: &'static AtomicU64,
    /// The target of `gp_tasks`.
    pub node_entry: &'static AtomicU64,
    pub task_cpu: &'static AtomicU64,
}

/// The fields of RCU.
pub struct Rcu {
    pub gp_seq: &'static AtomicU64,
    pub jiffies: &'static AtomicU64,
    pub fqs_due: &'static AtomicU64,
    pub kthread_cpu: &'static AtomicU64,
    pub kthread_on_rq: &'static AtomicU64,
    pub kthread_state: &'static AtomicU64,
}

impl Memory {
    /// The memory of a guest with `cpus` CPUs; never freed.
    pub fn new(cpus: usize) -> Memory {
        let words: Vec<AtomicU64> = (0..(1 + 2 * cpus) * PAGE).map(|_| AtomicU64::new(0)).collect();
        Memory { words: words.leak(), cpus }
    }

    pub fn rcu(&self) -> Rcu {
        let [gp_seq, jiffies, fqs_due, kthread_cpu, kthread_on_rq, kthread_state, ..] = self.words
        else {
            unreachable!("a page at least")
        };
        Rcu { gp_seq, jiffies, fqs_due, kthread_cpu, kthread_on_rq, kthread_state }
    }

    pub fn leaves(&self) -> usize {
        self.cpus.div_ceil(LEAF)
    }

    /// The CPUs of the leaf that owe a quiescent state.
    pub fn qsmask(&self, leaf: usize) -> &'static AtomicU64 {
        &self.words[8 + leaf]
    }

    pub fn gp_tasks(&self, leaf: usize) -> &'static AtomicU64 {
        &self.words[8 + self.leaves() + leaf]
    }

    /// All CPUs of the leaf.
    pub fn all(&self, leaf: usize) -> u64 {
        let cpus = (self.cpus - leaf * LEAF).min(LEAF);
        (1 << cpus) - 1
    }

    pub fn cpu(&self, cpu: usize) -> Cpu {
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
            node_entry: &task[2],
            task_cpu: &task[3],
        }
    }

    /// The guest's address of a word.
    pub fn guest_address(&self, word: &AtomicU64) -> u64 {
        DIRECT_MAP + (address(word) - address(&self.words[0]))
    }

    /// Where guard finds the task of CPU 0.
    pub fn first_task(&self) -> u64 {
        address(self.cpu(0).pid)
    }

    /// The description of the guest for guard. With `astray`, some of the addresses are of nothing.
    pub fn describe(&self, name: &str, tids: &[u32], astray: bool) -> StandIn {
        let (rcu, first) = (self.rcu(), self.cpu(0));
        let offset = |field: &AtomicU64| (address(field) - address(first.pid)) as u32;
        let vcpus = tids.iter().enumerate().map(|(n, &tid)| {
            let own = self.cpu(n);
            let lost = |every: usize| astray && n % 4 == every;
            let pick = |word: &AtomicU64, lost| if lost { NOWHERE } else { address(word) };
            StandInVcpu {
                tid,
                preempt_count: pick(own.preempt_count, lost(1)),
                current_task: pick(own.current_task, lost(2)),
                registers: pick(own.rip, lost(3)),
            }
        });
        let leaves = (0..self.leaves()).map(|leaf| {
            let lost = astray && leaf % 2 == 1;
            StandInLeaf {
                qsmask: if lost { NOWHERE } else { address(self.qsmask(leaf)) },
                gp_tasks: address(self.gp_tasks(leaf)),
                first_cpu: (leaf * LEAF) as u32,
                last_cpu: (leaf * LEAF + LEAF).min(self.cpus) as u32 - 1,
            }
        });
        StandIn {
            pid: std::process::id(),
            name: name.into(),
            vcpus: vcpus.collect(),
            ram: address(&self.words[0]),
            ram_bytes: size_of_val(self.words) as u64,
            direct_map: DIRECT_MAP,
            task_pid: offset(first.pid),
            task_nesting: offset(first.nesting),
            task_node_entry: offset(first.node_entry),
            task_cpu: offset(first.task_cpu),
            gp_seq: address(rcu.gp_seq),
            jiffies: address(rcu.jiffies),
            fqs_due: address(rcu.fqs_due),
            kthread_task: None,
            kthread_cpu: address(rcu.kthread_cpu),
            kthread_on_rq: address(rcu.kthread_on_rq),
            kthread_state: address(rcu.kthread_state),
            leaves: leaves.collect(),
            spins: vec![(SPIN, SPIN_BYTES)],
        }
    }
}

fn address(word: &AtomicU64) -> u64 {
    std::ptr::from_ref(word) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn guard_is_told_where_the_words_are() {
        let memory = Memory::new(20);
        let tids: Vec<u32> = (100..120).collect();
        let told = memory.describe("many", &tids, false);
        let layout = told.layout();
        let rcu = layout.rcu.as_ref().unwrap();
        assert_eq!((rcu.leaves.len(), rcu.leaves[1].last_cpu), (2, 19));
        assert_eq!((memory.all(0), memory.all(1)), (0xffff, 0xf));
        let cpu = memory.cpu(19);
        cpu.current_task.store(memory.guest_address(cpu.pid), Relaxed);
        let task = layout.host_address(cpu.current_task.load(Relaxed), 4096).unwrap();
        assert_eq!(task + u64::from(layout.task.pid), address(cpu.pid));
        assert_eq!(task + u64::from(layout.task.rcu_nesting.unwrap()), address(cpu.nesting));
        assert_eq!(task + u64::from(rcu.task_cpu.unwrap()), address(cpu.task_cpu));
        assert_eq!(layout.vcpus[19].preempt_count, address(cpu.preempt_count));
        // As QEMU has them: the flags one word, and the second flags six words behind.
        assert_eq!(address(cpu.hflags) - told.vcpus[19].registers, 48);
    }

    #[test]
    fn addresses_that_lead_astray_are_some_of_them() {
        let memory = Memory::new(64);
        let tids: Vec<u32> = (0..64).collect();
        let (told, honest) =
            (memory.describe("wild", &tids, true), memory.describe("", &tids, false));
        let wrong = told.vcpus.iter().zip(&honest.vcpus).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 48);
        assert_eq!(told.leaves.iter().filter(|leaf| leaf.qsmask == NOWHERE).count(), 2);
    }
}
