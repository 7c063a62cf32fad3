// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that end at the same time on one CPU, each with a lot of memory to unmap. The kernel
//! keeps threads that exit out of a scheduler's hands unless it is asked not to: then others of
//! that CPU would wait for all of them.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use super::wait;
use crate::vm::Threads;
use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Two keep all others from a CPU; with more, there are moments in which only one of them exits.
const PROCESSES: usize = 2;
/// Each maps the same memory so often, in small pages: eight million entries of page tables to
/// clear, which take many turns.
const MAPPINGS: usize = 512;
const BYTES: usize = 64 << 20;
const SETTLE: Duration = Duration::from_millis(300);

/// A process that has mapped the memory and sleeps, until it is dropped.
struct Mapper(libc::pid_t);

impl Mapper {
    fn start(setup: &GuestSetup, memory: &OwnedFd) -> Result<Mapper> {
        let (mut ready, tells) = UnixStream::pair()?;
        ready.set_nonblocking(true)?;
        let (memory, tells) = (memory.as_raw_fd(), tells.as_raw_fd());
        let parent = std::process::id();
        // SAFETY: the child makes system calls only, as it has to where there are other threads.
        let pid = match unsafe { libc::fork() } {
            // SAFETY: in that child.
            0 => unsafe { map_and_sleep(memory, tells, parent) },
            -1 => return Err(io::Error::last_os_error()).context("fork"),
            pid => pid,
        };
        let mapper = Mapper(pid);
        wait(setup, "a process that maps memory", || match ready.read(&mut [0]) {
            Ok(_) => Ok(Some(())),
            Err(e) if e.kind() == ErrorKind::WouldBlock => match mapper.has_ended() {
                true => bail!("a process could not map {BYTES} bytes {MAPPINGS} times"),
                false => Ok(None),
            },
            Err(e) => Err(e.into()),
        })?;
        Ok(mapper)
    }

    fn threads(&self) -> Threads {
        Threads::new(self.0 as u32, vec![self.0 as u32])
    }

    fn kill(&self) {
        // SAFETY: a child that was not waited for: the ID is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }

    /// Whether only its status is left, which keeps the ID its own.
    fn has_ended(&self) -> bool {
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: as above; `found` outlives the call, and all zeros are one.
        unsafe {
            let mut found: libc::siginfo_t = std::mem::zeroed();
            let asked = libc::waitid(libc::P_PID, self.0 as libc::id_t, &mut found, flags);
            asked == 0 && found.si_pid() == self.0
        }
    }
}

impl Drop for Mapper {
    /// Waits until it has unmapped everything and is gone.
    fn drop(&mut self) {
        self.kill();
        // SAFETY: as above; its status is not asked for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// # Safety
/// For the child of a `fork`.
unsafe fn map_and_sleep(memory: RawFd, tells: RawFd, parent: u32) -> ! {
    // SAFETY: plain system calls; the kernel chooses addresses that are free.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // It may have died before.
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
        for _ in 0..MAPPINGS {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            let at = libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ, flags, memory, 0);
            if at == libc::MAP_FAILED {
                libc::_exit(1);
            }
        }
        libc::write(tells, [0u8].as_ptr().cast(), 1);
        loop {
            libc::pause();
        }
    }
}

/// What a thread that computes has of its CPU, in percent, while several processes end there.
pub fn share(setup: &GuestSetup) -> Result<f64> {
    let cpu = *few_cpus().first().ok_or_else(|| anyhow!("no CPU"))?;
    let memory = memfd_create("reprieve-check", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, BYTES as u64)?;
    let mappers: Vec<Mapper> =
        (0..PROCESSES).map(|_| Mapper::start(setup, &memory)).collect::<Result<_>>()?;
    mappers.iter().try_for_each(|mapper| mapper.threads().pin(&[vec![cpu]], &[]))?;
    let spinner = Spinner::start(cpu)?;
    setup.sleep(SETTLE)?;
    let this = Threads::new(std::process::id(), vec![spinner.tid]);
    let (began, before) = (Instant::now(), this.vcpu_counters().run_ns);
    mappers.iter().for_each(Mapper::kill);
    drop(mappers);
    let ran = this.vcpu_counters().run_ns - before;
    Ok(100.0 * ran as f64 / began.elapsed().as_nanos() as f64)
}
