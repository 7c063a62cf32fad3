// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM's guest, read from outside: what can be seen in it, and the boot settings on which the
//! length of its grace periods depends.
//!
//! The settings are shown and not judged: which are best depends on the machine.

use super::{Check, entry};
use anyhow::{Context as _, Result};
use reprieve_guest::{Guest, Model, Preemption, Settings, vmm};
use reprieve_page::plain;
use reprieve_watch::cgroup::{self, Bandwidth};
use serde::Serialize;

/// The findings in a VM's guest.
#[derive(Serialize)]
pub struct Report {
    pid: u32,
    name: String,
    vmm: &'static str,
    vcpus: u32,
    /// The release of the guest's kernel.
    kernel: String,
    hz: Option<u32>,
    preemption: &'static str,
    rcu: &'static str,
    command_line: Option<String>,
    /// Blind spots in this guest.
    blind: Vec<&'static str>,
    /// Whether the host takes CPU time away from it, whoever else wants that.
    quota: Check,
    /// Settings that the length of its grace periods depends on.
    settings: Vec<Setting>,
}

/// A boot setting, as it is.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The parameter's name on the guest's kernel command line.
    name: &'static str,
    /// Its value, or whether it is in use.
    now: String,
    effect: &'static str,
}

pub fn examine(query: &str) -> Result<Report> {
    let vm = vmm::find(query)?;
    let guest = Guest::attach(&vm).with_context(|| format!("VM {query}"))?;
    let model = guest.rcu().ok().map(|rcu| rcu.model());
    let settings = guest.settings();
    Ok(Report {
        pid: vm.pid,
        name: vm.name.as_deref().map_or_else(|| vm.pid.to_string(), plain),
        vmm: match vm.accel {
            vmm::Accel::Kvm => "QEMU with KVM",
            vmm::Accel::Tcg => "QEMU with TCG",
        },
        vcpus: guest.vcpus(),
        kernel: guest.release().into(),
        hz: guest.hz(),
        preemption: match model.map(|m| m.preemption) {
            Some(Preemption::None) => "none",
            Some(Preemption::Voluntary) => "voluntary",
            Some(Preemption::Full) => "full",
            Some(Preemption::Lazy) => "lazy",
            Some(Preemption::RealTime) => "real-time (PREEMPT_RT)",
            _ => "unknown",
        },
        rcu: match model {
            Some(Model { preemptible_rcu: true, .. }) => "preemptible readers",
            Some(_) => "classic",
            None => "unknown",
        },
        blind: blind(model),
        quota: quota(&vm),
        settings: shown(&settings),
        command_line: settings.command_line,
    })
}

fn quota(vm: &vmm::Vm) -> Check {
    let mut all: Vec<Bandwidth> = vm.vcpus.iter().flat_map(|v| cgroup::bandwidths(v.tid)).collect();
    all.sort_by(|a, b| a.file.cmp(&b.file));
    all.dedup_by(|a, b| a.file == b.file);
    quota_of(&all)
}

fn quota_of(all: &[Bandwidth]) -> Check {
    let one = |of: &Bandwidth| {
        let Bandwidth { file, quota, periods, throttled } = of;
        format!("{quota:?} in {}, used up in {throttled} of {periods} periods", file.display())
    };
    let said: Vec<String> = all.iter().map(one).collect();
    Check {
        name: "CPU time",
        used_by: "guest",
        present: all.iter().all(|of| of.throttled == 0),
        optional: true,
        detail: if said.is_empty() { "no quota".into() } else { said.join("; ") },
        remedy: Some("grace periods wait while a quota is used up: raise it or remove it".into()),
    }
}

fn blind(model: Option<Model>) -> Vec<&'static str> {
    let mut all = vec![];
    if model.is_none_or(|m| !m.preemptible_rcu) {
        all.push(
            "RCU readers leave no trace in this kernel: kernel mode counts as a possible reader",
        );
    }
    if model.is_none_or(|m| !m.counts_preemption) {
        all.push("held spinlocks leave no trace in this kernel (no CONFIG_PREEMPT_COUNT)");
    }
    all
}

