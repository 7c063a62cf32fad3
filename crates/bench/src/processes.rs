// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work in several processes, counted from outside: children count their operations in memory that
//! they share, the parent looks twice and then ends them.

use crate::clock;
use crate::error::{Error, Result};
use crate::options::Options;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// The most processes of a run.
pub const MOST: usize = 512;

#[repr(C, align(64))]
pub struct Count(pub AtomicU64);

/// What parent and children share.
#[repr(C)]
pub struct Shared {
    ready: AtomicU32,
    go: AtomicU32,
    /// For the work itself: what is counted in a critical section.
    pub guarded: AtomicU64,
    pub counts: [Count; MOST],
}

struct Page(*mut Shared);

impl Page {
    fn new() -> Result<Page> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let size = size_of::<Shared>();
        // SAFETY: a fresh mapping of zeros, which are valid counters.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if p == libc::MAP_FAILED { Err(broken("no shared memory")) } else { Ok(Page(p.cast())) }
    }

    fn get(&self) -> &Shared {
        // SAFETY: mapped as long as this lives; atomics only.
        unsafe { &*self.0 }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the children are gone.
        unsafe { libc::munmap(self.0.cast(), size_of::<Shared>()) };
    }
}

/// Children, killed when this is dropped.
struct Children(Vec<libc::pid_t>);

impl Children {
    /// Fails if one has ended.
    fn check(&self) -> Result<()> {
        // SAFETY: our own children, which are not reaped by this.
        let over = |(number, &pid): (usize, &libc::pid_t)| unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            let over = libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) == 0
                && info.si_pid() == pid;
            over.then(|| (number, info.si_code, info.si_status()))
        };
        match self.0.iter().enumerate().find_map(over) {
            Some((number, libc::CLD_EXITED, _)) => {
                Err(broken(&format!("number {number} failed in its work")))
            }
            Some((number, _, signal)) => {
                Err(broken(&format!("number {number} was ended by signal {signal}")))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for &pid in &self.0 {
            // SAFETY: our own children.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        for &pid in &self.0 {
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }
}

fn broken(what: &str) -> Error {
    Error::Broken { subject: "a process".into(), what: what.into() }
}

/// Runs `work` in `n` processes, and returns operations per second of all together, and what is
/// shared with the last counts in it. `work` is told its number; it counts in `counts` and never
/// ends.
pub fn rate(
    n: usize,
    length: Duration,
    options: &Options,
    work: &dyn Fn(usize, &Shared),
    check: &dyn Fn(&Shared) -> bool,
) -> Result<f64> {
    let page = Page::new()?;
    let shared = page.get();
    let mut children = Children(vec![]);
    for number in 0..n {
        // SAFETY: the child calls what its work needs, and ends without destructors.
        match unsafe { libc::fork() } {
            -1 => return Err(broken("cannot be forked")),
            0 => {
                // SAFETY: it goes with its parent.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                shared.ready.fetch_add(1, SeqCst);
                while shared.go.load(SeqCst) == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
                let run = std::panic::AssertUnwindSafe(|| work(number, shared));
                let _ = std::panic::catch_unwind(run);
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
            pid => children.0.push(pid),
        }
    }
    while (shared.ready.load(SeqCst) as usize) < n {
        options.check()?;
        std::thread::sleep(Duration::from_micros(200));
    }
    shared.go.store(1, SeqCst);
    let sum = || shared.counts.iter().map(|count| count.0.load(Relaxed)).sum::<u64>();
    // Once all have begun, and some time has passed, it counts.
    let warm = Instant::now() + length / 8;
    while Instant::now() < warm || sum() == 0 {
        children.check()?;
        options.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (before, start) = (sum(), clock::now());
    let end = Instant::now() + length;
    // On a busy machine longer, until there is something to count.
    while Instant::now() < end || sum() == before {
        children.check()?;
        options.check()?;
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
    let (after, time) = (sum(), clock::now() - start);
    children.check()?;
    drop(children);
    if !check(shared) {
        return Err(broken("was not alone in its critical section, or a message was wrong"));
    }
    Ok((after - before) as f64 * 1e9 / time as f64)
}

/// The CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    // SAFETY: plain data that the call fills in; numbers within the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Has this process run on one CPU only.
pub fn bind(cpu: usize) {
    // SAFETY: plain data; a number within the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}
