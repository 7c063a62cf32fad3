// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights of cgroups, as libvirt and Kubernetes set them (version 2 only).

use crate::cgroup;
use crate::guard::Weight;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The normal weight.
pub const NORMAL: u32 = 100;

/// The weight of a process's cgroup: along its path, the product of the weights relative to the
/// normal one. 100 where there is no such cgroup. Below a cgroup that a user administers, the
/// weights divide what that cgroup has among its own, and none of them counts against other VMs.
pub fn of_process(pid: u32) -> u32 {
    let Some((root, path)) = cgroup::unified().zip(cgroup::of(pid)) else { return NORMAL };
    product(&root, &path)
}

fn product(root: &Path, path: &str) -> u32 {
    let mut weight = f64::from(NORMAL);
    for directory in cgroup::along(root, path) {
        let file = directory.join("cpu.weight");
        if fs::metadata(&file).is_ok_and(|file| file.uid() != 0) {
            break;
        }
        let own = fs::read_to_string(file).ok();
        if let Some(own) = own.and_then(|text| text.trim().parse::<f64>().ok()) {
            weight *= own / f64::from(NORMAL);
        }
    }
    (weight.round() as u32).clamp(*Weight::RANGE.start(), *Weight::RANGE.end())
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
        assert_eq!(product(root.path(), "machine.slice/vm.scope/vcpu0"), 100);
        fs::write(scope.join("cpu.weight"), "300\n").unwrap();
        assert_eq!(product(root.path(), "machine.slice/vm.scope/vcpu0"), 300);
        assert_eq!(product(root.path(), ""), 100);
        fs::write(scope.join("cpu.weight"), "1\n").unwrap();
        fs::write(root.path().join("machine.slice/cpu.weight"), "1\n").unwrap();
        assert_eq!(product(root.path(), "machine.slice/vm.scope/vcpu0"), 1, "never zero");
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
        assert_eq!(product(root.path(), "user.slice/user@1000.service/own.scope"), 200);
    }
}
