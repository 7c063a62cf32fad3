// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of this machine's CPU time other work than the run took.
//!
//! It is the busy and stolen time of `/proc/stat`, less the time of this process and its children
//! (the VMs, or the lab host). Figures that were measured beside other work are kept, and the
//! report says so.

use std::fs;

/// CPU time so far, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    all: u64,
    busy: u64,
    own: u64,
}

impl CpuTime {
    pub fn now() -> Option<CpuTime> {
        let (all, busy) = parse_stat(&fs::read_to_string("/proc/stat").ok()?)?;
        let me = std::process::id();
        let own = [me].into_iter().chain(children(me)).filter_map(of_process).sum();
        Some(CpuTime { all, busy, own })
    }

    /// Share (0 to 1) of the machine's CPU time since `before` that other work used.
    pub fn other_since(self, before: CpuTime) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|&all| all > 0)?;
        let busy = self.busy.saturating_sub(before.busy);
        let own = self.own.saturating_sub(before.own);
        Some(busy.saturating_sub(own) as f64 / all as f64)
    }
}

/// (all, busy) of the first line of `/proc/stat`: user nice system idle iowait irq softirq steal;
/// guest time is part of user.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|f| f.parse().ok()).collect();
    let fields = fields.get(..8)?;
    let all: u64 = fields.iter().sum();
    Some((all, all.saturating_sub(fields[3] + fields[4])))
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    lists
        .flat_map(|l| l.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// CPU time of process `pid` in ticks, user and system.
fn of_process(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the times are the 12th and 13th field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy_and_stolen_is() {
        let stat = "cpu  10 1 5 100 20 2 3 9 4 0\ncpu0 1 1 1 1\n";
        assert_eq!(parse_stat(stat), Some((150, 30)));
        assert_eq!(parse_stat("cpu  1 2 3\n"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn what_others_use_is_what_is_left() {
        let before = CpuTime { all: 1000, busy: 500, own: 100 };
        let after = CpuTime { all: 1200, busy: 650, own: 200 };
        assert_eq!(after.other_since(before), Some(0.25));
        assert_eq!(before.other_since(before), None);
    }

    #[test]
    fn sees_its_own_work() {
        let now = || of_process(std::process::id()).unwrap();
        let before = now();
        // As long as it takes to get a tick's worth of CPU.
        while now() == before {}
        assert!(now() > before);
    }
}
