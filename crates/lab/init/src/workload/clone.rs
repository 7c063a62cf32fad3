// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that make children in new namespaces, in a loop; a child does nothing but exit.
//!
//! Each namespace is torn down through RCU, so memory for it stays taken for a grace period or
//! more. `clone3` is used because `clone` has no room for time namespaces; for the others the two
//! are the same. The kernel refuses when it is temporarily out of processes, memory or namespaces
//! (old ones are still being torn down); that is counted and retried.

use super::{Done, Load, Operation, workers::Workers};
use crate::sys::Result;
use std::io;
use std::time::Duration;

/// A new namespace of each kind.
const FLAGS: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u64
    | CLONE_NEWTIME;
const CLONE_NEWTIME: u64 = 0x80;

pub fn prepare(workers: u32) -> Result<Box<dyn Load>> {
    Ok(Box::new(Clone(Workers::prepare("clone", "clone", workers, &[])?)))
}

struct Clone(Workers);

impl Load for Clone {
    /// A kernel worker tears namespaces down, network ones slowly; a phase must not begin with the
    /// namespaces of the phase before.
    fn ready(&mut self, _: Option<u64>) -> Result<()> {
        wait_until_steady();
        Ok(())
    }

    fn start(&mut self) -> Result<u64> {
        self.0.start()
    }

    fn stop(&mut self) -> Result<Done> {
        self.0.stop()
    }

    fn check(&mut self, ran: Duration) -> Result<()> {
        self.0.check(ran)
    }
}

/// Waits until the kernel's slab memory no longer shrinks, within limits.
fn wait_until_steady() {
    const LOOK: Duration = Duration::from_millis(500);
    const LOOKS: u32 = 60;
    let slab = || {
        let text = std::fs::read("/proc/meminfo").unwrap_or_default();
        crate::measure::meminfo::parse(&text).map_or(0, |m| m.slab_kb)
    };
    let mut before = slab();
    for _ in 0..LOOKS {
        std::thread::sleep(LOOK);
        let now = slab();
        // Less than one percent in half a second is noise.
        if now + before / 100 >= before {
            return;
        }
        before = now;
    }
}

pub fn operation() -> Operation {
    Box::new(|slot| match clone_and_wait(FLAGS) {
        Ok(()) => {
            slot.operation();
            Ok(())
        }
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM | libc::EAGAIN)) => {
            slot.refusal();
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
        Err(e) => Err(e),
    })
}

/// Makes a child in new namespaces that exits at once, and waits for it.
fn clone_and_wait(flags: u64) -> io::Result<()> {
    // The kernel's `struct clone_args`, first version: flags, pidfd, child_tid, parent_tid,
    // exit_signal, stack, stack_size, tls.
    let arguments: [u64; 8] = [flags, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
    // SAFETY: the arguments are valid and complete. Without CLONE_VM the child runs on a copy of
    // this memory; it does one system call.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments));
        if pid == 0 {
            libc::syscall(libc::SYS_exit_group, 0);
        }
        pid
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the write.
        if unsafe { libc::waitpid(pid as i32, &mut status, 0) } >= 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_without_namespaces_comes_and_goes() {
        clone_and_wait(0).unwrap();
    }
}
