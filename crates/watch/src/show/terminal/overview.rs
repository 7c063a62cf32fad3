// SPDX-License-Identifier: MIT OR Apache-2.0
//! All VMs, a row each.
//!
//! On a narrow terminal, the columns that say least are left out first.

use super::bars;
use super::colours::Palette;
use super::heading::heading;
use super::state::{Row, View};
use crate::model::{Snapshot, VcpuNow, VmSnapshot};
use crate::show::histogram::quantile;
use crate::show::lines::{doing, holders};
use crate::show::text::{self, NONE, count, cut, optional, percent, plain, time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

/// Heading and width of a column. On a narrow terminal the columns of the highest rank are left
/// out.
struct Column {
    heading: &'static str,
    width: u16,
    rank: u8,
    left: bool,
}

const COLUMNS: [Column; 11] = [
    Column { heading: "VM", width: 16, rank: 0, left: true },
    Column { heading: "kernel", width: 10, rank: 9, left: true },
    Column { heading: "run/rdy/halt", width: 12, rank: 3, left: false },
    Column { heading: "preempt/s", width: 9, rank: 5, left: false },
    Column { heading: "ready", width: 7, rank: 1, left: false },
    Column { heading: "by class", width: 20, rank: 6, left: true },
    Column { heading: "critical", width: 8, rank: 4, left: false },
    Column { heading: "GP/s", width: 5, rank: 8, left: false },
    Column { heading: "GP mean", width: 8, rank: 2, left: false },
    Column { heading: "GP p99", width: 8, rank: 7, left: false },
    Column { heading: "GP now", width: 8, rank: 1, left: false },
];

/// Least width of the column that tells what holds up the grace period, and why a VM cannot be
/// read.
const HOLDER: u16 = 20;
/// Columns of this rank and above are left out in favour of that column.
const SPARE: u8 = 4;
/// The width in which most of that column can be read, and the rank for it.
const HOLDER_WIDE: u16 = 44;
const SPARE_WIDE: u8 = 7;

pub fn draw(view: &View, frame: &mut Frame) {
    let Some(now) = view.now() else {
        let text = view.trouble.clone().unwrap_or_else(|| "Waiting for the first figures".into());
        frame.render_widget(Paragraph::new(plain(&text)), frame.area());
        return;
    };
    let processes = now.processes.iter().map(|p| p.domains.len()).sum::<usize>() as u16;
    let wanted = if processes == 0 { 0 } else { processes + 2 };
    let legend = if frame.area().height >= 9 { 2 } else { 0 };
    let [top, table, runtime, colours, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(wanted.min(frame.area().height / 3)),
        Constraint::Length(legend),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(view, now)), top);
    let rows = view.rows();
    if rows.is_empty() {
        let named = plain(&view.named.join(", "));
        let sep = if named.is_empty() { "" } else { " " };
        let text = format!(
            "\n  No virtual machine{sep}{named} runs here yet; new ones appear by themselves."
        );
        frame.render_widget(Paragraph::new(text), table);
    } else {
        vms(view, now, &rows, frame, table);
    }
    if wanted > 0 {
        frame.render_widget(Paragraph::new(domains(now, view.palette)), runtime);
    }
    let explained = "ready: share of the time that vCPUs wanted a CPU and had none (the bar's length); critical: of preemptions, in readers, locks, interrupts";
    let lines = vec![
        bars::legend(view.palette),
        Line::styled(cut(explained, usize::from(colours.width)), view.palette.soft()),
    ];
    frame.render_widget(Paragraph::new(lines), colours);
    let help = format!(
        " q quit  Enter vCPUs and grace period  ↑↓ select  s sort: {}  w rates: {}",
        view.order.name(),
        if view.since_start { "since start" } else { "recent" },
    );
    frame.render_widget(
        Paragraph::new(help).style(Style::new().add_modifier(Modifier::REVERSED)),
        keys,
    );
}

