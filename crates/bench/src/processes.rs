// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work in several processes, counted from outside: children count their operations in memory that
//! they share, the parent looks twice and then ends them, or tells them to end.

use crate::clock;
use crate::error::{Error, Result};
use crate::options::Options;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// The most processes of a run.
pub const MOST: usize = 512;

/// The work of one process. A CPU may fetch lines of 64 bytes in pairs.
#[repr(C, align(128))]
pub struct Count(AtomicU64);

impl Count {
    /// Called by one process only: no atomic addition, which takes as long as a fifth of what some
    /// benchmarks count.
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed) + more, Relaxed);
    }
}

/// State that parent and children share.
#[repr(C)]
pub struct Shared {
    ready: AtomicU32,
    go: AtomicU32,
    over: AtomicU32,
    /// For the work itself: what is counted in a critical section, or who has ended.
    pub guarded: AtomicU64,
    pub counts: [Count; MOST],
}

impl Shared {
    /// Whether all has been measured, and the processes shall end.
    pub fn is_over(&self) -> bool {
        self.over.load(SeqCst) != 0
    }

    /// Operations of all.
    pub fn sum(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(SeqCst)).sum()
    }
}

/// A value in memory that is shared with children.
pub struct Mapped<T>(*mut T);

impl<T> Mapped<T> {
    /// All zeros.
    ///
    /// # Safety
    /// Zeros are a value of this type, which may be shared between processes.
    pub unsafe fn new() -> Result<Mapped<T>> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let size = size_of::<T>();
        // SAFETY: a fresh mapping.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if p == libc::MAP_FAILED { Err(broken("no shared memory")) } else { Ok(Mapped(p.cast())) }
    }

    pub fn get(&self) -> *mut T {
        self.0
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.0.cast(), size_of::<T>()) };
    }
}

/// Children with their numbers, killed when this is dropped.
struct Children(Vec<(usize, libc::pid_t)>);

/// How a child ended: `si_code` and `si_status`.
type End = (i32, i32);

