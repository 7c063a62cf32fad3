// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings that decide how soon a guest's RCU notices quiescent states, read where its kernel
//! keeps them.

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

/// Whether a static key is on: `enabled`, its first field, is a count, negative while it changes.
fn static_key(kernel: &Kernel, name: &str) -> Result<bool> {
    Ok(kernel.memory.i32(kernel.symbols.address(name)?)? != 0)
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
