// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels: resolves the user's name for one to files.
//!
//! `deb:X` is the newest stock kernel whose version begins with X; a path is the user's own
//! bzImage. The kernel of the lab host is chosen by its abilities, since archives drop old
//! versions: it needs KVM for AMD (which QEMU's TCG can emulate) and sched_ext. Its configuration
//! shows that before it is booted.

use super::apt::{self, Apt};
use super::cache::{Cache, Kind};
use super::catalogue::{self, Offer};
use super::key::Key;
use super::{Context, bzimage};
use crate::error::{Error, Result};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// Package lists older than this are fetched again. Kernels stay in the cache.
const LISTS_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// How many kernels are tried as a lab host's.
const HOST_CANDIDATES: usize = 4;

/// A kernel as the user names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelSpec {
    /// `deb:6.12`: the newest Debian kernel whose version begins with these components.
    Deb(String),
    /// A bzImage.
    Path(PathBuf),
}

impl FromStr for KernelSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<KernelSpec> {
        let bad = |why: &str| {
            Error::Usage(format!(
                "kernel {text:?}: {why}; use deb:VERSION (deb:6.12, deb:7.3.4) or the path of a vmlinuz"
            ))
        };
        match text.strip_prefix("deb:") {
            Some(version) if version.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(KernelSpec::Deb(version.into()))
            }
            Some(_) => Err(bad("no version after deb:")),
            None if Path::new(text).is_file() => Ok(KernelSpec::Path(text.into())),
            None => Err(bad("no such file")),
        }
    }
}

/// The files of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// Name of this build in the cache.
    pub id: String,
    pub vmlinuz: PathBuf,
    /// The directory with `kernel/` and `modules.builtin`; `None` for a kernel without modules.
    pub modules: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub headers: Headers,
}

/// The sources against which a module can be built.
#[derive(Clone, Debug, PartialEq)]
pub enum Headers {
    /// Packages to fetch.
    Packages(Vec<String>),
    /// A build tree on this machine (`/lib/modules/REL/build`).
    Tree(PathBuf),
    /// No such sources, for this reason.
    None(String),
}

/// The abilities of a kernel as a lab host.
#[derive(Clone, Debug)]
pub struct HostAbility {
    pub sched_ext: bool,
    kvm_amd: bool,
    /// Cgroups have weights, and limits, of CPU time.
    cgroup_weights: bool,
    cgroup_limits: bool,
}

impl HostAbility {
    /// The ability that is missing for VMs in cgroups, some of which have `limits`.
    pub fn lacks_of_cgroups(&self, limits: bool) -> Option<&'static str> {
        if !self.cgroup_weights {
            Some("weights of cgroups (CONFIG_FAIR_GROUP_SCHED)")
        } else if limits && !self.cgroup_limits {
            Some("limits of cgroups (CONFIG_CFS_BANDWIDTH)")
        } else {
            None
        }
    }

    /// The abilities that each lab host needs and this kernel lacks, as text.
    fn lacks(&self) -> String {
        let mut all = Vec::new();
        if !self.sched_ext {
            all.push("sched_ext (CONFIG_SCHED_CLASS_EXT)");
        }
        if !self.kvm_amd {
            all.push("KVM for AMD (CONFIG_KVM_AMD)");
        }
        all.join(", ")
    }
}

/// Debian's kernels whose BTF misdescribes functions that guard needs.
const MISDESCRIBED: &str = "7.2.";

/// Finds and fetches kernels.
pub struct Kernels<'a> {
    cache: &'a Cache,
}

