// SPDX-License-Identifier: MIT OR Apache-2.0
//! The debts to grace periods now: for whoever samples what grace periods wait for, many times per
//! second.
//!
//! A look is one system call per VM, which reads `gp_seq` and the leaves of the `rcu_node` tree at
//! addresses that are known since the guest was found. More reads are needed while a reader that
//! the guest's own scheduler preempted holds the grace period up.

use super::model::VmState;
use super::raw::constants::NO_SEQ;
use super::raw::read_words;
use super::vms::machine::{Attached, Machine, Vcpu};
use reprieve_guest::layout::NodeLayout;

/// The vCPUs and readers that owe a guest's grace period something.
pub(super) struct Debts<'a> {
    /// `rcu_state.gp_seq`.
    pub seq: u64,
    /// vCPUs that owe it a quiescent state, or run a reader that the guest's own scheduler had
    /// preempted before.
    pub vcpus: Vec<&'a Vcpu>,
    /// Such readers that run on no vCPU.
    pub waiting_readers: usize,
}

impl Debts<'_> {
    /// When the grace period in progress was seen to begin, if it was.
    pub(super) fn began_ns(&self, machine: &Machine) -> Option<u64> {
        let (seq, began) = machine.began()?;
        (seq != NO_SEQ && seq >> 2 == self.seq >> 2).then_some(began)
    }
}

/// Times that a read is repeated in which the grace period changed.
const RETRIES: usize = 4;

/// As of now; `None` where the guest cannot be read, is paused, or has one grace period after the
/// other during the look.
pub(super) fn now(machine: &Machine) -> Option<Debts<'_>> {
    let attached = machine.attached().filter(|_| machine.state() == VmState::Watching)?;
    let leaves = &attached.layout.rcu.as_ref()?.leaves;
    let masks = leaves.iter().map(|leaf| leaf.qsmask);
    let gp_seq = attached.layout.rcu.as_ref()?.gp_seq;
    // The words are read in this order: in between, `gp_seq` must not have changed.
    let addresses: Vec<u64> = [gp_seq]
        .into_iter()
        .chain(masks)
        .chain(leaves.iter().filter_map(|l| l.gp_tasks))
        .chain([gp_seq])
        .collect();
    let read = || read_words(machine.key.pid, &addresses).ok();
    let words = (0..=RETRIES).map_while(|_| read()).find(|words| words.first() == words.last())?;
    let (seq, rest) = (words[0], &words[1..words.len() - 1]);
    let (masks, blocked) = rest.split_at(leaves.len());
    let mut debts = Debts { seq, vcpus: Vec::new(), waiting_readers: 0 };
    if seq & 3 == 0 {
        return Some(debts);
    }
    // A list of preempted readers takes more reads, and is there seldom.
    let mut running = Vec::new();
    if blocked.iter().any(|&first| first != 0) {
        (running, debts.waiting_readers) = blocked_readers(machine, attached, seq);
    }
    let owes = |cpu: u32| owes(leaves, masks, cpu) || running.contains(&cpu);
    let owing = machine.vcpus.iter().filter(|vcpu| vcpu.cpu.is_some_and(owes));
    debts.vcpus = owing.collect();
    Some(debts)
}

/// Whether the bit of `cpu` is set in the `qsmask` of its leaf.
fn owes(leaves: &[NodeLayout], masks: &[u64], cpu: u32) -> bool {
    leaves.iter().zip(masks).any(|(leaf, mask)| {
        let bit = cpu.wrapping_sub(leaf.first_cpu);
        (leaf.first_cpu..=leaf.last_cpu).contains(&cpu) && bit < 64 && mask & (1 << bit) != 0
    })
}

/// Readers that the guest's own scheduler had preempted and for which the grace period `seq`
/// waits: the guest's CPUs that run one now, and the number of those that run nowhere.
fn blocked_readers(machine: &Machine, attached: &Attached, seq: u64) -> (Vec<u32>, usize) {
    let owing = attached.guest.rcu().and_then(|rcu| rcu.owing()).ok();
    // Another one has begun since.
    let Some(owing) = owing.filter(|owing| owing.seq == seq && !owing.torn) else {
        return (Vec::new(), 0);
    };
    let runs = |&cpu: &u32| {
        let task = attached.guest.vcpu(cpu).and_then(|view| view.current_task_address());
        task.is_ok_and(|task| owing.blocked.iter().any(|reader| reader.task.address == task))
    };
    let running: Vec<u32> = machine.vcpus.iter().filter_map(|vcpu| vcpu.cpu).filter(runs).collect();
    let waiting = owing.blocked.len().saturating_sub(running.len());
    (running, waiting)
}