fn shown(settings: &Settings) -> Vec<Setting> {
    let ticks = |ticks: Option<u64>| ticks.map_or("not known".into(), |ticks| ticks.to_string());
    vec![
        Setting {
            name: "rcutree.jiffies_till_first_fqs",
            now: ticks(settings.first_fqs),
            effect: "ticks from the start of a grace period until RCU looks for quiescent states",
        },
        Setting {
            name: "rcutree.jiffies_till_next_fqs",
            now: ticks(settings.next_fqs),
            effect: "ticks between two looks",
        },
        Setting {
            name: "rcutree.kthread_prio",
            now: settings.kthread_priority.map_or("not known".into(), |prio| prio.to_string()),
            effect: "real-time priority of the thread that ends grace periods; with 0 it waits for its turn among the guest's other threads",
        },
        Setting {
            name: "nohz_full",
            now: settings.context_tracking.to_string(),
            effect: "context tracking: a vCPU preempted in user mode counts as quiescent at the next look; entering and leaving the kernel costs more",
        },
    ]
}

impl Report {
    pub fn text(&self) -> String {
        let (name, pid, vmm, vcpus) = (plain(&self.name), self.pid, self.vmm, self.vcpus);
        let mut out = format!("VM {name} (pid {pid}, {vmm}, {vcpus} vCPUs)\n");
        let hz = self.hz.map_or(String::new(), |hz| format!(", {hz} ticks/s"));
        out += &entry("", "guest kernel", &format!("Linux {}{hz}", self.kernel));
        out += &entry("", "preemption", self.preemption);
        out += &entry("", "RCU", self.rcu);
        for line in &self.blind {
            out += &entry("", "not visible", line);
        }
        if let Some(line) = &self.command_line {
            out += &entry("", "command line", line);
        }
        out += &self.quota.text();
        for (n, setting) in self.settings.iter().enumerate() {
            if n == 0 {
                out += "\nBoot settings on which the length of grace periods depends (compare them\n\
                    on your own host: reprieve lab run --guest-args):\n";
            }
            out += &format!("       {} = {}\n", setting.name, setting.now);
            out += &entry("", "", setting.effect);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_guest::Use;

    fn settings(first: u64, next: u64, context_tracking: Use) -> Settings {
        Settings {
            first_fqs: Some(first),
            next_fqs: Some(next),
            kthread_priority: Some(0),
            context_tracking,
            command_line: None,
        }
    }

    impl Report {
        pub fn example(name: &str) -> Report {
            Report {
                pid: 7,
                name: name.into(),
                vmm: "QEMU with KVM",
                vcpus: 2,
                kernel: "6.12.9".into(),
                hz: None,
                preemption: "full",
                rcu: "classic",
                command_line: None,
                blind: vec![],
                quota: quota_of(&[]),
                settings: vec![],
            }
        }
    }

    #[test]
    fn a_quota_that_is_used_up_is_told() {
        let quota = |throttled| Bandwidth {
            file: "/sys/fs/cgroup/vms/cpu.max".into(),
            quota: "50000 100000".into(),
            periods: 20,
            throttled,
        };
        let used_up = quota_of(&[quota(0), quota(3)]).text();
        let used_up = used_up.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["no CPU time", "used up in 3 of 20", "/vms/cpu.max", "raise it or remove it"] {
            assert!(used_up.contains(part), "{part} in {used_up}");
        }
        assert!(quota_of(&[quota(0)]).text().starts_with("yes"));
        assert!(quota_of(&[]).detail == "no quota" && quota_of(&[]).present);
    }

    #[test]
    fn a_vm_s_name_makes_no_lines_of_its_own() {
        let text = Report::example("a\nyes    fine").text();
        let first = "VM a?yes    fine (pid 7, QEMU with KVM, 2 vCPUs)";
        assert_eq!(text.lines().next(), Some(first), "{text}");
    }

    #[test]
    fn settings_are_shown_as_they_are() {
        let now = |first, next, context_tracking| {
            let settings = settings(first, next, context_tracking);
            shown(&settings).into_iter().map(|setting| setting.now).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(now(1, 3, Use::No), "1 3 0 not in use");
        assert_eq!(now(0, 1, Use::Yes), "0 1 0 in use");
    }
}
