// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program with another root directory, as root or not, leaving no mount behind.
//!
//! Programs of another release thus find their files at the absolute paths that they expect. Root
//! may chroot; other users may in a user namespace of their own. The new root needs only
//! `/dev/null` from the machine: a device node where one can be made, else the machine's own, bound
//! into a mount namespace that ends with the program.

use crate::error::{Error, Result};
use rustix::process::{getegid, geteuid};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Makes `command` run with `root` as its root directory and `/` as its working directory.
pub fn enter(command: &mut Command, root: &Path) -> Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let null = root.join("dev/null");
    let has_null = make_null(&null)?;
    let plan = Plan {
        root: c_string(root)?,
        null: c_string(&null)?,
        new_user: user != 0,
        bind_null: !has_null,
        // Files made inside belong to the caller outside.
        user_map: format!("0 {user} 1\n").into_bytes(),
        group_map: format!("0 {group} 1\n").into_bytes(),
    };
    // SAFETY: `Plan::apply` makes system calls on data prepared here, and neither allocates nor
    // locks.
    unsafe { command.pre_exec(move || plan.apply()) };
    Ok(())
}

/// The child's part between fork and exec, where it must not allocate.
struct Plan {
    root: CString,
    null: CString,
    new_user: bool,
    bind_null: bool,
    user_map: Vec<u8>,
    group_map: Vec<u8>,
}

impl Plan {
    fn apply(&self) -> io::Result<()> {
        let mut namespaces = 0;
        if self.new_user {
            namespaces |= libc::CLONE_NEWUSER;
        }
        if self.bind_null {
            namespaces |= libc::CLONE_NEWNS;
        }
        if namespaces != 0 {
            // SAFETY: plain system call.
            check(unsafe { libc::unshare(namespaces) })?;
        }
        if self.new_user {
            write(c"/proc/self/setgroups", b"deny")?;
            write(c"/proc/self/uid_map", &self.user_map)?;
            write(c"/proc/self/gid_map", &self.group_map)?;
        }
        let none = std::ptr::null();
        if self.bind_null {
            // SAFETY: all strings end with a zero byte and outlive the calls; mount reads them
            // only.
            unsafe {
                // Otherwise the bind mount would appear in the machine's namespace as well.
                let private = libc::MS_REC | libc::MS_PRIVATE;
                check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
                let (from, to) = (c"/dev/null".as_ptr(), self.null.as_ptr());
                check(libc::mount(from, to, none, libc::MS_BIND, none.cast()))?;
            }
        }
        // SAFETY: as above.
        unsafe {
            check(libc::chroot(self.root.as_ptr()))?;
            check(libc::chdir(c"/".as_ptr()))
        }
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn write(path: &std::ffi::CStr, data: &[u8]) -> io::Result<()> {
    // SAFETY: `path` is a C string; `data` is read for its length; the descriptor is closed once.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let written = libc::write(fd, data.as_ptr().cast(), data.len());
        let result = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        libc::close(fd);
        result
    }
}

/// Makes `path` a null device. Returns false if it is a plain file instead, for a bind mount.
fn make_null(path: &Path) -> Result<bool> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let works = || {
        let device = fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
        // On a file system mounted with `nodev` the node is there and cannot be opened.
        device && File::options().read(true).write(true).open(path).is_ok()
    };
    if works() {
        return Ok(true);
    }
    let name = c_string(path)?;
    // SAFETY: `name` is a C string.
    unsafe {
        libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3));
        // mknod's mode is subject to the umask.
        libc::chmod(name.as_ptr(), 0o666);
    }
    if works() {
        return Ok(true);
    }
    let _ = fs::remove_file(path);
    fs::write(path, "").map_err(Error::io(path))?;
    Ok(false)
}

fn c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Usage(format!("{}: zero byte in a path", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::closure;
    use crate::images::testing::{Scratch, context};
    use std::time::Duration;

    #[test]
    fn a_program_sees_only_its_root_and_a_null_device() {
        let scratch = Scratch::new();
        let root = scratch.path();
        for file in closure::closure(Path::new("/"), &["/bin/cat".into()]).unwrap() {
            let target = root.join(file.inside.strip_prefix("/").unwrap());
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            // By another process: a program that another test is about to start holds all files
            // that are open here, and the kernel runs none that is open for writing.
            let copied = Command::new("cp").arg(&file.host).arg(&target).status().unwrap();
            assert!(copied.success());
        }
        fs::write(root.join("marker"), "inside").unwrap();
        let mut cat = Command::new("/bin/cat");
        enter(cat.args(["/dev/null", "/marker"]), root).unwrap();
        let out = crate::process::run(&mut cat, Duration::from_secs(24 * 3600), context().cancel)
            .unwrap();
        assert_eq!(out, b"inside");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(root.to_str().unwrap()), "{mounts}");
    }
}
