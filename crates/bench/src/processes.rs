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

/// A child, killed when this is dropped.
pub struct Child(libc::pid_t);

/// How a child ended: `si_code` and `si_status`.
type End = (i32, i32);

impl Child {
    /// How it ended, if it has.
    fn over(&self) -> Option<End> {
        // SAFETY: our own child, which this does not reap; plain data that the call fills in.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            let over = libc::waitid(libc::P_PID, self.0 as libc::id_t, &mut info, flags) == 0;
            (over && info.si_pid() == self.0).then(|| (info.si_code, info.si_status()))
        }
    }

    /// Fails if it has ended.
    pub fn check(&self) -> Result<()> {
        judge(self.over())
    }
}

/// Fails if a child has ended like this.
fn judge(end: Option<End>) -> Result<()> {
    match end {
        None => Ok(()),
        Some((libc::CLD_EXITED, _)) => Err(broken("failed in its work")),
        Some((_, signal)) => Err(broken(&format!("was ended by signal {signal}"))),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not reaped yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Waits until all have ended by themselves, and in good order.
fn await_ends(mut children: Vec<Child>, options: &Options) -> Result<()> {
    while !children.is_empty() {
        let mut left = vec![];
        for child in children {
            // Asked once: a child may end between two questions.
            match child.over() {
                Some((libc::CLD_EXITED, 0)) => {}
                end => judge(end).map(|()| left.push(child))?,
            }
        }
        children = left;
        options.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Starts a process that does `work`, which tells whether all went well, and ends.
pub fn fork(work: &dyn Fn() -> bool) -> Result<Child> {
    // SAFETY: no memory is passed.
    let parent = unsafe { libc::getpid() };
    // SAFETY: the child calls what its work needs, and ends without destructors.
    match unsafe { libc::fork() } {
        -1 => Err(broken("cannot be forked")),
        0 => {
            // SAFETY: it goes with its parent, which may be gone.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent {
                    libc::_exit(1);
                }
            }
            leave_signals_to_parent();
            let run = std::panic::AssertUnwindSafe(work);
            let well = std::panic::catch_unwind(run).unwrap_or(false);
            // SAFETY: ends the child.
            unsafe { libc::_exit(if well { 0 } else { 1 }) };
        }
        pid => Ok(Child(pid)),
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
    let mut children = vec![];
    for number in 0..n {
        children.push(fork(&|| {
            shared.ready.fetch_add(1, SeqCst);
            while shared.go.load(SeqCst) == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            work(number, shared)
        })?);
    }
    let check_children = || children.iter().try_for_each(Child::check);
    while (shared.ready.load(SeqCst) as usize) < n {
        options.check()?;
        check_children()?;
        std::thread::sleep(Duration::from_micros(200));
    }
    shared.go.store(1, SeqCst);
    // Once all have begun, and some time has passed, it counts.
    let warm = Instant::now() + length / 8;
    while Instant::now() < warm || shared.sum() == 0 {
        check_children()?;
        options.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (before, start) = (shared.sum(), clock::now());
    let end = Instant::now() + length;
    // On a busy machine longer, until there is something to count.
    while Instant::now() < end || shared.sum() == before {
        check_children()?;
        options.check()?;
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
    let (after, time) = (shared.sum(), clock::now() - start);
    check_children()?;
    if to_the_end {
        shared.over.store(1, SeqCst);
        await_ends(children, options)?;
    } else {
        drop(children);
    }
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
