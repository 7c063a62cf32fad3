// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel modules and their dependencies, in the order in which to load them.
//!
//! An unpacked kernel package has no `modules.dep` (a maintainer script makes it), so the
//! dependencies are read from the modules themselves. Modules are unpacked here, once, rather than
//! in every guest.

use super::Context;
use super::kernels::Kernel;
use crate::error::{Error, Result};
use object::{Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const UNPACK_LIMIT: Duration = Duration::from_secs(30);

/// A module, uncompressed.
pub struct Module {
    /// With `_`, as the kernel calls it.
    pub name: String,
    pub data: Vec<u8>,
}

/// The `wanted` modules of `kernel` and all modules on which they depend, dependencies first. A
/// module that is built into the kernel, or does not exist, is left out.
pub fn load_order(kernel: &Kernel, wanted: &[&str], cx: &Context) -> Result<Vec<Module>> {
    let Some(dir) = &kernel.modules else { return Ok(Vec::new()) };
    let mut files = BTreeMap::new();
    index(&dir.join("kernel"), &mut files)?;
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        visit(&canonical(name), &files, &mut seen, &mut order, cx)?;
    }
    Ok(order)
}

fn visit(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<Module>,
    cx: &Context,
) -> Result<()> {
    let Some(path) = files.get(name) else { return Ok(()) };
    if !seen.insert(name.to_string()) {
        return Ok(());
    }
    let data = read(path, cx)?;
    let depends = depends(&data).map_err(|e| Error::Format {
        path: path.clone(),
        message: format!("not a kernel module: {e}"),
    })?;
    for other in depends {
        visit(&other, files, seen, order, cx)?;
    }
    order.push(Module { name: name.into(), data });
    Ok(())
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn index(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let items = match fs::read_dir(dir) {
        Ok(items) => items,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(dir)(e)),
    };
    for item in items.flatten() {
        let path = item.path();
        if item.file_type().is_ok_and(|t| t.is_dir()) {
            index(&path, files)?;
        } else if let Some((stem, _)) = item.file_name().to_string_lossy().split_once(".ko") {
            files.insert(canonical(stem), path);
        }
    }
    Ok(())
}

fn read(path: &Path, cx: &Context) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).map_err(Error::io(path)),
    };
    let mut unpack = Command::new(program);
    unpack.arg("-dc").arg(path);
    crate::process::run(&mut unpack, UNPACK_LIMIT, cx.cancel)
}

fn depends(module: &[u8]) -> object::read::Result<Vec<String>> {
    let file = object::File::parse(module)?;
    let Some(section) = file.section_by_name(".modinfo") else { return Ok(Vec::new()) };
    Ok(section
        .data()?
        .split(|&c| c == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="))
        .flat_map(|list| list.split(',').filter(|n| !n.is_empty()).map(canonical))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::kernels::Headers;
    use crate::images::testing::context;

    fn assemble(dir: &Path, name: &str, depends: &str) -> PathBuf {
        let source = dir.join("source.s");
        let text = format!(".section .modinfo,\"a\"\n.asciz \"depends={depends}\"\n");
        fs::write(&source, text).unwrap();
        let path = dir.join(format!("{name}.ko"));
        let status = Command::new("as").arg("-o").arg(&path).arg(&source).status().unwrap();
        assert!(status.success());
        path
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let scratch = tempfile::tempdir().unwrap();
        let drivers = scratch.path().join("kernel/drivers");
        fs::create_dir_all(&drivers).unwrap();
        assemble(&drivers, "virtio_pci", "virtio-ring,virtio");
        assemble(&drivers, "virtio", "virtio_ring");
        let packed = assemble(&drivers, "virtio_ring", "");
        assert!(Command::new("xz").arg(&packed).status().unwrap().success());
        let kernel = Kernel {
            release: "test".into(),
            id: "test".into(),
            vmlinuz: PathBuf::new(),
            modules: Some(scratch.path().into()),
            config: None,
            headers: Headers::None(String::new()),
        };
        let wanted = ["virtio-pci", "virtio", "built_in"];
        let order = load_order(&kernel, &wanted, &context()).unwrap();
        let names: Vec<&str> = order.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["virtio_ring", "virtio", "virtio_pci"]);
        assert!(order.iter().all(|m| m.data.starts_with(b"\x7fELF")));
    }
}
