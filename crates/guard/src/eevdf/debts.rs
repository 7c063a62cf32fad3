// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides which vCPUs have a short slice: those that owe a grace period that is late.
//!
//! Pure bookkeeping: it is told what guests look like and says what to do. Times are nanoseconds of
//! any one clock.
//!
//! A grace period is late when it is older than a limit. From then on, when the host keeps a vCPU
//! of this VM waiting, every one that still owes a quiescent state has a short slice, until it owes
//! nothing any more or the grace period has ended. The next one has to be late on its own account.
//!
//! A guest can make the looks at it long. So a VM rests after each of them, for [`REST`] times as
//! long.

use std::collections::{BTreeMap, BTreeSet};

/// How long a VM is not looked at, as a multiple of what the last look took: the looks at one VM
/// take a tenth of a CPU at most.
pub const REST: u64 = 9;

/// Short slices end no grace period that is as old: its guest hangs, was reset, or lies.
const ENDLESS: u64 = 5_000_000_000;

/// An action on a vCPU's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Shorten(u32),
    Restore(u32),
}

/// How often slices were short, and for how long, of one VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortened {
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// All VMs, by process.
pub struct Debts {
    late: u64,
    vms: BTreeMap<u32, Vm>,
}

#[derive(Default)]
struct Vm {
    /// The grace period in progress, and since when it is.
    grace: Option<(u64, u64)>,
    /// Threads with a short slice, and since when they have it.
    short: BTreeMap<u32, u64>,
    shortened: Shortened,
    /// Until when it is not looked at.
    rests_until: u64,
}

impl Debts {
    /// `late`: the age from which on a grace period is.
    pub fn new(late: u64) -> Debts {
        Debts { late, vms: BTreeMap::new() }
    }

    /// Notes the guest's `gp_seq` as of `now`, `None` if it cannot be read; `began`, when its grace
    /// period was seen to begin, if it was. Returns whether there is a late grace period, so that
    /// [`Debts::owing`] has to be told who owes it; else no vCPU does.
    pub fn note(&mut self, pid: u32, seq: Option<u64>, began: Option<u64>, now: u64) -> bool {
        let vm = self.vms.entry(pid).or_default();
        vm.grace = match (seq.filter(|seq| seq & 3 != 0).map(|seq| seq >> 2), vm.grace) {
            (None, _) => None,
            (Some(number), Some((same, since))) if same == number => Some((same, since)),
            (Some(number), _) => Some((number, began.unwrap_or(now).min(now))),
        };
        vm.grace.is_some_and(|(_, since)| (self.late..ENDLESS).contains(&(now - since)))
    }

    /// The slice of the thread could not be set.
    pub fn failed(&mut self, pid: u32, tid: u32) {
        let Some(vm) = self.vms.get_mut(&pid) else { return };
        if vm.short.remove(&tid).is_some() {
            vm.shortened.count -= 1;
        }
    }

    /// Notes that a look at the VM, which has ended at `now`, took that long.
    pub fn looked(&mut self, pid: u32, took: u64, now: u64) {
        self.vms.entry(pid).or_default().rests_until =
            now.saturating_add(took.saturating_mul(REST));
    }

    /// Whether the VM may be looked at.
    pub fn due(&self, pid: u32, now: u64) -> bool {
        self.vms.get(&pid).is_none_or(|vm| now >= vm.rests_until)
    }

    /// Takes the threads of the VM's vCPUs that owe its late grace period (none if it is not late),
    /// and whether the host keeps a vCPU of this VM waiting: else short slices would change nothing
    /// but the number of context switches. Says what to do.
    pub fn owing(&mut self, pid: u32, threads: &[u32], waits: bool, now: u64) -> Vec<Act> {
        let Some(vm) = self.vms.get_mut(&pid) else { return Vec::new() };
        let mut acts = Vec::new();
        let settled: Vec<u32> =
            vm.short.keys().copied().filter(|tid| !threads.contains(tid)).collect();
        for tid in settled {
            vm.close(tid, now);
            acts.push(Act::Restore(tid));
        }
        // Once one waited, they all stay short until they owe nothing.
        let hurry = waits || !vm.short.is_empty();
        for &tid in threads.iter().filter(|_| hurry) {
            if let std::collections::btree_map::Entry::Vacant(entry) = vm.short.entry(tid) {
                entry.insert(now);
                vm.shortened.count += 1;
                acts.push(Act::Shorten(tid));
            }
        }
        acts
    }

