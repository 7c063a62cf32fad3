// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where cgroups are, and their limits of CPU time and memory.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Levels of cgroups that are looked at.
const DEPTH: usize = 256;

/// A mounted hierarchy that may have limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    at: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// With the controller `cpu`.
    One,
    Two,
}

impl Version {
    fn file(self) -> &'static str {
        match self {
            Version::One => "cpu.cfs_quota_us",
            Version::Two => "cpu.max",
        }
    }

    fn limits(self, text: &str) -> bool {
        let none = match self {
            Version::One => "-1",
            Version::Two => "max",
        };
        text.split_whitespace().next().is_some_and(|quota| quota != none)
    }
}

/// The hierarchies of this process's mounts.
pub fn hierarchies() -> Vec<Hierarchy> {
    parse(&fs::read_to_string("/proc/self/mounts").unwrap_or_default())
}

fn parse(mounts: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "cpu") => Version::One,
            _ => return None,
        };
        Some(Hierarchy { at: at.into(), version })
    };
    mounts.lines().filter_map(hierarchy).collect()
}

/// Where the cgroups of version 2 are.
pub fn unified() -> Option<PathBuf> {
    hierarchies().into_iter().find(|h| h.version == Version::Two).map(|h| h.at)
}

/// The path in [`unified`] of the cgroup of a process or thread.
pub fn of(id: u32) -> Option<String> {
    path_of(&fs::read_to_string(format!("/proc/{id}/cgroup")).ok()?, Version::Two)
}

/// The path of the cgroup in which limits of CPU time apply to a process or thread.
pub fn path(id: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{id}/cgroup")).ok()?;
    path_of(&text, Version::One).or_else(|| path_of(&text, Version::Two))
}

/// By `/proc/ID/cgroup`.
fn path_of(text: &str, version: Version) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let right = match version {
            Version::One => controllers.split(',').any(|controller| controller == "cpu"),
            Version::Two => controllers.is_empty(),
        };
        right.then(|| path.to_owned())
    })
}

/// The directories from `root` to the cgroup at `path` in it, but for the root itself.
pub fn along(root: &Path, path: &str) -> impl Iterator<Item = PathBuf> {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != "..").take(DEPTH);
    let mut at = root.to_path_buf();
    let all: Vec<PathBuf> = parts
        .map(|part| {
            at.push(part);
            at.clone()
        })
        .collect();
    all.into_iter()
}

/// The memory that this process's cgroups (of version 2) let it have, bytes.
pub fn memory_limit() -> u64 {
    let place = unified().zip(of(std::process::id()));
    place.map_or(u64::MAX, |(root, path)| least(&root, &path, "memory.max"))
}

/// The least number in a file of the cgroup or of those above. The root is one of them: in a
/// container it is the container's own cgroup.
fn least(root: &Path, path: &str, file: &str) -> u64 {
    let all = std::iter::once(root.to_path_buf()).chain(along(root, path));
    let texts = all.filter_map(|at| fs::read_to_string(at.join(file)).ok());
    texts.filter_map(|text| text.trim().parse().ok()).min().unwrap_or(u64::MAX)
}

fn is_roots(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.uid() == 0)
}

/// The limit, set by root, under which a thread is: the file that says so.
pub fn limited_thread(tid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{tid}/cgroup")).ok()?;
    hierarchies().iter().find_map(|h| {
        let path = path_of(&text, h.version)?;
        let mut limits = along(&h.at, &path).filter_map(|directory| limit(&directory, h.version));
        limits.find(|file| is_roots(file))
    })
}

/// A quota of CPU time that applies to a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    pub file: PathBuf,
    /// The text of the file.
    pub quota: String,
    /// Periods that there were, and those in which the quota was used up.
    pub periods: u64,
    pub throttled: u64,
}

/// All that apply to a thread.
pub fn bandwidths(tid: u32) -> Vec<Bandwidth> {
    let text = fs::read_to_string(format!("/proc/{tid}/cgroup")).unwrap_or_default();
    let hierarchies = hierarchies();
    let limits = hierarchies.iter().filter_map(|h| Some((h, path_of(&text, h.version)?))).flat_map(
        |(h, path)| {
            along(&h.at, &path)
                .filter_map(|directory| bandwidth(&directory, h.version))
                .collect::<Vec<_>>()
        },
    );
    limits.collect()
}

