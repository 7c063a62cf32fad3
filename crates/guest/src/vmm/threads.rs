// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of QEMU that are vCPUs.
//!
//! With `debug-threads=on` (libvirt's choice) a thread's name says it. A KVM vCPU also shows in the
//! system call it is in: `ioctl(fd, KVM_RUN)`, where `fd` is a link to `anon_inode:kvm-vcpu:N`.
//! For vCPUs without either, of the other threads those that have computed most are taken, in the
//! order in which they were made, which is that of the vCPUs.

use super::{Accel, VcpuThread};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// `ioctl` and its request, in `/proc/PID/task/TID/syscall`.
const SYS_IOCTL: &str = "16";
const KVM_RUN: &str = "0xae80";

/// vCPUs of a VM, at most. A process may name its threads as it likes.
const VCPUS_MAX: usize = 8192;

/// A thread in guest mode shows no system call, so each thread is looked at several times.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// The vCPU threads of process `pid`, by vCPU number; `expected` of them.
pub fn vcpus(pid: u32, accel: Accel, expected: u32) -> Vec<VcpuThread> {
    let tids = tids(pid);
    let named = named(pid);
    if !named.is_empty() {
        return named;
    }
    // A thread that computes all the time is in no system call, and stops none of the others.
    let running = match accel {
        Accel::Kvm => by_system_call(pid, &tids, expected),
        Accel::Tcg => Vec::new(),
    };
    if running.len() >= expected as usize {
        return running;
    }
    completed(running, by_work(pid, &tids), expected)
}

/// The vCPU threads by their names; none if QEMU does not name its threads.
pub fn named(pid: u32) -> Vec<VcpuThread> {
    let thread = |tid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
        Some(VcpuThread { index: index_in(name.trim_end())?, tid })
    };
    let mut found: Vec<VcpuThread> = tids(pid).into_iter().filter_map(thread).collect();
    found.sort_by_key(|t| t.index);
    found.dedup_by_key(|t| t.index);
    found.truncate(VCPUS_MAX);
    found
}

fn tids(pid: u32) -> Vec<u32> {
    let Ok(dir) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut tids: Vec<u32> =
        dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids
}

/// `CPU 3/KVM`, `CPU 3/TCG`; `ALL CPUs/TCG` runs them all in turn.
fn index_in(name: &str) -> Option<u32> {
    if name == "ALL CPUs/TCG" {
        return Some(0);
    }
    let (index, accel) = name.strip_prefix("CPU ")?.split_once('/')?;
    matches!(accel, "KVM" | "TCG").then(|| index.parse().ok())?
}

