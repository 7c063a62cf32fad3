// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM: the grace period in progress, and each vCPU.

use super::bars;
use super::colours::Palette;
use super::heading::heading;
use super::state::{Row, View};
use crate::model::{Snapshot, Vcpu, VcpuNow, VmSnapshot};
use crate::show::activity::Activity;
use crate::show::lines::{doing, holders};
use crate::show::text::{self, NONE, count, cut, optional, percent, plain, time};
use crate::show::verdict::verdict;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

pub fn draw(view: &mut View, frame: &mut Frame) {
    let [top, body, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    let width = usize::from(body.width);
    let mut lines = vec![];
    if let Some(now) = view.now() {
        frame.render_widget(Paragraph::new(heading(view, now)), top);
        if let Some(row) = view.rows().iter().find(|row| Some(row.vm.pid) == view.selected) {
            lines = content(row, now, width, view.palette);
        }
    }
    let rest = lines.len().saturating_sub(usize::from(body.height));
    view.scroll = view.scroll.min(rest);
    let below = rest - view.scroll;
    let shown = lines.into_iter().skip(view.scroll).collect::<Vec<_>>();
    frame.render_widget(Paragraph::new(shown), body);
    let more = if below > 0 { format!("  {below} more lines") } else { String::new() };
    let help = format!(
        " Esc back  ↑↓ scroll  w rates: {}  q quit{more}",
        if view.since_start { "since start" } else { "recent" },
    );
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(help).style(style), keys);
}

fn content(row: &Row, now: &Snapshot, width: usize, palette: Palette) -> Vec<Line<'static>> {
    let (vm, all) = (row.vm, &row.activity.all);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::from(vec![
        Span::styled(plain(&vm.name), bold),
        Span::raw(format!(
            "  pid {}, {}, Linux {}",
            vm.pid,
            plain(&vm.vmm),
            vm.kernel.as_deref().map_or("not known yet".into(), plain)
        )),
    ])];
    if let Some(state) = text::state(&vm.state) {
        lines.push(Line::styled(state, palette.warning()));
    }
    lines.extend(
        vm.blind.iter().map(|b| Line::styled(format!("not visible: {}", plain(b)), palette.soft())),
    );
    lines.push(Line::default());
    lines.push(Line::styled(format!("Verdict: {}", verdict(&row.activity)), bold));
    lines.extend(grace(row, now, palette));
    lines.push(Line::default());
    lines.push(Line::styled(text::preemptions(all), bold));
    if !row.activity.takers.is_empty() {
        let takers = text::takers(&row.activity.takers);
        lines.push(Line::raw(cut(&format!("  CPU taken by {takers}"), width)));
    }
    let throttled = text::throttled(all).map(|text| format!("  {text}"));
    lines.extend(throttled.map(|text| Line::styled(text, palette.warning())));
    lines.push(Line::styled(titles(width), Style::new().add_modifier(Modifier::UNDERLINED)));
    for (vcpu, activity) in vm.vcpus.iter().zip(&row.activity.vcpus) {
        lines.push(line(vcpu, activity, now, width, owes(vm, vcpu), palette));
    }
    lines.push(Line::default());
    lines.push(bars::legend(palette));
    lines.push(Line::styled("* owes the grace period a quiescent state", palette.soft()));
    lines
}

fn owes(vm: &VmSnapshot, vcpu: &Vcpu) -> bool {
    let current = vm.grace.as_ref().and_then(|g| g.current.as_ref());
    current.is_some_and(|c| c.owing.contains(&vcpu.index))
}