fn vms(view: &View, now: &Snapshot, rows: &[Row], frame: &mut Frame, area: Rect) {
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    // A column each for the mark of the selected VM and after each column.
    let total = |shown: &[usize]| 1 + shown.iter().map(|c| COLUMNS[*c].width + 1).sum::<u16>();
    while let Some((at, rank)) =
        shown.iter().map(|c| COLUMNS[*c].rank).enumerate().max_by_key(|(_, rank)| *rank)
    {
        let reserved = match rank {
            SPARE_WIDE.. => HOLDER_WIDE,
            SPARE.. => HOLDER,
            _ => 0,
        };
        if total(&shown) + reserved <= area.width || shown.len() == 1 {
            break;
        }
        shown.remove(at);
    }
    let mut left = area.width.saturating_sub(total(&shown));
    let holder = left >= HOLDER;
    let mut widths: Vec<u16> = shown.iter().map(|c| COLUMNS[*c].width).collect();
    if holder {
        // Names are cut first where there is room to spare.
        let longest = rows.iter().map(|row| row.vm.name.chars().count()).max().unwrap_or(0) as u16;
        let more = (left - HOLDER).min(longest.saturating_sub(widths[0]));
        widths[0] += more;
        left -= more;
        widths.push(left);
    }
    let mut heading: Vec<Cell> =
        shown.iter().map(|c| cell(COLUMNS[*c].heading.into(), &COLUMNS[*c])).collect();
    if holder {
        heading.push(Cell::from("held up by"));
    }
    let lines = rows.iter().map(|row| {
        let mut cells: Vec<Cell> = shown
            .iter()
            .zip(&widths)
            .map(|(c, width)| {
                let width = usize::from(*width);
                let line = match text::state(&row.vm.state) {
                    // Without that column it would look healthy.
                    Some(state) if *c == 0 && !holder => {
                        let state = state.split(':').next().unwrap_or_default().to_owned();
                        cut(&format!("{state} {}", plain(&row.vm.name)), width).into()
                    }
                    _ => content(*c, row, now, width, view.palette),
                };
                cell(line, &COLUMNS[*c])
            })
            .collect();
        if holder {
            cells.push(Cell::from(cut(&held_by(row.vm, now), usize::from(left))));
        }
        TableRow::new(cells)
    });
    let selected = rows.iter().position(|row| Some(row.vm.pid) == view.selected);
    let table = Table::new(lines, widths.clone().into_iter().map(Constraint::Length))
        .header(TableRow::new(heading).style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .highlight_symbol(">")
        .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

fn cell(line: Line<'static>, column: &Column) -> Cell<'static> {
    Cell::from(if column.left { line } else { line.right_aligned() })
}

fn content(
    column: usize,
    row: &Row,
    now: &Snapshot,
    width: usize,
    palette: Palette,
) -> Line<'static> {
    let (vm, all, grace) = (row.vm, &row.activity.all, &row.activity.grace);
    match column {
        0 => cut(&plain(&vm.name), width).into(),
        1 => cut(&vm.kernel.as_deref().map_or(NONE.into(), plain), width).into(),
        2 => states(vm, palette),
        3 => count(all.per_second(all.total_preemptions())).into(),
        4 => optional(all.ready_share(), percent).into(),
        5 => bars::classes(all, width, palette),
        6 => optional(all.critical_share(), percent).into(),
        7 => match &vm.grace {
            Some(_) => count(all.per_second(row.activity.graces())).into(),
            None => NONE.into(),
        },
        8 => optional(row.activity.grace_mean(), time).into(),
        9 => optional(quantile(grace, 0.99), time).into(),
        _ => age(vm, now, palette),
    }
}

fn states(vm: &VmSnapshot, palette: Palette) -> Line<'static> {
    if vm.vcpus.is_empty() {
        return NONE.into();
    }
    let number = |is: fn(&VcpuNow) -> bool| vm.vcpus.iter().filter(|v| is(&v.now)).count();
    let ready = |now: &VcpuNow| matches!(now, VcpuNow::Preempted { .. } | VcpuNow::Ready { .. });
    let ready = number(ready);
    let style = if ready > 0 { palette.preempted() } else { Style::new() };
    Line::from(vec![
        Span::raw(format!("{} / ", number(|now| matches!(now, VcpuNow::Running { .. })))),
        Span::styled(ready.to_string(), style),
        Span::raw(format!(" / {}", number(|now| matches!(now, VcpuNow::Halted { .. })))),
    ])
}

/// Age of the grace period in progress; long ones stand out.
fn age(vm: &VmSnapshot, now: &Snapshot, palette: Palette) -> Line<'static> {
    let Some(current) = vm.grace.as_ref().and_then(|g| g.current.as_ref()) else {
        return NONE.into();
    };
    let age = now.time_ns.saturating_sub(current.began_ns) as f64;
    let style = if age >= 100e6 { palette.warning() } else { Style::new() };
    let more = if current.began_earlier { ">" } else { "" };
    Line::styled(format!("{more}{}", time(age)), style)
}

fn held_by(vm: &VmSnapshot, now: &Snapshot) -> String {
    if let Some(state) = text::state(&vm.state) {
        return state;
    }
    let Some(current) = vm.grace.as_ref().and_then(|g| g.current.as_ref()) else {
        return String::new();
    };
    let mut out = match holders(vm, current).as_slice() {
        [] if current.blocked_readers.is_empty() => "no vCPU: all have reported".into(),
        [] => String::new(),
        [(index, holder), more @ ..] => {
            let more = match more.len() {
                0 => String::new(),
                n => format!(" (+{n})"),
            };
            format!("vCPU {index}{more} {}", brief(holder, now.time_ns))
        }
    };
    if !current.blocked_readers.is_empty() {
        let sep = if out.is_empty() { "" } else { "; " };
        let n = current.blocked_readers.len();
        out += &format!("{sep}{}", text::several(n, "blocked reader"));
    }
    out
}

/// The state of a vCPU, with what matters most first.
fn brief(state: &VcpuNow, now: u64) -> String {
    let VcpuNow::Preempted { since_ns, class, at, .. } = state else { return doing(state, now) };
    let since = time(now.saturating_sub(*since_ns) as f64);
    let at = text::location(at);
    format!(
        "{}, off for {since}{}",
        class.name(),
        if at == NONE { String::new() } else { format!(": {at}") }
    )
}

/// Users of the runtime, a line per domain.
fn domains(now: &Snapshot, palette: Palette) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled(
        "Processes that use the Reprieve runtime",
        Style::new().add_modifier(Modifier::BOLD),
    )];
    for process in &now.processes {
        for domain in &process.domains {
            let slow = domain.current_age_ns.is_some_and(|ns| ns >= 100_000_000);
            let style = if slow { palette.warning() } else { Style::new() };
            let name = cut(&plain(&process.name), 16);
            lines.push(Line::styled(format!("{name:<16} {}", text::domain(domain)), style));
        }
    }
    lines
}
