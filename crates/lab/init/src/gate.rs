// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting, stopping and counting the workers of a workload, threads and processes alike.
//!
//! A gate is shared memory: one word with the value wait, run or quit, and for each worker a cache
//! line with a count of operations, a count of refusals (for example: no memory at the moment) and
//! the error that ended it. Workers sleep on the word (a futex) until it is run, work until it
//! changes, and sleep again. So they exist before a phase begins, and only the load starts at time
//! 0.
//!
//! A worker that sees `run` also sees the counters that were cleared before. Counters are Relaxed;
//! they are read after their worker was seen idle. A worker says that it is busy and then looks at
//! the word, init changes the word and then looks who is busy: all four are sequentially
//! consistent, else each could miss what the other wrote, and an operation would begin after
//! [`Gate::settle`].

use crate::sys::{Context, Result, scaled};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::thread::futex;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WAIT: u32 = 0;
const RUN: u32 = 1;
const QUIT: u32 = 2;

/// The word is alone in its cache line.
#[repr(C, align(64))]
struct Header {
    word: AtomicU32,
}

/// The counters and the state of one worker.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Slot {
    operations: AtomicU64,
    refusals: AtomicU64,
    busy: AtomicU32,
    /// The error number that ended the worker; 0 for none.
    errno: AtomicU32,
}

