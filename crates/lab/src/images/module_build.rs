// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the lab's kernel modules against a kernel's headers.
//!
//! Debian's headers come with build tools of the release that they were made for, which the machine
//! may not be able to run, and with absolute paths. So the build runs in a separate root directory,
//! made of hard links to a compiler and the headers in the cache. Where a device node for
//! `/dev/null` cannot be made there, the machine's is bound to it, in namespaces that end with the
//! build. For a user's own kernel the machine's tools build the modules.

use super::apt::{self, Apt};
use super::cache::{Cache, Kind};
use super::kernels::{Headers, Kernel};
use super::key::Key;
use super::{Context, tools};
use crate::error::{Error, Result};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(300);
const LINK_LIMIT: Duration = Duration::from_secs(120);

/// Bumped when the way of building changes.
const RECIPE: &str = "1";

/// The control file, which both modules have.
const CONTROL: (&str, &str) = ("control.h", include_str!("../../kmod/control.h"));

/// The module for workloads that need the kernel: `call_rcu` at a given rate.
pub const LOAD_MODULE: Source = Source {
    name: "reprieve_load",
    serves: "membench",
    files: &[
        ("reprieve_load.c", include_str!("../../kmod/load/reprieve_load.c")),
        CONTROL,
        ("prompt.h", include_str!("../../kmod/prompt.h")),
        ("Kbuild", include_str!("../../kmod/load/Kbuild")),
    ],
};

/// The module that keeps CPUs in known states, to check watchers against.
pub const HOLD_MODULE: Source = Source {
    name: "reprieve_hold",
    serves: "holds",
    files: &[
        ("reprieve_hold.c", include_str!("../../kmod/hold/reprieve_hold.c")),
        CONTROL,
        ("Kbuild", include_str!("../../kmod/hold/Kbuild")),
    ],
};

/// BTF for modules would need pahole in the version of the kernel's build, and nothing here uses
/// it.
const NO_BTF: &str = "CONFIG_DEBUG_INFO_BTF_MODULES=";

/// A module's source files, by name.
pub struct Source<'a> {
    /// The module is `NAME.ko`.
    pub name: &'a str,
    /// The workloads and measurements that need it.
    pub serves: &'a str,
    pub files: &'a [(&'a str, &'a str)],
}

/// Builds `source` for `kernel`; returns the module's path.
pub fn build(cache: &Cache, kernel: &Kernel, source: &Source, cx: &Context) -> Result<PathBuf> {
    let key = Key::new().text(RECIPE).text(&kernel.id).text(source.name);
    let key = source.files.iter().fold(key, |key, (name, text)| key.text(name).text(text));
    let item = format!("{}_{}_{}", source.name, kernel.release, key.finish());
    let file = format!("{}.ko", source.name);
    let dir = cache.get_or_make(Kind::Module, &item, cx, |dir| {
        cx.progress.step(&format!("building {file} for kernel {}", kernel.release));
        let built = match &kernel.headers {
            Headers::Packages(packages) => with_packages(cache, kernel, packages, source, dir, cx)?,
            Headers::Tree(tree) => with_machine(tree, source, dir, cx)?,
            Headers::None(why) => {
                return Err(Error::missing(
                    format!("what building a module for {} needs ({why})", kernel.release),
                    "use a kernel whose headers are there",
                ));
            }
        };
        let result = dir.join(&file);
        fs::rename(&built, &result).map_err(Error::io(&built))?;
        for used in ["root", "build"] {
            let used = dir.join(used);
            if used.exists() {
                fs::remove_dir_all(&used).map_err(Error::io(&used))?;
            }
        }
        Ok(())
    })?;
    Ok(dir.join(file))
}

fn write_source(source: &Source, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    for (name, text) in source.files {
        let path = dir.join(name);
        fs::write(&path, text).map_err(Error::io(&path))?;
    }
    Ok(())
}

