// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cgroup (version 2) for each VM, as libvirt and Kubernetes make them.

use crate::error::{Error, Result};
use crate::plan::CpuControl;
use reprieve_watch::cgroup;
use std::fs;
use std::path::{Path, PathBuf};

/// The period of `cpu.max`: the kernel's default, us.
const PERIOD_US: u64 = 100_000;

/// A mounted hierarchy whose cgroups have weights.
pub struct Cgroups {
    root: PathBuf,
}

impl Cgroups {
    /// This host's. `limits`: its cgroups also have limits.
    ///
    /// # Errors
    /// [`Error::Usage`] with what the host lacks.
    pub fn open(limits: bool) -> Result<Cgroups> {
        let root = cgroup::unified().ok_or_else(|| lacks("no cgroups of version 2 are mounted"))?;
        Cgroups::at(root, limits)
    }

    fn at(root: PathBuf, limits: bool) -> Result<Cgroups> {
        let has = |file: &str| {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            text.split_whitespace().any(|controller| controller == "cpu")
        };
        if !has("cgroup.controllers") {
            return Err(lacks(
                "the cgroups of version 2 have no controller cpu (CONFIG_FAIR_GROUP_SCHED, or version 1 has it)",
            ));
        }
        let control = root.join("cgroup.subtree_control");
        if !has("cgroup.subtree_control") {
            fs::write(&control, "+cpu")
                .map_err(|e| lacks(&format!("{}: {e}", control.display())))?;
        }
        let cgroups = Cgroups { root };
        let trial = cgroups.make("trial", CpuControl::default())?;
        if limits && !trial.path.join("cpu.max").exists() {
            return Err(lacks("cgroups have no cpu.max (CONFIG_CFS_BANDWIDTH)"));
        }
        Ok(cgroups)
    }

    /// A cgroup for the VM called `name`.
    pub fn make(&self, name: &str, control: CpuControl) -> Result<Cgroup> {
        let path = self.root.join(format!("reprieve-{}-{name}", std::process::id()));
        fs::create_dir(&path).map_err(|e| lacks(&format!("{}: {e}", path.display())))?;
        let cgroup = Cgroup { path };
        cgroup.write("cpu.weight", &control.weight.to_string())?;
        if let Some(percent) = control.max_percent {
            let quota = u64::from(percent) * PERIOD_US / 100;
            cgroup.write("cpu.max", &format!("{quota} {PERIOD_US}"))?;
        }
        Ok(cgroup)
    }
}

fn lacks(why: &str) -> Error {
    Error::Usage(format!(
        "VMs with weights or limits need cgroups, and here {why}: use --host nested, which has them"
    ))
}

/// The cgroup of a VM, removed when dropped. Processes that are left in it go to the root.
pub struct Cgroup {
    pub path: PathBuf,
}

impl Cgroup {
    /// Takes in a process with all its threads.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// CPU time of its processes so far, ns.
    pub fn used_ns(&self) -> Result<u64> {
        let file = self.path.join("cpu.stat");
        let text = fs::read_to_string(&file).map_err(Error::io(&file))?;
        let us =
            text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse::<u64>().ok());
        Ok(us.ok_or_else(|| lacks("they count no CPU time"))? * 1000)
    }

    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let file: &Path = &self.path.join(file);
        fs::write(file, text).map_err(Error::io(file))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let procs = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = fs::write(self.path.with_file_name("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hierarchy_without_the_controller_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |controllers: &str| {
            fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
            let error = Cgroups::at(dir.path().into(), true).err().unwrap();
            assert!(matches!(error, Error::Usage(_)), "{error}");
            error.to_string()
        };
        for controllers in ["", "memory cpuset pids\n"] {
            let error = refused(controllers);
            assert!(error.contains("CONFIG_FAIR_GROUP_SCHED") && !error.contains('\n'), "{error}");
        }
        // The files of a cgroup are the kernel's, and here there is none.
        let error = refused("cpu memory\n");
        assert!(error.contains("cpu.max") && !error.contains('\n'), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap(), "+cpu");
    }
}
