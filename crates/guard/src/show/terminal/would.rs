// SPDX-License-Identifier: MIT OR Apache-2.0
//! The view of a dry run: what took place, and would have been put off or rescued.

use super::{GuardView, cell, header};
use crate::statistics::{HeldUp, PutOff, Statistics, VmStatistics};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Span;
use ratatui::widgets::{Cell, Row, Table};
use reprieve_watch::show::text::{count, cut, optional, percent, plain, time};

pub const HELP: &str = " ↑↓ select  q quit: the dry run goes on    off CPU: of those vCPUs; late: grace periods that preempted vCPUs held up";

const HEADINGS: [(&str, u16); 8] = [
    ("VM", 16),
    ("policy", 15),
    ("on CPU", 7),
    ("extend/s", 8),
    ("off CPU/s", 9),
    ("late/s", 7),
    ("held up/s", 9),
    ("longest", 8),
];

fn extend(vm: &VmStatistics) -> Option<&Vec<PutOff>> {
    vm.would.as_ref()?.extend.as_ref()
}

fn rescue(vm: &VmStatistics) -> Option<&HeldUp> {
    vm.would.as_ref()?.rescue.as_ref()
}

impl<F> GuardView<F> {
    pub(super) fn would(&self, now: &Statistics, frame: &mut Frame, area: Rect) {
        let rows = now.vms.iter().map(|vm| {
            let put_off = |figure: fn(&PutOff) -> u64| {
                extend(vm)?;
                self.rate(now, vm, |vm| extend(vm).into_iter().flatten().map(figure).sum())
            };
            let held = |figure: fn(&HeldUp) -> u64| {
                rescue(vm)?;
                self.rate(now, vm, |vm| rescue(vm).map_or(0, figure))
            };
            let on_cpu = self.rate(now, vm, |vm| vm.on_cpu_ns);
            Row::new([
                cell(cut(&plain(&vm.name), 16), true),
                self.policy_or_trouble(vm),
                cell(optional(on_cpu.map(|ns| ns / 1e9), percent), false),
                cell(optional(put_off(|of| of.count), count), false),
                cell(optional(put_off(|of| of.off_cpu_ns), time), false),
                cell(optional(held(|of| of.graces), count), false),
                cell(optional(held(|of| of.total_ns), time), false),
                cell(optional(rescue(vm).map(|of| of.max_ns as f64), time), false),
            ])
        });
        self.table(now, rows.collect(), &HEADINGS, frame, area);
    }

    /// A VM's preemptions that `extend` would have put off, by class.
    pub(super) fn would_classes(
        &self,
        now: &Statistics,
        vm: &VmStatistics,
        frame: &mut Frame,
        area: Rect,
    ) {
        let rows = extend(vm).into_iter().flatten().map(|of| {
            let class = of.class;
            let same = |vm: &VmStatistics| {
                let mut all = extend(vm).into_iter().flatten();
                all.find(|of| of.class == class).map_or(0, |of| of.count)
            };
            let mean = of.off_cpu_ns as f64 / of.count.max(1) as f64;
            let longest = of.max_off_cpu_ns.map(|ns| ns as f64);
            Row::new([
                Cell::from(Span::styled(class.name(), self.palette.class(class))),
                cell(optional(self.rate(now, vm, same), count), false),
                cell(of.count.to_string(), false),
                cell(time(mean), false),
                cell(optional(longest, time), false),
                cell(time(of.off_cpu_ns as f64), false),
            ])
        });
        let widths = [10, 7, 9, 9, 8, 8].map(Constraint::Length);
        let names = ["extend", "/s", "times", "off: mean", "longest", "in all"];
        frame.render_widget(Table::new(rows, widths).header(header(&names)), area);
    }
}