fn by_system_call(pid: u32, tids: &[u32], expected: u32) -> Vec<VcpuThread> {
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    for _ in 0..LOOKS {
        for &tid in tids.iter().filter(|tid| !found.values().any(|t| t == *tid)).collect::<Vec<_>>()
        {
            let call =
                fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
            if let Some(index) = kvm_fd(&call).and_then(|fd| kvm_vcpu(pid, fd)) {
                found.insert(index, tid);
            }
        }
        if found.len() >= expected as usize {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    found.into_iter().map(|(index, tid)| VcpuThread { index, tid }).collect()
}

/// The descriptor that a thread runs a vCPU through.
fn kvm_fd(call: &str) -> Option<u32> {
    let mut fields = call.split_ascii_whitespace();
    let ioctl = fields.next()? == SYS_IOCTL;
    let fd = u32::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    (ioctl && fields.next()? == KVM_RUN).then_some(fd)
}

fn kvm_vcpu(pid: u32, fd: u32) -> Option<u32> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    link.to_str()?.strip_prefix("anon_inode:kvm-vcpu:")?.parse().ok()
}

/// The threads, those with most CPU time first. The main thread runs no vCPU.
fn by_work(pid: u32, tids: &[u32]) -> Vec<u32> {
    let time = |tid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        stat.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let others = tids.iter().filter(|&&tid| tid != pid);
    let mut busy: Vec<(u64, u32)> = others.filter_map(|&tid| Some((time(tid)?, tid))).collect();
    busy.sort_unstable_by(|a, b| b.cmp(a));
    busy.into_iter().map(|(_, tid)| tid).collect()
}

/// The vCPUs that are known, and for the others of the `expected` the first of `threads`, in the
/// order in which they were made.
fn completed(mut known: Vec<VcpuThread>, threads: Vec<u32>, expected: u32) -> Vec<VcpuThread> {
    let (indexes, tids): (BTreeSet<u32>, BTreeSet<u32>) =
        known.iter().map(|t| (t.index, t.tid)).unzip();
    let missing = (expected as usize).saturating_sub(known.len());
    let others = threads.into_iter().filter(|tid| !tids.contains(tid));
    let mut others: Vec<u32> = others.take(missing).collect();
    others.sort_unstable();
    let missing = (0..expected).filter(|index| !indexes.contains(index));
    known.extend(missing.zip(others).map(|(index, tid)| VcpuThread { index, tid }));
    known.sort_by_key(|t| t.index);
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::TryRecvError;

    #[test]
    fn vcpus_are_recognised_by_name() {
        assert_eq!(index_in("CPU 12/KVM"), Some(12));
        assert_eq!(index_in("CPU 0/TCG"), Some(0));
        assert_eq!(index_in("ALL CPUs/TCG"), Some(0));
        for other in ["CPU x/KVM", "CPU 1", "IO iothread1", "CPU 1/XXX"] {
            assert_eq!(index_in(other), None);
        }
    }

    #[test]
    fn one_vcpu_that_is_not_recognised_makes_none_of_the_others_unknown() {
        let vcpu = |index, tid| VcpuThread { index, tid };
        // vCPU 0 computes all the time; a worker (100) did more than vCPU 3.
        let known = vec![vcpu(1, 102), vcpu(2, 103), vcpu(3, 104)];
        let by_work = vec![101, 102, 103, 100, 104];
        let all = [vcpu(0, 101), vcpu(1, 102), vcpu(2, 103), vcpu(3, 104)];
        assert_eq!(completed(known, by_work.clone(), 4), all);
        // None is recognised.
        assert_eq!(completed(Vec::new(), by_work, 2), [vcpu(0, 101), vcpu(1, 102)]);
        assert_eq!(completed(vec![vcpu(1, 9)], Vec::new(), u32::MAX), [vcpu(1, 9)]);
    }

    #[test]
    fn vcpus_are_recognised_by_system_call() {
        assert_eq!(kvm_fd("16 0x1d 0xae80 0x0 0x0 0x0 0x0 0x7fff 0x7f00\n"), Some(29));
        assert_eq!(kvm_fd("16 0x1d 0xae81 0x0"), None);
        assert_eq!(kvm_fd("running\n"), None);
        assert_eq!(kvm_fd("1 0x1d 0xae80"), None);
    }

    #[test]
    fn vcpus_are_recognised_by_cpu_time() {
        let thread = |spin: bool| {
            let (send, receive) = std::sync::mpsc::channel();
            let (done, wait) = std::sync::mpsc::channel::<()>();
            let run = move || {
                let link = fs::read_link("/proc/thread-self").unwrap();
                let tid: u32 = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
                send.send(tid).unwrap();
                while spin && wait.try_recv() == Err(TryRecvError::Empty) {
                    std::hint::spin_loop();
                }
                let _ = wait.recv();
            };
            let handle = std::thread::spawn(run);
            (receive.recv().unwrap(), done, handle)
        };
        let (busy, busy_done, busy_thread) = thread(true);
        let (idle, idle_done, idle_thread) = thread(false);
        let pid = std::process::id();
        assert!(tids(pid).contains(&busy) && tids(pid).contains(&idle));
        // True as soon as the busy one has had a CPU for longer than the idle one, which had one
        // only to start.
        while by_work(pid, &[pid, idle, busy]) != [busy, idle] {
            std::thread::yield_now();
        }
        assert!(!by_work(pid, &tids(pid)).contains(&pid));
        drop((busy_done, idle_done));
        busy_thread.join().unwrap();
        idle_thread.join().unwrap();
    }
}