impl Children {
    /// A child that has ended; it is not reaped.
    fn over(&self) -> Option<(usize, End)> {
        self.0.iter().enumerate().find_map(|(i, &(_, pid))| {
            // SAFETY: our own child, which this does not reap; plain data that the call fills in.
            unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                let over = libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) == 0
                    && info.si_pid() == pid;
                over.then(|| (i, (info.si_code, info.si_status())))
            }
        })
    }

    /// Fails if one has ended.
    fn check(&self) -> Result<()> {
        self.over().map_or(Ok(()), |(i, end)| Err(self.failed(i, end)))
    }

    fn failed(&self, i: usize, end: End) -> Error {
        let number = self.0[i].0;
        match end {
            (libc::CLD_EXITED, _) => broken(&format!("number {number} failed in its work")),
            (_, signal) => broken(&format!("number {number} was ended by signal {signal}")),
        }
    }

    /// Waits until all have ended by themselves, and in good order.
    fn end(&mut self, options: &Options) -> Result<()> {
        while !self.0.is_empty() {
            match self.over() {
                Some((i, (libc::CLD_EXITED, 0))) => reap(self.0.swap_remove(i).1),
                Some((i, end)) => return Err(self.failed(i, end)),
                None => {
                    options.check()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Ok(())
    }
}

fn reap(pid: libc::pid_t) {
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

impl Drop for Children {
    fn drop(&mut self) {
        for &(_, pid) in &self.0 {
            // SAFETY: our own children.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        self.0.iter().for_each(|&(_, pid)| reap(pid));
    }
}

fn broken(what: &str) -> Error {
    Error::Broken { subject: "a process".into(), what: what.into() }
}

/// Runs `work` in `n` processes, and returns operations per second of all together. `work` is told
/// its number; it counts in `counts` and never ends. `check` sees what is shared when all were
/// killed.
pub fn rate(
    n: usize,
    length: Duration,
    options: &Options,
    work: &dyn Fn(usize, &Shared),
    check: &dyn Fn(&Shared) -> Result<()>,
) -> Result<f64> {
    let work = |number: usize, shared: &Shared| {
        work(number, shared);
        false
    };
    measured(n, length, options, &work, check, false)
}

/// [`rate`] of work that ends in good order, once [`Shared::is_over`], and says whether all went
/// well. `check` sees what the processes left.
pub fn rate_to_the_end(
    n: usize,
    length: Duration,
    options: &Options,
    work: &dyn Fn(usize, &Shared) -> bool,
    check: &dyn Fn(&Shared) -> Result<()>,
) -> Result<f64> {
    measured(n, length, options, work, check, true)
}

fn measured(
    n: usize,
    length: Duration,
    options: &Options,
    work: &dyn Fn(usize, &Shared) -> bool,
    check: &dyn Fn(&Shared) -> Result<()>,
    to_the_end: bool,
) -> Result<f64> {
    // SAFETY: atomics only.
    let page = unsafe { Mapped::<Shared>::new() }?;
    // SAFETY: mapped as long as `page` lives.
    let shared = unsafe { &*page.get() };
    let mut children = Children(vec![]);
    // SAFETY: no memory is passed.
    let parent = unsafe { libc::getpid() };
    for number in 0..n {
        // SAFETY: the child calls what its work needs, and ends without destructors.
        match unsafe { libc::fork() } {
            -1 => return Err(broken("cannot be forked")),
            0 => {
                // SAFETY: it goes with its parent, which may be gone.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() != parent {
                        libc::_exit(1);
                    }
                }
                leave_signals_to_parent();
                shared.ready.fetch_add(1, SeqCst);
                while shared.go.load(SeqCst) == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
                let run = std::panic::AssertUnwindSafe(|| work(number, shared));
                let well = std::panic::catch_unwind(run).unwrap_or(false);
                // SAFETY: ends the child.
                unsafe { libc::_exit(if well { 0 } else { 1 }) };
            }
            pid => children.0.push((number, pid)),
        }
    }
    while (shared.ready.load(SeqCst) as usize) < n {
        options.check()?;
        children.check()?;
        std::thread::sleep(Duration::from_micros(200));
    }
    shared.go.store(1, SeqCst);
    // Once all have begun, and some time has passed, it counts.
    let warm = Instant::now() + length / 8;
    while Instant::now() < warm || shared.sum() == 0 {
        children.check()?;
        options.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (before, start) = (shared.sum(), clock::now());
    let end = Instant::now() + length;
    // On a busy machine longer, until there is something to count.
    while Instant::now() < end || shared.sum() == before {
        children.check()?;
        options.check()?;
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
    let (after, time) = (shared.sum(), clock::now() - start);
    children.check()?;
    if to_the_end {
        shared.over.store(1, SeqCst);
        children.end(options)?;
    }
    drop(children);
    check(shared)?;
    Ok((after - before) as f64 * 1e9 / time as f64)
}

/// A terminal sends Ctrl-C to the whole group. A child that takes it is woken from its `semop` with
/// an error (these calls are never restarted), which would look like a failure of the subject. The
/// parent ends its children.
fn leave_signals_to_parent() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::plain(Duration::from_millis(20), 1)
    }

    #[test]
    fn signals_to_the_group_do_not_end_the_work() {
        let work = |number: usize, shared: &Shared| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                // SAFETY: this process's own.
                unsafe { libc::raise(signal) };
            }
            while !shared.is_over() {
                shared.counts[number].add(1);
            }
            true
        };
        let options = options();
        let rate = rate_to_the_end(2, options.length, &options, &work, &|_| Ok(()));
        assert!(rate.is_ok(), "{rate:?}");
    }

    #[test]
    fn work_that_fails_is_an_error() {
        let work = |_: usize, _: &Shared| false;
        let options = options();
        let rate = rate_to_the_end(1, options.length, &options, &work, &|_| Ok(()));
        assert!(matches!(rate, Err(Error::Broken { .. })), "{rate:?}");
    }
}
