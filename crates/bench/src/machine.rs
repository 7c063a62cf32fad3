// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that the figures were measured on.

use crate::options::Options;
use crate::result::Conditions;

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How often a CPU has been interrupted to call a function, since the machine started; 0 where the
/// kernel does not tell.
pub fn calls() -> u64 {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let line = text.lines().find(|line| line.ends_with("Function call interrupts"));
    let counts = line.unwrap_or_default().split_whitespace().skip(1);
    counts.map_while(|count| count.parse::<u64>().ok()).sum()
}

/// How often this thread has given its CPU up.
pub fn sleeps() -> u64 {
    // SAFETY: plain data that the call fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw as u64
    }
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
