// SPDX-License-Identifier: MIT OR Apache-2.0
//! The second reading: every state and every grace period inside some windows of time.
//!
//! If the whole recording is small, the window is the whole recording. Else each of the longest
//! grace periods has one, a little wider than itself. When there is more in them than a page can
//! hold, the windows of the shorter ones go, at last all of them. What a grace period waited for is
//! found in any case.

use super::overview::Overview;
use super::scan::{Lane, Period, Segment, Sink, number};
use crate::model::{Location, Snapshot};
use std::collections::{BTreeMap, BTreeSet};

/// States and grace periods that a page holds.
pub const BUDGET: usize = 80_000;

/// A window of one VM.
pub struct Window {
    pub pid: u32,
    pub from: u64,
    pub to: u64,
    /// The longest grace period in it, which decides whether it stays.
    rank: u64,
    pub segments: Vec<(u32, Segment)>,
    pub periods: Vec<Period>,
}

/// The words of a snapshot about a grace period while it lasted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// vCPUs that owed a quiescent state in the last snapshot taken during it, and how old it was
    /// then.
    pub owing: BTreeSet<u32>,
    pub age: u64,
    pub blocked_readers: Vec<Location>,
}

/// The findings of the second reading.
pub struct Detail {
    pub windows: Vec<Window>,
    /// Windows that were given up.
    pub dropped: usize,
    /// By VM and number of the grace period.
    pub evidence: BTreeMap<(u32, u64), Evidence>,
    /// The grace periods that the page lists.
    wanted: Vec<(u32, Waited)>,
    /// The windows are the whole recording.
    everything: bool,
    size: usize,
}

/// A grace period, and the longest stay off a CPU of each vCPU during it.
struct Waited {
    period: Period,
    stays: BTreeMap<u32, (Segment, u64)>,
}

impl Waited {
    fn add(&mut self, vcpu: u32, segment: &Segment) {
        let Period { from, to, .. } = self.period;
        let inside = segment.to.min(to).saturating_sub(segment.from.max(from));
        if inside > self.stays.get(&vcpu).map_or(0, |(_, longest)| *longest) {
            self.stays.insert(vcpu, (segment.clone(), inside));
        }
    }
}

impl Detail {
    pub fn new(overview: &Overview, span: (u64, u64)) -> Detail {
        let mut windows = vec![];
        let periods: u64 = overview.vms.values().map(|vm| vm.count).sum();
        let everything = overview.segments + periods <= BUDGET as u64;
        for (pid, vm) in &overview.vms {
            if everything {
                windows.push(Window::new(*pid, span.0, span.1, u64::MAX));
                continue;
            }
            let mut wanted: Vec<(u64, u64, u64)> = vm
                .longest
                .iter()
                .map(|p| {
                    let margin = p.length() / 4 + 1_000_000;
                    (p.from.saturating_sub(margin), p.to.saturating_add(margin), p.length())
                })
                .collect();
            wanted.sort();
            for (from, to, rank) in wanted {
                match windows.last_mut().filter(|w: &&mut Window| w.pid == *pid && from <= w.to) {
                    Some(last) => {
                        last.to = last.to.max(to);
                        last.rank = last.rank.max(rank);
                    }
                    None => windows.push(Window::new(*pid, from, to, rank)),
                }
            }
        }
        let waited = |period: &Period| Waited { period: *period, stays: BTreeMap::new() };
        let wanted = overview
            .vms
            .iter()
            .flat_map(|(pid, vm)| vm.longest.iter().map(|period| (*pid, waited(period))))
            .collect();
        Detail { windows, dropped: 0, evidence: BTreeMap::new(), wanted, everything, size: 0 }
    }

    fn each(&mut self, pid: u32, from: u64, to: u64, put: impl Fn(&mut Window)) {
        for window in &mut self.windows {
            if window.pid == pid && from < window.to && to > window.from {
                put(window);
                self.size += 1;
            }
        }
        while self.size > BUDGET && !self.everything {
            let least = self.windows.iter().enumerate().min_by_key(|(_, w)| w.rank);
            let Some((at, _)) = least else { return };
            let gone = self.windows.remove(at);
            self.size -= gone.segments.len() + gone.periods.len();
            self.dropped += 1;
        }
    }

    /// The window that shows all of `period`.
    pub fn window(&self, pid: u32, period: &Period) -> Option<&Window> {
        self.windows.iter().find(|w| w.pid == pid && w.from <= period.from && w.to >= period.to)
    }

    /// The longest stay off a CPU during `period`, and for how long of it: of a vCPU that owed a
    /// quiescent state where that is known.
    pub fn cause(&self, pid: u32, period: &Period) -> Option<(u32, &Segment, u64)> {
        let (_, waited) = self.wanted.iter().find(|(of, w)| *of == pid && w.period == *period)?;
        let evidence =
            self.evidence.get(&(pid, number(period.seq))).filter(|e| !e.owing.is_empty());
        let owed = |vcpu: u32| evidence.is_none_or(|e| e.owing.contains(&vcpu));
        waited
            .stays
            .iter()
            .filter(|(vcpu, _)| owed(**vcpu))
            .map(|(vcpu, (segment, inside))| (*vcpu, segment, *inside))
            .max_by_key(|(_, _, inside)| *inside)
    }
}

impl Window {
    fn new(pid: u32, from: u64, to: u64, rank: u64) -> Window {
        Window { pid, from, to, rank, segments: vec![], periods: vec![] }
    }
}

impl Sink for Detail {
    fn segment(&mut self, (pid, vcpu): Lane, segment: Segment) {
        if super::scan::is_preempted(segment.state) {
            let of_vm = self.wanted.iter_mut().filter(|(of, _)| *of == pid);
            of_vm.for_each(|(_, waited)| waited.add(vcpu, &segment));
        }
        self.each(pid, segment.from, segment.to, |w| w.segments.push((vcpu, segment.clone())));
    }

    fn period(&mut self, pid: u32, period: Period) {
        // A grace period that took no time still has a number to show.
        self.each(pid, period.from, period.to.max(period.from + 1), |w| w.periods.push(period));
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        for vm in &snapshot.vms {
            let Some(current) = vm.grace.as_ref().and_then(|g| g.current.as_ref()) else {
                continue;
            };
            let key = (vm.pid, number(current.seq));
            if !self.wanted.iter().any(|(pid, w)| (*pid, number(w.period.seq)) == key) {
                continue;
            }
            let evidence = Evidence {
                owing: current.owing.iter().copied().collect(),
                age: snapshot.time_ns.saturating_sub(current.began_ns),
                blocked_readers: current.blocked_readers.iter().take(8).cloned().collect(),
            };
            self.evidence.insert(key, evidence);
        }
    }
}
