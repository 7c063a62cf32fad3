// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentences about what cannot be seen of a VM. Each restriction is reported; where a class cannot
//! be recognized, the sentence names the class that is counted instead.

use crate::raw::constants::MAX_SEGMENTS;
use crate::vms::machine::{Kvm, Machine, SEARCH_REMARK, Vcpu};
use reprieve_guest::vmm::Accel;

/// The parts of `machine` that cannot be seen.
pub fn restrictions(machine: &Machine, kvm: &Kvm) -> Vec<String> {
    let mut restrictions: Vec<String> = machine.trouble.iter().cloned().collect();
    let Some(vm) = &machine.vm else { return restrictions };
    match (vm.accel, kvm) {
        (Accel::Kvm, Kvm::Hidden(why)) => {
            restrictions.push(format!("{why}: user mode and disabled interrupts count as kernel"))
        }
        (Accel::Kvm, Kvm::Vmx) => restrictions.push(
            "Intel's KVM keeps the interrupt flag to itself: disabled interrupts count as kernel"
                .into(),
        ),
        _ => {}
    }
    let Some(attached) = machine.attached() else { return restrictions };
    let late = |v: &&Vcpu| v.searching.is_some_and(|at| at.elapsed() >= SEARCH_REMARK);
    let searched: Vec<String> =
        machine.vcpus.iter().filter(late).map(|v| v.index.to_string()).collect();
    if !searched.is_empty() {
        restrictions.push(format!(
                "QEMU's registers of vCPU {} are not found yet: its user mode and disabled interrupts count as kernel",
                searched.join(", ")
            ));
    }
    let unplaced = attached.layout.vcpus.iter().filter(|v| v.tid.is_none()).count();
    if unplaced > 0 {
        restrictions.push(format!(
            "{unplaced} of the guest's CPUs have no thread of their own: their state is not known"
        ));
    }
    if attached.layout.segments.len() > MAX_SEGMENTS {
        restrictions.push(format!(
            "the guest's RAM is in more than {MAX_SEGMENTS} pieces: tasks in the others are unknown"
        ));
    }
    match attached.guest.rcu() {
        Ok(rcu) => {
            let model = rcu.model();
            if !model.preemptible_rcu {
                restrictions.push(
                    "RCU readers leave no trace (no PREEMPT_RCU): kernel code may be one".into(),
                );
            }
            if !model.counts_preemption {
                restrictions.push(
                        "spinlocks and disabled preemption leave no trace (no PREEMPT_COUNT): they count as kernel"
                            .into(),
                    );
            }
        }
        Err(error) => restrictions.push(error.to_string()),
    }
    restrictions
}