    /// Forgets VMs that are not among `present`; their threads, if there still are any, are to be
    /// restored.
    pub fn keep(&mut self, present: &BTreeSet<u32>, now: u64) -> Vec<Act> {
        let gone: Vec<u32> =
            self.vms.keys().copied().filter(|pid| !present.contains(pid)).collect();
        let mut acts = Vec::new();
        for pid in gone {
            acts.extend(self.owing(pid, &[], false, now));
            self.vms.remove(&pid);
        }
        acts
    }

    /// Everything that is to be restored at the end.
    pub fn settle(&mut self, now: u64) -> Vec<Act> {
        self.keep(&BTreeSet::new(), now)
    }

    /// The time until the next look is worth it: when a grace period may become late, or after
    /// `pace` while one is.
    pub fn next_look(&self, now: u64, pace: u64) -> u64 {
        let wait = |vm: &Vm| {
            let wait = match vm.grace {
                None => self.late,
                Some((_, since)) if now - since >= ENDLESS => self.late,
                Some((_, since)) => self.late.saturating_sub(now - since).max(pace),
            };
            wait.max(vm.rests_until.saturating_sub(now))
        };
        self.vms.values().map(wait).min().unwrap_or(self.late).max(pace)
    }

    /// How often and how long slices of VM `pid` were short, those that are short now included.
    pub fn shortened(&self, pid: u32, now: u64) -> Shortened {
        let Some(vm) = self.vms.get(&pid) else { return Shortened::default() };
        let mut sum = vm.shortened;
        for since in vm.short.values() {
            sum.add(now - since);
        }
        sum
    }
}

impl Vm {
    fn close(&mut self, tid: u32, now: u64) {
        if let Some(since) = self.short.remove(&tid) {
            self.shortened.add(now - since);
        }
    }
}

