// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that compete for the host's CPUs, and one that starves a single thread.

use crate::vm::{Threads, allowed_cpus};
use anyhow::{Context as _, Result, anyhow};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A thread that computes until it is dropped.
pub struct Spinner {
    pub tid: u32,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// On CPU `cpu` (an index into the CPUs that this process may use), with the niceness of this
    /// process and its VMs.
    pub fn start(cpu: u32) -> Result<Spinner> {
        Spinner::with(cpu, None)
    }

    fn with(cpu: u32, nice: Option<i32>) -> Result<Spinner> {
        let stop = Arc::new(AtomicBool::new(false));
        let (send, ready) = std::sync::mpsc::channel();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("spinner".into()).spawn(move || {
            // SAFETY: no arguments, always succeeds.
            let tid = unsafe { libc::gettid() };
            let set = |nice| {
                // With the policy of the process, niceness might mean nothing (SCHED_IDLE).
                set_policy(tid as u32, libc::SCHED_OTHER, 0)?;
                // SAFETY: plain system call about this thread.
                match unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as u32, nice) } {
                    0 => Ok(()),
                    _ => Err(anyhow!("niceness of a spinner: {}", io::Error::last_os_error())),
                }
            };
            let niced = nice.map_or(Ok(()), set);
            let threads = Threads::new(std::process::id(), vec![tid as u32]);
            let pinned = threads.pin(&[vec![cpu]], &[]);
            let _ = send.send((tid as u32, niced, pinned));
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
        let mut spinner = Spinner { tid: 0, stop, thread: Some(thread) };
        let (tid, niced, pinned) = ready.recv().context("starting a spinner")?;
        spinner.tid = tid;
        niced?;
        pinned?;
        Ok(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Keeps a thread runnable but not running, until this is dropped: with `SCHED_IDLE`, on a CPU with
/// a thread of the highest weight, it gets a few milliseconds per minute. (A signal or the freezer
/// would make it sleep, and a vCPU that sleeps is not preempted.)
pub struct Starved {
    tid: u32,
    spinner: Option<Spinner>,
}

impl Starved {
    /// Starves thread `tid` and pins it to CPU `cpu` for that.
    pub fn start(tid: u32, cpu: u32) -> Result<Starved> {
        let spinner = Some(Spinner::with(cpu, Some(-20))?);
        set_policy(tid, libc::SCHED_IDLE, 0)?;
        let starved = Starved { tid, spinner };
        // Last: until then it may run on other CPUs.
        Threads::new(0, vec![tid]).pin(&[vec![cpu]], &[])?;
        Ok(starved)
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        let _ = set_policy(self.tid, libc::SCHED_OTHER, 0);
        self.spinner = None;
        let all: Vec<u32> = (0..allowed_cpus().len() as u32).collect();
        let _ = Threads::new(0, vec![self.tid]).pin(&[all], &[]);
    }
}

pub fn set_policy(tid: u32, policy: libc::c_int, priority: libc::c_int) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` is valid for the read.
    let set = unsafe { libc::sched_setscheduler(tid as libc::pid_t, policy, &parameters) };
    if set == 0 {
        return Ok(());
    }
    Err(anyhow!("scheduling policy of thread {tid}: {}", io::Error::last_os_error()))
}
