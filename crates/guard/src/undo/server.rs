// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline server of sched_ext (Linux 7.0 and newer): it gives the threads of sched_ext
//! `runtime` in each `period` of a CPU where ordinary or real-time threads would take all.
//!
//! The server runs them as late as it can: threads that have had their runtime anyway need no
//! server. The kernel looks whether the runtime is used up at its ticks, so that a turn may last
//! for one more: the share is the closer to what is reserved, the longer the period.

use super::lock::Restored;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub const SCHED_EXT: &str = "/sys/kernel/sched_ext";
/// On kernels that have the servers, if debugfs is mounted.
pub const SERVERS: &str = "/sys/kernel/debug/sched/ext_server";

/// How the kernel may be told that none is reserved without a warning in its log.
const LEAST_NS: u64 = 100_000;

/// vCPUs have what is reserved in each of these periods: long beside a tick of the kernel's, which
/// ends the server's turn late, and short, since a real-time thread may have to wait for a turn.
/// The period tells guard's reservations from others: 50 ms, and some nanoseconds, as nobody would
/// choose it.
const PERIOD_NS: u64 = 50_000_017;

/// The kernel's own.
const DEFAULT: Times = Times { runtime_ns: 50_000_000, period_ns: 1_000_000_000 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    runtime_ns: u64,
    period_ns: u64,
}

/// The reservation of each CPU.
pub type Servers = BTreeMap<u32, Times>;

/// The sched_ext scheduler that is loaded, or is just coming or going, as a clause.
pub fn loaded_scheduler() -> Option<String> {
    loaded_in(Path::new(SCHED_EXT))
}

fn loaded_in(sched_ext: &Path) -> Option<String> {
    let read = |name| fs::read_to_string(sched_ext.join(name)).unwrap_or_default();
    match read("state").trim() {
        "" | "disabled" => None,
        state => Some(format!("a sched_ext scheduler is {state} ({})", read("root/ops").trim())),
    }
}

/// The reservations now.
pub fn all(servers: &Path) -> io::Result<Servers> {
    let cpu = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok();
    let cpus = fs::read_dir(servers)?.flatten().filter_map(cpu);
    cpus.map(|cpu| Ok((cpu, Times::of(servers, cpu)?))).collect()
}

/// Whether the CPU is off. The kernel then takes no times for its server. When the CPU comes, guard
/// has to start again.
fn is_off(cpu: u32) -> bool {
    let online = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
    online.is_ok_and(|online| online.trim() == "0")
}

/// Reserves `percent` of each CPU.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] where threads with deadlines have been promised that time.
pub fn reserve(percent: u8) -> io::Result<()> {
    let runtime_ns = (PERIOD_NS / 100 * u64::from(percent)).max(LEAST_NS);
    let set = Times { runtime_ns, period_ns: PERIOD_NS };
    let servers = Path::new(SERVERS);
    for (cpu, now) in all(servers)? {
        let done = if now == set { Ok(()) } else { set.put(servers, cpu) };
        match done {
            Err(error) if !is_off(cpu) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Gives back what guard reserved. A CPU of which `before` does not tell gets the kernel's default.
pub fn restore(servers: &Path, before: &Servers, restored: &mut Restored) {
    let all = match all(servers) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return restored.failed.push(format!("what is reserved: {error}"));
        }
        all => all.unwrap_or_default(),
    };
    for (cpu, now) in all {
        if now.period_ns != PERIOD_NS {
            continue;
        }
        let before = before.get(&cpu).filter(|before| before.period_ns != PERIOD_NS);
        match before.unwrap_or(&DEFAULT).put(servers, cpu) {
            Ok(()) => restored.cpus += 1,
            Err(error) => {
                let why = if is_off(cpu) { "it is off".into() } else { error.to_string() };
                restored.failed.push(format!("what is reserved on CPU {cpu}: {why}"));
            }
        }
    }
}

impl Times {
    fn files(servers: &Path, cpu: u32) -> [PathBuf; 2] {
        let cpu = servers.join(format!("cpu{cpu}"));
        [cpu.join("runtime"), cpu.join("period")]
    }

    fn of(servers: &Path, cpu: u32) -> io::Result<Times> {
        let read = |file: &Path| {
            let text = fs::read_to_string(file)?;
            text.trim().parse().map_err(|_| io::Error::other(format!("{text:?}")))
        };
        let [runtime, period] = Times::files(servers, cpu);
        Ok(Times { runtime_ns: read(&runtime)?, period_ns: read(&period)? })
    }

    fn put(self, servers: &Path, cpu: u32) -> io::Result<()> {
        let [runtime, period] = Times::files(servers, cpu);
        let mut writes = [(runtime, self.runtime_ns), (period, self.period_ns)];
        // The runtime is never longer than the period.
        if Times::of(servers, cpu)?.runtime_ns <= self.period_ns {
            writes.reverse();
        }
        writes.into_iter().try_for_each(|(file, ns)| fs::write(file, ns.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_guard_reserved_is_given_back_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let guards = Times { runtime_ns: 5_000_000, period_ns: PERIOD_NS };
        let other = Times { runtime_ns: 5_000_000, period_ns: 20_000_000 };
        for cpu in 0..4 {
            fs::create_dir(dir.path().join(format!("cpu{cpu}"))).unwrap();
            for file in Times::files(dir.path(), cpu) {
                fs::write(file, "1000000").unwrap();
            }
            guards.put(dir.path(), cpu).unwrap();
        }
        // Left by another guard, not known, and set by somebody since.
        other.put(dir.path(), 3).unwrap();
        let before = Servers::from([(0, other), (1, guards), (3, guards)]);
        let mut restored = Restored::default();
        restore(dir.path(), &before, &mut restored);
        assert_eq!((restored.cpus, restored.failed.len()), (3, 0));
        let after = all(dir.path()).unwrap();
        assert_eq!(after, Servers::from([(0, other), (1, DEFAULT), (2, DEFAULT), (3, other)]));
    }

    #[test]
    fn another_scheduler_is_named_with_its_state() {
        let dir = tempfile::tempdir().unwrap();
        // A kernel without sched_ext.
        assert_eq!(loaded_in(dir.path()), None);
        fs::write(dir.path().join("state"), "disabled\n").unwrap();
        assert_eq!(loaded_in(dir.path()), None);
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("root/ops"), "lavd\n").unwrap();
        for state in ["enabling", "enabled", "disabling"] {
            fs::write(dir.path().join("state"), format!("{state}\n")).unwrap();
            let named = format!("a sched_ext scheduler is {state} (lavd)");
            assert_eq!(loaded_in(dir.path()), Some(named));
        }
    }
}
