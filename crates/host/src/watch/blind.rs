// SPDX-License-Identifier: MIT OR Apache-2.0
//! What cannot be seen of a VM, in sentences. Nothing is left out in silence: where a class is not to be had, it is said which one it counts as.

use super::machine::{Kvm, Machine, SEARCH_REMARK, Vcpu};
use super::slots::SEGMENTS;
use reprieve_guest::vmm::{Accel, Kind};

impl Machine {
    /// What cannot be seen, in sentences.
    pub fn blind(&self, kvm: &Kvm) -> Vec<String> {
        let mut blind: Vec<String> = self.trouble.iter().cloned().collect();
        let Some(vm) = &self.vm else { return blind };
        match (vm.kind, kvm) {
            (Kind::Qemu(Accel::Kvm), Kvm::Hidden(why)) => blind.push(format!(
                "{why}: user mode and disabled interrupts count as kernel"
            )),
            (Kind::Qemu(Accel::Kvm), Kvm::Vmx) => blind.push(
                "Intel's KVM keeps the interrupt flag to itself: disabled interrupts count as kernel"
                    .into(),
            ),
            _ => {}
        }
        let Some(attached) = &self.attached else { return blind };
        let late = |v: &&Vcpu| v.searching.is_some_and(|at| at.elapsed() >= SEARCH_REMARK);
        let searched: Vec<String> =
            self.vcpus.iter().filter(late).map(|v| v.index.to_string()).collect();
        if !searched.is_empty() {
            blind.push(format!(
                "QEMU's registers of vCPU {} are not found yet: its user mode and disabled interrupts count as kernel",
                searched.join(", ")
            ));
        }
        let unplaced = attached.layout.vcpus.iter().filter(|v| v.tid.is_none()).count();
        if unplaced > 0 {
            blind.push(format!("{unplaced} of the guest's CPUs have no thread of their own: nothing is known of them"));
        }
        if attached.layout.segments.len() > SEGMENTS {
            blind.push(format!(
                "the guest's RAM is in more than {SEGMENTS} pieces: tasks in the others are unknown"
            ));
        }
        match attached.guest.rcu() {
            Ok(rcu) => {
                let model = rcu.model();
                if !model.preemptible_rcu {
                    blind.push(
                        "RCU readers leave no trace (no PREEMPT_RCU): kernel code may be one"
                            .into(),
                    );
                }
                if !model.counts_preemption {
                    blind.push(
                        "spinlocks and disabled preemption leave no trace (no PREEMPT_COUNT): they count as kernel"
                            .into(),
                    );
                }
            }
            Err(error) => blind.push(error.to_string()),
        }
        blind
    }
}
