// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls. All are async-signal-safe: registration may happen in a signal handler.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const MEMBARRIER_QUERY: i32 = 0;
pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

/// `membarrier(command, 0, 0)`: the result, or -1.
pub(crate) fn membarrier(command: i32) -> i64 {
    membarrier_on(command, None)
}

/// The same for the thread that runs on one CPU.
pub(crate) fn membarrier_on(command: i32, cpu: Option<usize>) -> i64 {
    const ONE_CPU: u32 = 1;
    let flags = if cpu.is_some() { ONE_CPU } else { 0 };
    // SAFETY: membarrier reads no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu.unwrap_or(0) as libc::c_int) }
}

/// The kernel's `SYSFS_MAGIC`. (The type of the field differs between C libraries.)
const SYSFS_MAGIC: i128 = 0x6265_6572;

/// How many CPUs there may be.
pub(crate) fn cpus() -> usize {
    // SAFETY: no preconditions. -1 if unknown.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize
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

/// Whether this process has a thread of that id, dead or not. True when in doubt.
pub(crate) fn exists_here(thread: u32) -> bool {
    // SAFETY: signal 0 is not delivered.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 || !no_such_process() }
}

/// The same of any thread and process.
pub(crate) fn exists(thread: u32) -> bool {
    // SAFETY: as above.
    unsafe { libc::kill(thread as libc::pid_t, 0) == 0 || !no_such_process() }
}

fn no_such_process() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
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

/// This thread's real-time priority, if it has one.
pub(crate) fn real_time_priority() -> Option<i32> {
    let mut priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel fills the parameter in.
    let found = unsafe { libc::sched_getparam(0, &mut priority) } == 0;
    (found && priority.sched_priority > 0).then_some(priority.sched_priority)
}

/// For a thread of the runtime, to which the kernel gives the policy and the nice value of the
/// thread that started it: takes a real-time policy from it, and a priority lower than the main
/// thread's, as far as that is allowed. The main thread's, since a program may run at low priority
/// as a whole.
pub(crate) fn schedule_like_main() {
    const THIS: libc::pid_t = 0;
    // SAFETY: no preconditions.
    let main = unsafe { libc::getpid() };
    // Not the C library's functions: musl's do nothing.
    let policy = |thread: libc::pid_t| {
        // SAFETY: as above.
        let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
        policy as i32 & !libc::SCHED_RESET_ON_FORK
    };
    let change = match policy(THIS) {
        libc::SCHED_FIFO | libc::SCHED_RR => true,
        own @ (libc::SCHED_IDLE | libc::SCHED_BATCH) => own != policy(main),
        _ => false,
    };
    if change {
        let (normal, none) = (libc::SCHED_OTHER, libc::sched_param { sched_priority: 0 });
        // SAFETY: reads the parameter.
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, THIS, normal, &raw const none) };
    }
    // The kernel's call returns the nice value subtracted from 20.
    let nice = |thread: libc::pid_t| {
        // SAFETY: as above.
        20 - unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, thread) } as i32
    };
    let best = nice(main).max(0);
    if nice(THIS) > best {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, THIS, best) };
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

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        // The kernel refuses a time that it reads as negative, and the caller would not sleep.
        tv_sec: time.as_secs().min(libc::time_t::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` and `time` outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, time) };
}

pub(crate) fn futex_wake(word: &AtomicU32, threads: i32) {
    // SAFETY: the kernel only uses the address of `word`.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            threads,
        )
    };
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Fresh zeroed pages that are never given back, or null.
pub(crate) fn map_pages(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing of
    // ours.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED { std::ptr::null_mut() } else { p.cast() }
}

pub(crate) fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Nanoseconds since boot, time asleep included: the clock that the kernel stamps the start of
/// threads with.
pub(crate) fn since_boot() -> u64 {
    clock(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

/// CPU time of a thread of this process, in nanoseconds, exact to the moment even if it is running.
/// `None` if there is none of this id.
pub(crate) fn cpu_time(thread: u32) -> Option<u64> {
    // The kernel's CPUCLOCK_SCHED (2) and CPUCLOCK_PERTHREAD_MASK (4), as pthread_getcpuclockid
    // makes it.
    clock(!(thread as libc::clockid_t) << 3 | 6)
}

/// CPU time of this thread.
pub(crate) fn own_cpu_time() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0))
}

fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    let result = unsafe { libc::clock_gettime(id, &mut now) };
    (result == 0).then(|| now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

pub(crate) fn sleep(time: Duration) {
    let time = timespec(time);
    // Not the C library's function, which is a cancellation point (pthread_cancel): the leader of a
    // grace period would end with its lock held. An early return by a signal is harmless: callers
    // look again.
    // SAFETY: `time` outlives the call.
    unsafe {
        libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>())
    };
}

/// Blocks all signals while it lives, so that no handler runs in the middle of a registration.
/// Keeps `errno`.
pub(crate) struct SignalsBlocked {
    old: libc::sigset_t,
    errno: i32,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        // SAFETY: the sets are plain data which sigfillset and pthread_sigmask fill in; errno's
        // location is this thread's own.
        unsafe {
            let errno = *libc::__errno_location();
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            SignalsBlocked { old, errno }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `old` was filled in by pthread_sigmask in `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.old, std::ptr::null_mut());
            *libc::__errno_location() = self.errno;
        }
    }
}

