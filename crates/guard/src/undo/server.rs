// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline server of sched_ext (Linux 7.0 and newer): it gives the threads of sched_ext
//! `runtime` in each `period` of a CPU where ordinary or real-time threads would take all.
//!
//! The server runs them as late as it can: threads that have had their runtime anyway need no
//! server. The kernel looks whether the runtime is used up at its ticks, so that a turn may last
//! for one more: the share is the closer to what is reserved, the longer the period.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const SERVERS: &str = "/sys/kernel/debug/sched/ext_server";

/// How the kernel may be told that none is reserved without a warning in its log.
const LEAST_NS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub runtime_ns: u64,
    pub period_ns: u64,
}

/// The server of a CPU, as it was before and as guard sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    pub cpu: u32,
    pub before: Times,
    pub set: Times,
}

/// Whether this kernel has the servers, and debugfs shows them.
pub fn supported() -> bool {
    Path::new(SERVERS).is_dir()
}

/// Whether the CPU is off. The kernel then takes no times for its server. guard is loaded again
/// when the CPU comes.
fn is_off(cpu: u32) -> bool {
    let online = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
    online.is_ok_and(|online| online.trim() == "0")
}

/// A server for each CPU that is to have `percent` of each period, and has not yet.
pub fn all(percent: u8, period_ns: u64) -> io::Result<Vec<Server>> {
    let runtime_ns = (period_ns / 100 * u64::from(percent)).max(LEAST_NS);
    let set = Times { runtime_ns, period_ns };
    let mut servers = Vec::new();
    for entry in fs::read_dir(SERVERS)? {
        let name = entry?.file_name();
        let cpu = name.to_string_lossy().strip_prefix("cpu").and_then(|n| n.parse().ok());
        let Some(cpu) = cpu else { continue };
        let before = Times::of(Path::new(SERVERS), cpu)?;
        if before != set && !is_off(cpu) {
            servers.push(Server { cpu, before, set });
        }
    }
    Ok(servers)
}

impl Server {
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] where threads with deadlines have been promised that time.
    pub fn reserve(&self) -> io::Result<()> {
        match self.set.put(Path::new(SERVERS), self.cpu) {
            Err(_) if is_off(self.cpu) => Ok(()),
            done => done,
        }
    }

    /// Returns whether the server had what guard sets. What somebody else has set since stays.
    pub fn restore(&self) -> io::Result<bool> {
        let off = |error| if is_off(self.cpu) { io::Error::other("it is off") } else { error };
        self.restore_in(Path::new(SERVERS)).map_err(off)
    }

    fn restore_in(&self, servers: &Path) -> io::Result<bool> {
        match Times::of(servers, self.cpu) {
            Ok(now) if now == self.set => self.before.put(servers, self.cpu).map(|()| true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(false),
        }
    }

    /// The line of a journal.
    pub fn line(&self) -> String {
        let Server { cpu, before, set } = self;
        let (runtime, period) = (before.runtime_ns, before.period_ns);
        format!("server {cpu} {runtime} {period} {} {}\n", set.runtime_ns, set.period_ns)
    }

    pub fn parse(line: &str) -> Option<Server> {
        let (cpu, times) = line.strip_prefix("server ")?.split_once(' ')?;
        let times: Option<Vec<u64>> = times.split(' ').map(|word| word.parse().ok()).collect();
        let [runtime, period, set_runtime, set_period] = times?[..] else { return None };
        Some(Server {
            cpu: cpu.parse().ok()?,
            before: Times { runtime_ns: runtime, period_ns: period },
            set: Times { runtime_ns: set_runtime, period_ns: set_period },
        })
    }
}

fn files(servers: &Path, cpu: u32) -> [PathBuf; 2] {
    let cpu = servers.join(format!("cpu{cpu}"));
    [cpu.join("runtime"), cpu.join("period")]
}

impl Times {
    fn of(servers: &Path, cpu: u32) -> io::Result<Times> {
        let read = |file: &Path| {
            let text = fs::read_to_string(file)?;
            text.trim().parse().map_err(|_| io::Error::other(format!("{text:?}")))
        };
        let [runtime, period] = files(servers, cpu);
        Ok(Times { runtime_ns: read(&runtime)?, period_ns: read(&period)? })
    }

    fn put(self, servers: &Path, cpu: u32) -> io::Result<()> {
        let [runtime, period] = files(servers, cpu);
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

    const BEFORE: Times = Times { runtime_ns: 50_000_000, period_ns: 1_000_000_000 };
    const SET: Times = Times { runtime_ns: 5_000_000, period_ns: 20_000_000 };

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let server = Server { cpu: 7, before: BEFORE, set: SET };
        assert_eq!(Server::parse(server.line().trim_end()), Some(server));
        // The last line of a writer that was killed in the middle of it.
        for torn in ["", "server", "server 7", "server 7 1 2 3", "server 7 1 2 3 4 5", "7 1 0 0"] {
            assert_eq!(Server::parse(torn), None, "{torn:?}");
        }
    }

    #[test]
    fn what_somebody_else_has_set_since_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cpu3")).unwrap();
        for file in files(dir.path(), 3) {
            fs::write(file, "1000000").unwrap();
        }
        let server = Server { cpu: 3, before: BEFORE, set: SET };
        for (now, restored) in [(SET, true), (Times { period_ns: 30_000_000, ..SET }, false)] {
            now.put(dir.path(), 3).unwrap();
            assert_eq!(server.restore_in(dir.path()).unwrap(), restored);
            let after = if restored { BEFORE } else { now };
            assert_eq!(Times::of(dir.path(), 3).unwrap(), after);
        }
        // The CPU, or the kernel's server, is gone.
        assert!(!Server { cpu: 4, ..server }.restore_in(dir.path()).unwrap());
    }
}
