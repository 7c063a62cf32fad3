// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slows the clocks of a QEMU: a library of ours that is preloaded into it.
//!
//! The library is part of this program. QEMU gets it as an inherited descriptor of anonymous
//! memory, so that no file is left behind.

use crate::dilation::Dilation;
use crate::error::{Error, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dilate.so"));

/// The library's name in `/proc/PID/maps`.
const NAME: &str = "reprieve-dilate";

/// Makes `command` start a QEMU whose clocks run by `dilation`; `None` if that is none. The
/// descriptor has to be inherited by the child.
pub fn preload(command: &mut Command, dilation: Dilation) -> Result<Option<OwnedFd>> {
    if dilation.is_none() {
        return Ok(None);
    }
    let fail = |error: std::io::Error| Error::Other(format!("anonymous memory: {error}"));
    let fd = memfd_create(NAME, MemfdFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    let mut file = File::from(fd);
    file.write_all(LIBRARY).map_err(fail)?;
    command.env("LD_PRELOAD", format!("/proc/self/fd/{}", file.as_raw_fd()));
    command.env("REPRIEVE_DILATE", dilation.factor().to_string());
    Ok(Some(file.into()))
}

/// Makes sure that process `pid` has the library: one that is linked statically, for example, does
/// not load it, and would run undilated without a word.
pub fn check(pid: u32) -> std::io::Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    if maps.contains(NAME) {
        return Ok(());
    }
    Err(std::io::Error::other(
        "this QEMU does not load the library that dilates its time (is it linked statically?): give --dilate 1, or another QEMU",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::inherit;
    use std::mem::{MaybeUninit, zeroed};
    use std::ptr::null_mut;
    use std::time::{Duration, Instant};

    const WAIT: Duration = Duration::from_millis(30);
    const N: u32 = 7;

    /// The machine's own clock: the library leaves this system call alone.
    fn real_now() -> Duration {
        let mut now = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the kernel fills `now`.
        let now = unsafe {
            let clock = libc::CLOCK_MONOTONIC;
            assert_eq!(libc::syscall(libc::SYS_clock_gettime, clock, now.as_mut_ptr()), 0);
            now.assume_init()
        };
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn timespec(time: Duration) -> libc::timespec {
        libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
    }

    /// `WAIT` from now on a clock that the library slows.
    fn deadline(clock: libc::clockid_t) -> libc::timespec {
        let mut now = timespec(Duration::ZERO);
        // SAFETY: fills `now`.
        assert_eq!(unsafe { libc::clock_gettime(clock, &mut now) }, 0);
        timespec(Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + WAIT)
    }

    fn cond_timedwait(clock: libc::clockid_t) {
        // SAFETY: everything is initialized by its function and outlives the wait; the wait may end
        // early without a reason, so it is repeated.
        unsafe {
            let mut attributes = zeroed();
            assert_eq!(libc::pthread_condattr_init(&mut attributes), 0);
            assert_eq!(libc::pthread_condattr_setclock(&mut attributes, clock), 0);
            let mut cond = zeroed();
            assert_eq!(libc::pthread_cond_init(&mut cond, &attributes), 0);
            let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
            assert_eq!(libc::pthread_mutex_lock(&mut mutex), 0);
            let deadline = deadline(clock);
            while libc::pthread_cond_timedwait(&mut cond, &mut mutex, &deadline) == 0 {}
        }
    }

    /// Waits for `WAIT`, by each function that QEMU and its libraries wait with.
    const WAITS: [(&str, fn()); 9] = [
        ("poll", || {
            // SAFETY: no descriptors.
            unsafe { libc::poll(null_mut(), 0, WAIT.as_millis() as i32) };
        }),
        ("ppoll", || {
            // SAFETY: no descriptors.
            unsafe { libc::ppoll(null_mut(), 0, &timespec(WAIT), null_mut()) };
        }),
        ("select", || {
            let mut limit = libc::timeval { tv_sec: 0, tv_usec: WAIT.as_micros() as i64 };
            // SAFETY: no descriptors.
            unsafe { libc::select(0, null_mut(), null_mut(), null_mut(), &mut limit) };
        }),
        ("epoll_wait", || {
            // SAFETY: `event` has room for one event.
            unsafe {
                let (fd, mut event) = (libc::epoll_create1(0), zeroed());
                libc::epoll_wait(fd, &mut event, 1, WAIT.as_millis() as i32);
                libc::close(fd);
            }
        }),
        ("nanosleep", || {
            // SAFETY: plain call.
            unsafe { libc::nanosleep(&timespec(WAIT), null_mut()) };
        }),
        ("usleep", || {
            // SAFETY: plain call.
            unsafe { libc::usleep(WAIT.as_micros() as u32) };
        }),
        ("pthread_cond_timedwait, monotonic", || cond_timedwait(libc::CLOCK_MONOTONIC)),
        ("pthread_cond_timedwait, real time", || cond_timedwait(libc::CLOCK_REALTIME)),
        ("futex", || {
            let word = 0u32;
            // SAFETY: `word` and the limit outlive the wait.
            unsafe {
                let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                libc::syscall(libc::SYS_futex, &word, operation, 0, &timespec(WAIT));
            }
        }),
    ];

    /// The environment of the dilated process.
    fn inside() {
        check(std::process::id()).unwrap();
        let (outer_from, began, inner_from) = (real_now(), Instant::now(), real_now());
        for (name, wait) in WAITS {
            let (before, real_before) = (Instant::now(), real_now());
            wait();
            let (took, real_took) = (before.elapsed(), real_now() - real_before);
            // A signal or a spurious wake-up may end a wait, but there are none here.
            assert!(took >= WAIT, "{name}: {took:?} of its own time");
            assert!(real_took >= N * WAIT, "{name}: {real_took:?} of real time");
        }
        let (inner_to, slow, outer_to) = (real_now(), began.elapsed(), real_now());
        let bounds = (inner_to - inner_from) / N..=(outer_to - outer_from) / N;
        // Each clock's readings are rounded down.
        let rounding = Duration::from_nanos(1);
        assert!(
            bounds.contains(&slow)
                || bounds.contains(&(slow + rounding))
                || bounds.contains(&(slow - rounding)),
            "{slow:?} is not in {bounds:?}"
        );
    }

    #[test]
    fn all_clocks_and_waits_of_a_process_are_slowed() {
        if std::env::var_os("REPRIEVE_DILATE").is_some() {
            return inside();
        }
        let name = "vm::dilate::tests::all_clocks_and_waits_of_a_process_are_slowed";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name]);
        let library = preload(&mut command, Dilation::new(N).unwrap()).unwrap();
        inherit(&mut command, library.iter().map(AsRawFd::as_raw_fd).collect());
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        assert!(check(std::process::id()).is_err(), "this process is not dilated");
    }
}
