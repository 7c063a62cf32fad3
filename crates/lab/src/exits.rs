// SPDX-License-Identifier: MIT OR Apache-2.0
//! VM exits, as KVM counts them.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Exits of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exits {
    pub all: u64,
    /// Because the host's CPU was interrupted.
    pub interrupts: u64,
}

impl Exits {
    /// The exits of all VMs of process `pid`; `None` if they are not KVM's or not to be seen
    /// (debugfs).
    pub fn of_process(pid: u32) -> Option<Exits> {
        Exits::below(Path::new("/sys/kernel/debug/kvm"), pid)
    }

    fn below(dir: &Path, pid: u32) -> Option<Exits> {
        let of_pid = format!("{pid}-");
        let vms = fs::read_dir(dir).ok()?.flatten();
        let vms = vms.filter(|vm| vm.file_name().to_str().is_some_and(|n| n.starts_with(&of_pid)));
        let exits = vms.filter_map(|vm| {
            let count =
                |name| fs::read_to_string(vm.path().join(name)).ok()?.trim().parse::<u64>().ok();
            Some(Exits { all: count("exits")?, interrupts: count("irq_exits")? })
        });
        exits.reduce(|a, b| Exits { all: a.all + b.all, interrupts: a.interrupts + b.interrupts })
    }

    pub fn since(self, earlier: Exits) -> Exits {
        Exits {
            all: self.all.saturating_sub(earlier.all),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_of_one_process() {
        let dir = tempfile::tempdir().unwrap();
        for (vm, exits) in [("12-10", "5\n"), ("12-11", "6\n"), ("123-10", "100\n")] {
            let vm = dir.path().join(vm);
            fs::create_dir(&vm).unwrap();
            fs::write(vm.join("exits"), exits).unwrap();
            fs::write(vm.join("irq_exits"), "1\n").unwrap();
        }
        let seen = Exits::below(dir.path(), 12);
        assert_eq!(seen, Some(Exits { all: 11, interrupts: 2 }));
        assert_eq!(Exits::below(dir.path(), 1), None);
    }
}
