// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of KVM's paravirtual features a guest's kernel uses, and the settings that decide how soon
//! its RCU notices quiescent states.
//!
//! The guest's start-up code decides which features it *uses*, from CPUID bits, hints, its
//! configuration and its number of CPUs. That decision is not repeated here but read where the
//! kernel keeps it: in the functions of its operation tables, and in its static keys.
//!
//! | feature | where it shows |
//! |---|---|
//! | steal time | static key `paravirt_steal_enabled`, which KVM's guest code turns on after it has registered its area |
//! | PV unhalt | `pv_ops.lock.kick` is `kvm_kick_cpu`: waiters for a spinlock halt and are kicked |
//! | sees preempted vCPUs | `pv_ops.lock.vcpu_is_preempted` is KVM's: spinners stop spinning for an owner that is off its CPU |
//! | PV yield | `smp_ops.send_call_func_ipi` is `kvm_smp_send_call_func_ipi`: senders yield to a preempted target |
//! | PV TLB flush | `pv_ops.mmu.flush_tlb_multi` is `kvm_flush_tlb_multi`: preempted vCPUs flush when they run again |

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use std::fmt;

/// The longest command line that is read.
const COMMAND_LINE: usize = 4096;

/// Whether something is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    Yes,
    No,
    /// Unknown, for this reason.
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
    /// `rcutree.jiffies_till_first_fqs`: ticks until a grace period looks for quiescent states the
    /// first time, and between the next times.
    pub first_fqs: Option<u64>,
    pub next_fqs: Option<u64>,
    /// `rcutree.kthread_prio`: the real-time priority of the grace-period kthread; 0 if it is an
    /// ordinary thread.
    pub kthread_priority: Option<i32>,
    /// Context tracking: user mode is known to be quiescent, on the CPUs of `nohz_full`.
    pub context_tracking: Use,
    /// The kernel's command line.
    pub command_line: Option<String>,
}

impl Paravirt {
    /// A feature that cannot be read is unknown.
    pub(crate) fn read(kernel: &Kernel) -> Paravirt {
        let lock = |field, function| known(lock_operation_is(kernel, field, function));
        let yields = smp_operation_is(kernel, "send_call_func_ipi", "kvm_smp_send_call_func_ipi");
        Paravirt {
            on_kvm: known(on_kvm(kernel)),
            steal_time: known(static_key(kernel, "paravirt_steal_enabled")),
            unhalt: lock("kick", "kvm_kick_cpu"),
            sees_preempted: lock("vcpu_is_preempted", "__kvm_vcpu_is_preempted"),
            yields: known(yields),
            tlb_flush: known(tlb_flush(kernel)),
        }
    }
}

impl Settings {
    /// A setting that cannot be read is `None` or unknown.
    pub(crate) fn read(kernel: &Kernel) -> Settings {
        let ticks = |name| {
            let value = kernel.memory.u64(kernel.symbols.address(name).ok()?).ok()?;
            // All ones until RCU has started and computed the value.
            Some(value).filter(|ticks| *ticks != u64::MAX)
        };
        Settings {
            first_fqs: ticks("jiffies_till_first_fqs"),
            next_fqs: ticks("jiffies_till_next_fqs"),
            kthread_priority: kernel
                .symbols
                .address("kthread_prio")
                .and_then(|address| kernel.memory.i32(address))
                .ok(),
            context_tracking: known(static_key(kernel, "context_tracking_key")),
            command_line: command_line(kernel).ok(),
        }
    }
}

fn command_line(kernel: &Kernel) -> Result<String> {
    let pointer = kernel.memory.u64(kernel.symbols.address("saved_command_line")?)?;
    kernel.memory.string(pointer, COMMAND_LINE)
}

fn on_kvm(kernel: &Kernel) -> Result<bool> {
    let kvm = kernel
        .types()?
        .enumerator("X86_HYPER_KVM")
        .ok_or_else(|| Error::NoType { name: "X86_HYPER_KVM".into() })?;
    let found = kernel.memory.u32(kernel.symbols.address("x86_hyper_type")?)?;
    Ok(i64::from(found) == kvm)
}

