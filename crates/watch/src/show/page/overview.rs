// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first reading: the whole recording in columns of equal width, and the longest grace periods.
//!
//! How long the recording is, is known at its end only. So columns start narrow and are merged in
//! pairs whenever there are too many; the time of each state in a column is exact, so merging loses
//! order, not time. Memory is [`COLUMNS`] columns per vCPU and does not depend on the length.

use super::scan::{Lane, Period, STATES, Segment, Sink, State};
use crate::model::Snapshot;
use std::collections::BTreeMap;

/// At most that many columns.
pub const COLUMNS: usize = 1024;
/// The narrowest, in nanoseconds.
const NARROWEST: u64 = 100_000;
/// Grace periods per VM that are shown in full detail.
pub const LONGEST: usize = 12;
/// More vCPUs are counted, not drawn.
pub const LANES: usize = 4096;

/// Time per state in each column, in nanoseconds.
pub type Columns = Vec<[f64; STATES]>;

/// A VM in the whole recording.
#[derive(Default)]
pub struct VmOverview {
    pub name: String,
    pub kernel: Option<String>,
    pub vmm: String,
    pub blind: Vec<String>,
    pub lanes: BTreeMap<u32, Columns>,
    /// The longest grace period in each column, in nanoseconds.
    pub graces: Vec<f32>,
    /// The longest, longest first.
    pub longest: Vec<Period>,
    pub count: u64,
    pub total_ns: u64,
}

/// The findings of the first reading.
pub struct Overview {
    /// Beginning of the first column.
    origin: Option<u64>,
    /// Width of a column.
    pub width: u64,
    pub vms: BTreeMap<u32, VmOverview>,
    pub segments: u64,
    lanes: usize,
    /// vCPUs beyond [`LANES`].
    pub hidden: std::collections::BTreeSet<Lane>,
}

impl Overview {
    pub fn new() -> Overview {
        Overview {
            origin: None,
            width: NARROWEST,
            vms: BTreeMap::new(),
            segments: 0,
            lanes: 0,
            hidden: Default::default(),
        }
    }

    pub fn origin(&self) -> u64 {
        self.origin.unwrap_or(0)
    }

    fn vm(&mut self, pid: u32) -> &mut VmOverview {
        self.vms
            .entry(pid)
            .or_insert_with(|| VmOverview { name: pid.to_string(), ..VmOverview::default() })
    }

    /// Columns that a time touches, each with the part of the time in it; makes room for them.
    fn parts(&mut self, from: u64, to: u64) -> Vec<(usize, u64)> {
        let origin = *self.origin.get_or_insert(from);
        while to.saturating_sub(origin) / self.width >= COLUMNS as u64 {
            self.merge();
        }
        let (mut at, mut all) = (from.max(origin), vec![]);
        loop {
            let column = (at - origin) / self.width;
            let end = (origin + (column + 1) * self.width).min(to);
            all.push((column as usize, end.saturating_sub(at)));
            if end >= to {
                return all;
            }
            at = end;
        }
    }

    /// Doubles the width of the columns.
    fn merge(&mut self) {
        self.width *= 2;
        for vm in self.vms.values_mut() {
            for columns in vm.lanes.values_mut() {
                *columns = columns
                    .chunks(2)
                    .map(|pair| {
                        let mut sum = pair[0];
                        for other in &pair[1..] {
                            sum.iter_mut().zip(other).for_each(|(a, b)| *a += b);
                        }
                        sum
                    })
                    .collect();
            }
            vm.graces =
                vm.graces.chunks(2).map(|p| p.iter().copied().fold(0.0, f32::max)).collect();
        }
    }
}

impl Sink for Overview {
    fn segment(&mut self, lane: Lane, segment: Segment) {
        let (pid, vcpu) = lane;
        self.segments += 1;
        if !self.vm(pid).lanes.contains_key(&vcpu) {
            if self.lanes >= LANES {
                self.hidden.insert(lane);
                return;
            }
            self.lanes += 1;
        }
        let parts = self.parts(segment.from, segment.to);
        let columns = self.vm(pid).lanes.entry(vcpu).or_default();
        for (column, time) in parts {
            if columns.len() <= column {
                columns.resize(column + 1, [0.0; STATES]);
            }
            columns[column][usize::from(segment.state)] += time as f64;
        }
    }

    fn period(&mut self, pid: u32, period: Period) {
        let parts = self.parts(period.from, period.to);
        let vm = self.vm(pid);
        vm.count += u64::from(!period.open);
        vm.total_ns = vm.total_ns.saturating_add(if period.open { 0 } else { period.length() });
        for (column, _) in parts {
            if vm.graces.len() <= column {
                vm.graces.resize(column + 1, 0.0);
            }
            vm.graces[column] = vm.graces[column].max(period.length() as f32);
        }
        let at = vm.longest.partition_point(|other| other.length() >= period.length());
        vm.longest.insert(at, period);
        vm.longest.truncate(LONGEST);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.origin.get_or_insert(snapshot.time_ns);
        for seen in &snapshot.vms {
            let vm = self.vm(seen.pid);
            vm.name.clone_from(&seen.name);
            vm.vmm.clone_from(&seen.vmm);
            vm.kernel.clone_from(&seen.kernel);
            vm.blind.clone_from(&seen.blind);
        }
    }
}

/// The states of a column with their shares in percent; those below half a percent are left out.
pub fn shares(column: &[f64; STATES]) -> Vec<(State, u8)> {
    let total: f64 = column.iter().sum();
    let share = |time: &f64| if total > 0.0 { (time / total * 100.0).round() as u8 } else { 0 };
    (0..).zip(column.iter().map(share)).filter(|(_, share)| *share > 0).collect()
}
