// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of this machine.

use super::Check;
use reprieve::Restartable;
use reprieve_watch::capabilities::holds;
use std::fs::{self, OpenOptions};
use std::path::Path;

pub fn checks() -> Vec<Check> {
    vec![
        kernel(),
        restartable(),
        membarrier(),
        slices(),
        locks(),
        btf(),
        rights(),
        sched_ext(Path::new("/sys/kernel/sched_ext"), &release()),
        timers(),
        ticks(),
        kvm(),
    ]
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}

fn kernel() -> Check {
    let release = release();
    let number = |n| release.split(['.', '-']).nth(n).and_then(|v| v.parse().ok()).unwrap_or(0);
    let version: (u32, u32) = (number(0), number(1));
    Check {
        name: "kernel",
        used_by: "watch",
        // The fourth argument of sched_switch came with 5.18.
        present: version >= (5, 18),
        optional: false,
        detail: format!("Linux {release}"),
        remedy: Some("Linux 5.18 or newer".into()),
    }
}

fn restartable() -> Check {
    let support = reprieve::support().restartable;
    Check {
        name: "restartable sections",
        used_by: "runtime",
        present: support == Restartable::Yes,
        optional: false,
        detail: format!("{support} (rseq, proven by a self-test)"),
        remedy: Some("lookups use plain sections, which grace periods wait for".into()),
    }
}

fn membarrier() -> Check {
    let present = reprieve::support().membarrier;
    Check {
        name: "membarrier",
        used_by: "runtime",
        present,
        optional: false,
        detail: if present { "readers need no fence" } else { "readers execute a fence" }.into(),
        remedy: Some("Linux 4.14 or newer; let the sandbox's filter pass membarrier(2)".into()),
    }
}

fn slices() -> Check {
    let lack = reprieve_hint::time_slice_extensions().err();
    Check {
        name: "time-slice extensions",
        used_by: "hint",
        present: lack.is_none(),
        optional: true,
        detail: match lack {
            None => "non-preemptable sections ask the kernel for more time".into(),
            Some(lack) => lack.to_string(),
        },
        remedy: Some("none is needed: hints and locks work without".into()),
    }
}

fn locks() -> Check {
    let replaced = crate::hint::replaces_locks();
    Check {
        name: "pthread locks",
        used_by: "hint run",
        present: matches!(replaced, Ok(true)),
        optional: true,
        detail: match replaced {
            Ok(true) => "laid out as is expected: programs can have others".into(),
            Ok(false) => crate::hint::NOT_REPLACED.into(),
            Err(error) => format!("{error:#}"),
        },
        remedy: Some("none is needed: programs keep the C library's locks".into()),
    }
}

fn btf() -> Check {
    let file = "/sys/kernel/btf/vmlinux";
    let size = fs::metadata(file).map(|m| m.len()).unwrap_or(0);
    Check {
        name: "BTF",
        used_by: "watch, guard",
        present: size > 0,
        optional: false,
        detail: if size > 0 { format!("{file}, {size} bytes") } else { format!("no {file}") },
        remedy: Some("a kernel with CONFIG_DEBUG_INFO_BTF: distributions' have it".into()),
    }
}

fn rights() -> Check {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or("0");
    let mask = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let kvm = ["kvm_amd", "kvm_intel"];
    let missing = lacking(mask, kvm.iter().any(|m| Path::new("/sys/module").join(m).exists()));
    Check {
        name: "rights",
        used_by: "watch, guard",
        present: missing.is_empty(),
        optional: false,
        detail: if missing.is_empty() {
            let parts = guard_lacks(mask).map(|lack| format!("; guard: {lack}"));
            format!("may load eBPF programs and read guests{}", parts.collect::<String>())
        } else {
            format!("without {}", missing.join(", "))
        },
        remedy: Some("run as root".into()),
    }
}

/// The parts of guard's work that `mask`'s capabilities do not allow, and that it can do without.
fn guard_lacks(mask: u64) -> impl Iterator<Item = &'static str> {
    const PARTS: [(&str, &str); 2] = [
        ("CAP_DAC_OVERRIDE", "answers no hints of guests' programs (no CAP_DAC_OVERRIDE)"),
        ("CAP_SYS_NICE", "cannot take vCPUs from the kernel's scheduler (no CAP_SYS_NICE)"),
    ];
    PARTS.into_iter().filter(move |(name, _)| !holds(mask, name)).map(|(_, lack)| lack)
}

/// The capabilities that are not in `mask`, of those that a host needs; `kvm`: with KVM.
fn lacking(mask: u64, kvm: bool) -> Vec<&'static str> {
    const NEEDED: [&str; 4] = ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"];
    // The kernel shows the types of its KVM modules to nobody else.
    let for_kvm = kvm.then_some("CAP_SYS_ADMIN");
    NEEDED.into_iter().chain(for_kvm).filter(|name| !holds(mask, name)).collect()
}

