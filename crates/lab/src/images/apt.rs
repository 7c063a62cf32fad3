// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian packages, without changing the machine: the lab has its own apt configuration.
//!
//! This module runs the machine's `apt-get` with separate lists, caches and an empty package
//! status. So apt knows releases that the machine does not use, resolves all dependencies of a
//! package, needs no root, and changes nothing outside the lab's cache. apt verifies every file
//! against the archive's signature. Packages are unpacked, never installed: no maintainer script
//! runs.

use super::Context;
use super::archive::{self, SUITES, TOOLS_SUITE};
use super::cache::{Cache, Kind};
use crate::error::{Error, Result};
use crate::process::{self, Cancel};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

const QUERY_LIMIT: Duration = Duration::from_secs(60);
const UPDATE_LIMIT: Duration = Duration::from_secs(300);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// The lab's apt configuration in the cache.
pub struct Apt {
    dir: PathBuf,
}

/// The fields of one package, by name.
pub type Stanza = BTreeMap<String, String>;

impl Apt {
    /// Writes the configuration for the machine's mirror.
    pub fn open(cache: &Cache, cx: &Context) -> Result<Apt> {
        let keyring = archive::keyring()?;
        let mut ask = Command::new("apt-get");
        ask.args(["indextargets", "--format", archive::FORMAT]).env("LC_ALL", "C");
        ask.args(["Created-By: Packages", "Component: main", "Target-Of: deb"]);
        let targets = run(&mut ask, QUERY_LIMIT, cx.cancel)?;
        let mirror = archive::mirror(&targets).ok_or_else(|| {
            Error::missing(
                "a source of Debian packages in this machine's apt configuration",
                "add Debian's archive to it, or use --host-kernel PATH, --guest-kernel PATH and REPRIEVE_QEMU",
            )
        })?;
        let dir = cache.path(Kind::Apt, "debian");
        for sub in ["state/lists/partial", "cache/archives/partial", "etc/empty"] {
            let sub = dir.join(sub);
            fs::create_dir_all(&sub).map_err(Error::io(&sub))?;
        }
        let sources = source(&mirror, &SUITES.join(" "), &keyring);
        write_if_changed(&dir.join("etc/lab.sources"), &sources)?;
        write_if_changed(&dir.join("apt.conf"), &configuration(&dir))?;
        let status = dir.join("status");
        if !status.exists() {
            fs::write(&status, "").map_err(Error::io(&status))?;
        }
        Ok(Apt { dir })
    }

    /// When the package lists were fetched; `None` if never, or from other sources.
    pub fn updated(&self) -> Option<SystemTime> {
        let stamp = fs::metadata(self.stamp()).ok()?.modified().ok()?;
        let sources = fs::metadata(self.dir.join("etc/lab.sources")).ok()?.modified().ok()?;
        (stamp >= sources).then_some(stamp)
    }

    /// Fetches the package lists.
    pub fn update(&self, cx: &Context) -> Result<()> {
        cx.progress.step("fetching Debian's package lists");
        run(self.apt_get().arg("update"), UPDATE_LIMIT, cx.cancel)?;
        let stamp = self.stamp();
        fs::write(&stamp, "").map_err(Error::io(&stamp))
    }

    /// All packages whose names match the extended regular expression `pattern`, each in its
    /// preferred version.
    pub fn find(&self, pattern: &str, cx: &Context) -> Result<Vec<Stanza>> {
        let mut search = self.command("apt-cache");
        search.args(["search", "--names-only", pattern]);
        let found = run(&mut search, QUERY_LIMIT, cx.cancel)?;
        let names: Vec<&str> = found.lines().filter_map(|l| l.split(' ').next()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut show = self.command("apt-cache");
        show.args(["show", "--no-all-versions"]).args(names);
        Ok(stanzas(&run(&mut show, QUERY_LIMIT, cx.cancel)?))
    }

    /// Downloads exactly `packages` into `dir`; returns the files.
    pub fn download(&self, packages: &[String], dir: &Path, cx: &Context) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let mut get = self.apt_get();
        get.arg("download").args(packages).current_dir(dir);
        run(&mut get, DOWNLOAD_LIMIT, cx.cancel)?;
        debs(dir)
    }

    /// Downloads `packages` with everything they depend on into `dir`; returns the files.
    pub fn download_closure(
        &self,
        packages: &[&str],
        dir: &Path,
        cx: &Context,
    ) -> Result<Vec<PathBuf>> {
        let partial = dir.join("partial");
        fs::create_dir_all(&partial).map_err(Error::io(&partial))?;
        let mut get = self.apt_get();
        get.arg("-o").arg(format!("Dir::Cache::archives={}/", dir.display()));
        get.args(["--yes", "--download-only", "install"]).args(packages);
        run(&mut get, DOWNLOAD_LIMIT, cx.cancel)?;
        debs(dir)
    }

    /// Runs `fetch`, and once more with new lists when it fails: a package may have been replaced
    /// since the lists were fetched.
    pub fn retrying<T>(
        &self,
        cache: &Cache,
        cx: &Context,
        fetch: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let lists = || cache.lock(Kind::Apt, "lists", cx);
        {
            let _lock = lists()?;
            if self.updated().is_none() {
                self.update(cx)?;
            }
        }
        match fetch() {
            Err(first @ Error::Program { .. }) => {
                let _lock = lists()?;
                // Without network the first error is the more useful one.
                self.update(cx).map_err(|e| match e {
                    Error::Cancelled => e,
                    _ => first,
                })?;
                fetch()
            }
            result => result,
        }
    }

