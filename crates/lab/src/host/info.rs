// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about the machine that runs the VMs.

use crate::calibrate::base_slice_ns;
use crate::dilation::Dilation;
use crate::record::HostInfo;
use std::fs;

/// CPUs that this process may use.
pub fn cpus() -> u32 {
    crate::vm::allowed_cpus().len() as u32
}

/// Memory that is available without swapping, MiB.
pub fn free_memory_mib() -> u64 {
    meminfo_kb("MemAvailable:") / 1024
}

/// Whether the CPU reports Intel's or AMD's virtualization.
pub fn has_virtualization() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|l| l.strip_prefix("flags"));
    flags.is_some_and(|f| f.split_ascii_whitespace().any(|f| f == "vmx" || f == "svm"))
}

/// This machine, as the host of VMs in `mode`.
pub fn info(mode: &str, why: &str, qemu: &str) -> HostInfo {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    HostInfo {
        mode: mode.into(),
        why: why.into(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        cpus: cpus(),
        memory_kb: meminfo_kb("MemTotal:"),
        cpu_model: model.map(|(_, model)| model.trim().to_string()).unwrap_or_default(),
        qemu: qemu.into(),
        dilation: Dilation::NONE,
        base_slice_ns: base_slice_ns(),
        outer: None,
    }
}

fn meminfo_kb(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = text.lines().find_map(|l| l.strip_prefix(field));
    value.and_then(|v| v.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_this_machine() {
        let info = info("tcg", "test", "10");
        assert!(info.cpus > 0 && info.memory_kb > 0 && !info.kernel.is_empty(), "{info:?}");
        assert!(free_memory_mib() > 0 && free_memory_mib() <= info.memory_kb / 1024);
    }
}
