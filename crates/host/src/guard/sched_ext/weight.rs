// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights and limits of cgroups, as libvirt and Kubernetes set them (version 2 only).

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
/// The normal weight, and the limits of the scheduler's weights.
pub const NORMAL: u32 = 100;
const LIMITS: (f64, f64) = (1.0, 10_000.0);
/// Levels of cgroups that are looked at.
const DEPTH: usize = 32;

/// The weight of a process's cgroup: along its path, the product of the weights relative to the
/// normal one. 100 where there is no such cgroup.
pub fn of_process(pid: u32) -> u32 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return NORMAL };
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return NORMAL };
    product(Path::new(ROOT), path)
}

fn product(root: &Path, path: &str) -> u32 {
    let mut at = PathBuf::from(root);
    let mut weight = f64::from(NORMAL);
    for part in path.split('/').filter(|part| !part.is_empty() && *part != "..").take(DEPTH) {
        at.push(part);
        let own = fs::read_to_string(at.join("cpu.weight")).ok();
        if let Some(own) = own.and_then(|text| text.trim().parse::<f64>().ok()) {
            weight *= own / f64::from(NORMAL);
        }
    }
    weight.clamp(LIMITS.0, LIMITS.1).round() as u32
}

/// A cgroup with a limit of its CPU time, if there is one.
pub fn limited() -> Option<String> {
    limited_below(Path::new(ROOT), DEPTH)
}

fn limited_below(directory: &Path, depth: usize) -> Option<String> {
    let limit = fs::read_to_string(directory.join("cpu.max")).unwrap_or_default();
    if limit.split_whitespace().next().is_some_and(|quota| quota != "max") {
        return Some(directory.display().to_string());
    }
    let entries = fs::read_dir(directory).ok()?;
    let directories = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    depth.checked_sub(1).and_then(|depth| {
        directories.into_iter().find_map(|entry| limited_below(&entry.path(), depth))
    })
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
    fn a_limit_is_found_at_any_depth() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(limited_below(root.path(), DEPTH), None);
        fs::write(deep.join("cpu.max"), "max 100000\n").unwrap();
        assert_eq!(limited_below(root.path(), DEPTH), None);
        fs::write(deep.join("cpu.max"), "50000 100000\n").unwrap();
        assert_eq!(limited_below(root.path(), DEPTH), Some(deep.display().to_string()));
    }
}