/// A thread of the runtime. Not the standard library's: in the child of a fork that library's locks
/// may be held by threads of the parent, while the C library resets its own.
pub(crate) struct Thread(libc::pthread_t);

type Body = Box<dyn FnOnce() + Send>;

/// The stack size of the standard library's threads.
pub(crate) const STACK: usize = 2 << 20;

impl Thread {
    /// Starts one with all signals blocked, so that handlers run on the program's own threads.
    /// `None` if the system refuses. `f` does not unwind: that would end the process. The kernel
    /// cuts the name off at 15 bytes. The program's thread-local storage is part of the stack.
    pub(crate) fn start(
        name: String,
        stack: usize,
        f: impl FnOnce() + Send + 'static,
    ) -> Option<Thread> {
        extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: what `start` has made.
            let body = unsafe { Box::from_raw(body.cast::<Body>()) };
            body();
            std::ptr::null_mut()
        }
        let _blocked = SignalsBlocked::new();
        let body: Body = Box::new(move || {
            let name = std::ffi::CString::new(name).unwrap_or_default();
            // SAFETY: a string.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            f();
        });
        let body = Box::into_raw(Box::new(body));
        // SAFETY: plain data that the calls fill in; the new thread owns the body, or nobody.
        unsafe {
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            let initialized = libc::pthread_attr_init(&mut attributes) == 0;
            let sized = initialized && libc::pthread_attr_setstacksize(&mut attributes, stack) == 0;
            let create = |thread: &mut _, attributes| {
                libc::pthread_create(thread, attributes, run, body.cast()) == 0
            };
            // If thread-local storage needs more than `stack`: the program's default size.
            let started = sized && create(&mut thread, &raw const attributes)
                || create(&mut thread, std::ptr::null());
            if initialized {
                libc::pthread_attr_destroy(&mut attributes);
            }
            if !started {
                drop(Box::from_raw(body));
            }
            started.then_some(Thread(thread))
        }
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        // SAFETY: started, and neither joined nor detached.
        unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
    }

    /// Nobody waits for its end.
    pub(crate) fn detach(self) {
        // SAFETY: as above.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// Prints to standard error, without a lock that another thread may hold. Text that a full pipe or
/// terminal does not take within a second is lost: the caller leads a grace period, and there may
/// be no reader. No signal tells that.
pub(crate) fn print(text: &str) {
    /// A pipe that is ready takes this many bytes at once.
    const CHUNK: usize = 4096;
    const LONGEST: Duration = Duration::from_secs(1);
    /// A terminal that is ready may not have room for a line's end.
    const PAUSE: Duration = Duration::from_millis(1);
    let deadline = Instant::now() + LONGEST;
    let _blocked = PipeSignalBlocked::new();
    let stderr = Stderr::open();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let mut ready = libc::pollfd { fd: stderr.fd, events: libc::POLLOUT, revents: 0 };
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
        // SAFETY: one descriptor; errno's location is this thread's own.
        match unsafe { (libc::poll(&mut ready, 1, left), *libc::__errno_location()) } {
            (1, _) if ready.revents == libc::POLLOUT => {}
            (-1, libc::EINTR) if Instant::now() < deadline => continue,
            _ => return,
        }
        let written = stderr.write(&rest[..rest.len().min(CHUNK)]);
        // SAFETY: errno's location is this thread's own.
        match written.try_into().map_err(|_| unsafe { *libc::__errno_location() }) {
            Ok(0) => return,
            Ok(written) => rest = &rest[written..],
            // Or another writer was quicker.
            Err(libc::EAGAIN) if Instant::now() < deadline => sleep(PAUSE),
            Err(libc::EINTR) if Instant::now() < deadline => {}
            Err(_) => return,
        }
    }
}