    fn stamp(&self) -> PathBuf {
        self.dir.join("updated")
    }

    fn apt_get(&self) -> Command {
        let mut command = self.command("apt-get");
        command.arg("--quiet=2");
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // A configuration given with -c is read last, so that it wins over the machine's own, which
        // stays in force for the rest (proxies, time-outs).
        command.arg("-c").arg(self.dir.join("apt.conf"));
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// Unpacks `packages` into `root`, with the merged `/usr` that Debian's programs expect.
pub fn unpack(packages: &[PathBuf], root: &Path, cx: &Context) -> Result<()> {
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
    {
        let dir = root.join(target);
        fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        let link = root.join(link);
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(target, &link).map_err(Error::io(&link))?;
        }
    }
    for package in packages {
        // `dpkg-deb -x` would replace the links above by directories; this option of tar keeps
        // them.
        let script = "set -o pipefail; dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --keep-directory-symlink --no-same-owner";
        let mut command = Command::new("bash");
        command.args(["-c", script, "unpack"]).arg(package).arg(root);
        run(&mut command, UNPACK_LIMIT, cx.cancel)?;
    }
    Ok(())
}

fn source(uri: &str, suites: &str, keyring: &Path) -> String {
    format!(
        "Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nArchitectures: amd64\nSigned-By: {}\n\n",
        keyring.display()
    )
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"// Written by reprieve lab.
#clear APT::Architectures;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Default-Release "{TOOLS_SUITE}";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Sandbox::User "root";
APT::Get::AllowUnauthenticated "false";
APT::Get::Force-Yes "false";
APT::Get::List-Cleanup "true";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Dir::State "{dir}/state";
Dir::State::lists "{dir}/state/lists";
Dir::State::status "{dir}/status";
Dir::State::extended_states "{dir}/state/extended_states";
Dir::Cache "{dir}/cache";
Dir::Cache::archives "{dir}/cache/archives";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Etc::sourcelist "{dir}/etc/lab.sources";
Dir::Etc::sourceparts "{dir}/etc/empty";
Dir::Etc::preferences "{dir}/etc/none";
Dir::Etc::preferencesparts "{dir}/etc/empty";
Dir::Log "{dir}";
"#
    )
}

/// Runs a program that every Debian machine has.
fn run(command: &mut Command, limit: Duration, cancel: &Cancel) -> Result<String> {
    let out = process::run(command, limit, cancel).map_err(|e| match e {
        Error::Missing { thing, .. } => Error::missing(
            thing,
            "packages are fetched with Debian's apt; on another distribution use --host-kernel PATH, --guest-kernel PATH and REPRIEVE_QEMU",
        ),
        e => e,
    })?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn debs(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for item in fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = item.map_err(Error::io(dir))?.path();
        if path.extension().is_some_and(|e| e == "deb") {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    // Whole at any time: another run may be about to read it.
    reprieve_page::write(path, text.as_bytes()).map_err(Error::io(path))
}

/// Parses deb822 paragraphs. Continuation lines are dropped: the fields that the lab reads have
/// none.
fn stanzas(text: &str) -> Vec<Stanza> {
    text.split("\n\n")
        .map(|paragraph| {
            paragraph
                .lines()
                .filter(|l| !l.starts_with([' ', '\t']))
                .filter_map(|l| l.split_once(':'))
                .map(|(name, value)| (name.to_string(), value.trim().to_string()))
                .collect::<Stanza>()
        })
        .filter(|s| !s.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_read() {
        let all = stanzas("Package: a\nVersion: 1:2-3\nDescription: x\n more\n\nPackage: b\n\n");
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["Version"], "1:2-3");
        assert_eq!(all[1]["Package"], "b");
    }

    #[test]
    fn a_machine_that_takes_unsigned_packages_does_not_make_the_lab_do_so() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, lab) = (dir.path().join("machine.conf"), dir.path().join("apt.conf"));
        let names = [
            "APT::Get::AllowUnauthenticated",
            "APT::Get::Force-Yes",
            "Acquire::AllowInsecureRepositories",
            "Acquire::AllowWeakRepositories",
            "Acquire::AllowDowngradeToInsecureRepositories",
        ];
        fs::write(&machine, names.map(|name| format!("{name} \"true\";\n")).concat()).unwrap();
        fs::write(&lab, configuration(dir.path())).unwrap();
        let mut config = Command::new("apt-config");
        config.env("APT_CONFIG", &machine).arg("-c").arg(&lab).arg("shell");
        config.args(names.iter().flat_map(|name| ["on".to_string(), format!("{name}/b")]));
        match process::run(&mut config, QUERY_LIMIT, &Cancel::default()) {
            Err(Error::Missing { .. }) => {} // Another distribution.
            said => {
                let said = String::from_utf8(said.unwrap()).unwrap();
                assert_eq!(said, "on='false'\n".repeat(names.len()));
            }
        }
    }
}