impl<'a> Kernels<'a> {
    pub fn new(cache: &'a Cache) -> Kernels<'a> {
        Kernels { cache }
    }

    /// The kernel for a guest.
    pub fn guest(&self, spec: &KernelSpec, cx: &Context) -> Result<Kernel> {
        match spec {
            KernelSpec::Path(path) => from_path(path),
            KernelSpec::Deb(wanted) => self.newest_offers(cx, |offers| {
                let offer =
                    catalogue::choose(offers, wanted).ok_or_else(|| none(wanted, offers))?;
                self.fetch(offer, cx)
            }),
        }
    }

    /// The kernel for a lab host: `spec`, else the newest that suits.
    pub fn host(&self, spec: Option<&KernelSpec>, cx: &Context) -> Result<Kernel> {
        if let Some(spec) = spec {
            let kernel = self.guest(spec, cx)?;
            if let Some(ability) = ability(&kernel)? {
                if !ability.kvm_amd {
                    return Err(Error::Usage(format!(
                        "kernel {} cannot be a lab host: it lacks KVM for AMD (CONFIG_KVM_AMD)",
                        kernel.release
                    )));
                }
            }
            return Ok(kernel);
        }
        self.newest_offers(cx, |offers| {
            let mut refused = Vec::new();
            let right = offers.iter().filter(|offer| !offer.release.starts_with(MISDESCRIBED));
            for offer in right.take(HOST_CANDIDATES) {
                let kernel = self.fetch(offer, cx)?;
                match ability(&kernel)? {
                    Some(ability) if ability.lacks().is_empty() => return Ok(kernel),
                    Some(ability) => {
                        refused.push(format!("{} lacks {}", kernel.release, ability.lacks()))
                    }
                    None => refused.push(format!("{} came without configuration", kernel.release)),
                }
            }
            Err(Error::missing(
                format!("a kernel for the lab host ({})", refused.join("; ")),
                "pass one with --host-kernel PATH",
            ))
        })
    }

    /// Runs `use_them` with the archive's offers, and once more with new lists if a package is no
    /// longer there.
    fn newest_offers(
        &self,
        cx: &Context,
        use_them: impl Fn(&[Offer]) -> Result<Kernel>,
    ) -> Result<Kernel> {
        let (offers, fresh) = self.offers(cx, LISTS_MAX_AGE)?;
        match use_them(&offers) {
            Err(e @ (Error::Program { .. } | Error::Missing { .. })) if !fresh => {
                match self.offers(cx, Duration::ZERO) {
                    Ok((offers, true)) => use_them(&offers),
                    _ => Err(e),
                }
            }
            result => result,
        }
    }

    /// The offers, and whether their lists were fetched just now.
    fn offers(&self, cx: &Context, max_age: Duration) -> Result<(Vec<Offer>, bool)> {
        let stored = self.cache.path(Kind::Apt, "debian").join(OFFERS);
        let age = |time: SystemTime| time.elapsed().unwrap_or_default();
        let load = || serde_json::from_slice::<Vec<Offer>>(&fs::read(&stored).ok()?).ok();
        let made = fs::metadata(&stored).and_then(|m| m.modified()).ok();
        if made.is_some_and(|t| age(t) < max_age) {
            if let Some(offers) = load() {
                return Ok((offers, false));
            }
        }
        let _lock = self.cache.lock(Kind::Apt, "lists", cx)?;
        let fetched = Apt::open(self.cache, cx).and_then(|apt| {
            // Another run may have done it while we waited for the lock.
            if apt.updated().is_none_or(|t| age(t) >= max_age) {
                apt.update(cx)?;
            }
            catalogue::read(&apt, cx)
        });
        match (fetched, load()) {
            (Ok(offers), _) => {
                let text = serde_json::to_vec(&offers).map_err(|e| Error::Other(e.to_string()))?;
                let new = stored.with_extension("new");
                fs::write(&new, text).map_err(Error::io(&new))?;
                fs::rename(&new, &stored).map_err(Error::io(&stored))?;
                Ok((offers, true))
            }
            (Err(Error::Cancelled), _) => Err(Error::Cancelled),
            (Err(e), Some(offers)) => {
                cx.progress.notice(&format!("using older package lists: {e}"));
                Ok((offers, false))
            }
            (Err(e), None) => Err(e),
        }
    }

    fn fetch(&self, offer: &Offer, cx: &Context) -> Result<Kernel> {
        let packages = offer.image.iter().fold(Key::new(), |key, p| key.text(p)).finish();
        let id = format!("{}_{}_{packages}", offer.release, offer.version);
        let root = self.cache.get_or_make(Kind::Kernel, &id, cx, |root| {
            cx.progress.step(&format!("fetching kernel {}", offer.release));
            let apt = Apt::open(self.cache, cx)?;
            let packages = root.join("packages");
            let files = apt.download(&offer.image, &packages, cx)?;
            apt::unpack(&files, root, cx)?;
            fs::remove_dir_all(&packages).map_err(Error::io(&packages))?;
            in_root(root, offer, &id).map(drop)
        })?;
        in_root(&root, offer, &id)
    }
}

/// The file of `kernel` that boots soonest: the kernel unpacked (by itself that takes an emulated
/// guest a quarter of its boot); else the bzImage, which also puts it at a random address (KASLR).
pub fn unpacked(cache: &Cache, kernel: &Kernel, cx: &Context) -> Result<PathBuf> {
    let name = format!("{}_unpacked", kernel.id);
    let dir = cache.get_or_make(Kind::Kernel, &name, cx, |dir| {
        let image = fs::read(&kernel.vmlinuz).map_err(Error::io(&kernel.vmlinuz))?;
        let Some((program, packed)) = bzimage::packed_kernel(&image) else { return Ok(()) };
        let file = dir.join("packed");
        fs::write(&file, packed).map_err(Error::io(&file))?;
        let elf =
            process::run(Command::new(program).arg("-dc").arg(&file), UNPACK_LIMIT, cx.cancel)?;
        if bzimage::has_pvh_entry(&elf) {
            let vmlinux = dir.join(VMLINUX);
            fs::write(&vmlinux, elf).map_err(Error::io(&vmlinux))?;
        }
        fs::remove_file(&file).map_err(Error::io(&file))
    })?;
    Ok(Some(dir.join(VMLINUX)).filter(|elf| elf.is_file()).unwrap_or(kernel.vmlinuz.clone()))
}

const VMLINUX: &str = "vmlinux";
const UNPACK_LIMIT: Duration = Duration::from_secs(60);

/// The offers that were last read from the package lists; the number is the format's.
const OFFERS: &str = "kernels.2.json";

/// The abilities of the kernel as a lab host; `None` for one that came without its configuration.
pub fn ability(kernel: &Kernel) -> Result<Option<HostAbility>> {
    let Some(path) = &kernel.config else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let on = |name: &str| text.lines().any(|l| matches!(l.strip_prefix(name), Some("=y" | "=m")));
    Ok(Some(HostAbility {
        sched_ext: on("CONFIG_SCHED_CLASS_EXT"),
        kvm_amd: on("CONFIG_KVM_AMD"),
        cgroup_weights: on("CONFIG_FAIR_GROUP_SCHED"),
        cgroup_limits: on("CONFIG_CFS_BANDWIDTH"),
    }))
}

fn in_root(root: &Path, offer: &Offer, id: &str) -> Result<Kernel> {
    let release = &offer.release;
    let modules = root.join("usr/lib/modules").join(release);
    let first = |candidates: [PathBuf; 3]| candidates.into_iter().find(|p| p.is_file());
    let vmlinuz = first([
        root.join(format!("boot/vmlinuz-{release}")),
        modules.join("vmlinuz"),
        modules.join("vmlinuz.unsigned"),
    ])
    .ok_or_else(|| Error::Format {
        path: root.into(),
        message: format!("no kernel in the packages {}", offer.image.join(", ")),
    })?;
    let config = first([
        root.join(format!("boot/config-{release}")),
        modules.join("config"),
        modules.join(".config"),
    ]);
    let headers = if offer.headers.is_empty() {
        Headers::None(format!("the archive has no headers for {release}"))
    } else {
        Headers::Packages(offer.headers.clone())
    };
    let modules = modules.is_dir().then_some(modules);
    let (release, id) = (release.clone(), id.to_string());
    Ok(Kernel { release, id, vmlinuz, modules, config, headers })
}

fn from_path(path: &Path) -> Result<Kernel> {
    let path = path.canonicalize().map_err(Error::io(path))?;
    let release = bzimage::release(&path)?;
    let beside = path.parent().unwrap_or(Path::new("/"));
    let system = Path::new("/lib/modules");
    // As in an unpacked package, in a build's output, and on this machine.
    let above = beside.parent().unwrap_or(beside);
    let modules = [above.join("lib/modules"), beside.join("lib/modules"), system.into()]
        .into_iter()
        .map(|dir| dir.join(&release))
        .chain([beside.to_path_buf()])
        .find(|dir| dir.join("modules.builtin").is_file());
    let config = [beside.join(format!("config-{release}")), beside.join("config")]
        .into_iter()
        .chain(modules.iter().map(|m| m.join("config")))
        .find(|p| p.is_file());
    let tree = modules.iter().map(|m| m.join("build")).chain([system.join(&release).join("build")]);
    let headers = tree
        .into_iter()
        .find(|t| t.join("Makefile").is_file())
        .map(Headers::Tree)
        .unwrap_or_else(|| {
            Headers::None(format!("{} is not there", system.join(&release).join("build").display()))
        });
    let meta = fs::metadata(&path).map_err(Error::io(&path))?;
    let stamp = Key::new().path(&path).metadata(&meta).finish();
    let id = format!("{release}_{stamp}");
    Ok(Kernel { release, id, vmlinuz: path, modules, config, headers })
}

fn none(wanted: &str, offers: &[Offer]) -> Error {
    let mut series: Vec<String> = offers
        .iter()
        .map(|o| o.version.splitn(3, ['.', '-']).take(2).collect::<Vec<_>>().join("."))
        .collect();
    series.dedup();
    Error::missing(
        format!("a Debian kernel {wanted}"),
        format!("choose one of {} with deb:VERSION, or pass a path", series.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_versions_or_files() {
        assert_eq!("deb:6.12".parse::<KernelSpec>().unwrap(), KernelSpec::Deb("6.12".into()));
        let file: KernelSpec = "/proc/self/exe".parse().unwrap();
        assert_eq!(file, KernelSpec::Path("/proc/self/exe".into()));
        for bad in ["deb:", "deb:latest", "/no/such/vmlinuz", ""] {
            assert!(matches!(bad.parse::<KernelSpec>(), Err(Error::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn other_files_are_not_kernels() {
        let e = from_path(Path::new("/proc/self/exe")).unwrap_err().to_string();
        assert!(e.contains("not a compressed x86 Linux kernel"), "{e}");
    }

    #[test]
    fn a_quota_that_a_kernel_lacks_is_known_before_it_boots() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        let ability = |text: &str| {
            fs::write(&config, text).unwrap();
            let kernel = Kernel {
                release: "7.3".into(),
                id: "7.3".into(),
                vmlinuz: "vmlinuz".into(),
                modules: None,
                config: Some(config.clone()),
                headers: Headers::None("none".into()),
            };
            super::ability(&kernel).unwrap().unwrap()
        };
        let weights = "CONFIG_FAIR_GROUP_SCHED=y\n";
        let lacks = |text: &str, limits| ability(text).lacks_of_cgroups(limits).unwrap_or_default();
        let none = "# CONFIG_FAIR_GROUP_SCHED is not set\n";
        assert!(lacks(none, false).contains("CONFIG_FAIR_GROUP_SCHED"));
        assert_eq!(lacks(weights, false), "");
        assert!(lacks(weights, true).contains("CONFIG_CFS_BANDWIDTH"));
        assert_eq!(lacks(&format!("{weights}CONFIG_CFS_BANDWIDTH=y\n"), true), "");
    }
}
