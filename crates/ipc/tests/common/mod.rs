// SPDX-License-Identifier: MIT OR Apache-2.0
//! Namespaces of their own, and children that share them.
#![allow(dead_code, reason = "not every test needs all")]

use reprieve_ipc::{Namespace, Result, SemOp};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Held by tests that attach segments and by those that make children beside them: a child inherits
/// its parent's attachments, which then count twice, and the last user of a segment is the child.
pub fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs an ignored test of this program in a process of its own, which has to pass.
#[track_caller]
pub fn passes_alone(test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--ignored", "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// A namespace in a directory that goes with the first value, in memory if possible.
pub fn namespace() -> (tempfile::TempDir, Namespace) {
    // `make test` removes its own: a test that is killed leaves its namespace.
    let parent = std::env::var_os("TEST_SHM").unwrap_or_else(|| "/dev/shm".into());
    let parent = std::path::Path::new(&parent);
    let directory =
        if parent.is_dir() { tempfile::tempdir_in(parent) } else { tempfile::tempdir() };
    let directory = directory.unwrap();
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(directory.path(), private).unwrap();
    let namespace = Namespace::open(directory.path()).unwrap();
    (directory, namespace)
}

pub fn op(num: u16, op: i16, flags: i32) -> SemOp {
    SemOp { sem_num: num, sem_op: op, sem_flg: flags as i16 }
}

#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().0
}

/// Waits for a condition that others bring about.
pub fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Blocks of 512 bytes that the file of a namespace takes of its file system.
pub fn memory(namespace: &Namespace) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(namespace.directory().join("space")).unwrap().blocks()
}

/// Memory that parent and children share.
pub fn shared<T>() -> &'static T {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: fresh pages, all zeros, that are never unmapped; the tests share atomics.
    unsafe {
        let pages = libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        &*pages.cast()
    }
}

pub fn forever() -> ! {
    loop {
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    }
}

/// A forked child that runs a closure. Killed and reaped when dropped.
pub struct Child {
    pid: i32,
    status: std::cell::Cell<Option<i32>>,
}

impl Child {
    pub fn run(f: impl FnOnce()) -> Child {
        // SAFETY: the child runs the closure and ends; what it needs of the standard library is
        // reset by fork handlers or not shared with other threads.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            reprieve_ipc::forked(pid);
        }
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: it goes with its parent, and ends without destructors.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_ok();
                libc::_exit(if done { 0 } else { 1 });
            }
        }
        Child { pid, status: Default::default() }
    }

    fn look(&self, flags: i32) -> Option<i32> {
        if self.status.get().is_none() {
            let mut status = 0;
            // SAFETY: our own child.
            let pid = unsafe { libc::waitpid(self.pid, &mut status, flags) };
            if pid == self.pid {
                self.status.set(Some(status));
            }
        }
        self.status.get()
    }

    pub fn is_over(&self) -> bool {
        self.look(libc::WNOHANG).is_some()
    }

    /// Waits until it has stopped itself.
    pub fn stopped(&self) {
        let mut status = 0;
        // SAFETY: our own child.
        let pid = unsafe { libc::waitpid(self.pid, &mut status, libc::WUNTRACED) };
        assert!(pid == self.pid && libc::WIFSTOPPED(status), "a child failed: {status:#x}");
    }

    pub fn signal(&self, signal: i32) {
        if !self.is_over() {
            // SAFETY: our own child, which has not been reaped.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for its end; its status.
    pub fn ends(self) -> i32 {
        self.look(0).unwrap()
    }

    #[track_caller]
    pub fn succeeds(self) {
        assert_eq!(self.look(0), Some(0), "a child failed");
    }

    /// Kills it, and leaves the zombie.
    pub fn dies(&self) {
        self.signal(libc::SIGKILL);
        // SAFETY: our own child; plain data that the call fills in.
        unsafe {
            let mut found: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT;
            assert_eq!(libc::waitid(libc::P_PID, self.pid as libc::id_t, &mut found, flags), 0);
        }
    }

    pub fn kill(self) {
        self.signal(libc::SIGKILL);
        self.look(0);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.look(0);
    }
}

/// Whether a child sleeps in a futex, as far as `/proc` tells: by the number that the call has on
/// the machine, x86-64 or aarch64, which in emulation is not the program's own.
pub fn is_asleep(child: &Child) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.pid())).unwrap();
    call.starts_with("202 ") || call.starts_with("98 ")
}

/// Waits for that.
pub fn until_asleep(child: &Child) {
    until(|| is_asleep(child));
}

/// The CPUs that this thread may run on.
pub fn cpus() -> Vec<usize> {
    // SAFETY: plain data that the call fills in; numbers within the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Has this thread run on one CPU only.
pub fn bind(cpu: usize) {
    // SAFETY: plain data; a number within the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// Has this process handle `SIGUSR1`, with system calls restarted where they can be.
pub fn handle_signals() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
}

/// Sends `SIGUSR1` until one has come while the child waits, which ends it.
pub fn signal_until_over(child: Child) {
    while !child.is_over() {
        child.signal(libc::SIGUSR1);
        std::thread::sleep(Duration::from_millis(1));
    }
    child.succeeds();
}
