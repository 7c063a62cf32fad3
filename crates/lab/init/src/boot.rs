// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets up the system after boot: mounts, devices, limits, kernel modules.
//!
//! No failure here is fatal: it becomes a notice, which is sent once there is a channel. A guest
//! without tracefs, for example, can still be a competitor.

use crate::protocol::{BASE_SLICE, BASE_SLICE_FILE};
use crate::sys::{self, Context};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs;
use std::path::Path;

/// The paths of modules to load, one per line and in this order.
const MODULES: &str = "/lib/reprieve/modules";

/// tmpfs without a limit on inodes, whose default (a file per two pages of RAM) is too small for
/// Postmark in a small guest.
pub const TMPFS: &str = "size=90%,nr_inodes=0,mode=1777";

const MOUNTS: [(&str, &str, &str); 11] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", "mode=0755"),
    ("devpts", "/dev/pts", "ptmxmode=0666"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=0755"),
    ("tmpfs", "/tmp", TMPFS),
    ("tracefs", "/sys/kernel/tracing", ""),
    ("debugfs", "/sys/kernel/debug", ""),
    ("bpf", "/sys/fs/bpf", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
];

/// Links that programs expect in `/dev` and that devtmpfs does not make.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Sets the system up; returns a notice for each failure.
pub fn boot() -> Vec<String> {
    let mut notices = Vec::new();
    for (kind, target, data) in MOUNTS {
        // In sysfs the directory exists or cannot be made; then the error of mount is enough.
        let _ = fs::create_dir_all(target);
        if let Err(e) = sys::mount(kind, target, kind, data) {
            notices.push(format!("mounting {kind} on {target}: {e}"));
        }
    }
    for (link, target) in LINKS {
        // An error is no problem: some kernels have made the link already.
        let _ = std::os::unix::fs::symlink(target, link);
    }
    console();
    limits(&mut notices);
    if let Err(e) = sys::loopback_up() {
        notices.push(format!("bringing the loopback interface up: {e}"));
    }
    modules(&mut notices);
    base_slice(&mut notices);
    notices
}

/// Without a `/dev/console` in the initramfs the kernel starts init with no standard streams.
fn console() {
    if let Ok(file) = fs::OpenOptions::new().read(true).write(true).open("/dev/console") {
        let _ = dup2_stdin(&file).and(dup2_stdout(&file)).and(dup2_stderr(&file));
    }
}

fn limits(notices: &mut Vec<String>) {
    for (what, resource, value) in [
        ("open files", Resource::Nofile, Some(1 << 20)),
        ("processes", Resource::Nproc, None),
        ("locked memory", Resource::Memlock, None),
        ("pending signals", Resource::Sigpending, None),
    ] {
        if let Err(e) = setrlimit(resource, Rlimit { current: value, maximum: value }) {
            notices.push(format!("raising the limit of {what}: {e}"));
        }
    }
}

/// Kernels before EEVDF (6.6) have no base slice.
fn base_slice(notices: &mut Vec<String>) {
    let Ok(slice) = std::env::var(BASE_SLICE) else { return };
    if let Err(e) = fs::write(BASE_SLICE_FILE, slice) {
        notices.push(format!("{BASE_SLICE_FILE}: {e}"));
    }
}

fn modules(notices: &mut Vec<String>) {
    for path in fs::read_to_string(MODULES).unwrap_or_default().lines() {
        if let Err(e) = load(Path::new(path)) {
            notices.push(format!("kernel module {e}"));
        }
    }
}

/// Loads one module. It is no error if it is loaded already.
fn load(path: &Path) -> sys::Result<()> {
    match sys::load_module(path) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        // A lab host has the modules of both makers' virtualization, and a CPU of one.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)) => Ok(()),
        other => other.context(path.display()),
    }
}
