// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of the lab's kernel modules in debugfs: `reprieve_load`, and `reprieve_hold` for the
//! functions with `hold` in their names.

use crate::sys::{Context, Result};
use std::fs;
use std::path::Path;

const DIRECTORY: &str = "/sys/kernel/debug/reprieve_load";
const HOLD: &str = "/sys/kernel/debug/reprieve_hold";

/// Whether `reprieve_load` is loaded.
pub fn is_loaded() -> bool {
    Path::new(DIRECTORY).exists()
}

/// Sends `reprieve_load` a command; its source lists the commands.
pub fn command(text: &str) -> Result<()> {
    fs::write(Path::new(DIRECTORY).join("control"), text)
        .context(format_args!("kernel module reprieve_load: {text:?}"))
}

/// Whether `reprieve_hold` is loaded.
pub fn hold_is_loaded() -> bool {
    Path::new(HOLD).exists()
}

/// Sends `reprieve_hold` a command.
pub fn hold_command(text: &str) -> Result<()> {
    fs::write(Path::new(HOLD).join("control"), text)
        .context(format_args!("kernel module reprieve_hold: {text:?}"))
}

/// Holds completed on `cpus` since each was started. (The module goes on showing a CPU whose hold
/// has been stopped.)
pub fn holds(cpus: &[u32]) -> Result<u64> {
    let path = Path::new(HOLD).join("holds");
    Ok(parse_holds(&fs::read_to_string(&path).context(path.display())?, cpus))
}

fn parse_holds(text: &str, cpus: &[u32]) -> u64 {
    let count = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu: u32 = words.next()?.parse().ok()?;
        cpus.contains(&cpu).then(|| words.nth(1)?.parse::<u64>().ok())?
    };
    text.lines().filter_map(count).sum()
}

/// The module's counts since the load was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub pairs: u64,
    pub failed: u64,
    /// Objects of the load that wait for a grace period, without callbacks of other users.
    pub waiting: u64,
}

pub fn stats() -> Result<Stats> {
    let path = Path::new(DIRECTORY).join("stats");
    Ok(parse_stats(&fs::read_to_string(&path).context(path.display())?))
}

fn parse_stats(text: &str) -> Stats {
    let mut stats = Stats::default();
    for (name, value) in text.lines().filter_map(|l| l.split_once(' ')) {
        let field = match name {
            "pairs" => &mut stats.pairs,
            "failed" => &mut stats.failed,
            "waiting" => &mut stats.waiting,
            _ => continue,
        };
        *field = value.trim().parse().unwrap_or(0);
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_by_name() {
        let text = "pairs 120\nfailed 1\nwaiting 7\n";
        let expected = Stats { pairs: 120, failed: 1, waiting: 7 };
        assert_eq!(parse_stats(text), expected);
        assert_eq!(parse_stats("nonsense\n\npairs x\n"), Stats::default());
    }

    #[test]
    fn holds_are_summed_over_cpus() {
        assert_eq!(parse_holds("1 reader 40\n2 irqs-off 2\n3 bh 7\n", &[1, 2]), 42);
        assert_eq!(parse_holds("1 reader x\n\n", &[1]), 0);
    }
}