fn bandwidth(directory: &Path, version: Version) -> Option<Bandwidth> {
    let file = limit(directory, version)?;
    let quota = fs::read_to_string(&file).ok()?.trim().to_owned();
    let statistics = fs::read_to_string(directory.join("cpu.stat")).unwrap_or_default();
    let figure = |name: &str| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    let (periods, throttled) = (figure("nr_periods "), figure("nr_throttled "));
    Some(Bandwidth { file, quota, periods, throttled })
}

fn limit(directory: &Path, version: Version) -> Option<PathBuf> {
    let file = directory.join(version.file());
    version.limits(&fs::read_to_string(&file).unwrap_or_default()).then_some(file)
}

/// A cgroup for tests whose processes may have a quota of CPU time.
#[cfg(test)]
pub struct Quota(PathBuf, Version);

#[cfg(test)]
impl Quota {
    /// `None`: this host has no hierarchy for it.
    pub fn new(name: &str) -> Option<Quota> {
        let quotas = hierarchies().into_iter().filter_map(|h| {
            let quota = Quota(h.at.join(name), h.version);
            fs::create_dir(&quota.0).ok()?;
            quota.0.join(h.version.file()).exists().then_some(quota)
        });
        quotas.take(1).last()
    }

    pub fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Microseconds of a tenth of a second, which is the kernel's default.
    pub fn set(&self, us: Option<u64>) {
        let quota = match (us, self.1) {
            (Some(us), _) => us.to_string(),
            (None, Version::One) => "-1".into(),
            (None, Version::Two) => "max".into(),
        };
        fs::write(self.0.join(self.1.file()), quota).unwrap();
    }
}

#[cfg(test)]
impl Drop for Quota {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_above() {
        for (version, none, some) in
            [(Version::Two, "max 100000\n", "50000 100000\n"), (Version::One, "-1\n", "50000\n")]
        {
            let root = tempfile::tempdir().unwrap();
            let deep = root.path().join("a/b/c");
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join(version.file()), some).unwrap();
            fs::write(deep.join("cpu.stat"), "nr_periods 20\nnr_throttled 3\n").unwrap();
            let found = bandwidth(&deep, version).unwrap();
            assert_eq!(
                (found.quota.as_str(), found.periods, found.throttled),
                (some.trim(), 20, 3)
            );
            fs::write(root.path().join("a").join(version.file()), none).unwrap();
            let above =
                |path| along(root.path(), path).find_map(|directory| limit(&directory, version));
            assert_eq!(above("/a/b/c/vcpu0"), Some(deep.join(version.file())));
            assert_eq!(above("/a/b"), None);
            let file = deep.join(version.file());
            assert!(is_roots(&file));
            std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
            assert!(!is_roots(&file), "a user's own");
        }
    }

    #[test]
    fn a_limit_above_counts_too() {
        let root = tempfile::tempdir().unwrap();
        let unit = root.path().join("system.slice/watch.service");
        fs::create_dir_all(&unit).unwrap();
        let limit = || least(root.path(), "/system.slice/watch.service", "memory.max");
        assert_eq!(limit(), u64::MAX);
        fs::write(unit.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), u64::MAX);
        fs::write(root.path().join("system.slice/memory.max"), "4096\n").unwrap();
        assert_eq!(limit(), 4096);
        fs::write(unit.join("memory.max"), "512\n").unwrap();
        assert_eq!(limit(), 512);
        fs::write(root.path().join("memory.max"), "256\n").unwrap();
        assert_eq!(limit(), 256);
        assert!(memory_limit() > 1 << 20);
    }

    #[test]
    fn hierarchies_are_those_with_cpu_limits() {
        let mounts = "proc /proc proc rw 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        let hierarchy = |at: &str, version| Hierarchy { at: at.into(), version };
        assert_eq!(
            parse(mounts),
            [
                hierarchy("/sys/fs/cgroup/unified", Version::Two),
                hierarchy("/sys/fs/cgroup/cpu,cpuacct", Version::One)
            ]
        );
    }

    #[test]
    fn a_path_is_that_of_the_right_hierarchy() {
        let text = "4:cpu,cpuacct:/one\n3:cpuset:/other\n0::/machine.slice/a:b\n";
        assert_eq!(path_of(text, Version::One).as_deref(), Some("/one"));
        assert_eq!(path_of(text, Version::Two).as_deref(), Some("/machine.slice/a:b"));
        assert_eq!(path_of("1:name=systemd:/\n", Version::Two), None);
    }
}