/// Whether a static key is on: `enabled`, its first field, is a count, negative while it changes.
fn static_key(kernel: &Kernel, name: &str) -> Result<bool> {
    Ok(kernel.memory.i32(kernel.symbols.address(name)?)? != 0)
}

/// Whether the lock operation `field` is `function`. Kernels from 7 on keep these operations in a
/// table of their own.
fn lock_operation_is(kernel: &Kernel, field: &str, function: &str) -> Result<bool> {
    let types = kernel.types()?;
    let table = match kernel.symbols.address("pv_ops_lock") {
        Ok(address) => address,
        Err(_) => {
            let lock = types.offset_of("paravirt_patch_template", "lock")?;
            kernel.symbols.address("pv_ops")?.wrapping_add(lock)
        }
    };
    points_to(kernel, table.wrapping_add(types.offset_of("pv_lock_ops", field)?), function)
}

fn tlb_flush(kernel: &Kernel) -> Result<bool> {
    let table = kernel.symbols.address("pv_ops")?;
    let types = kernel.types()?;
    let field = types.offset_of("paravirt_patch_template", "mmu")?
        + types.offset_of("pv_mmu_ops", "flush_tlb_multi")?;
    points_to(kernel, table.wrapping_add(field), "kvm_flush_tlb_multi")
}

fn smp_operation_is(kernel: &Kernel, field: &str, function: &str) -> Result<bool> {
    let table = kernel.symbols.address("smp_ops")?;
    let offset = kernel.types()?.offset_of("smp_ops", field)?;
    points_to(kernel, table.wrapping_add(offset), function)
}

/// Whether the pointer at `address` is to `function`, or to the stub that saves registers around
/// it.
fn points_to(kernel: &Kernel, address: u64, function: &str) -> Result<bool> {
    let pointer = kernel.memory.u64(address)?;
    let Some(found) = kernel.resolve(pointer) else { return Ok(false) };
    Ok(found.name.trim_start_matches("__raw_callee_save_") == function)
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
    use crate::kernel::btf::Btf;
    use crate::kernel::symbols::Builder;
    use crate::kernel::types::Types;
    use crate::kernel::vmcoreinfo::{KERNEL_BASE, VmCoreInfo};
    use crate::memory::Memory;
    use crate::memory::paging::PageTables;
    use crate::memory::testing::Image;
    use std::sync::Arc;

    #[test]
    fn a_table_at_the_end_of_all_addresses_is_not_mapped() {
        let strings = b"\0u64\0smp_ops\0kick\0";
        // An integer of 8 bytes, and a structure of 16 whose second half is a field.
        let types = [1u32, 1 << 24, 8, 64, 5, 4 << 24 | 1, 16, 13, 1, 64];
        let lengths = [0, 4 * types.len() as u32, 4 * types.len() as u32, strings.len() as u32];
        let words = [0x1_eb9f, 24].into_iter().chain(lengths).chain(types);
        let mut btf: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        btf.extend(strings);
        let mut symbols = Builder::default();
        for (address, name) in [(KERNEL_BASE, "_text"), (u64::MAX - 1, "smp_ops")] {
            symbols.push(address, b'T', name);
        }
        let tables = PageTables { root: 0, five_levels: false, ignore: 0 };
        let memory = Memory::new(Arc::new(Image::new(vec![0; 4096])), tables);
        let info = VmCoreInfo::parse(b"OSRELEASE=6.12.0\n").unwrap();
        let types = Types::new(Btf::parse(&btf).unwrap());
        let kernel = Kernel::new(memory, info, symbols.finish(), Some(types)).unwrap();
        let found = smp_operation_is(&kernel, "kick", "kvm_kick_cpu");
        assert!(matches!(found, Err(Error::NotMapped { address: 6 })), "{found:?}");
    }

    #[test]
    fn what_a_kernel_lacks_it_does_not_use() {
        assert_eq!(known(Ok(true)), Use::Yes);
        assert_eq!(known(Err(Error::NoSymbol { name: "pv_ops".into() })), Use::No);
        let unknown = known(Err(Error::NotMapped { address: 16 }));
        assert_eq!(unknown.to_string(), "cannot be told: guest address 0x10 is not mapped");
    }
}
