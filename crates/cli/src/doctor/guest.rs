// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM's guest, read from outside: what can be seen in it, which of KVM's features it uses, and
//! the boot settings on which the length of its grace periods depends.
//!
//! The settings are shown, not prescribed: which are best depends on the speed of the machine
//! (`docs/findings.md`).

use super::{Check, entry};
use anyhow::{Context as _, Result};
use reprieve_guest::{Guest, Model, Paravirt, Preemption, Settings, Use, vmm};
use serde::Serialize;

/// What was found in a VM's guest.
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
    /// What cannot be seen in this guest.
    blind: Vec<&'static str>,
    checks: Vec<Check>,
    /// What the length of its grace periods depends on.
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
    let kvm = matches!(vm.kind, vmm::Kind::Qemu(vmm::Accel::Kvm));
    let model = guest.rcu().ok().map(|rcu| rcu.model());
    let settings = guest.settings();
    Ok(Report {
        pid: vm.pid,
        name: vm.name.clone().unwrap_or_else(|| vm.pid.to_string()),
        vmm: if kvm { "QEMU with KVM" } else { "QEMU with TCG" },
        vcpus: guest.vcpus(),
        kernel: guest.release().into(),
        hz: guest.hz(),
        preemption: match model.map(|m| m.preemption) {
            Some(Preemption::None) => "none",
            Some(Preemption::Voluntary) => "voluntary",
            Some(Preemption::Full) => "full",
            Some(Preemption::Lazy) => "lazy",
            _ => "unknown",
        },
        rcu: match model {
            Some(Model { preemptible_rcu: true, .. }) => "preemptible readers",
            Some(_) => "classic",
            None => "unknown",
        },
        blind: blind(model),
        checks: if kvm { paravirt(&guest.paravirt()) } else { vec![] },
        settings: shown(&settings),
        command_line: settings.command_line,
    })
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

/// The features of KVM that shorten a guest's wait for a preempted vCPU.
fn paravirt(used: &Paravirt) -> Vec<Check> {
    let check = |name, state: &Use, does: &str, option: &str| Check {
        name,
        used_by: "guest",
        present: *state == Use::Yes,
        detail: format!("{state}; {does}"),
        remedy: Some(match state {
            Use::Unknown(_) => "nothing is known to be wrong".into(),
            _ => format!(
                "offer it: QEMU -cpu ...,{option}; it also needs more than one vCPU and no kvm-hint-dedicated"
            ),
        }),
    };
    vec![
        check(
            "KVM found",
            &used.on_kvm,
            "the guest's kernel knows that it runs on KVM, without which it uses none of the following",
            "kvm=on",
        ),
        check(
            "steal time",
            &used.steal_time,
            "the guest knows the time it was not given a CPU for",
            "+kvm-steal-time",
        ),
        check(
            "PV unhalt",
            &used.unhalt,
            "waiters for a spinlock halt instead of spinning for an owner that is off its CPU",
            "+kvm-pv-unhalt",
        ),
        check(
            "sees preempted vCPUs",
            &used.sees_preempted,
            "sleeping locks stop spinning for an owner that is off its CPU",
            "+kvm-steal-time",
        ),
        check(
            "PV yield",
            &used.yields,
            "who sends an interrupt to a preempted vCPU gives it its time",
            "+kvm-pv-sched-yield",
        ),
        check(
            "PV TLB flush",
            &used.tlb_flush,
            "a preempted vCPU flushes when it runs again: nobody waits for it",
            "+kvm-pv-tlb-flush",
        ),
    ]
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
            name: "nohz_full",
            now: settings.context_tracking.to_string(),
            effect: "context tracking: a vCPU preempted in user mode counts as quiescent at the next look; entering and leaving the kernel costs more",
        },
    ]
}

impl Report {
    /// Whether there is nothing to change.
    pub fn fine(&self) -> bool {
        self.checks.iter().all(|check| check.present)
    }

    pub fn text(&self) -> String {
        let mut out =
            format!("VM {} (pid {}, {}, {} vCPUs)\n", self.name, self.pid, self.vmm, self.vcpus);
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
        if self.checks.is_empty() {
            out += &entry("", "paravirtualization", "none: only KVM offers it");
        }
        for check in &self.checks {
            out += &check.text();
        }
        for (n, setting) in self.settings.iter().enumerate() {
            if n == 0 {
                out += "\nBoot settings on which the length of grace periods depends (docs/findings.md; compare them\n\
                    on your own host: reprieve lab run churn --guest-args ...):\n";
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

    fn settings(first: u64, next: u64, context_tracking: Use) -> Settings {
        Settings {
            first_fqs: Some(first),
            next_fqs: Some(next),
            context_tracking,
            command_line: None,
        }
    }

    #[test]
    fn settings_are_shown_as_they_are() {
        let now = |first, next, context_tracking| {
            let settings = settings(first, next, context_tracking);
            shown(&settings).into_iter().map(|setting| setting.now).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(now(1, 3, Use::No), "1 3 not in use");
        assert_eq!(now(0, 1, Use::Yes), "0 1 in use");
    }

    #[test]
    fn what_the_guest_does_not_use_is_to_be_offered() {
        let no = || Use::No;
        let used = Paravirt {
            on_kvm: Use::Yes,
            steal_time: no(),
            unhalt: no(),
            sees_preempted: no(),
            yields: no(),
            tlb_flush: Use::Unknown("torn".into()),
        };
        let checks = paravirt(&used);
        let remedy = |n: usize| checks[n].remedy.as_deref().unwrap();
        assert!(checks[0].present && !checks[1].present);
        assert!(remedy(1).contains("+kvm-steal-time"), "{}", remedy(1));
        assert!(remedy(5).starts_with("nothing is known"), "{}", remedy(5));
    }
}
