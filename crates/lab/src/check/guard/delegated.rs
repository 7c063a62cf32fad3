// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cgroup that root has given to a user, who sets limits below it: as many as they like.

use super::cgroup::Cgroup;
use anyhow::{Context as _, Result, anyhow};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

/// Not root.
const USER: u32 = 65_534;

/// Cgroups below one that was delegated, removed when dropped. Whoever was moved there has to be
/// elsewhere by then.
pub struct Delegated {
    made: Vec<PathBuf>,
    /// The innermost of those that are nested.
    pub leaf: PathBuf,
}

impl Delegated {
    /// Gives `cgroup` to a user, who makes `nested` cgroups in each other and `more` beside them,
    /// all with the limit `limit`.
    pub fn make(cgroup: &Cgroup, nested: usize, more: usize, limit: &str) -> Result<Delegated> {
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            let path = cgroup.path.join(file);
            chown(&path, Some(USER), None).with_context(|| path.display().to_string())?;
        }
        let mut delegated = Delegated { made: Vec::new(), leaf: cgroup.path.clone() };
        let work = || -> Result<()> {
            // SAFETY: changes the rights of this thread, which ends with them.
            unsafe { libc::setfsuid(USER) };
            for _ in 0..nested {
                let below = delegated.leaf.join("nested");
                delegated.limited(&below, limit)?;
                delegated.leaf = below;
            }
            (0..more).try_for_each(|n| delegated.limited(&cgroup.path.join(n.to_string()), limit))
        };
        let done = std::thread::scope(|scope| scope.spawn(work).join());
        done.map_err(|_| anyhow!("the user's thread panicked"))??;
        Ok(delegated)
    }

    fn limited(&mut self, path: &Path, limit: &str) -> Result<()> {
        let said = || path.display().to_string();
        let above = path.parent().ok_or_else(|| anyhow!("{} is no cgroup's", path.display()))?;
        fs::write(above.join("cgroup.subtree_control"), "+cpu").with_context(said)?;
        fs::create_dir(path).with_context(said)?;
        self.made.push(path.to_owned());
        fs::write(path.join("cpu.max"), limit).with_context(said)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            let _ = fs::remove_dir(path);
        }
    }
}
