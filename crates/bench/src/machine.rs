// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that the figures were measured on.

use crate::options::Options;
use crate::result::Conditions;

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn conditions(options: &Options) -> Conditions {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let name = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name.trim());
    let support = reprieve::support();
    Conditions {
        cpus: cpus(),
        cpu: name.to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        restartable: support.restartable.to_string(),
        membarrier: support.membarrier,
        c_compiler: env!("REPRIEVE_BENCH_CC").to_owned(),
        load: read("/proc/loadavg")
            .split(' ')
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or_default(),
        seconds: options.length.as_secs_f64(),
        rounds: options.rounds,
    }
}
