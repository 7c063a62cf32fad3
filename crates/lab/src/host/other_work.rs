// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of this machine's CPU time other work than the run took.
//!
//! Other work's time is the busy and stolen time of `/proc/stat`, less the time of this process and
//! its descendants (the VMs, or the lab host), those included that have ended. Figures that were
//! measured beside other work are kept, and the report says so.

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
        Some(CpuTime { all, busy, own: of_tree(std::process::id()) })
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

/// CPU time of process `pid` and its descendants in ticks.
fn of_tree(pid: u32) -> u64 {
    // First the children: one that is waited for meanwhile is then in the time of its parent.
    let below: u64 = children(pid).into_iter().map(of_tree).sum();
    below + of_process(pid).unwrap_or(0)
}

/// CPU time of process `pid` in ticks, user and system, and that of its children that were waited
/// for: when one is, its time must not disappear.
fn of_process(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the times are the 12th to 15th field after it.
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let times: Vec<u64> = fields.take(4).map_while(|field| field.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

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

    #[test]
    fn a_child_that_has_ended_still_counts() {
        // The child works until it is killed or its parent, which stays, is gone.
        let worker = "sh -c 'while kill -0 $PPID; do :; done'";
        let script = format!("{worker} & echo $!; wait; echo ended; read end");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::spawn(&mut command).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let worker = lines.next().unwrap().parse().unwrap();
        let used = loop {
            match of_process(worker).unwrap() {
                used if used >= 5 => break used,
                _ => std::thread::yield_now(),
            }
        };
        assert!(of_tree(child.id()) >= used);
        kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
        assert_eq!(lines.next().unwrap(), "ended");
        assert!(of_tree(child.id()) >= used);
        process::kill(&mut child);
    }
}
