// SPDX-License-Identifier: MIT OR Apache-2.0
//! The costs of switches and exits in the bed in use, beside hardware.
//!
//! A scheduler is judged by what it costs and what it brings. Where a switch costs a tenth of a
//! time slice instead of a thousandth, a scheduler that switches more often looks ruinous. A report
//! says what these things cost where it was made, as shares of the slice, and what they cost on
//! hardware.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The costs of one bed, by the clock of the VMs' host. `None`: could not be measured there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// From the last instruction of one vCPU to the first of another one on the same CPU: exit, the
    /// host's switch of threads, entry, and the timer interrupt of the guest that is due by then.
    pub vcpu_switch: Option<Measured>,
    /// Exit and entry: an instruction (CPUID) that the hypervisor executes for the guest.
    pub vm_exit: Option<Measured>,
    /// The stock scheduler's base slice, ns.
    pub slice_ns: Option<u64>,
}

/// A cost, and how often it was measured: the lower quartile, because other work on the machine
/// only adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    pub ns: u64,
    pub count: u64,
}

/// A row of the table.
pub struct Cost {
    pub label: &'static str,
    pub measured: Option<Measured>,
    pub hardware_ns: u64,
    slice_ns: Option<u64>,
}

impl Cost {
    /// Percentage of the slice.
    pub fn share(&self) -> Option<f64> {
        share(self.measured?.ns, self.slice_ns)
    }

    pub fn hardware_share(&self) -> Option<f64> {
        share(self.hardware_ns, self.slice_ns)
    }
}

fn share(ns: u64, slice_ns: Option<u64>) -> Option<f64> {
    slice_ns.filter(|&slice| slice > 0).map(|slice| 100.0 * ns as f64 / slice as f64)
}

impl Costs {
    /// The table, in its order. Hardware: KVM on a Xeon E5-2450 at 2.1 GHz (Dall and others, "ARM
    /// Virtualization: Performance and Architectural Implications", ISCA 2016, table II, "VM
    /// Switch", 4,812 cycles, and "Hypercall", 1,300 cycles).
    pub fn rows(&self) -> [Cost; 2] {
        let row = |label, measured, hardware_ns| Cost {
            label,
            measured,
            hardware_ns,
            slice_ns: self.slice_ns,
        };
        [
            row("Switch of vCPUs", self.vcpu_switch, 2_291),
            row("VM exit and entry", self.vm_exit, 619),
        ]
    }

    /// The table for a terminal.
    pub fn to_text(&self) -> String {
        let us = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.2}", ns as f64 / 1e3));
        let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{s:.2}"));
        let mut out = format!(
            "{:<24}{:>10}{:>12}{:>14}{:>12}\n",
            "", "here, us", "% of slice", "hardware, us", "% of slice"
        );
        for row in self.rows() {
            let _ = writeln!(
                out,
                "{:<24}{:>10}{:>12}{:>14}{:>12}",
                row.label,
                us(row.measured.map(|m| m.ns)),
                percent(row.share()),
                us(Some(row.hardware_ns)),
                percent(row.hardware_share())
            );
        }
        let _ = match self.slice_ns {
            Some(ns) => writeln!(out, "Slice: {:.2} ms (the stock scheduler's)", ns as f64 / 1e6),
            None => writeln!(out, "Slice: not known (debugfs does not show it)"),
        };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_shares_of_the_slice() {
        let switch = Some(Measured { ns: 28_000, count: 100 });
        let costs = Costs { vcpu_switch: switch, slice_ns: Some(2_800_000), ..Costs::default() };
        assert_eq!(costs.rows()[0].share(), Some(1.0));
        let text = costs.to_text();
        assert!(text.contains("28.00        1.00          2.29        0.08"), "{text}");
        let unknown = Costs { slice_ns: None, ..costs };
        assert_eq!(unknown.rows()[0].share(), None);
        assert!(unknown.to_text().contains("not known"));
    }
}
