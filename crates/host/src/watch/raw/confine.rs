// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives up what is not needed once the eBPF program is loaded.
//!
//! What remains is enough to find VMs that come later: to read other users' processes and their memory, and to tell the eBPF program
//! about them. Not to write to them, not to change the system, not to start a program that could.

use std::io;

/// Numbers of `linux/capability.h`.
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_BPF: u32 = 39;
const KEPT: [u32; 3] = [CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_BPF];

/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits, in two halves.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Reduces this thread, and those that it starts, to what watching needs. Cannot be undone.
pub fn confine() -> io::Result<()> {
    let mut halves = capabilities()?;
    for (n, half) in halves.iter_mut().enumerate() {
        let bits = KEPT.iter().filter(|&&c| c as usize / 32 == n).fold(0, |m, c| m | 1 << (c % 32));
        half.permitted &= bits;
        half.effective &= bits;
        half.inheritable = 0;
    }
    let header = Header { version: VERSION, pid: 0 };
    // SAFETY: both are as the version says, and only read.
    let failed = unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is passed.
    let failed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn capabilities() -> io::Result<[Half; 2]> {
    let header = Header { version: VERSION, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: two halves are what the version has.
    let failed = unsafe { libc::syscall(libc::SYS_capget, &raw const header, halves.as_mut_ptr()) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(halves) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_remains() {
        // In a thread of its own: the others keep theirs.
        let check = || {
            let before = capabilities().unwrap();
            confine().unwrap();
            let after = capabilities().unwrap();
            let kept = 1 << CAP_DAC_READ_SEARCH | 1 << CAP_SYS_PTRACE;
            assert_eq!(after[0].permitted, before[0].permitted & kept);
            assert_eq!(after[1].permitted & !(1 << (CAP_BPF - 32)), 0);
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        };
        std::thread::spawn(check).join().unwrap();
    }
}
