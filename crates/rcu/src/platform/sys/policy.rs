// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scheduling policies and priorities.

/// (musl's has more fields.)
pub(crate) fn sched_param(priority: i32) -> libc::sched_param {
    // SAFETY: plain data.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    param
}

/// This thread's real-time priority, if it has one.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) fn real_time_priority() -> Option<i32> {
    let mut priority = sched_param(0);
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
        let (normal, none) = (libc::SCHED_OTHER, sched_param(0));
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