fn with_packages(
    cache: &Cache,
    kernel: &Kernel,
    packages: &[String],
    source: &Source,
    dir: &Path,
    cx: &Context,
) -> Result<PathBuf> {
    let headers = cache.get_or_make(Kind::Headers, &kernel.id, cx, |root| {
        cx.progress.step(&format!("fetching the headers of kernel {}", kernel.release));
        let archives = root.join("packages");
        let apt = Apt::open(cache, cx)?;
        let files = apt.retrying(cache, cx, || apt.download(packages, &archives, cx))?;
        apt::unpack(&files, root, cx)?;
        fs::remove_dir_all(&archives).map_err(Error::io(&archives))
    })?;
    let toolchain = tools::toolchain(cache, cx)?;
    let root = dir.join("root");
    fs::create_dir_all(&root).map_err(Error::io(&root))?;
    for tree in [&toolchain, &headers] {
        let mut link = Command::new("cp");
        link.args(["-al", "--no-clobber", "--"]).arg(tree.join(".")).arg(&root);
        process::run(&mut link, LINK_LIMIT, cx.cancel)?;
    }
    // Maintainer scripts would have made these links.
    for (link, target) in [("usr/bin/awk", "mawk"), ("usr/bin/sh", "dash")] {
        let link = root.join(link);
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(target, &link).map_err(Error::io(&link))?;
        }
    }
    // Newer objtool looks for its stack in /proc/self/maps, to tell an overflow from other crashes,
    // and fails without it. There is no /proc inside; the map of this process is good enough.
    let maps = root.join("proc/self/maps");
    fs::create_dir_all(root.join("proc/self")).map_err(Error::io(&maps))?;
    let own = fs::read("/proc/self/maps").map_err(Error::io("/proc/self/maps"))?;
    fs::write(&maps, own).map_err(Error::io(&maps))?;
    write_source(source, &root.join("build"))?;
    fs::create_dir_all(root.join("tmp")).map_err(Error::io(&root))?;

    let tree = format!("/usr/src/linux-headers-{}", kernel.release);
    let make = ["/usr/bin/make", "-C", &tree, "M=/build", "CC=gcc-14", "HOSTCC=gcc-14", "-j2"];
    run_inside(&root, &[&make[..], &[NO_BTF, "modules"]].concat(), cx)?;
    let module = format!("build/{}.ko", source.name);
    run_inside(&root, &["/usr/bin/strip", "--strip-debug", &format!("/{module}")], cx)?;
    Ok(root.join(module))
}

/// Runs `$@` with `$0` as its root directory. Root may make a device; other users, and root on a
/// file system without devices, have a user namespace of their own.
const ENTER: &str = r#"
null=$0/dev/null
mkdir -p "$0/dev"
[ -c "$null" ] || mknod -m 666 "$null" c 1 3 2>/dev/null
[ -c "$null" ] && (: <"$null") 2>/dev/null && exec chroot "$0" "$@"
rm -f "$null" && : >"$null" && exec unshare --map-root-user --mount sh -c \
	'mount --bind /dev/null "$0/dev/null" && exec chroot "$0" "$@"' "$0" "$@"
"#;

fn run_inside(root: &Path, program: &[&str], cx: &Context) -> Result<Vec<u8>> {
    let mut command = Command::new("sh");
    clean_environment(&mut command, "/usr/sbin:/usr/bin:/sbin:/bin");
    command.args(["-c", ENTER]).arg(root).args(program);
    process::run(&mut command, BUILD_LIMIT, cx.cancel).map_err(|e| match e {
        Error::Program { program, status, detail } if detail.contains("unshare") => {
            let hint = "building the module needs root, or user namespaces for this user";
            Error::Program { program, status, detail: format!("{detail}; {hint}") }
        }
        e => e,
    })
}

fn with_machine(tree: &Path, source: &Source, dir: &Path, cx: &Context) -> Result<PathBuf> {
    let build = dir.join("build");
    write_source(source, &build)?;
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".into());
    let mut make = Command::new("make");
    clean_environment(&mut make, &path);
    make.arg("-C").arg(tree).arg(format!("M={}", build.display())).args(["-j2", NO_BTF, "modules"]);
    process::run(&mut make, BUILD_LIMIT, cx.cancel)?;
    let module = build.join(format!("{}.ko", source.name));
    let mut strip = Command::new("strip");
    clean_environment(&mut strip, &path);
    process::run(strip.arg("--strip-debug").arg(&module), BUILD_LIMIT, cx.cancel)?;
    Ok(module)
}

/// Variables such as `ARCH`, `M` or `MAKEFLAGS` of the caller (`make demo`) would reach the
/// kernel's build.
fn clean_environment(command: &mut Command, path: &str) {
    command.env_clear().env("PATH", path).env("LC_ALL", "C").env("HOME", "/");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::closure;
    use crate::images::testing::context;

    #[test]
    fn a_program_sees_only_its_root_and_a_null_device() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        for file in closure::closure(Path::new("/"), &["/bin/cat".into()], &context()).unwrap() {
            let target = root.join(file.inside.strip_prefix("/").unwrap());
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            // By another process: a program that another test is about to start holds all files
            // that are open here, and the kernel runs none that is open for writing.
            let copied = Command::new("cp").arg(&file.host).arg(&target).status().unwrap();
            assert!(copied.success());
        }
        fs::write(root.join("marker"), "inside").unwrap();
        let out = run_inside(root, &["/bin/cat", "/dev/null", "/marker"], &context()).unwrap();
        assert_eq!(out, b"inside");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(root.to_str().unwrap()), "{mounts}");
    }
}
