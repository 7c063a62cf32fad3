// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that the page's script draws, as JSON.

use super::detail::{Detail, Window};
use super::overview::{Overview, shares};
use super::scan;
use crate::show::text::{NONE, cut, grace_period, location};
use serde::Serialize;
use std::collections::BTreeMap;

/// The data that the script draws. Times are microseconds since the beginning.
#[derive(Serialize)]
pub struct Data {
    length: f64,
    column: f64,
    states: Vec<String>,
    places: Vec<String>,
    vms: Vec<VmData>,
}

#[derive(Serialize)]
struct VmData {
    lanes: Vec<LaneData>,
    /// The longest grace period in each column.
    graces: Vec<f64>,
    windows: Vec<WindowData>,
}

#[derive(Serialize)]
struct LaneData {
    vcpu: u32,
    /// Per column, states and their shares in percent, alternating.
    columns: Vec<Vec<u8>>,
}

#[derive(Serialize)]
struct WindowData {
    from: f64,
    to: f64,
    /// Lane, beginning, length, state, reader, place (or -1).
    segments: Vec<(u32, f64, f64, u8, u8, i64)>,
    /// Beginning, length, number, whether it was over.
    periods: Vec<(f64, f64, String, u8)>,
}

/// Texts, each once.
#[derive(Default)]
struct Table {
    index: BTreeMap<String, i64>,
    all: Vec<String>,
}

impl Table {
    fn of(&mut self, text: String) -> i64 {
        if text == NONE {
            return -1;
        }
        *self.index.entry(text.clone()).or_insert_with(|| {
            self.all.push(text);
            self.all.len() as i64 - 1
        })
    }
}

/// Microseconds between two points in time.
pub fn micros(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e3
}

pub fn data(overview: &Overview, detail: &Detail, span: (u64, u64)) -> Data {
    let origin = overview.origin();
    let mut places = Table::default();
    let mut vms = vec![];
    for (pid, vm) in &overview.vms {
        let lanes: BTreeMap<u32, u32> = (0..).zip(vm.lanes.keys()).map(|(i, v)| (*v, i)).collect();
        let windows = detail.windows.iter().filter(|w| w.pid == *pid);
        vms.push(VmData {
            lanes: vm
                .lanes
                .iter()
                .map(|(vcpu, columns)| LaneData {
                    vcpu: *vcpu,
                    columns: columns
                        .iter()
                        .map(|c| shares(c).into_iter().flat_map(|(s, share)| [s, share]).collect())
                        .collect(),
                })
                .collect(),
            graces: vm.graces.iter().map(|ns| f64::from(*ns).round() / 1e3).collect(),
            windows: windows.map(|w| window(w, &lanes, origin, &mut places)).collect(),
        });
    }
    Data {
        length: micros(origin, span.1),
        column: overview.width as f64 / 1e3,
        states: scan::names(),
        places: places.all,
        vms,
    }
}

fn window(w: &Window, lanes: &BTreeMap<u32, u32>, origin: u64, places: &mut Table) -> WindowData {
    let mut segments = vec![];
    for (vcpu, s) in &w.segments {
        let Some(lane) = lanes.get(vcpu) else { continue };
        let place = places.of(cut(&location(&s.at), 120));
        let (from, length) = (micros(origin, s.from), micros(s.from, s.to));
        segments.push((*lane, from, length, s.state, s.reader.into(), place));
    }
    WindowData {
        from: micros(origin, w.from),
        to: micros(origin, w.to),
        segments,
        periods: w
            .periods
            .iter()
            .map(|p| {
                let over = u8::from(!p.open);
                (micros(origin, p.from), micros(p.from, p.to), grace_period(p.seq), over)
            })
            .collect(),
    }
}