/// Standard error, to be written to without sleeping.
struct Stderr {
    fd: i32,
    socket: bool,
}

impl Stderr {
    /// A pipe or a terminal that is ready may still make a writer sleep: it is full again, or has
    /// room for less. So it is opened once more, not to sleep: a flag of descriptor 2 itself would
    /// change for all who share it. If it cannot be opened, descriptor 2 has to do.
    fn open() -> Stderr {
        // SAFETY: plain data that the call fills in; a string. A bare system call, which is no
        // cancellation point.
        unsafe {
            let mut file: libc::stat = std::mem::zeroed();
            let kind = if libc::fstat(2, &mut file) == 0 { file.st_mode & libc::S_IFMT } else { 0 };
            let mut fd = -1;
            if kind == libc::S_IFIFO || kind == libc::S_IFCHR && libc::isatty(2) == 1 {
                let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
                let path = c"/proc/self/fd/2".as_ptr();
                fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) as i32;
            }
            Stderr { fd: if fd >= 0 { fd } else { 2 }, socket: kind == libc::S_IFSOCK }
        }
    }

    fn write(&self, bytes: &[u8]) -> isize {
        let (start, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: a buffer that is valid for its length.
        unsafe {
            if self.socket {
                libc::send(self.fd, start, length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            } else {
                libc::write(self.fd, start, length)
            }
        }
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        if self.fd != 2 {
            // SAFETY: opened by `open`.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
        }
    }
}

/// Keeps SIGPIPE from this thread while it lives, except one that was pending before.
struct PipeSignalBlocked {
    old: libc::sigset_t,
    pending: bool,
}

impl PipeSignalBlocked {
    fn set() -> libc::sigset_t {
        // SAFETY: plain data that the calls fill in.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGPIPE);
            set
        }
    }

    fn new() -> PipeSignalBlocked {
        // SAFETY: plain data that the calls fill in.
        unsafe {
            let (mut old, mut pending): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &PipeSignalBlocked::set(), &mut old);
            libc::sigpending(&mut pending);
            PipeSignalBlocked { old, pending: libc::sigismember(&pending, libc::SIGPIPE) == 1 }
        }
    }
}

impl Drop for PipeSignalBlocked {
    fn drop(&mut self) {
        /// The kernel's signal set.
        const BYTES: usize = 8;
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: plain data; `old` was filled in by `new`. A bare system call, which is no
        // cancellation point: takes the signal if there is one.
        unsafe {
            if !self.pending {
                let (set, none) =
                    (PipeSignalBlocked::set(), std::ptr::null_mut::<libc::siginfo_t>());
                libc::syscall(libc::SYS_rt_sigtimedwait, &set, none, &now, BYTES);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.old, std::ptr::null_mut());
        }
    }
}

