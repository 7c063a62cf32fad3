// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another process beside which `grace` measures. All it does is membarriers, for which the kernel
//! has locks that all processes share: one that holds them without a CPU could stall everybody.

use crate::error::{Error, Result};
use crate::options::{Neighbour, Options};
use crate::processes::{self, Child, Mapped};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// The threads of [`Neighbour::Throttled`], and its share of one CPU.
const THREADS: usize = 64;
const PERCENT: u64 = 2;

impl Neighbour {
    /// What a group of figures is called after, behind the number of readers.
    pub fn beside(self) -> &'static str {
        match self {
            Neighbour::None => "",
            Neighbour::Membarrier => ", beside membarriers",
            Neighbour::Throttled => ", beside throttled membarriers",
        }
    }

    /// Starts the process, and waits until it is at work.
    pub fn start(self, options: &Options) -> Result<Option<Running>> {
        let (threads, cgroup) = match self {
            Neighbour::None => return Ok(None),
            Neighbour::Membarrier => (processes::cpus().len(), None),
            Neighbour::Throttled => (THREADS, Some(Cgroup::new()?)),
        };
        // SAFETY: an atomic.
        let calls = unsafe { Mapped::<AtomicU64>::new() }?;
        // SAFETY: mapped in the child as well.
        let count = unsafe { &*calls.get() };
        let procs = cgroup.as_ref().map(|cgroup| cgroup.0.join("cgroup.procs"));
        let child = processes::fork(&|| {
            // 0 is the process that writes.
            let limited = procs.as_ref().is_none_or(|procs| fs::write(procs, "0").is_ok());
            limited && flood(threads, count)
        })?;
        let running = Running { child, cgroup, calls };
        while running.calls() < threads as u64 {
            running.child.check()?;
            options.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Some(running))
    }
}

/// Membarriers by that many threads, for ever; false if there are none.
fn flood(threads: usize, calls: &AtomicU64) -> bool {
    let membarrier = |command: libc::c_int| {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    if !membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        return false;
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
    });
    false
}

/// A neighbour at work. It ends when this is dropped.
pub struct Running {
    // Before the cgroup, which must be empty to be removed.
    child: Child,
    #[allow(dead_code, reason = "removed when dropped")]
    cgroup: Option<Cgroup>,
    calls: Mapped<AtomicU64>,
}

impl Running {
    /// Membarriers so far.
    pub fn calls(&self) -> u64 {
        // SAFETY: mapped as long as this lives.
        unsafe { (*self.calls.get()).load(Relaxed) }
    }
}

/// A cgroup that gets [`PERCENT`] of a CPU, removed when this is dropped.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Of version 1 or 2, whichever has the controller `cpu`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason, in one line.
    pub fn new() -> Result<Cgroup> {
        let lacks = |what: String| {
            Error::Usage(format!("--neighbour throttled: no cgroup can be made: {what}"))
        };
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let controls = |kind: &str, options: &str, at: &str| match kind {
            "cgroup" => options.split(',').any(|option| option == "cpu"),
            "cgroup2" => {
                let listed = fs::read_to_string(Path::new(at).join("cgroup.controllers"));
                listed.unwrap_or_default().split_whitespace().any(|name| name == "cpu")
            }
            _ => false,
        };
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            controls(kind, options, at).then(|| (Path::new(at), kind == "cgroup2"))
        });
        let Some((root, unified)) = root else {
            return Err(lacks("no hierarchy with the controller cpu is mounted".into()));
        };
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|error| lacks(format!("{}: {error}", path.display())))
        };
        if unified {
            write(&root.join("cgroup.subtree_control"), "+cpu")?;
        }
        let path = root.join(format!("reprieve-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| lacks(format!("{}: {error}", path.display())))?;
        let cgroup = Cgroup(path);
        const PERIOD: u64 = 100_000;
        let quota = PERIOD * PERCENT / 100;
        match unified {
            true => write(&cgroup.0.join("cpu.max"), &format!("{quota} {PERIOD}"))?,
            false => write(&cgroup.0.join("cpu.cfs_quota_us"), &quota.to_string())?,
        }
        Ok(cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_works_until_it_is_dropped() {
        let options = Options::plain(Duration::ZERO, 1);
        for neighbour in Neighbour::ALL {
            let running = match neighbour.start(&options) {
                Ok(running) => running,
                Err(Error::Usage(why)) if neighbour == Neighbour::Throttled => {
                    println!("skipped: {why}");
                    continue;
                }
                Err(error) => panic!("{neighbour:?}: {error}"),
            };
            let Some(running) = running else {
                assert_eq!(neighbour, Neighbour::None);
                continue;
            };
            let before = running.calls();
            while running.calls() == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            let Some(path) = running.cgroup.as_ref().map(|cgroup| cgroup.0.clone()) else {
                continue;
            };
            // It would use all CPUs.
            let throttled = || {
                let stat = fs::read_to_string(path.join("cpu.stat")).unwrap();
                let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
                line.unwrap().parse::<u64>().unwrap() > 0
            };
            while !throttled() {
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(running);
            assert!(!path.exists());
        }
    }
}
