// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions that the host has to meet before the scheduler is loaded.

use crate::error::Error;
use crate::undo::server;
use std::fs;
use std::path::Path;

pub fn host() -> Result<(), Error> {
    if !Path::new(server::SCHED_EXT).is_dir() {
        return Err(Error::Missing {
            what: "sched_ext, which this kernel does not have",
            hint: "boot Linux 7.1 or newer with CONFIG_SCHED_CLASS_EXT, or use --backend eevdf; --dry-run shows what guard would do",
        });
    }
    if !Path::new(server::SERVERS).is_dir() {
        return Err(Error::Missing {
            what: "the deadline server of sched_ext (/sys/kernel/debug/sched/ext_server), without which ordinary threads may keep vCPUs from their CPUs",
            hint: "boot Linux 7.1 or newer and mount debugfs (mount -t debugfs none /sys/kernel/debug), or use --backend eevdf",
        });
    }
    if let Some(other) = server::loaded_scheduler() {
        return Err(Error::Unsupported { why: format!("{other}: end it first") });
    }
    if timers_in_threads() {
        return Err(Error::Missing {
            what: "timers that expire in interrupts: this kernel runs them in threads (PREEMPT_RT or threadirqs)",
            hint: "boot another kernel, or one without threadirqs, or use --backend eevdf",
        });
    }
    Ok(())
}

/// Whether timers expire in threads of a higher class, which have preempted the thread on whose
/// turn they should decide: it would end with the kernel's tick.
pub fn timers_in_threads() -> bool {
    let realtime = fs::read_to_string("/sys/kernel/realtime").unwrap_or_default();
    let parameters = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    in_threads(&realtime, &parameters)
}

fn in_threads(realtime: &str, parameters: &str) -> bool {
    realtime.trim() == "1" || parameters.split_ascii_whitespace().any(|word| word == "threadirqs")
}

/// Whether KVM hides from the scheduler when the tick of a guest is due whose vCPU has no CPU: on
/// Intel the processor's preemption timer stands for the tick, and runs with the vCPU only. KVM
/// clears the parameter where the processor has no such timer.
pub fn ticks_hidden() -> bool {
    let parameter = "/sys/module/kvm_intel/parameters/preemption_timer";
    fs::read_to_string(parameter).is_ok_and(|value| value.trim() == "Y")
}

#[cfg(test)]
mod tests {
    use super::in_threads;

    #[test]
    fn kernels_whose_timers_expire_in_threads_are_known() {
        assert!(in_threads("1\n", "quiet"));
        assert!(in_threads("", "root=/dev/vda1 threadirqs quiet\n"));
        assert!(!in_threads("0\n", "threadirqs=no nothreadirqs"));
        assert!(!in_threads("", ""));
    }
}
