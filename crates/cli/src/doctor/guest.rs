// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM's guest, read from outside: what can be seen in it, which of KVM's features it uses, and which boot settings shorten its grace periods.
//!
//! The prescription is that of `docs/findings.md`: context tracking lets user mode count as quiescent at once, which pays only if RCU also looks soon and often; under
//! overcommit the two together beat either, and without overcommit the defaults are as good.

use super::{Check, entry};
use anyhow::{Context as _, Result};
use reprieve_guest::{Guest, Model, Paravirt, Preemption, Settings, Use, vmm};
use serde::Serialize;

/// What is known of a VM.
#[derive(Serialize)]
pub struct Report {
    pid: u32,
    name: String,
    vmm: &'static str,
    vcpus: u32,
    /// Of the guest's kernel.
    kernel: String,
    hz: Option<u32>,
    preemption: &'static str,
    rcu: &'static str,
    command_line: Option<String>,
    /// What cannot be seen in this guest.
    blind: Vec<&'static str>,
    checks: Vec<Check>,
    prescriptions: Vec<Prescription>,
}

/// A boot setting to change.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Prescription {
    /// For the guest's kernel command line.
    setting: String,
    now: String,
    reason: String,
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
        prescriptions: prescribe(&settings, guest.vcpus()),
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

/// KVM's features that keep waiting for a preempted vCPU short.
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

/// The settings that `docs/findings.md` measured.
fn prescribe(settings: &Settings, vcpus: u32) -> Vec<Prescription> {
    let mut all = vec![];
    let mut ticks = |setting: &str, now: Option<u64>, wanted: u64, reason: &str| {
        if now != Some(wanted) {
            all.push(Prescription {
                setting: format!("{setting}={wanted}"),
                now: now.map_or("not known".into(), |now| now.to_string()),
                reason: reason.into(),
            });
        }
    };
    ticks(
        "rcutree.jiffies_till_first_fqs",
        settings.first_fqs,
        0,
        "RCU looks for quiescent states as soon as a grace period begins, not a tick or more later",
    );
    ticks(
        "rcutree.jiffies_till_next_fqs",
        settings.next_fqs,
        1,
        "and again each tick: a vCPU that was preempted is noticed as soon as it can be",
    );
    if vcpus > 1 && settings.context_tracking != Use::Yes {
        all.push(Prescription {
            setting: if vcpus == 2 { "nohz_full=1".into() } else { format!("nohz_full=1-{}", vcpus - 1) },
            now: settings.context_tracking.to_string(),
            reason: "context tracking: a vCPU preempted in user mode counts as quiescent at once. Only together with first_fqs=0 and next_fqs=1; \
                entering and leaving the kernel costs a little more"
                .into(),
        });
    }
    all
}

impl Report {
    /// Whether nothing is to be done.
    pub fn fine(&self) -> bool {
        self.prescriptions.is_empty() && self.checks.iter().all(|check| check.present)
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
        for (n, p) in self.prescriptions.iter().enumerate() {
            if n == 0 {
                out += "\nFor shorter grace periods where vCPUs outnumber CPUs, add to the guest's kernel command line\n\
                    (docs/findings.md: mean 20.4 -> 15.2 ms under overcommit; nothing gained without):\n";
            }
            out += &format!("       {}\n", p.setting);
            out += &entry("", "", &format!("now {}; {}", p.now, p.reason));
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
    fn what_is_not_set_is_prescribed() {
        let names = |s: &Settings, vcpus| {
            prescribe(s, vcpus).into_iter().map(|p| p.setting).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            names(&settings(1, 1, Use::No), 4),
            "rcutree.jiffies_till_first_fqs=0 nohz_full=1-3"
        );
        assert_eq!(names(&settings(0, 1, Use::Yes), 4), "");
        // The one CPU of a guest must keep the time.
        assert_eq!(names(&settings(0, 3, Use::No), 1), "rcutree.jiffies_till_next_fqs=1");
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
