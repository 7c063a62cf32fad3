// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of the lab's kernel modules in debugfs: `reprieve_load`, and `reprieve_hold` for the
//! functions with `hold` in their names.

use crate::bytes::{u32_at, u64_at};
use crate::sys::{Context, Result};
use std::fs;
use std::io::Read;
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

/// The module's counts since the load or the probes were started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub pairs: u64,
    pub failed: u64,
    /// Objects of the load that wait for a grace period, without callbacks of other users.
    pub waiting: u64,
    pub probes_lost: u64,
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
            "probes_lost" => &mut stats.probes_lost,
            _ => continue,
        };
        *field = value.trim().parse().unwrap_or(0);
    }
    stats
}

/// A probe callback: registered when and where, and how long it waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// `CLOCK_MONOTONIC`.
    pub registered_ns: u64,
    pub latency_ns: u64,
    pub cpu: u32,
}

/// Size of the module's `struct probe_record`.
pub const RECORD: usize = 24;

/// Calls `each` for every recorded probe, a buffer at a time. An error while probes run.
pub fn probes(mut each: impl FnMut(Probe)) -> Result<()> {
    let path = Path::new(DIRECTORY).join("probes");
    let mut file = fs::File::open(&path).context(path.display())?;
    let mut buffer = vec![0; RECORD * 1024];
    loop {
        let n = file.read(&mut buffer).context(path.display())?;
        if n == 0 {
            return Ok(());
        }
        buffer[..n].chunks_exact(RECORD).filter_map(parse_probe).for_each(&mut each);
    }
}

fn parse_probe(record: &[u8]) -> Option<Probe> {
    Some(Probe {
        registered_ns: u64_at(record, 0)?,
        latency_ns: u64_at(record, 8)?,
        cpu: u32_at(record, 16)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_by_name() {
        let text = "pairs 120\nfailed 1\nwaiting 7\nwaiting_bytes 7168\nprobes 3\nprobes_lost 2\n";
        let expected = Stats { pairs: 120, failed: 1, waiting: 7, probes_lost: 2 };
        assert_eq!(parse_stats(text), expected);
        assert_eq!(parse_stats("nonsense\n\npairs x\n"), Stats::default());
    }

    #[test]
    fn holds_are_summed_over_cpus() {
        assert_eq!(parse_holds("1 reader 40\n2 irqs-off 2\n3 bh 7\n", &[1, 2]), 42);
        assert_eq!(parse_holds("1 reader x\n\n", &[1]), 0);
    }

    #[test]
    fn probe_records_have_the_modules_layout() {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&5u64.to_ne_bytes());
        record[8..16].copy_from_slice(&6u64.to_ne_bytes());
        record[16..20].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(parse_probe(&record), Some(Probe { registered_ns: 5, latency_ns: 6, cpu: 7 }));
        assert_eq!(parse_probe(&record[..10]), None);
    }
}
