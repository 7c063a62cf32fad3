// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effects of guard on VMs, a row each; of the selected one also by class and kind. Of a dry
//! run, what it would do (`would`).

mod would;

use crate::statistics::{Granted, Preempted, Statistics, VmStatistics};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use reprieve_watch::model::Class;
use reprieve_watch::show::SourceError;
use reprieve_watch::show::activity::CRITICAL;
use reprieve_watch::show::terminal::colours::Palette;
use reprieve_watch::show::terminal::session::{self, Screen};
use reprieve_watch::show::terminal::{Outcome, Request};
use reprieve_watch::show::text::{self, NONE, count, cut, optional, percent, plain, time};
use std::collections::VecDeque;
use std::time::Duration;

/// Rates are over this many intervals.
const WINDOW: usize = 10;
const HELP: &str = " ↑↓ select  q quit: guard goes on    granted: time out of turn, charged like any; ahead: of its due since guard started";
/// A row per class, a heading, and a line between.
const DETAIL: u16 = Class::ALL.len() as u16 + 2;

const HEADINGS: [(&str, u16); 9] = [
    ("VM", 16),
    ("policy", 15),
    ("weight", 6),
    ("on CPU", 7),
    ("of its due", 10),
    ("avoided/s", 9),
    ("suffered/s", 10),
    ("granted/s", 10),
    ("ahead by", 9),
];

/// Shows the statistics that `source` has until the user or a signal ends it.
///
/// # Errors
/// When the terminal cannot be used.
pub fn run(
    source: impl FnMut() -> Result<Statistics, String>,
    interval: Duration,
    colour: bool,
) -> Result<Outcome, SourceError> {
    session::run(&mut GuardView::new(source, interval, colour), interval)
}

/// The view of a guard that runs, wherever its statistics come from.
pub struct GuardView<F> {
    source: F,
    palette: Palette,
    interval: Duration,
    recent: VecDeque<Statistics>,
    selected: Option<u32>,
    trouble: Option<String>,
}

impl<F: FnMut() -> Result<Statistics, String>> GuardView<F> {
    pub fn new(source: F, interval: Duration, colour: bool) -> GuardView<F> {
        let (palette, recent) = (Palette { colour }, VecDeque::new());
        GuardView { source, palette, interval, recent, selected: None, trouble: None }
    }
}

impl<F: FnMut() -> Result<Statistics, String>> Screen for GuardView<F> {
    fn refresh(&mut self) {
        match (self.source)() {
            Ok(statistics) => {
                self.trouble = None;
                // Another guard counts anew.
                if self.recent.back().is_some_and(|b| b.elapsed_ns > statistics.elapsed_ns) {
                    self.recent.clear();
                }
                if self.recent.len() > WINDOW {
                    self.recent.pop_front();
                }
                self.recent.push_back(statistics);
                self.step(0);
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    fn key(&mut self, key: KeyCode) -> Request {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Request::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            _ => (),
        }
        Request::Nothing
    }

    fn draw(&mut self, frame: &mut Frame) {
        let Some(now) = self.recent.back() else {
            let text = self.trouble.clone().unwrap_or_else(|| "Waiting for guard".into());
            frame.render_widget(Paragraph::new(plain(&text)), frame.area());
            return;
        };
        let detail = if frame.area().height >= DETAIL + 6 { DETAIL } else { 0 };
        let [top, table, below, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(detail),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.heading(now)), top);
        let selected = now.vms.iter().find(|vm| Some(vm.pid) == self.selected);
        if now.dry_run {
            self.would(now, frame, table);
        } else {
            self.vms(now, frame, table);
        }
        match selected {
            Some(vm) if now.dry_run => self.would_classes(now, vm, frame, below),
            Some(vm) => self.classes(now, vm, frame, below),
            None => (),
        }
        let help = if now.dry_run { would::HELP } else { HELP };
        frame.render_widget(
            Paragraph::new(help).style(Style::new().add_modifier(Modifier::REVERSED)),
            keys,
        );
    }
}

impl<F> GuardView<F> {
    fn step(&mut self, by: isize) {
        let Some(now) = self.recent.back() else { return };
        let at = now.vms.iter().position(|vm| Some(vm.pid) == self.selected).unwrap_or(0);
        let to = at.saturating_add_signed(by).min(now.vms.len().saturating_sub(1));
        self.selected = now.vms.get(to).map(|vm| vm.pid);
    }

