// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of a VMM on the host: their scheduling counters and their CPU affinity.

use crate::error::{Error, Result};
use rustix::process::getpid;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs;

/// Scheduling counters of one or several threads. Times in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedCounters {
    pub run_ns: u64,
    /// Time runnable but not running.
    pub wait_ns: u64,
    /// Involuntary context switches.
    pub preemptions: u64,
}

impl SchedCounters {
    /// Reads the counters of thread `tid` of process `pid`; zero for a thread that is gone.
    fn of_thread(pid: u32, tid: u32) -> SchedCounters {
        let base = format!("/proc/{pid}/task/{tid}");
        let stat = fs::read_to_string(format!("{base}/schedstat")).unwrap_or_default();
        let status = fs::read_to_string(format!("{base}/status")).unwrap_or_default();
        SchedCounters::parse(&stat, &status)
    }

    /// Sums over `tids` of process `pid`.
    fn of_threads(pid: u32, tids: &[u32]) -> SchedCounters {
        tids.iter().fold(SchedCounters::default(), |sum, &tid| {
            let one = SchedCounters::of_thread(pid, tid);
            SchedCounters {
                run_ns: sum.run_ns + one.run_ns,
                wait_ns: sum.wait_ns + one.wait_ns,
                preemptions: sum.preemptions + one.preemptions,
            }
        })
    }

    pub fn since(self, earlier: SchedCounters) -> SchedCounters {
        SchedCounters {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
        }
    }

    fn parse(schedstat: &str, status: &str) -> SchedCounters {
        let mut fields = schedstat.split_ascii_whitespace().map(|f| f.parse().unwrap_or(0));
        let preemptions = status
            .lines()
            .find_map(|l| l.strip_prefix("nonvoluntary_ctxt_switches:"))
            .and_then(|v| v.trim().parse().ok())
            .unwrap_or(0);
        SchedCounters {
            run_ns: fields.next().unwrap_or(0),
            wait_ns: fields.next().unwrap_or(0),
            preemptions,
        }
    }
}

/// The threads of one VMM.
#[derive(Clone, Debug)]
pub struct Threads {
    pid: u32,
    vcpus: Vec<u32>,
}

impl Threads {
    /// `vcpus`: thread ids of the vCPUs of process `pid`, by vCPU number.
    pub fn new(pid: u32, vcpus: Vec<u32>) -> Threads {
        Threads { pid, vcpus }
    }

    /// The VMM.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Thread ids of the vCPUs, by vCPU number.
    pub fn vcpus(&self) -> &[u32] {
        &self.vcpus
    }

    /// Counters of the vCPU threads.
    pub fn vcpu_counters(&self) -> SchedCounters {
        SchedCounters::of_threads(self.pid, &self.vcpus)
    }

    /// Counters of all threads.
    pub fn counters(&self) -> SchedCounters {
        SchedCounters::of_threads(self.pid, &threads(self.pid))
    }

    /// Pins vCPU `n` to `vcpus[n]`, and all other threads to `other`; threads with an empty list
    /// are not pinned. CPU numbers are indices into [`allowed_cpus`]: under `taskset` or in a
    /// cpuset, VMs stay within it.
    pub fn pin(&self, vcpus: &[Vec<u32>], other: &[u32]) -> Result<()> {
        let allowed = allowed_cpus();
        let real = |cpus: &[u32]| -> Result<Vec<u32>> {
            let all = cpus.iter().map(|&cpu| allowed.get(cpu as usize).copied());
            all.collect::<Option<_>>().ok_or_else(|| {
                Error::Usage(format!(
                    "the plan pins to CPUs {cpus:?} and this process may use {}",
                    allowed.len()
                ))
            })
        };
        for (&tid, cpus) in self.vcpus.iter().zip(vcpus).filter(|(_, cpus)| !cpus.is_empty()) {
            set_affinity(tid, &real(cpus)?)?;
        }
        if !other.is_empty() {
            for tid in threads(self.pid).into_iter().filter(|tid| !self.vcpus.contains(tid)) {
                set_affinity(tid, &real(other)?)?;
            }
        }
        Ok(())
    }
}

/// The CPUs that this process may use, by number.
pub fn allowed_cpus() -> Vec<u32> {
    // The CPUs of the main thread: this one may be pinned.
    match sched_getaffinity(Some(getpid())) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|c| c as u32).collect(),
        // More CPUs than a set holds: as many as the machine says, from 0.
        Err(_) => (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32)).collect(),
    }
}

/// The threads of process `pid`.
fn threads(pid: u32) -> Vec<u32> {
    let Ok(dir) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Restricts thread `tid` to `cpus`.
///
/// # Errors
/// Names the CPUs if the thread may use none of them.
fn set_affinity(tid: u32, cpus: &[u32]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(Error::Usage(format!(
                "CPU {cpu} is beyond the {} that can be pinned to",
                CpuSet::MAX_CPU
            )));
        }
        set.set(cpu as usize);
    }
    sched_setaffinity(Pid::from_raw(tid as i32), &set).map_err(|error| {
        Error::Other(format!(
            "cannot pin a thread to CPUs {cpus:?}: {error}; are they online and allowed to this process?"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_id() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn parses_what_the_kernel_prints() {
        let status =
            "Name:\tCPU 0/KVM\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t42\n";
        let counters = SchedCounters::parse("1000 200 5\n", status);
        assert_eq!(counters, SchedCounters { run_ns: 1000, wait_ns: 200, preemptions: 42 });
        assert_eq!(SchedCounters::parse("", "junk"), SchedCounters::default());
    }

    #[test]
    fn sees_its_own_process_and_no_dead_one() {
        let pid = std::process::id();
        assert!(threads(pid).contains(&pid));
        assert!(SchedCounters::of_thread(pid, pid).run_ns > 0);
        assert_eq!(SchedCounters::of_thread(u32::MAX, 1), SchedCounters::default());
    }

    #[test]
    fn pins_within_what_is_allowed() {
        let allowed = allowed_cpus();
        assert!(!allowed.is_empty());
        let (send, receive) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(own_id()).unwrap();
            let _ = wait.recv();
        });
        let threads = Threads::new(std::process::id(), vec![receive.recv().unwrap()]);
        let last = allowed.len() as u32 - 1;
        threads.pin(&[vec![last]], &[]).unwrap();
        let status = format!("/proc/self/task/{}/status", threads.vcpus[0]);
        let status = fs::read_to_string(status).unwrap();
        let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(list.trim(), allowed[last as usize].to_string());
        assert!(threads.pin(&[vec![last + 1]], &[]).is_err());
        drop(done);
        thread.join().unwrap();
    }

    #[test]
    fn refuses_cpus_that_do_not_exist() {
        let tid = own_id();
        assert!(set_affinity(tid, &[1 << 20]).is_err());
        assert!(set_affinity(tid, &[1023]).is_err());
    }
}