impl Shortened {
    fn add(&mut self, ns: u64) {
        self.total_ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Act::{Restore, Shorten};

    const LATE: u64 = 100;

    #[test]
    fn only_who_owes_a_late_grace_period_is_hurried() {
        let mut debts = Debts::new(LATE);
        assert!(!debts.note(1, Some(5), None, 1000), "just begun");
        assert_eq!(debts.owing(1, &[], true, 1000), []);
        assert!(!debts.note(1, Some(5), None, 1099));
        assert!(debts.note(1, Some(5), None, 1100));
        assert_eq!(debts.owing(1, &[11, 12], false, 1100), [], "the host keeps nobody waiting");
        assert_eq!(debts.owing(1, &[11], true, 1100), [Shorten(11)]);
        assert_eq!(debts.owing(1, &[11, 12], false, 1100), [Shorten(12)], "nor does it now");
        assert_eq!(debts.owing(1, &[11, 12], true, 1110), [], "once is enough");
        assert_eq!(debts.owing(1, &[12], true, 1120), [Restore(11)]);
        // The next one begins at once: nobody is late with it.
        assert!(!debts.note(1, Some(9), None, 1150));
        assert_eq!(debts.owing(1, &[], true, 1150), [Restore(12)]);
        assert_eq!(debts.shortened(1, 2000), Shortened { count: 2, total_ns: 20 + 50, max_ns: 50 });
    }

    #[test]
    fn a_guest_that_hangs_in_a_grace_period_is_not_hurried_for_ever() {
        let mut debts = Debts::new(LATE);
        assert!(debts.note(1, Some(5), None, 0) || debts.note(1, Some(5), None, LATE));
        assert_eq!(debts.owing(1, &[11], true, LATE), [Shorten(11)]);
        assert!(!debts.note(1, Some(5), None, ENDLESS), "nor told who owes it");
        assert_eq!(debts.owing(1, &[], true, ENDLESS), [Restore(11)]);
        assert_eq!(debts.next_look(ENDLESS, 1), LATE, "rarely looked at");
        assert!(!debts.note(1, Some(9), None, ENDLESS + 1));
        assert!(debts.note(1, Some(9), None, ENDLESS + 1 + LATE), "the next one");
    }

    #[test]
    fn what_could_not_be_done_is_not_counted() {
        let mut debts = Debts::new(LATE);
        debts.note(1, Some(5), Some(0), 1000);
        assert_eq!(debts.owing(1, &[11, 12], true, 1000), [Shorten(11), Shorten(12)]);
        debts.failed(1, 11);
        assert_eq!(debts.shortened(1, 1010), Shortened { count: 1, total_ns: 10, max_ns: 10 });
        assert_eq!(debts.owing(1, &[11, 12], true, 1010), [Shorten(11)], "tried again");
    }

    #[test]
    fn a_beginning_that_was_seen_counts_from_then() {
        let mut debts = Debts::new(LATE);
        assert!(debts.note(1, Some(5), Some(890), 1000));
        // A beginning by another clock, or in the future: the age is never negative.
        assert!(!debts.note(2, Some(5), Some(5000), 1000));
        // Two low bits of zero: none in progress, however long.
        assert!(!debts.note(3, Some(8), Some(1), 1000));
    }

    #[test]
    fn a_vm_that_goes_leaves_nothing_short() {
        let mut debts = Debts::new(LATE);
        for pid in [1, 2] {
            debts.note(pid, Some(5), Some(0), 1000);
            debts.owing(pid, &[pid * 10], true, 1000);
        }
        let one = BTreeSet::from([1]);
        assert_eq!(debts.keep(&one, 1001), [Restore(20)]);
        assert_eq!(debts.keep(&one, 1002), []);
        // Unreadable for a moment: what was counted is kept.
        assert!(!debts.note(1, None, None, 1002));
        assert_eq!(debts.owing(1, &[], true, 1002), [Restore(10)]);
        assert_eq!(debts.shortened(1, 3000).total_ns, 2);
        assert!(debts.note(1, Some(5), Some(0), 1002));
        assert_eq!(debts.owing(1, &[10], true, 1002), [Shorten(10)]);
        assert_eq!(debts.settle(1003), [Restore(10)]);
        assert_eq!(debts.settle(1004), []);
        // Back again.
        assert!(debts.note(2, Some(5), Some(0), 1005));
        assert_eq!(debts.owing(2, &[21], true, 1005), [Shorten(21)]);
    }

    #[test]
    fn looks_come_when_something_can_have_become_late() {
        let mut debts = Debts::new(LATE);
        assert_eq!(debts.next_look(1000, 10), LATE, "nobody there");
        debts.note(1, Some(5), None, 1000);
        assert_eq!(debts.next_look(1030, 10), 70);
        debts.note(2, Some(8), None, 1000);
        assert_eq!(debts.next_look(1095, 10), 10, "not faster than the pace");
        assert_eq!(debts.next_look(1200, 10), 10, "late: at the pace");
    }

    #[test]
    fn a_vm_rests_after_a_long_look() {
        let mut debts = Debts::new(LATE);
        assert!(debts.due(1, 1000), "never looked at");
        assert!(debts.note(1, Some(5), Some(0), 1000));
        debts.looked(1, 20, 1000);
        assert!(!debts.due(1, 1000 + 20 * REST - 1) && debts.due(1, 1000 + 20 * REST));
        assert_eq!(debts.next_look(1000, 10), 20 * REST, "later than its grace period asks for");
        // Others are looked at as before.
        assert!(debts.due(2, 1000) && debts.note(2, Some(5), Some(0), 1000));
        debts.looked(2, 1, 1000);
        assert_eq!(debts.next_look(1000, 10), 10);
        debts.looked(1, u64::MAX, 1000);
        assert!(!debts.due(1, 2000), "no overflow");
    }
}