    /// The statistics to compare the latest with, and the seconds since.
    fn before(&self, now: &Statistics) -> Option<(&Statistics, f64)> {
        let before = self.recent.front().filter(|before| before.time_ns < now.time_ns)?;
        Some((before, (now.time_ns - before.time_ns) as f64 / 1e9))
    }

    /// How much `figure` of the VM grew per second.
    fn rate(
        &self,
        now: &Statistics,
        vm: &VmStatistics,
        figure: impl Fn(&VmStatistics) -> u64,
    ) -> Option<f64> {
        let (before, seconds) = self.before(now)?;
        let before = before.vms.iter().find(|b| b.pid == vm.pid)?;
        Some(figure(vm).saturating_sub(figure(before)) as f64 / seconds)
    }

    fn heading(&self, now: &Statistics) -> Line<'static> {
        let cost = self.before(now).map(|(before, seconds)| {
            let of = |all: &Statistics| all.decisions_ns + all.process_ns;
            of(now).saturating_sub(of(before)) as f64 / 1e9 / seconds
        });
        let mut spans = vec![
            Span::styled("reprieve guard", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!(
                "  {}{} ({}) for {}, {}, every {}; its own cost {} of a CPU",
                if now.dry_run { "dry run of " } else { "" },
                now.policy.name(),
                now.backend.name(),
                time(now.elapsed_ns as f64),
                text::several(now.vms.len(), "VM"),
                time(self.interval.as_nanos() as f64),
                optional(cost, |share| format!("{:.2} %", share * 100.0)),
            )),
        ];
        let earlier = self.before(now).map(|(before, _)| &before.decision_times);
        let times = earlier.map(|earlier| now.decision_times.since(earlier)).unwrap_or_default();
        if let Some((median, p99)) = times.median_ns.zip(times.p99_ns) {
            let (median, p99) = (time(median as f64), time(p99 as f64));
            spans.push(Span::raw(format!("; decisions {median} in the median, p99 {p99}")));
        }
        if now.restarts > 0 {
            let restarts = text::several(now.restarts as usize, "restart");
            spans.push(Span::raw(format!("  {restarts}: CPUs came or went")));
        }
        if let Some(trouble) = &self.trouble {
            spans.push(Span::styled(format!("  {}", plain(trouble)), self.palette.warning()));
        }
        Line::from(spans)
    }

    fn vms(&self, now: &Statistics, frame: &mut Frame, area: Rect) {
        let rows = now.vms.iter().map(|vm| {
            let all = |figure: fn(&Preempted) -> u64| {
                move |vm: &VmStatistics| {
                    let critical = vm.preempted.iter().filter(|p| CRITICAL.contains(&p.class));
                    critical.map(figure).sum()
                }
            };
            let granted =
                |vm: &VmStatistics| vm.grants().iter().map(|(_, g)| g.total_ns).sum::<u64>();
            let on_cpu = self.rate(now, vm, |vm| vm.on_cpu_ns);
            let due = self.rate(now, vm, |vm| vm.entitled_ns.unwrap_or(0));
            let share = on_cpu.zip(due).filter(|(_, due)| *due > 0.0).map(|(on, due)| on / due);
            let ahead = vm.entitled_ns.map(|due| vm.on_cpu_ns as f64 - due as f64);
            let per_second = |figure: Option<f64>| optional(figure, count);
            Row::new([
                cell(cut(&plain(&vm.name), 16), true),
                self.policy_or_trouble(vm),
                cell(vm.weight.to_string(), false),
                cell(optional(on_cpu.map(|ns| ns / 1e9), percent), false),
                cell(optional(share, percent), false),
                cell(per_second(self.rate(now, vm, all(|p| p.avoided))), false),
                cell(per_second(self.rate(now, vm, all(|p| p.suffered))), false),
                cell(optional(self.rate(now, vm, granted), time), false),
                cell(optional(ahead, signed), false),
            ])
        });
        self.table(now, rows.collect(), &HEADINGS, frame, area);
    }

