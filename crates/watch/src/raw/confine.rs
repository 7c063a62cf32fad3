// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives up the rights that are not needed once the eBPF program is loaded.
//!
//! The rest is enough to find VMs that come later: to read other users' processes and their memory,
//! and to update the eBPF program's maps. The kernel has no right to read a process that is not one
//! to write to it as well, and the user stays root. So this protects from mistakes; whoever runs
//! code of their own here is held by the unit's sandbox alone.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use std::io;

const KEPT: CapabilitySet =
    CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::SYS_PTRACE).union(CapabilitySet::BPF);

/// Reduces this thread, and those that it starts, to what watching needs. Cannot be undone.
pub fn confine() -> io::Result<()> {
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let kept = CapabilitySets {
        effective: effective & KEPT,
        permitted: permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)?;
    Ok(set_no_new_privs(true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_remains() {
        // In a thread of its own: the others keep their rights.
        let check = || {
            let before = capabilities(None).unwrap();
            confine().unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(after.permitted, before.permitted & KEPT);
            assert_eq!(after.effective, before.effective & KEPT);
            assert_eq!(after.inheritable, CapabilitySet::empty());
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        };
        std::thread::spawn(check).join().unwrap();
    }
}