/// Ends the process: going on would free memory under a reader.
pub(crate) fn die(message: &str) -> ! {
    // A thread that was cancelled would end in place of the process.
    let _cancel = super::cancel::CancelDisabled::new();
    ["reprieve: ", message, "\n"].into_iter().for_each(print);
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
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
        let status = super::super::start::tests::in_child(&|| unsafe {
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

    /// Prints in a child whose standard error is `fd`, and in which SIGPIPE ends the process; its
    /// wait status. It exits with 0 if `check` says so.
    fn print_to(fd: i32, text: &str, check: &dyn Fn() -> bool) -> i32 {
        super::super::start::tests::in_child(&|| {
            // SAFETY: the child has no other use for standard error.
            unsafe {
                libc::dup2(fd, 2);
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            }
            print(text);
            i32::from(!check())
        })
    }

    fn pair(make: impl FnOnce(*mut i32) -> i32) -> [i32; 2] {
        let mut ends = [-1; 2];
        assert_eq!(make(ends.as_mut_ptr()), 0);
        ends
    }

    fn close(fd: i32) {
        // SAFETY: the test's own.
        unsafe { libc::close(fd) };
    }

    #[test]
    fn a_reader_of_messages_that_has_gone_ends_nobody() {
        // SAFETY: room for two descriptors.
        let pipe = pair(|ends| unsafe { libc::pipe2(ends, libc::O_CLOEXEC) });
        let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: as above.
        let sockets = pair(|ends| unsafe { libc::socketpair(libc::AF_UNIX, stream, 0, ends) });
        for [reader, writer] in [pipe, sockets] {
            close(reader);
            assert_eq!(print_to(writer, "text", &|| true), 0);
            close(writer);
        }
    }

    /// A SIGPIPE of the program's stays pending, one of the write does not.
    #[test]
    fn a_signal_of_the_program_is_left_alone() {
        let status = super::super::start::tests::in_child(&|| {
            let pending = || PipeSignalBlocked::new().pending;
            // SAFETY: signals of this thread alone.
            unsafe {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                let blocked = PipeSignalBlocked::new();
                libc::raise(libc::SIGPIPE);
                drop(blocked);
                if pending() {
                    return 1;
                }
                let set = PipeSignalBlocked::set();
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                libc::raise(libc::SIGPIPE);
                drop(PipeSignalBlocked::new());
            }
            i32::from(!pending())
        });
        assert_eq!(status, 0);
    }

    #[test]
    fn a_reader_of_messages_gets_all() {
        let text = "0123456789".repeat(1000);
        // SAFETY: room for two descriptors.
        let [reader, writer] = pair(|ends| unsafe { libc::pipe2(ends, libc::O_CLOEXEC) });
        assert_eq!(print_to(writer, &text, &|| true), 0);
        close(writer);
        // SAFETY: the test's own, and nobody else closes it.
        let mut reader: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(reader) };
        let mut read = String::new();
        std::io::Read::read_to_string(&mut reader, &mut read).unwrap();
        assert_eq!(read, text);
    }

    /// A terminal that has room for a few bytes is ready, and makes a writer of more sleep. (If
    /// `print` sleeps, the test hangs.) The flags that other writers share stay.
    #[test]
    fn a_terminal_that_is_full_holds_nobody_up() {
        // SAFETY: descriptors of the test's own; a buffer that is valid for its length.
        unsafe {
            let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
            let screen = libc::posix_openpt(flags);
            if screen < 0 || libc::grantpt(screen) != 0 || libc::unlockpt(screen) != 0 {
                return println!("no terminals here: skipped");
            }
            let mut name = [0; 64];
            assert_eq!(libc::ptsname_r(screen, name.as_mut_ptr(), name.len()), 0);
            let terminal = libc::open(name.as_ptr(), flags | libc::O_NONBLOCK);
            assert!(terminal >= 0);
            let mut bytes = [b'x'; 1000];
            while libc::write(terminal, bytes.as_ptr().cast(), 1) == 1 {}
            assert!(libc::read(screen, bytes.as_mut_ptr().cast(), bytes.len()) > 0);
            libc::fcntl(terminal, libc::F_SETFL, libc::O_RDWR);
            let text = "0123456789".repeat(10000);
            let sleeps = || libc::fcntl(2, libc::F_GETFL) & libc::O_NONBLOCK == 0;
            assert_eq!(print_to(terminal, &text, &sleeps), 0);
            close(terminal);
            close(screen);
        }
    }

    #[test]
    fn the_longest_times_are_slept() {
        let word = std::sync::Arc::new(AtomicU32::new(0));
        let sleeper = word.clone();
        let thread = std::thread::spawn(move || {
            while sleeper.load(std::sync::atomic::Ordering::SeqCst) == 0 {
                futex_wait(&sleeper, 0, Some(Duration::MAX));
                assert_ne!(sleeper.load(std::sync::atomic::Ordering::SeqCst), 0, "woke early");
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        word.store(1, std::sync::atomic::Ordering::SeqCst);
        futex_wake(&word, 1);
        thread.join().unwrap();
    }
}
