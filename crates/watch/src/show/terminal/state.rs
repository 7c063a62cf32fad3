// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the live view, and how keys change it.

use super::colours::Palette;
use crate::model::{Snapshot, VmSnapshot};
use crate::options::names;
use crate::show::activity::VmActivity;
use ratatui::crossterm::event::KeyCode;
use std::collections::VecDeque;
use std::time::Duration;

/// Rates are over this many intervals, so that they change slowly enough to be read.
const WINDOW: usize = 10;

/// The request of a key to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Nothing,
    Quit,
}

/// Order of the VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Most time off the CPU first.
    #[default]
    OffCpu,
    /// Oldest grace period first.
    Grace,
    Name,
}

impl Order {
    pub fn name(self) -> &'static str {
        match self {
            Order::OffCpu => "time off the CPU",
            Order::Grace => "age of the grace period",
            Order::Name => "name",
        }
    }

    fn next(self) -> Order {
        match self {
            Order::OffCpu => Order::Grace,
            Order::Grace => Order::Name,
            Order::Name => Order::OffCpu,
        }
    }
}

/// The state of the view.
pub struct View {
    pub(super) palette: Palette,
    pub(super) interval: Duration,
    recent: VecDeque<Snapshot>,
    first: Option<Snapshot>,
    pub(super) order: Order,
    /// Rates since the beginning instead of the last intervals.
    pub(super) since_start: bool,
    /// The selected VM or, in the second screen, the shown one.
    pub(super) selected: Option<u32>,
    pub(super) inside: bool,
    /// First line shown of a screen that is too small.
    pub(super) scroll: usize,
    /// Shown instead of figures when collecting fails.
    pub(super) trouble: Option<String>,
    /// The VMs that were asked for; none: all.
    pub(super) named: Vec<String>,
}

/// A VM with what it did.
pub(super) struct Row<'a> {
    pub vm: &'a VmSnapshot,
    pub activity: VmActivity,
}

impl View {
    pub fn new(interval: Duration, colour: bool) -> View {
        View {
            palette: Palette { colour },
            interval,
            recent: VecDeque::new(),
            first: None,
            order: Order::default(),
            since_start: false,
            selected: None,
            inside: false,
            scroll: 0,
            trouble: None,
            named: Vec::new(),
        }
    }

    /// Only VMs of these names or process IDs were asked for.
    pub fn of(mut self, named: &[String]) -> View {
        self.named = named.to_vec();
        self
    }

    /// Those that were asked for and are not there.
    pub(super) fn missing(&self, now: &Snapshot) -> Vec<&str> {
        let runs = |query: &str| now.vms.iter().any(|vm| names(query, vm.pid, Some(&vm.name)));
        self.named.iter().map(String::as_str).filter(|query| !runs(query)).collect()
    }

    /// Takes the next snapshot.
    pub fn update(&mut self, snapshot: Snapshot) {
        self.trouble = None;
        if self.first.is_none() {
            self.first = Some(snapshot.clone());
        }
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(snapshot);
        if self.selected.is_none_or(|pid| !self.rows().iter().any(|row| row.vm.pid == pid)) {
            self.selected = self.rows().first().map(|row| row.vm.pid);
            self.inside = false;
        }
    }

    /// Shows that there is no snapshot, and why.
    pub fn fail(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    pub(super) fn now(&self) -> Option<&Snapshot> {
        self.recent.back()
    }

    /// The snapshot that the latest is compared with.
    pub(super) fn before(&self) -> Option<&Snapshot> {
        let before = if self.since_start { self.first.as_ref() } else { self.recent.front() };
        before.filter(|b| self.now().is_some_and(|now| b.time_ns < now.time_ns))
    }

    /// Seconds that the rates are over.
    pub(super) fn window(&self) -> f64 {
        match (self.before(), self.now()) {
            (Some(before), Some(now)) => (now.time_ns - before.time_ns) as f64 / 1e9,
            _ => 0.0,
        }
    }

    /// The VMs in the chosen order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let Some(now) = self.now() else { return vec![] };
        let row = |vm| Row { vm, activity: VmActivity::between(self.before(), now.time_ns, vm) };
        let mut rows: Vec<Row> = now.vms.iter().map(row).collect();
        let age = |vm: &VmSnapshot| {
            let current = vm.grace.as_ref().and_then(|g| g.current.as_ref());
            current.map_or(0, |c| now.time_ns.saturating_sub(c.began_ns))
        };
        match self.order {
            Order::OffCpu => rows.sort_by_key(|r| std::cmp::Reverse(r.activity.all.total_off_ns())),
            Order::Grace => rows.sort_by_key(|r| std::cmp::Reverse(age(r.vm))),
            Order::Name => rows.sort_by(|a, b| a.vm.name.cmp(&b.vm.name)),
        }
        rows
    }

    pub fn key(&mut self, key: KeyCode) -> Request {
        match key {
            KeyCode::Char('q') => return Request::Quit,
            KeyCode::Esc if !self.inside => return Request::Quit,
            KeyCode::Esc => (self.inside, self.scroll) = (false, 0),
            KeyCode::Enter => (self.inside, self.scroll) = (self.selected.is_some(), 0),
            KeyCode::Down => self.step(1),
            KeyCode::Up => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('w') => self.since_start = !self.since_start,
            _ => (),
        }
        Request::Nothing
    }

    fn step(&mut self, by: isize) {
        if self.inside {
            self.scroll = self.scroll.saturating_add_signed(by);
            return;
        }
        let rows: Vec<u32> = self.rows().iter().map(|row| row.vm.pid).collect();
        let at = rows.iter().position(|pid| Some(*pid) == self.selected).unwrap_or(0);
        let to = at.saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(to).copied();
    }
}
