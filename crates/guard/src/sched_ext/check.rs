// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions that the host has to meet before the scheduler is loaded.

use crate::error::Error;
use crate::undo::server;
use std::fs;
use std::path::Path;

pub fn host() -> Result<(), Error> {
    let refused = |why: &str| Err(Error::Unsupported(why.into()));
    if !Path::new(server::SCHED_EXT).is_dir() {
        return refused(
            "this kernel has no sched_ext: boot Linux 7.1 or newer with CONFIG_SCHED_CLASS_EXT, or use --backend eevdf; --dry-run shows what guard would do",
        );
    }
    if !Path::new(server::SERVERS).is_dir() {
        return refused(
            "there is no deadline server of sched_ext (/sys/kernel/debug/sched/ext_server), without which ordinary threads may keep vCPUs from their CPUs: boot Linux 7.1 or newer and mount debugfs (mount -t debugfs none /sys/kernel/debug), or use --backend eevdf",
        );
    }
    if let Some(other) = server::loaded_scheduler() {
        return refused(&format!("{other}: end it first"));
    }
    if timers_in_threads() {
        return refused(
            "this kernel's timers expire in threads (PREEMPT_RT or threadirqs), not in interrupts: boot another kernel, or one without threadirqs, or use --backend eevdf",
        );
    }
    Ok(())
}

/// Whether timers expire in threads of a higher class, which have preempted the thread on whose
/// turn they should decide: it would end with the kernel's tick.
pub fn timers_in_threads() -> bool {
    let realtime = fs::read_to_string("/sys/kernel/realtime").unwrap_or_default();
    let parameters = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    realtime.trim() == "1" || parameters.split_ascii_whitespace().any(|word| word == "threadirqs")
}

/// Whether KVM hides from the scheduler when the tick of a guest is due whose vCPU has no CPU: on
/// Intel the processor's preemption timer stands for the tick, and runs with the vCPU only. KVM
/// clears the parameter where the processor has no such timer.
pub fn ticks_hidden() -> bool {
    let parameter = "/sys/module/kvm_intel/parameters/preemption_timer";
    fs::read_to_string(parameter).is_ok_and(|value| value.trim() == "Y")
}
