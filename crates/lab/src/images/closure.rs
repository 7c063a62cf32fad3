// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that a program needs to start: its loader and shared libraries.
//!
//! The loader lists them, as it does for `ldd`, and does not run the program. Programs in an
//! unpacked tree of another release are listed by the loader of that tree.

use super::Context;
use crate::error::{Error, Result};
use crate::process;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

const LIMIT: Duration = Duration::from_secs(30);

/// A file on this machine, and its path in the system for which it is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct File {
    pub host: PathBuf,
    /// Absolute.
    pub inside: PathBuf,
}

impl File {
    pub fn new(host: impl Into<PathBuf>, inside: impl Into<PathBuf>) -> File {
        File { host: host.into(), inside: inside.into() }
    }
}

/// `programs` (absolute paths within `root`) with their loader and libraries. Libraries get the
/// names and directories in which the loader finds them.
pub fn closure(root: &Path, programs: &[PathBuf], cx: &Context) -> Result<Vec<File>> {
    let mut found: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for inside in programs.iter().map(PathBuf::as_path).chain([Path::new(LOADER)]) {
        found.insert(inside.into(), under(root, inside));
    }
    for program in programs {
        let host = under(root, program);
        if !host.is_file() {
            let thing = format!("{} in {}", program.display(), root.display());
            return Err(Error::missing(thing, "remove the lab's cache"));
        }
        // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007ff4335b7000)`
        let paths = list(root, &host, cx)?;
        let paths = paths.lines().filter_map(|l| l.split_once(" => ")?.1.split(" (").next());
        for path in paths.filter(|path| path.starts_with('/')) {
            if let Ok(inside) = Path::new(path).strip_prefix(root) {
                found.insert(Path::new("/").join(inside), path.into());
            }
        }
    }
    Ok(found.into_iter().map(|(inside, host)| File { host, inside }).collect())
}

/// Whether the program runs where there is no loader.
pub fn is_static(program: &Path, cx: &Context) -> Result<bool> {
    match list(Path::new("/"), program, cx) {
        Ok(listed) => Ok(!listed.contains("=>")),
        // The loader dies of programs that it could not place anywhere.
        Err(Error::Program { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// What the loader in `root` says of the file at `host`.
fn list(root: &Path, host: &Path, cx: &Context) -> Result<String> {
    let mut loader = Command::new(under(root, Path::new(LOADER)));
    if root != Path::new("/") {
        let dirs = library_dirs(root);
        let dirs: Vec<String> =
            dirs.iter().map(|dir| under(root, dir).display().to_string()).collect();
        loader.args(["--inhibit-cache", "--library-path", &dirs.join(":")]);
    }
    let listed = process::run(loader.arg("--list").arg(host), LIMIT, cx.cancel)?;
    Ok(String::from_utf8_lossy(&listed).into_owned())
}

/// Directories that the loader in `root` searches, most specific first.
pub fn library_dirs(root: &Path) -> Vec<PathBuf> {
    let all = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"];
    all.map(PathBuf::from).into_iter().filter(|dir| under(root, dir).is_dir()).collect()
}

/// The path on this machine of what is `absolute` in `root`.
pub fn under(root: &Path, absolute: &Path) -> PathBuf {
    root.join(absolute.strip_prefix("/").unwrap_or(absolute))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::testing::context;

    #[test]
    fn a_program_needs_its_loader_and_libraries() {
        let exe = std::env::current_exe().unwrap();
        let files = closure(Path::new("/"), std::slice::from_ref(&exe), &context()).unwrap();
        let has = |name: &str| files.iter().any(|f| f.inside.ends_with(name) && f.host.is_file());
        assert!(has(exe.file_name().unwrap().to_str().unwrap()));
        assert!(has("libc.so.6") && has("ld-linux-x86-64.so.2"));
        assert!(!is_static(&exe, &context()).unwrap());
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let error = closure(Path::new("/"), &["/etc/passwd".into()], &context()).unwrap_err();
        assert!(error.to_string().contains("/etc/passwd"), "{error}");
    }
}
