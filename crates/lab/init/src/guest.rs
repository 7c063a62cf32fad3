// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about this guest, for `Hello`.

use crate::protocol::GuestInfo;
use crate::sys;
use std::fs::read_to_string;

pub fn info() -> GuestInfo {
    let read = |path: &str| read_to_string(path).unwrap_or_default().trim().to_string();
    let memory = crate::measure::meminfo::parse(read("/proc/meminfo").as_bytes());
    GuestInfo {
        kernel: read("/proc/sys/kernel/osrelease"),
        cpus: sys::cpus(),
        memory_kb: memory.map(|m| m.total_kb).unwrap_or(0),
        preempt: chosen(&read("/sys/kernel/debug/sched/preempt")),
        hz: sys::tick_ns().map(|ns| ((1_000_000_000 + ns / 2) / ns) as u32),
        cmdline: read("/proc/cmdline"),
        clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }
}

/// The word in parentheses: `none (voluntary) full`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('(')?;
    let (word, _) = rest.split_once(')')?;
    Some(word.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preemption_model_is_the_one_in_parentheses() {
        assert_eq!(chosen("none (voluntary) full ").as_deref(), Some("voluntary"));
        assert_eq!(chosen("none voluntary full (lazy)").as_deref(), Some("lazy"));
        assert_eq!(chosen(""), None);
        assert_eq!(chosen("(x"), None);
    }
}