impl Slot {
    pub fn operation(&self) {
        // A writer: a plain add, no locked instruction.
        self.operations.store(self.operations.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub fn refusal(&self) {
        self.refusals.store(self.refusals.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

struct Map {
    fd: OwnedFd,
    memory: MmapRaw,
    slots: usize,
}

fn bytes(slots: usize) -> usize {
    size_of::<Header>() + slots * size_of::<Slot>()
}

/// The shared memory; clones share it.
#[derive(Clone)]
pub struct Gate(Arc<Map>);

impl Gate {
    /// A closed gate for `slots` workers.
    pub fn new(slots: usize) -> Result<Gate> {
        let fd = memfd_create("reprieve-gate", MemfdFlags::CLOEXEC)
            .context("memory shared with workers")?;
        ftruncate(&fd, bytes(slots) as u64).context("memory shared with workers")?;
        Self::map(fd, slots)
    }

    /// The gate of a descriptor that a worker process got from init.
    pub fn from_fd(fd: OwnedFd, slots: usize) -> Result<Gate> {
        let stat = fstat(&fd).context("memory shared with init")?;
        if (stat.st_size as u64) < bytes(slots) as u64 {
            return Err(format!("memory shared with init: too small for {slots} workers"));
        }
        Self::map(fd, slots)
    }

    fn map(fd: OwnedFd, slots: usize) -> Result<Gate> {
        let memory = MmapOptions::new().len(bytes(slots)).populate().map_raw(&fd);
        let memory = memory.context("mapping the memory shared with workers")?;
        Ok(Gate(Arc::new(Map { fd, memory, slots })))
    }

    /// The gate's memory, for a worker process ([`Gate::from_fd`]). It is close-on-exec, so that
    /// other programs do not inherit it.
    pub fn fd(&self) -> Result<OwnedFd> {
        self.0.fd.try_clone().context("memory shared with workers")
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping begins with a Header, whose all-zero bytes are a valid one.
        unsafe { &(*self.0.memory.as_mut_ptr().cast::<Header>()).word }
    }

    /// The slots, one per worker.
    pub fn slots(&self) -> &[Slot] {
        // SAFETY: `slots` Slots follow the Header, aligned alike; zeroes are valid, and all fields
        // are atomics.
        unsafe {
            let first = self.0.memory.as_mut_ptr().add(size_of::<Header>()).cast::<Slot>();
            std::slice::from_raw_parts(first, self.0.slots)
        }
    }

    fn set(&self, word: u32) {
        self.word().store(word, Ordering::SeqCst);
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Clears the counts and lets the workers run.
    pub fn start(&self) {
        for slot in self.slots() {
            slot.operations.store(0, Ordering::Relaxed);
            slot.refusals.store(0, Ordering::Relaxed);
        }
        self.set(RUN);
    }

    /// Makes the workers stop after their current operation.
    pub fn close(&self) {
        self.set(WAIT);
    }

    /// Waits until all workers are idle. An error names a worker that has failed, or that is not
    /// idle after `limit`.
    pub fn settle(&self, name: &str, limit: Duration) -> Result<()> {
        let limit = scaled(limit);
        let deadline = Instant::now() + limit;
        for (i, slot) in self.slots().iter().enumerate() {
            while slot.busy.load(Ordering::SeqCst) != 0 {
                if Instant::now() > deadline {
                    self.check(name)?;
                    return Err(format!("{name} {i} did not stop within {} s", limit.as_secs()));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.check(name)
    }

    /// An error that names a worker that has failed, whatever the others do.
    pub fn check(&self, name: &str) -> Result<()> {
        for (i, slot) in self.slots().iter().enumerate() {
            let errno = slot.errno.load(Ordering::Relaxed);
            if errno != 0 {
                let error = io::Error::from_raw_os_error(errno as i32);
                return Err(format!("{name} {i} failed: {error}"));
            }
        }
        Ok(())
    }

    /// Tells the workers to end.
    pub fn quit(&self) {
        self.set(QUIT);
    }

    /// Operations done since the start.
    pub fn operations(&self) -> u64 {
        self.slots().iter().map(|s| s.operations.load(Ordering::Relaxed)).sum()
    }

    /// Operations refused for a temporary reason since the start.
    pub fn refusals(&self) -> u64 {
        self.slots().iter().map(|s| s.refusals.load(Ordering::Relaxed)).sum()
    }

    /// The life of worker `index`: repeats `operation` whenever the gate is open, until it fails or
    /// the gate says quit.
    pub fn work(&self, index: usize, mut operation: impl FnMut(&Slot) -> io::Result<()>) {
        let Some(slot) = self.slots().get(index) else {
            return;
        };
        loop {
            match self.word().load(Ordering::Acquire) {
                QUIT => return,
                RUN => {}
                _ => {
                    // No time-out: init wakes us or kills us.
                    let _ = futex::wait(self.word(), futex::Flags::empty(), WAIT, None);
                    continue;
                }
            }
            slot.busy.store(1, Ordering::SeqCst);
            while self.word().load(Ordering::SeqCst) == RUN {
                if let Err(e) = operation(slot) {
                    let errno = e.raw_os_error().unwrap_or(libc::EIO);
                    slot.errno.store(errno as u32, Ordering::Relaxed);
                    slot.busy.store(0, Ordering::Release);
                    return;
                }
            }
            slot.busy.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_run_between_start_and_close_and_end_on_quit() {
        let gate = Gate::new(2).unwrap();
        // The work of all workers since the start, by their own count.
        let done = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..2)
            .map(|i| {
                let (gate, done) = (gate.clone(), done.clone());
                std::thread::spawn(move || {
                    gate.work(i, |slot| {
                        slot.operation();
                        done.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(1));
                        Ok(())
                    })
                })
            })
            .collect();
        for _ in 0..2 {
            done.store(0, Ordering::Relaxed);
            gate.start();
            while gate.operations() < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            gate.close();
            gate.settle("worker", Duration::from_secs(24 * 3600)).unwrap();
            assert_eq!(gate.operations(), done.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(gate.operations(), done.load(Ordering::Relaxed), "closed");
        }
        gate.quit();
        for w in workers {
            w.join().unwrap();
        }
    }

    #[test]
    fn failed_worker_is_named() {
        let gate = Gate::new(1).unwrap();
        gate.start();
        gate.work(0, |_| Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        let error = gate.settle("worker", Duration::from_secs(1)).unwrap_err();
        assert!(error.starts_with("worker 0 failed: No space"), "{error}");
    }

    #[test]
    fn failed_worker_is_named_while_others_are_busy() {
        let gate = Gate::new(2).unwrap();
        // Killed in an operation, for example.
        gate.slots()[0].busy.store(1, Ordering::SeqCst);
        gate.check("worker").unwrap();
        gate.start();
        gate.work(1, |_| Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        let error = gate.check("worker").unwrap_err();
        assert!(error.starts_with("worker 1 failed: No space"), "{error}");
    }

    #[test]
    fn gate_of_the_wrong_size_is_refused() {
        let gate = Gate::new(1).unwrap();
        assert!(Gate::from_fd(gate.fd().unwrap(), 100).is_err());
        assert!(Gate::from_fd(gate.fd().unwrap(), 1).is_ok());
    }

    #[test]
    fn only_workers_inherit_the_gate() {
        use std::process::{Command, Stdio};
        let gate = Gate::new(1).unwrap();
        let open_in_child = |input: Stdio| {
            let child = Command::new("ls").args(["-l", "/proc/self/fd"]).stdin(input).output();
            String::from_utf8(child.unwrap().stdout).unwrap()
        };
        let unrelated = open_in_child(Stdio::null());
        assert!(unrelated.contains("/dev/null") && !unrelated.contains("gate"), "{unrelated}");
        assert!(open_in_child(gate.fd().unwrap().into()).contains("reprieve-gate"));
    }
}
