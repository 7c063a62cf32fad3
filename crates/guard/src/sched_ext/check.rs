// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host has to have, and must not use, before the scheduler is loaded.

use super::program::{few_cpus, keeps_limits, reach_cpus};
use crate::error::Error;
use crate::options::Options;
use reprieve_watch::cgroup;
use std::fs;
use std::path::{Path, PathBuf};

const SCHED_EXT: &str = "/sys/kernel/sched_ext";

pub fn host(options: &Options) -> Result<(), Error> {
    if !Path::new(SCHED_EXT).is_dir() {
        return Err(Error::Missing {
            what: "sched_ext, which this kernel does not have",
            hint: "boot Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT, or use --backend eevdf; --dry-run shows what guard would do",
        });
    }
    if !none_loaded() {
        let what = format!("the scheduler that is loaded ({})", read("root/ops"));
        return Err(Error::WouldDrop { what, hint: "end it first" });
    }
    if timers_in_threads() {
        return Err(Error::Missing {
            what: "timers that expire in interrupts: this kernel runs them in threads (PREEMPT_RT or threadirqs)",
            hint: "boot another kernel, or one without threadirqs, or use --backend eevdf",
        });
    }
    few_cpus()?;
    reach_cpus()?;
    let matters = !options.ignore_cpu_max && loses_limits(options);
    match matters.then(cgroup::limited_by_root).flatten() {
        Some(limit) => Err(bandwidth(&limit)),
        None => Ok(()),
    }
}

/// With `--only-vms` only limits of VMs matter, and they are found when the VM is.
fn loses_limits(options: &Options) -> bool {
    !options.only_vms && !keeps_limits(options)
}

/// Whether the stock scheduler is alone.
pub fn none_loaded() -> bool {
    read("state") == "disabled"
}

fn read(file: &str) -> String {
    let text = fs::read_to_string(Path::new(SCHED_EXT).join(file)).unwrap_or_default();
    text.trim().to_owned()
}

/// Whether there are CPUs without ticks while one thread runs there (`nohz_full`).
pub fn ticks_stop() -> bool {
    let list = fs::read_to_string("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
    list.contains(|c: char| c.is_ascii_digit())
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

/// A limit of a cgroup that would not be kept, whoever set it.
pub fn unkept_limit(options: &Options) -> Option<PathBuf> {
    let all = loses_limits(options).then(cgroup::all_limited);
    all.into_iter().flatten().next()
}

/// The limits that the scheduler keeps, at this moment: their files.
pub fn kept_limits(options: &Options) -> Vec<PathBuf> {
    if keeps_limits(options) { cgroup::all_limited() } else { Vec::new() }
}

/// A limit that nobody would keep.
pub fn bandwidth(limit: &Path) -> Error {
    Error::WouldDrop {
        what: format!("the CPU limit in {}", limit.display()),
        hint: "guard keeps such limits on Linux 6.17 and newer with CONFIG_EXT_GROUP_SCHED, 256 of them, nested 4 deep, and not with --only-vms; remove it, use --backend eevdf, or accept that with --ignore-cpu-max",
    }
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
