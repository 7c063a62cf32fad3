// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words and figures for people.

use super::activity::{Activity, VmActivity};
use super::histogram::quantile;
use crate::model::{Domain, Location, Taker, VmState};
pub use reprieve_page::plain;

/// Where a figure is not known.
pub const NONE: &str = "-";

/// `text` in at most `width` characters, the cut shown.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width.saturating_sub(1)).chain(std::iter::once('…')).take(width).collect()
}

/// A time with three digits and its unit: `870 ns`, `12.5 us`, `7.03 ms`, `41.2 s`, `3 min`, `26
/// h`.
pub fn time(ns: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")];
    if !ns.is_finite() {
        return NONE.into();
    }
    if ns >= 119.5e9 {
        let minutes = (ns / 60e9).round();
        return if minutes < 120.0 {
            format!("{minutes} min")
        } else {
            format!("{:.0} h", ns / 3600e9)
        };
    }
    let unit = UNITS.iter().rev().find(|(size, _)| ns >= 0.9995 * size).unwrap_or(&UNITS[0]);
    format!("{} {}", digits(ns / unit.0), unit.1)
}

/// A figure with about three digits: `0.04`, `7.03`, `41.2`, `870`, `12.5k`, `3.20M`.
pub fn count(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];
    if !value.is_finite() {
        return NONE.into();
    }
    let unit = UNITS.iter().rev().find(|(size, _)| value >= 0.9995 * size).unwrap_or(&UNITS[0]);
    digits(value / unit.0) + unit.1
}

fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A share of one as a percentage.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0} %", share * 100.0) } else { NONE.into() }
}

/// An optional figure by `show`, else a dash.
pub fn optional(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.into(), show)
}

/// The grace period that a `gp_seq` belongs to: its two lowest bits are a state. Kernels start to
/// count below zero.
pub fn grace_period(seq: i64) -> String {
    match seq >> 2 {
        number @ 0.. => number.to_string(),
        _ => "of the guest's start".into(),
    }
}

/// The preemptions of a VM's vCPUs.
pub fn preemptions(all: &Activity) -> String {
    format!(
        "vCPUs: {} preemptions/s; without a CPU {} of the time they wanted one; {} of preemptions in critical sections",
        count(all.per_second(all.total_preemptions())),
        optional(all.ready_share(), percent),
        optional(all.critical_share(), percent)
    )
}

/// How much of the time without a CPU a quota took; `None`: nothing.
pub fn throttled(all: &Activity) -> Option<String> {
    let share = all.throttled_share().filter(|share| *share > 0.0);
    share.map(|share| format!("throttled (cpu.max): {} of that", percent(share)))
}

/// How long the grace periods that ended took.
pub fn graces(activity: &VmActivity) -> String {
    let quantile = |q| optional(quantile(&activity.grace, q), time);
    format!(
        "{}/s; mean {}, p50 {}, p99 {}",
        count(activity.all.per_second(activity.graces())),
        optional(activity.grace_mean(), time),
        quantile(0.5),
        quantile(0.99),
    )
}

/// A domain of the runtime.
pub fn domain(of: &Domain) -> String {
    let laggards: Vec<String> = of.laggards.iter().take(4).map(u32::to_string).collect();
    format!(
        "domain {}: {}, {} in a section; waiting {} callbacks, {}B; grace period now {}{}{}",
        of.index,
        several(of.threads as usize, "thread"),
        of.readers,
        of.callbacks_waiting,
        count(of.bytes_waiting as f64),
        optional(of.current_age_ns.map(|ns| ns as f64), time),
        if laggards.is_empty() { "" } else { ", waits for threads " },
        laggards.join(" "),
    )
}

/// The processes that took CPUs, as `web-1 (VM) 0.30 s, cc1 1.20 ms`.
pub fn takers(takers: &[Taker]) -> String {
    let one = |taker: &Taker| {
        let place = match (&taker.cgroup, taker.vm) {
            (_, true) => " (VM)".into(),
            (Some(cgroup), _) if cgroup != "/" => format!(" in {}", plain(cgroup)),
            _ => String::new(),
        };
        format!("{} {}{place} {}", plain(&taker.name), taker.pid, time(taker.total_ns as f64))
    };
    takers.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// How many vCPUs a VM has: in its first seconds they are not known.
pub fn vcpus(number: usize) -> String {
    match number {
        0 => "its vCPUs are not known yet".into(),
        n => several(n, "vCPU"),
    }
}

/// `1 vCPU`, `2 vCPUs`.
pub fn several(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `function (task 12)`; a dash where nothing is known.
pub fn location(at: &Location) -> String {
    match (&at.function, task(at)) {
        (Some(function), Some(task)) => format!("{} ({task})", plain(function)),
        (Some(function), None) => plain(function),
        (None, Some(task)) => task,
        (None, None) => NONE.into(),
    }
}

/// `task 12`.
pub fn task(at: &Location) -> Option<String> {
    match (&at.task, at.pid) {
        (Some(task), Some(pid)) => Some(format!("{} {pid}", plain(task))),
        (Some(task), None) => Some(plain(task)),
        (None, Some(pid)) => Some(format!("pid {pid}")),
        (None, None) => None,
    }
}

/// The state of a VM in words; `None` while it is watched.
pub fn state(state: &VmState) -> Option<String> {
    match state {
        VmState::Watching => None,
        VmState::Attaching => Some("attaching".into()),
        VmState::Paused => Some("paused".into()),
        VmState::Gone => Some("ended".into()),
        VmState::Unreadable(why) => Some(format!("unreadable: {}", plain(why))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_digits() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (870.0, "870 ns"),
            (999.9, "1.00 us"),
            (12_540.0, "12.5 us"),
            (7_031_000.0, "7.03 ms"),
            (41.2e9, "41.2 s"),
            (119e9, "119 s"),
            (180e9, "3 min"),
            (93_600e9, "26 h"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(time(ns), text, "{ns}");
        }
    }

    #[test]
    fn counts_keep_three_digits() {
        for (value, text) in
            [(0.0, "0"), (0.042, "0.04"), (7.0, "7.00"), (999.9, "1.00k"), (12_500.0, "12.5k")]
        {
            assert_eq!(count(value), text, "{value}");
        }
    }

    #[test]
    fn a_task_name_cannot_steer_the_terminal() {
        let at = Location { task: Some("\x1b[2Jx\u{202e}\n".into()), pid: Some(7), function: None };
        assert_eq!(location(&at), "?[2Jx?? 7");
    }

    #[test]
    fn grace_periods_count_from_below_zero() {
        assert_eq!(grace_period(4241), "1060");
        assert_eq!(grace_period(-1199), "of the guest's start");
    }

    #[test]
    fn a_cut_is_shown() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("abcd", 0), "");
    }
}
