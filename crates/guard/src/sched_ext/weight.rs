// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights of cgroups, as libvirt and Kubernetes set them (version 2 only).

use reprieve_watch::cgroup;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The normal weight.
pub const NORMAL: u32 = 100;
/// Weights that cgroups may have.
const RANGE: RangeInclusive<u32> = 1..=10_000;

/// The weight that a VM's cgroups give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighed {
    weight: u32,
    /// The innermost one of which the weight counts; empty: none.
    pub cgroup: String,
}

impl Weighed {
    /// The weight of each of `vms` VMs that a user runs in the same cgroup: a user can start any
    /// number of processes that look like VMs.
    pub fn among(&self, vms: u32) -> u32 {
        let vms = vms.max(1);
        ((self.weight + vms / 2) / vms).max(*RANGE.start())
    }
}

/// The weight of a process's cgroup: along its path, the product of the weights relative to the
/// normal one. 100 where there is no such cgroup. Below a cgroup that a user administers, the
/// weights divide what that cgroup has among its own, and none of them counts against other VMs.
pub fn of_process(pid: u32) -> Weighed {
    match cgroup::unified().zip(cgroup::of(pid)) {
        Some((root, path)) => product(&root, &path),
        None => Weighed { weight: NORMAL, cgroup: String::new() },
    }
}

fn product(root: &Path, path: &str) -> Weighed {
    let mut weight = f64::from(NORMAL);
    let mut cgroup = String::new();
    for directory in cgroup::along(root, path) {
        let file = directory.join("cpu.weight");
        if fs::metadata(&file).is_ok_and(|file| file.uid() != 0) {
            break;
        }
        let own = fs::read_to_string(file).ok();
        if let Some(own) = own.and_then(|text| text.trim().parse::<f64>().ok()) {
            weight *= own / f64::from(NORMAL);
            cgroup = directory.display().to_string();
        }
    }
    let weight = (weight.round() as u32).clamp(*RANGE.start(), *RANGE.end());
    Weighed { weight, cgroup }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_multiply_along_the_path() {
        let root = tempfile::tempdir().unwrap();
        let scope = root.path().join("machine.slice/vm.scope/vcpu0");
        fs::create_dir_all(&scope).unwrap();
        fs::write(root.path().join("machine.slice/cpu.weight"), "200\n").unwrap();
        fs::write(root.path().join("machine.slice/vm.scope/cpu.weight"), "50\n").unwrap();
        let product = |path: &str| product(root.path(), path).weight;
        assert_eq!(product("machine.slice/vm.scope/vcpu0"), 100);
        fs::write(scope.join("cpu.weight"), "300\n").unwrap();
        assert_eq!(product("machine.slice/vm.scope/vcpu0"), 300);
        assert_eq!(product(""), 100);
        fs::write(scope.join("cpu.weight"), "1\n").unwrap();
        fs::write(root.path().join("machine.slice/cpu.weight"), "1\n").unwrap();
        assert_eq!(product("machine.slice/vm.scope/vcpu0"), 1, "never zero");
    }

    #[test]
    fn a_users_own_weights_count_for_nothing() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("user.slice/user@1000.service/own.scope");
        fs::create_dir_all(&own).unwrap();
        for (directory, weight) in [(own.parent().unwrap(), "200"), (&own, "10000")] {
            fs::write(directory.join("cpu.weight"), weight).unwrap();
        }
        std::os::unix::fs::chown(own.join("cpu.weight"), Some(1000), None).unwrap();
        let weighed = product(root.path(), "user.slice/user@1000.service/own.scope");
        assert_eq!(weighed.weight, 200);
        assert_eq!(weighed.cgroup, own.parent().unwrap().display().to_string());
        // Running many VMs does not help either.
        assert_eq!([0, 1, 2, 3, 1000].map(|vms| weighed.among(vms)), [200, 200, 100, 67, 1]);
    }
}
