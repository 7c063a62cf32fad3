// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that a program needs to start: its loader and shared libraries.
//!
//! The libraries are found by reading ELF files, not by running a loader, so that this also works
//! for programs in an unpacked tree of another release. Paths and symbolic links are followed
//! within that tree.

use crate::error::{Error, Result};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, elf};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Component, Path, PathBuf};

type Header = elf::FileHeader64<Endianness>;

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

/// `programs` (absolute paths within `root`) with their loaders and libraries. Libraries get the
/// names and directories in which the loader looks for them.
pub fn closure(root: &Path, programs: &[PathBuf]) -> Result<Vec<File>> {
    let system = library_dirs(root);
    let mut found: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut sonames: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut queue: VecDeque<PathBuf> = programs.iter().cloned().collect();
    while let Some(inside) = queue.pop_front() {
        if found.contains_key(&inside) {
            continue;
        }
        let host = resolve(root, &inside).ok_or_else(|| {
            Error::missing(
                format!("{} in {}", inside.display(), root.display()),
                "clean the cache (`reprieve lab images clean`)",
            )
        })?;
        let needs = Needs::read(&host)?;
        found.insert(inside.clone(), host);
        queue.extend(needs.interpreter);
        let origin = inside.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        let own = needs.search.iter().map(|dir| {
            PathBuf::from(dir.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin))
        });
        let dirs: Vec<PathBuf> = own.chain(system.iter().cloned()).collect();
        for name in needs.libraries {
            if sonames.contains_key(&name) {
                continue;
            }
            let path = dirs
                .iter()
                .map(|dir| normalize(&dir.join(&name)))
                .find(|path| resolve(root, path).is_some())
                .ok_or_else(|| {
                    Error::missing(
                        format!("library {name} (for {})", inside.display()),
                        format!("it belongs in {}", root.display()),
                    )
                })?;
            sonames.insert(name, path.clone());
            queue.push_back(path);
        }
    }
    // Programs and libraries name the loader by different paths; both may be needed.
    Ok(found.into_iter().map(|(inside, host)| File { host, inside }).collect())
}

/// Whether the program runs where there is no loader.
pub fn is_static(program: &Path) -> Result<bool> {
    Ok(Needs::read(program)?.interpreter.is_none())
}

/// The file at `path` if `root` were the root directory; `None` if there is none.
pub fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut todo: VecDeque<String> = parts(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let host = under(root, &next);
        let meta = fs::symlink_metadata(&host).ok()?;
        if !meta.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > 40 {
            return None;
        }
        let target = fs::read_link(&host).ok()?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            todo.push_front(part);
        }
    }
    let host = under(root, &at);
    host.is_file().then_some(host)
}

/// Directories that the loader in `root` searches, most specific first.
pub fn library_dirs(root: &Path) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ]
    .map(PathBuf::from)
    .into();
    let conf = root.join("etc/ld.so.conf.d");
    for item in fs::read_dir(conf).into_iter().flatten().flatten() {
        let text = fs::read_to_string(item.path()).unwrap_or_default();
        let more = text.lines().map(str::trim).filter(|l| l.starts_with('/')).map(PathBuf::from);
        dirs.extend(more);
    }
    let mut seen = std::collections::BTreeSet::new();
    dirs.retain(|d| under(root, d).is_dir() && seen.insert(d.clone()));
    dirs
}

fn under(root: &Path, absolute: &Path) -> PathBuf {
    root.join(absolute.strip_prefix("/").unwrap_or(absolute))
}

fn parts(path: &Path) -> VecDeque<String> {
    path.components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

fn normalize(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in parts(path) {
        if part == ".." {
            clean.pop();
        } else {
            clean.push(part);
        }
    }
    clean
}

/// The loader, libraries and search path that an ELF file names.
#[derive(Default)]
struct Needs {
    interpreter: Option<PathBuf>,
    libraries: Vec<String>,
    search: Vec<String>,
}

impl Needs {
    fn read(path: &Path) -> Result<Needs> {
        let data = fs::read(path).map_err(Error::io(path))?;
        Needs::parse(&data).map_err(|message| Error::Format { path: path.into(), message })
    }

    fn parse(data: &[u8]) -> Result<Needs, String> {
        let fail = |e: object::read::Error| format!("not a 64-bit ELF file: {e}");
        let header = Header::parse(data).map_err(fail)?;
        let endian = header.endian().map_err(fail)?;
        let mut needs = Needs::default();
        let segments = header.program_headers(endian, data).map_err(fail)?;
        for segment in segments {
            if let Some(path) = segment.interpreter(endian, data).map_err(fail)? {
                needs.interpreter = Some(String::from_utf8_lossy(path).into_owned().into());
            }
        }
        let sections = header.sections(endian, data).map_err(fail)?;
        let Some((entries, strings)) = sections.dynamic(endian, data).map_err(fail)? else {
            return Ok(needs);
        };
        let strings = sections.strings(endian, data, strings).map_err(fail)?;
        for entry in entries {
            let tag = entry.d_tag(endian) as u32;
            if !matches!(tag, elf::DT_NEEDED | elf::DT_RPATH | elf::DT_RUNPATH) {
                continue;
            }
            let text = entry.string(endian, strings).map_err(fail)?;
            let text = String::from_utf8_lossy(text).into_owned();
            if tag == elf::DT_NEEDED {
                needs.libraries.push(text);
            } else {
                needs.search.extend(text.split(':').map(String::from));
            }
        }
        Ok(needs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::testing::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_program_needs_its_loader_and_libraries() {
        let exe = std::env::current_exe().unwrap();
        let files = closure(Path::new("/"), std::slice::from_ref(&exe)).unwrap();
        let has = |name: &str| files.iter().any(|f| f.inside.ends_with(name) && f.host.is_file());
        assert!(has(exe.file_name().unwrap().to_str().unwrap()));
        assert!(has("libc.so.6"));
        assert!(files.iter().any(|f| f.inside.to_string_lossy().contains("/ld-linux")));
        assert!(!is_static(&exe).unwrap());
    }

    #[test]
    fn links_stay_inside_the_root() {
        let scratch = Scratch::new();
        let root = scratch.path();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(root.join("usr/lib/real"), "x").unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("/lib/real", root.join("absolute")).unwrap();
        symlink("../../../lib/real", root.join("usr/up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let real = Some(root.join("usr/lib/real"));
        for path in ["/lib/real", "/absolute", "/usr/up", "/usr/lib/../lib/real"] {
            assert_eq!(resolve(root, Path::new(path)), real, "{path}");
        }
        assert_eq!(resolve(root, Path::new("/loop")), None);
        assert_eq!(resolve(root, Path::new("/usr/lib")), None);
    }

    #[test]
    fn what_is_not_elf_is_refused() {
        let scratch = Scratch::new();
        fs::write(scratch.path().join("script"), "#!/bin/sh\n").unwrap();
        let e = closure(scratch.path(), &["/script".into()]).unwrap_err();
        assert!(e.to_string().contains("not a 64-bit ELF file"), "{e}");
    }
}
