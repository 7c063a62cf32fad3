// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scheduling policies, by the system calls: musl's functions do nothing.

/// Changes this thread's policy. False if that is not allowed.
#[allow(dead_code, reason = "not every test needs it")]
pub fn set_policy(policy: i32, priority: i32) -> bool {
    // SAFETY: plain data; the kernel reads its first field, the priority.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = priority;
        libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const param) == 0
    }
}

/// A thread's policy; 0: this thread's.
#[allow(dead_code, reason = "not every test needs it")]
pub fn policy(thread: i32) -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) as i32 }
}