    fn policy_or_trouble(&self, vm: &VmStatistics) -> Cell<'static> {
        let policies: Vec<&str> = vm.policies.iter().map(|policy| policy.name()).collect();
        match &vm.trouble {
            None => cell(cut(&policies.join(","), 15), true),
            Some(trouble) => {
                Cell::from(Span::styled(cut(&plain(trouble), 15), self.palette.warning()))
            }
        }
    }

    /// A row per VM, the selected one marked. The first two columns are words.
    fn table(
        &self,
        now: &Statistics,
        rows: Vec<Row>,
        headings: &[(&'static str, u16)],
        frame: &mut Frame,
        area: Rect,
    ) {
        let widths = headings.iter().map(|(_, width)| Constraint::Length(*width));
        let headings =
            headings.iter().enumerate().map(|(n, (text, _))| cell((*text).into(), n < 2));
        let table = Table::new(rows, widths)
            .header(Row::new(headings).style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .highlight_symbol(">")
            .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
        let selected = now.vms.iter().position(|vm| Some(vm.pid) == self.selected);
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
    }

    /// A VM's preemptions by class on the left, its grants by kind on the right.
    fn classes(&self, now: &Statistics, vm: &VmStatistics, frame: &mut Frame, area: Rect) {
        let [left, right] =
            Layout::horizontal([Constraint::Length(44), Constraint::Fill(1)]).areas(area);
        let classes = vm.preempted.iter().map(|p| {
            let class = p.class;
            let of = |vm: &VmStatistics| vm.preempted.iter().find(|p| p.class == class).cloned();
            let rate = |figure: fn(Preempted) -> u64| {
                optional(self.rate(now, vm, |vm| of(vm).map_or(0, figure)), count)
            };
            Row::new([
                Cell::from(Span::styled(class.name(), self.palette.class(class))),
                cell(rate(|p| p.avoided), false),
                cell(p.avoided.to_string(), false),
                cell(rate(|p| p.suffered), false),
                cell(p.suffered.to_string(), false),
            ])
        });
        let widths = [10, 7, 9, 7, 9].map(Constraint::Length);
        let names = ["preempted", "/s", "avoided", "/s", "suffered"];
        frame.render_widget(Table::new(classes, widths).header(header(&names)), left);
        let kinds = vm.grants().map(|(kind, granted)| {
            Row::new([
                cell(kind.into(), true),
                cell(granted.count.to_string(), false),
                cell(mean(granted), false),
                cell(time(granted.max_ns as f64), false),
                cell(time(granted.total_ns as f64), false),
                cell(granted.expired.to_string(), false),
                cell(granted.refused.to_string(), false),
            ])
        });
        let widths = [9, 8, 8, 8, 8, 8, 8].map(Constraint::Length);
        let names = ["granted", "times", "mean", "longest", "in all", "ran out", "refused"];
        frame.render_widget(Table::new(kinds, widths).header(header(&names)), right);
    }
}

fn header(names: &[&'static str]) -> Row<'static> {
    let cells: Vec<Cell> =
        names.iter().enumerate().map(|(n, name)| cell((*name).into(), n == 0)).collect();
    Row::new(cells).style(Style::new().add_modifier(Modifier::UNDERLINED)).top_margin(1)
}

fn cell(text: String, left: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if left { line } else { line.right_aligned() })
}

fn mean(granted: &Granted) -> String {
    match granted.count {
        0 => NONE.into(),
        n => time(granted.total_ns as f64 / n as f64),
    }
}

fn signed(ns: f64) -> String {
    if ns < 0.0 { format!("-{}", time(-ns)) } else { time(ns) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::{dry_run, guarded};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(
        view: &mut GuardView<impl FnMut() -> Result<Statistics, String>>,
        width: u16,
        height: u16,
    ) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(|y| row(y).trim_end().to_string() + "\n").collect()
    }

    #[test]
    fn a_row_tells_what_is_done_for_a_vm() {
        let mut seconds = 0;
        let source = || {
            seconds += 1;
            Ok(guarded(seconds))
        };
        let mut view = GuardView::new(source, Duration::from_secs(1), false);
        view.refresh();
        view.refresh();
        let all = drawn(&mut view, 120, 30);
        let row = all.lines().find(|line| line.contains("db-primary")).unwrap();
        // 900 ms of 1 s on CPUs, of 1 s due; 30 and 10 preemptions avoided per second, 1 suffered.
        for part in ["extend,rescue", "200", "90 %", "40.0", "1.00", "12.0 ms", "-200 ms"] {
            assert!(row.contains(part), "{part} in\n{all}");
        }
        assert!(all.contains("full (sched-ext) for 2.00 s, 2 VMs"), "{all}");
        assert!(all.contains("its own cost 0.50 % of a CPU; decisions 368 ns"), "{all}");
        assert!(drawn(&mut view, 160, 30).contains("in the median, p99 1.47 us"), "{all}");
        let rescued = all.lines().find(|line| line.contains("rescued")).unwrap();
        assert!(rescued.contains("40") && rescued.contains("250 us"), "{all}");
        view.key(KeyCode::Down);
        assert!(drawn(&mut view, 120, 30).contains(">web?[2J"), "{all}");
        assert_eq!(view.key(KeyCode::Char('q')), Request::Quit);
    }

    #[test]
    fn a_dry_run_tells_what_would_be_done() {
        let mut seconds = 0;
        let source = || {
            seconds += 1;
            Ok(dry_run(seconds))
        };
        let mut view = GuardView::new(source, Duration::from_secs(1), false);
        view.refresh();
        view.refresh();
        let all = drawn(&mut view, 120, 30);
        assert!(all.contains("dry run of full (sched-ext) for 2.00 s, 2 VMs"), "{all}");
        let row = all.lines().find(|line| line.contains("db-primary")).unwrap();
        // A preemption is put off per second, off its CPU for 4 ms; per second three grace periods
        // of 50 are late for 50 ms.
        for part in ["full", "90 %", "1.00", "4.00 ms", "3.00", "50.0 ms", "20.0 ms"] {
            assert!(row.contains(part), "{part} in\n{all}");
        }
        let reader = all.lines().find(|line| line.starts_with("reader")).unwrap();
        for part in ["1.00", "2", "4.00 ms", "9.00 ms", "8.00 ms"] {
            assert!(reader.contains(part), "{part} in\n{all}");
        }
        // Nothing is known of a guest that was never read.
        let web = all.lines().find(|line| line.contains("web?")).unwrap();
        assert!(web.contains("memory is") && !web.contains(" ms"), "{all}");
    }

    #[test]
    fn no_size_and_no_trouble_breaks_it() {
        let mut turn = 0;
        let source = || {
            turn += 1;
            match turn % 4 {
                0 => Err("guard\x1b[2J does not run".into()),
                // A guard that was started again.
                1 => Ok(guarded(1)),
                2 => Ok(dry_run(turn)),
                _ => Ok(guarded(turn)),
            }
        };
        let mut view = GuardView::new(source, Duration::from_secs(1), true);
        for (width, height) in [(0, 0), (1, 1), (2, 3), (7, 40), (20, 4), (300, 2), (500, 100)] {
            for key in [KeyCode::Down, KeyCode::PageDown, KeyCode::Up, KeyCode::Enter] {
                view.key(key);
                assert!(!drawn(&mut view, width, height).contains('\x1b'));
                view.refresh();
            }
        }
    }
}
