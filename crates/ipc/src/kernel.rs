// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's calls, without the C library's functions.
//!
//! Programs and other preloaded libraries replace public functions of the C library: fakeroot says
//! that the user is root, faketime moves the clock, a program has a `read` of its own. The library
//! decides by what the kernel says. Here are the bare call and the kernel's clocks.

use crate::error::{Errno, Result};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::Duration;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("system calls are known for x86-64 and aarch64 only");

/// `call!(SYS_name, arguments)`: a system call, as [`make`] makes it.
#[macro_export]
#[doc(hidden)]
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        $crate::kernel::make(::libc::$number, &[$($argument as usize),*])
    };
}
pub use call;

/// Makes a system call. Leaves the C library's `errno` as it is.
///
/// # Safety
/// As for the call.
#[inline]
pub unsafe fn make(number: libc::c_long, arguments: &[usize]) -> Result<usize> {
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the caller's promise.
    let result = unsafe { enter(number, six) };
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the caller's promise; the kernel changes these registers only.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    result
}

/// Whether the program has set a seccomp filter of its own, which may end it for a call that it
/// does not know of. From then on this process asks the kernel for what it cannot do without:
/// others find the dead, and free memory.
static FILTERED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_filtered() -> bool {
    FILTERED.load(Relaxed)
}

/// The program is about to set a filter.
pub(crate) fn expect_a_filter() {
    FILTERED.store(true, Relaxed);
}

