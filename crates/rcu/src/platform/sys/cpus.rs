// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs that exist, and those where threads may run.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kernel's `SYSFS_MAGIC`. (The type of the field differs between C libraries.)
const SYSFS_MAGIC: i128 = 0x6265_6572;

/// How many CPUs there may be. (musl counts those that this thread may use.)
pub(crate) fn cpus() -> usize {
    // SAFETY: no preconditions. -1 if unknown.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize;
    let usable = (0..CPU_SET).rfind(|&cpu| usable_at_start(cpu));
    configured.max(usable.map_or(0, |last| last + 1))
}

/// A number greater than that of any CPU the kernel may ever bring up: from its list of possible
/// CPUs, else from the size of its CPU sets. A list that is not sysfs's own does not count: a
/// container may show its processes other CPUs than they run on.
pub(crate) fn cpu_numbers() -> Option<usize> {
    let mut set = [0u64; 1024];
    // SAFETY: the kernel writes at most the size given.
    let bytes = unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr())
    };
    let size = (bytes > 0).then_some(bytes as usize * 8)?;
    // By bare system calls: the C library's functions are cancellation points (pthread_cancel), and
    // leaders of grace periods hold locks.
    let (path, mut list) = (c"/sys/devices/system/cpu/possible", [0u8; 256]);
    // SAFETY: a string, and a buffer that is valid for its length.
    let read = unsafe {
        let file = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_CLOEXEC);
        let mut system: libc::statfs = std::mem::zeroed();
        let sysfs = libc::syscall(libc::SYS_fstatfs, file, &raw mut system) == 0
            && i128::from(system.f_type) == SYSFS_MAGIC;
        let read = if sysfs {
            libc::syscall(libc::SYS_read, file, list.as_mut_ptr(), list.len())
        } else {
            0
        };
        if file >= 0 {
            libc::syscall(libc::SYS_close, file);
        }
        read.max(0) as usize
    };
    // A list that fills the buffer may be cut off.
    let whole = if read < list.len() { &list[..read] } else { &[] };
    let list = std::str::from_utf8(whole).unwrap_or_default();
    let last = list.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    Some(last.map_or(size, |last| size.min(last + 1)))
}

/// The CPUs that this thread may run on.
pub(crate) fn affinity() -> Option<libc::cpu_set_t> {
    // SAFETY: plain data of the size given.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed) == 0).then_some(allowed)
    }
}

/// How many CPUs a `cpu_set_t` has.
/// Whether this thread may run on that CPU.
pub(crate) fn may_use(cpu: usize) -> bool {
    // SAFETY: numbers that do not fit are not looked up.
    affinity().is_some_and(|set| cpu < CPU_SET && unsafe { libc::CPU_ISSET(cpu, &set) })
}

const CPU_SET: usize = libc::CPU_SETSIZE as usize;

/// The CPUs that the process might use when it started, 64 in each word.
static USABLE: [AtomicU64; CPU_SET / 64] = [const { AtomicU64::new(0) }; CPU_SET / 64];

/// Called at start-up.
pub(crate) fn note_usable() {
    let Some(set) = affinity() else { return };
    for (cpu, word) in (0..CPU_SET).map(|cpu| (cpu, &USABLE[cpu / 64])) {
        // SAFETY: a number within the set.
        let usable = unsafe { libc::CPU_ISSET(cpu, &set) };
        word.fetch_or(u64::from(usable) << (cpu % 64), Ordering::Relaxed);
    }
}

/// Whether the process might use that CPU when it started.
pub(crate) fn usable_at_start(cpu: usize) -> bool {
    USABLE.get(cpu / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (cpu % 64) & 1 != 0)
}

/// The CPUs that the process might use when it started.
fn usable_set() -> libc::cpu_set_t {
    // SAFETY: plain data; numbers within the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let usable = (0..CPU_SET).filter(|&cpu| usable_at_start(cpu));
        usable.for_each(|cpu| libc::CPU_SET(cpu, &mut set));
        set
    }
}

/// Lets another thread of the process run on all CPUs that the process might use when it started.
pub(crate) fn unbind(thread: u32) {
    let set = usable_set();
    // SAFETY: plain data of the size given.
    unsafe { libc::sched_setaffinity(thread as libc::pid_t, size_of_val(&set), &set) };
}

/// Whether a thread may run on that CPU only.
pub(crate) fn is_bound(thread: u32, cpu: usize) -> bool {
    // SAFETY: as in `affinity`; a number within the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let thread = thread as libc::pid_t;
        cpu < CPU_SET
            && libc::sched_getaffinity(thread, size_of_val(&set), &mut set) == 0
            && libc::CPU_COUNT(&set) == 1
            && libc::CPU_ISSET(cpu, &set)
    }
}

/// Whether this thread may run on more than one CPU.
pub(crate) fn is_unbound() -> bool {
    // SAFETY: plain data.
    affinity().is_some_and(|set| unsafe { libc::CPU_COUNT(&set) } > 1)
}

/// The CPU that this thread is bound to, if [`unbind`] would give it others.
pub(crate) fn only_cpu() -> Option<usize> {
    let (set, usable) = (affinity()?, usable_set());
    // SAFETY: plain data; numbers within the set.
    unsafe {
        let one = libc::CPU_COUNT(&set) == 1 && libc::CPU_COUNT(&usable) > 1;
        (0..CPU_SET).find(|&cpu| one && libc::CPU_ISSET(cpu, &set))
    }
}

/// Binds this thread to a CPU. False if it may not run there.
pub(crate) fn bind(cpu: usize) -> bool {
    // SAFETY: plain data of the size given; numbers that do not fit are not put into it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu >= libc::CPU_SETSIZE as usize {
            return false;
        }
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

/// The CPU that this thread runs on, if the system tells.
pub(crate) fn current_cpu() -> Option<usize> {
    // SAFETY: no preconditions.
    unsafe { libc::sched_getcpu() }.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container may have another file there.
    #[test]
    fn a_list_of_cpus_that_is_not_sysfs_does_not_count() {
        let file = std::env::temp_dir().join(format!("cpus-{}", std::process::id()));
        std::fs::write(&file, "0\n").unwrap();
        let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
        let real = cpu_numbers().unwrap();
        let (none, possible) = (std::ptr::null(), c"/sys/devices/system/cpu/possible".as_ptr());
        const SKIPPED: i32 = 2;
        // SAFETY: strings. In a child of its own, and in a mount namespace of its own.
        let status = crate::platform::start::tests::in_child(&|| unsafe {
            let mounted = libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    none.cast(),
                ) == 0
                && libc::mount(path.as_ptr(), possible, none, libc::MS_BIND, none.cast()) == 0;
            if mounted { i32::from(cpu_numbers().unwrap_or(0) < real.max(2)) } else { SKIPPED }
        });
        std::fs::remove_file(file).unwrap();
        match libc::WEXITSTATUS(status) {
            SKIPPED => println!("no right to mount: skipped"),
            status => assert_eq!(status, 0),
        }
    }
}