/// `directory` has the state of sched_ext, on the kernel of that release.
fn sched_ext(directory: &Path, release: &str) -> Check {
    let there = directory.is_dir();
    let read = |file| fs::read_to_string(directory.join(file)).unwrap_or_default();
    let (state, ops) = (read("state"), read("root/ops"));
    // Guard's own says that it can run.
    let other = state.trim() == "enabled" && ops.trim() != "reprieve_guard";
    let config = fs::read_to_string(format!("/boot/config-{release}")).unwrap_or_default();
    let built = config.lines().any(|line| line == "CONFIG_SCHED_CLASS_EXT=y");
    Check {
        name: "sched_ext",
        used_by: "guard",
        present: there && !other && !refused(release),
        optional: false,
        detail: match (there, built) {
            (true, _) if other => {
                format!("in the kernel; {} schedules, guard would need it to end", ops.trim())
            }
            (true, _) => match warning(release) {
                Some(warning) => format!("in the kernel, {}; {warning}", state.trim()),
                None => format!("in the kernel, {}", state.trim()),
            },
            (false, true) => "configured, but not in /sys/kernel/sched_ext".into(),
            (false, false) => "not in this kernel".into(),
        },
        remedy: Some(
            match (there, other) {
                (true, true) => "end that scheduler",
                (true, false) => "Linux 7.3 or newer",
                (false, _) => {
                    "a kernel with CONFIG_SCHED_CLASS_EXT, from Linux 7.1 on (Debian: that of trixie-backports); or guard --backend eevdf"
                }
            }
            .into(),
        ),
    }
}

/// Whether guard refuses the kernel of that release: those before 7.1, and Debian's 7.2.
fn refused(release: &str) -> bool {
    let major = release.split('.').next().and_then(|number| number.parse::<u32>().ok());
    let debians = release.starts_with("7.2.") && release.contains("deb");
    major.is_some_and(|major| major < 7) || release.starts_with("7.0.") || debians
}

/// Why guard had better not run on the kernel of that release.
fn warning(release: &str) -> Option<&'static str> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next()?.ok()?, numbers.next()?.ok()?) {
        (..=6, _) | (7, 0) => Some(
            "it lacks what guard needs to keep VMs apart from ordinary threads: take 7.3 or newer, \
             or guard --backend eevdf",
        ),
        (7, 2) if refused(release) => {
            Some("the BTF of Debian's 7.2 misdescribes functions that guard needs: take 7.3")
        }
        _ => None,
    }
}

fn timers() -> Check {
    let in_threads = reprieve_guard::timers_in_threads();
    Check {
        name: "timers",
        used_by: "guard",
        present: !in_threads,
        optional: false,
        detail: if in_threads {
            "in threads (PREEMPT_RT or threadirqs): turns would end with the kernel's tick only"
        } else {
            "in interrupts, which can end a turn in time"
        }
        .into(),
        remedy: Some("another kernel, or no threadirqs; or guard --backend eevdf".into()),
    }
}

fn ticks() -> Check {
    let hidden = reprieve_guard::ticks_hidden();
    Check {
        name: "guest ticks",
        used_by: "guard",
        present: !hidden,
        optional: true,
        detail: if hidden {
            "kvm_intel has the processor's preemption timer stand for them, which does not run \
             while a vCPU has no CPU: rescues come later"
        } else {
            "no setting of KVM hides when they are due"
        }
        .into(),
        remedy: Some("load kvm_intel with preemption_timer=0, without VMs".into()),
    }
}

fn kvm() -> Check {
    let device = "/dev/kvm";
    let (present, detail) = match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => (
            true,
            format!("{device} opens; `reprieve lab run` proves whether it runs stock kernels"),
        ),
        Err(error) => (false, format!("{device}: {error}")),
    };
    Check {
        name: "KVM",
        used_by: "lab",
        present,
        optional: true,
        detail,
        remedy: Some("nothing to do: the lab boots a host of its own, which has it".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sched_ext_is_there_where_guard_can_run() {
        let dir = tempfile::tempdir().unwrap();
        let check = |release| sched_ext(dir.path(), release);
        fs::write(dir.path().join("state"), "disabled\n").unwrap();
        assert!(check("7.3.4+deb13-amd64").present && check("7.2.1").present);
        assert!(!check("7.2.12+deb13-amd64").present);
        assert!(!sched_ext(&dir.path().join("none"), "7.3.4").present);
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("state"), "enabled\n").unwrap();
        for (ops, present) in [("scx_lavd\n", false), ("reprieve_guard\n", true)] {
            fs::write(dir.path().join("root/ops"), ops).unwrap();
            assert_eq!(check("7.3.4").present, present, "{ops}");
        }
    }

    #[test]
    fn hosts_with_kvm_need_one_right_more() {
        assert_eq!(lacking(u64::MAX, true), [] as [&str; 0]);
        let few = !(1 << 2 | 1 << 21);
        assert_eq!(lacking(few, false), ["CAP_DAC_READ_SEARCH"]);
        assert_eq!(lacking(few, true), ["CAP_DAC_READ_SEARCH", "CAP_SYS_ADMIN"]);
        assert_eq!(guard_lacks(few).count(), 0);
        let lack = "cannot take vCPUs from the kernel's scheduler (no CAP_SYS_NICE)";
        assert!(guard_lacks(!(1 << 23)).eq([lack]));
    }

    #[test]
    fn kernels_that_guard_should_not_run_on_are_named() {
        for release in ["6.12.117+deb13-cloud-amd64", "6.18.15", "7.0.1", "7.2.12+deb13-amd64"] {
            assert!(warning(release).is_some(), "{release}");
        }
        for release in ["7.1.1", "7.3.4+deb13-cloud-amd64", "10.0", "", "mine", "7"] {
            assert_eq!(warning(release), None, "{release}");
        }
    }
}
