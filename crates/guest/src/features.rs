// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest's kernel makes of being a guest, and the settings that decide how soon its RCU hears of quiescent states.
//!
//! Which of KVM's paravirtual features a guest *uses* is the conclusion of its own start-up code, from CPUID bits, hints, its configuration and its number of CPUs. Rather
//! than repeat that, the conclusion is read where the kernel keeps it: the functions that it put into its operation tables, and its static keys.
//!
//! | feature | where it shows |
//! |---|---|
//! | steal time | static key `paravirt_steal_enabled`, which KVM's guest code turns on after it has registered its area |
//! | PV unhalt | `pv_ops.lock.kick` is `kvm_kick_cpu`: waiters for a spinlock halt and are kicked |
//! | sees preempted vCPUs | `pv_ops.lock.vcpu_is_preempted` is KVM's: spinners stop spinning for an owner that is off its CPU |
//! | PV yield | `smp_ops.send_call_func_ipi` is `kvm_smp_send_call_func_ipi`: senders yield to a preempted target |
//! | PV TLB flush | `pv_ops.mmu.flush_tlb_multi` is `kvm_flush_tlb_multi`: preempted vCPUs flush when they run again |

use crate::error::{Error, Result};
use crate::guest::Guest;
use std::fmt;

/// The longest command line that is read.
const COMMAND_LINE: usize = 4096;

/// Whether something is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    Yes,
    No,
    /// It cannot be told, and why.
    Unknown(String),
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Use::Yes => f.write_str("in use"),
            Use::No => f.write_str("not in use"),
            Use::Unknown(why) => write!(f, "cannot be told: {why}"),
        }
    }
}

/// KVM's paravirtual features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paravirt {
    /// Whether the kernel found itself on KVM.
    pub on_kvm: Use,
    pub steal_time: Use,
    pub unhalt: Use,
    pub sees_preempted: Use,
    pub yields: Use,
    pub tlb_flush: Use,
}

/// Settings that RCU's grace periods depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `rcutree.jiffies_till_first_fqs`: ticks until a grace period looks for quiescent states the first time, and between the next times.
    pub first_fqs: Option<u64>,
    pub next_fqs: Option<u64>,
    /// Context tracking: user mode is known to be quiescent, on the CPUs of `nohz_full`.
    pub context_tracking: Use,
    /// The kernel's command line.
    pub command_line: Option<String>,
}

impl Guest {
    /// The paravirtual features in use. What cannot be read is unknown.
    pub fn paravirt(&self) -> Paravirt {
        Paravirt {
            on_kvm: known(self.on_kvm()),
            steal_time: known(self.key("paravirt_steal_enabled")),
            unhalt: known(self.lock("kick", "kvm_kick_cpu")),
            sees_preempted: known(self.lock("vcpu_is_preempted", "__kvm_vcpu_is_preempted")),
            yields: known(self.smp("send_call_func_ipi", "kvm_smp_send_call_func_ipi")),
            tlb_flush: known(self.flush()),
        }
    }

    /// The settings in force. What cannot be read is `None` or unknown.
    pub fn settings(&self) -> Settings {
        let ticks = |name| {
            let value = self.memory().u64(self.symbols().address(name).ok()?).ok()?;
            // Before RCU has started, all ones: to be computed.
            Some(value).filter(|ticks| *ticks != u64::MAX)
        };
        Settings {
            first_fqs: ticks("jiffies_till_first_fqs"),
            next_fqs: ticks("jiffies_till_next_fqs"),
            context_tracking: known(self.key("context_tracking_key")),
            command_line: self.command_line().ok(),
        }
    }

    fn command_line(&self) -> Result<String> {
        let pointer = self.memory().u64(self.symbols().address("saved_command_line")?)?;
        self.memory().string(pointer, COMMAND_LINE)
    }

    fn on_kvm(&self) -> Result<bool> {
        let types = self.need_types()?;
        let kvm = types
            .enumerator("X86_HYPER_KVM")
            .ok_or_else(|| Error::NoType { name: "X86_HYPER_KVM".into() })?;
        let found = self.memory().u32(self.symbols().address("x86_hyper_type")?)?;
        Ok(i64::from(found) == kvm)
    }

    /// Whether a static key is on: `enabled`, its first field, is a count, negative while it changes.
    fn key(&self, name: &str) -> Result<bool> {
        Ok(self.memory().i32(self.symbols().address(name)?)? != 0)
    }

    /// Whether the lock operation `field` is `function`. Kernels from 7 on keep these operations apart from the others.
    fn lock(&self, field: &str, function: &str) -> Result<bool> {
        let types = self.need_types()?;
        let table = match self.symbols().address("pv_ops_lock") {
            Ok(address) => address,
            Err(_) => {
                self.symbols().address("pv_ops")?
                    + types.offset_of("paravirt_patch_template", "lock")?
            }
        };
        self.points_to(table + types.offset_of("pv_lock_ops", field)?, function)
    }

    fn flush(&self) -> Result<bool> {
        let table = self.symbols().address("pv_ops")?;
        let types = self.need_types()?;
        let field = types.offset_of("paravirt_patch_template", "mmu")?
            + types.offset_of("pv_mmu_ops", "flush_tlb_multi")?;
        self.points_to(table + field, "kvm_flush_tlb_multi")
    }

    fn smp(&self, field: &str, function: &str) -> Result<bool> {
        let table = self.symbols().address("smp_ops")?;
        self.points_to(table + self.need_types()?.offset_of("smp_ops", field)?, function)
    }

    /// Whether the pointer at `address` is to `function`, or to the stub that saves registers around it.
    fn points_to(&self, address: u64, function: &str) -> Result<bool> {
        let pointer = self.memory().u64(address)?;
        let Some(found) = self.resolve(pointer) else { return Ok(false) };
        Ok(found.name.trim_start_matches("__raw_callee_save_") == function)
    }

    fn need_types(&self) -> Result<&crate::Types> {
        self.types().ok_or_else(|| Error::NoTypes { release: self.release().into() })
    }
}

/// A symbol or a type that is not there belongs to a feature that the kernel was built without.
fn known(found: Result<bool>) -> Use {
    match found {
        Ok(true) => Use::Yes,
        Ok(false) => Use::No,
        Err(Error::NoSymbol { .. } | Error::NoType { .. }) => Use::No,
        Err(error) => Use::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_lacks_it_does_not_use() {
        assert_eq!(known(Ok(true)), Use::Yes);
        assert_eq!(known(Err(Error::NoSymbol { name: "pv_ops".into() })), Use::No);
        let unknown = known(Err(Error::NotMapped { address: 16 }));
        assert_eq!(unknown.to_string(), "cannot be told: guest address 0x10 is not mapped");
    }
}