const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Starts a thread of this process that has its own descriptors and calls `run(argument)`. `life`
/// is its number until it has ended.
///
/// # Safety
/// The stack, which ends at a multiple of 16, and the argument are valid as long as the thread
/// needs them, and `life` until it has ended. `run` does not unwind.
pub(crate) unsafe fn start_thread<T>(
    stack: usize,
    life: &AtomicU32,
    run: extern "C" fn(*mut T),
    argument: *mut T,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let result = unsafe { clone(THREAD, stack, life.as_ptr(), run as usize, argument as usize) };
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn clone(flags: i32, stack: usize, life: *mut u32, run: usize, argument: usize) -> isize {
    let result;
    // SAFETY: the caller's promise. The thread goes on here with its own stack, and ends here.
    unsafe {
        std::arch::asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12",
            "call r13", "xor edi, edi", "mov eax, {exit}", "syscall", "ud2", "2:",
            exit = const libc::SYS_exit, inlateout("rax") libc::SYS_clone => result,
            in("rdi") flags as usize, in("rsi") stack, in("rdx") life, in("r10") life, in("r8") 0,
            in("r12") argument, in("r13") run, lateout("rcx") _, lateout("r11") _);
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone(flags: i32, stack: usize, life: *mut u32, run: usize, argument: usize) -> isize {
    let result;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("svc 0", "cbnz x0, 2f", "mov x0, x20", "blr x21", "mov x0, xzr",
            "mov x8, {exit}", "svc 0", "2:", exit = const libc::SYS_exit,
            inlateout("x0") flags as usize => result, in("x1") stack, in("x2") life, in("x3") 0,
            in("x4") life, in("x8") libc::SYS_clone, in("x20") argument, in("x21") run);
    }
    result
}

/// A function of the vDSO: the code that the kernel maps into each process.
struct Vdso {
    name: &'static [u8],
    address: AtomicUsize,
}

/// An address that is not known yet, and that of a function which is not there.
const UNKNOWN: usize = 0;
const NONE: usize = 1;

impl Vdso {
    const fn new(name: &'static [u8]) -> Vdso {
        Vdso { name, address: AtomicUsize::new(UNKNOWN) }
    }

    #[inline]
    fn get(&self) -> Option<usize> {
        match self.address.load(Relaxed) {
            UNKNOWN => self.find(),
            NONE => None,
            known => Some(known),
        }
    }

    #[cold]
    fn find(&self) -> Option<usize> {
        // SAFETY: the kernel's image, which is there for life and is an ELF file.
        let found =
            unsafe { vdso_symbol(libc::getauxval(libc::AT_SYSINFO_EHDR) as usize, self.name) };
        self.address.store(found.unwrap_or(NONE), Relaxed);
        found
    }
}

/// The address of a symbol of the image at `base`.
///
/// # Safety
/// At `base`, unless it is 0, an ELF file is mapped whose string table follows its symbols.
unsafe fn vdso_symbol(base: usize, name: &[u8]) -> Option<usize> {
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;
    const STRINGS: usize = 5;
    const SYMBOLS: usize = 6;
    if base == 0 {
        return None;
    }
    // SAFETY: inside the image, by the caller's promise; its fields are aligned.
    let (byte, half, word) = unsafe {
        (
            |at: usize| *(at as *const u8),
            |at: usize| usize::from(*(at as *const u16)),
            |at: usize| *(at as *const usize),
        )
    };
    let (first, size, count) = (base + word(base + 32), half(base + 54), half(base + 56));
    let header = |kind: u64| {
        let mut all = (0..count).map(|i| first + i * size);
        all.find(|&at| word(at) as u64 & 0xffff_ffff == kind)
    };
    let (load, dynamic) = (header(LOAD)?, header(DYNAMIC)?);
    // The distance from its addresses to where they are mapped.
    let bias = base.wrapping_add(word(load + 8)).wrapping_sub(word(load + 16));
    let entries = base + word(dynamic + 8);
    let table = |tag: usize| {
        let mut all = (0..).map(|i| entries + 16 * i).take_while(|&at| word(at) != 0);
        all.find(|&at| word(at) == tag).map(|at| bias.wrapping_add(word(at + 8)))
    };
    let (symbols, strings) = (table(SYMBOLS)?, table(STRINGS)?);
    let is_named = |symbol: usize| {
        let at = strings + (word(symbol) & 0xffff_ffff);
        half(symbol + 6) != 0
            && name.iter().enumerate().all(|(i, &letter)| byte(at + i) == letter)
            && byte(at + name.len()) == 0
    };
    let symbol = (symbols..strings.saturating_sub(23)).step_by(24).find(|&at| is_named(at))?;
    Some(bias.wrapping_add(word(symbol + 8)))
}

const CLOCK_GETTIME: &[u8] =
    if cfg!(target_arch = "aarch64") { b"__kernel_clock_gettime" } else { b"__vdso_clock_gettime" };

fn clock(clock: libc::clockid_t) -> libc::timespec {
    static GETTIME: Vdso = Vdso::new(CLOCK_GETTIME);
    type Gettime = extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let read = GETTIME.get().is_some_and(|gettime| {
        // SAFETY: the kernel's function of that name has this type.
        let gettime = unsafe { std::mem::transmute::<usize, Gettime>(gettime) };
        gettime(clock, &mut now) == 0
    });
    if !read {
        // SAFETY: `now` is valid for the write.
        let _ = unsafe { call!(SYS_clock_gettime, clock, &raw mut now) };
    }
    now
}

pub fn monotonic() -> Duration {
    let now = clock(libc::CLOCK_MONOTONIC);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The clock that the kernel stamps objects with: seconds.
#[inline]
pub fn now() -> u64 {
    /// Quicker than the clock; of x86-64 only.
    static TIME: Vdso = Vdso::new(b"__vdso_time");
    type Time = extern "C" fn(*mut libc::time_t) -> libc::time_t;
    let Some(time) = TIME.get() else { return clock(libc::CLOCK_REALTIME_COARSE).tv_sec as u64 };
    // SAFETY: as above.
    let time = unsafe { std::mem::transmute::<usize, Time>(time) };
    time(std::ptr::null_mut()) as u64
}

/// The CPU that this thread runs on.
pub fn current_cpu() -> u64 {
    static GETCPU: Vdso = Vdso::new(b"__vdso_getcpu");
    type Getcpu = extern "C" fn(*mut u32, *mut u32, *mut u8) -> libc::c_int;
    let (mut cpu, none) = (0u32, std::ptr::null_mut::<u32>());
    match GETCPU.get() {
        Some(getcpu) => {
            // SAFETY: as above.
            let getcpu = unsafe { std::mem::transmute::<usize, Getcpu>(getcpu) };
            getcpu(&mut cpu, none, none.cast());
        }
        None => {
            // SAFETY: `cpu` is valid for the write.
            let _ = unsafe { call!(SYS_getcpu, &raw mut cpu, none, none) };
        }
    }
    cpu.into()
}

/// A set of signals as the kernel has it: bit `n - 1` is signal `n`.
pub type Signals = u64;

/// All but the two that the C library keeps for itself.
pub const ALL_SIGNALS: Signals = !(0b11 << 31);

/// Changes which signals this thread blocks. Those that it blocked.
pub fn block(how: libc::c_int, set: Signals) -> Signals {
    let mut old: Signals = 0;
    // SAFETY: sets of that size, valid for the read and the write.
    let _ = unsafe { call!(SYS_rt_sigprocmask, how, &raw const set, &raw mut old, 8) };
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the kernel has them at all: the emulators' kernels may have none.
    #[test]
    fn the_kernels_clocks_are_found() {
        // SAFETY: asks for a number.
        let image = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        if image == 0 {
            println!("SKIPPED: no vDSO");
            return;
        }
        // SAFETY: the kernel's image.
        let found = |name: &[u8]| unsafe { vdso_symbol(image, name) };
        assert!(found(CLOCK_GETTIME).is_some());
        assert_eq!(found(&CLOCK_GETTIME[..8]), None);
        // SAFETY: null pointers are allowed.
        let told = unsafe { libc::time(std::ptr::null_mut()) } as u64;
        assert!((told..told + 3600).contains(&now()));
        let before = clock(libc::CLOCK_MONOTONIC);
        let mut asked = before;
        // SAFETY: valid for the write.
        unsafe { call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut asked) }.unwrap();
        assert!((before.tv_sec, before.tv_nsec) <= (asked.tv_sec, asked.tv_nsec));
    }

    /// Emulators start threads that share descriptors only.
    #[test]
    fn a_thread_runs_on_its_stack_and_ends() {
        static LIFE: AtomicU32 = AtomicU32::new(0);
        static RAN: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn run(argument: *mut u8) {
            RAN.store(&raw const argument as usize, SeqCst);
        }
        let mut stack = vec![0u128; 4096];
        let range = stack.as_ptr_range();
        let (begin, end) = (range.start as usize, range.end as usize);
        let flags = libc::CLONE_FILES | THREAD;
        let run = run as *const () as usize;
        // SAFETY: the stack and `LIFE` stay until the thread has ended, which makes no calls.
        let number = unsafe { clone(flags, end, LIFE.as_ptr(), run, stack.as_mut_ptr() as usize) };
        assert!(number > 0, "{number}");
        while LIFE.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        assert!((begin..end).contains(&RAN.load(SeqCst)));
    }

    #[test]
    fn errors_are_the_kernels_numbers() {
        // SAFETY: touches no memory.
        let closed = unsafe { call!(SYS_close, i32::MAX) };
        assert_eq!(closed, Err(Errno(libc::EBADF)));
    }
}