fn grace(row: &Row, now: &Snapshot, palette: Palette) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(grace) = &row.vm.grace else {
        return vec![Line::styled("Grace periods: not readable", bold)];
    };
    let longest = Some(grace.durations.max_ns as f64).filter(|ns| *ns > 0.0);
    let longest = optional(longest, time);
    let mut lines = vec![Line::from(vec![
        Span::styled("Grace periods: ", bold),
        Span::raw(format!("{}; longest {longest}", text::graces(&row.activity))),
    ])];
    let Some(current) = &grace.current else {
        lines.push(Line::raw("  none in progress"));
        return lines;
    };
    let age = now.time_ns.saturating_sub(current.began_ns) as f64;
    let style = if age >= 100e6 { palette.warning() } else { Style::new() };
    lines.push(Line::from(vec![
        Span::raw(format!("  now: grace period {}, ", text::grace_period(current.seq))),
        Span::styled(
            format!("{}{} old", if current.began_earlier { "over " } else { "" }, time(age)),
            style,
        ),
        Span::raw(match current.owing.len() {
            0 => String::from(", every vCPU has reported"),
            n => format!(", waits for {}:", text::several(n, "vCPU")),
        }),
    ]));
    let holders = holders(row.vm, current);
    for (index, holder) in holders.iter().take(8) {
        let style = match holder {
            VcpuNow::Preempted { class, .. } => palette.class(*class).add_modifier(Modifier::BOLD),
            _ => Style::new(),
        };
        lines.push(Line::from(vec![
            Span::raw(format!("    vCPU {index:<3} ")),
            Span::styled(doing(holder, now.time_ns), style),
        ]));
    }
    if holders.len() > 8 {
        lines.push(Line::raw(format!("    and {} more", holders.len() - 8)));
    }
    for reader in current.blocked_readers.iter().take(4) {
        lines.push(Line::raw(format!(
            "    reader preempted by the guest's own scheduler: {}",
            text::location(reader)
        )));
    }
    lines
}

/// Columns of the vCPU table that are left of the location in the guest.
fn titles(width: usize) -> String {
    cut(
        &format!(
            "  {:<5}{:<10}{:>9}  {:<11}{:>10} {:>8}  {:<20} {}",
            "vCPU", "state", "for", "class", "preempt/s", "ready", "by class", "function (task)"
        ),
        width,
    )
}

fn line(
    vcpu: &Vcpu,
    activity: &Activity,
    now: &Snapshot,
    width: usize,
    owes: bool,
    palette: Palette,
) -> Line<'static> {
    let since = |ns: u64| time(now.time_ns.saturating_sub(ns) as f64);
    let (state, style, since, class, at) = match &vcpu.now {
        VcpuNow::Running { since_ns, .. } => {
            ("running", palette.running(), since(*since_ns), None, None)
        }
        VcpuNow::Preempted { since_ns, class, at, throttled, .. } => {
            let state = if *throttled { "throttled" } else { "preempted" };
            (state, palette.preempted(), since(*since_ns), Some(*class), Some(at))
        }
        VcpuNow::Halted { since_ns } => ("halted", palette.soft(), since(*since_ns), None, None),
        VcpuNow::Ready { since_ns, .. } => {
            ("ready", palette.preempted(), since(*since_ns), None, None)
        }
        VcpuNow::Unseen => ("not seen", palette.soft(), NONE.into(), None, None),
    };
    let mut spans = vec![
        Span::styled(if owes { "* " } else { "  " }, palette.warning()),
        Span::raw(format!("{:<5}", vcpu.index)),
        Span::styled(format!("{state:<10}"), style),
        Span::raw(format!("{since:>9}  ")),
        Span::styled(
            format!("{:<11}", class.map_or("", |c| c.name())),
            class.map_or(Style::new(), |c| palette.class(c)),
        ),
        Span::raw(format!(
            "{:>10} {:>8}  ",
            count(activity.per_second(activity.total_preemptions())),
            optional(activity.ready_share(), percent)
        )),
    ];
    spans.extend(bars::classes(activity, 20, palette).spans);
    spans.push(Span::raw(" "));
    let used: usize = spans.iter().map(|s| s.content.chars().count()).sum();
    let at = at.map_or(String::new(), text::location);
    spans.push(Span::raw(cut(&at, width.saturating_sub(used))));
    Line::from(spans)
}
