// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that the lab runs: QEMU, dbench, Apache and wrk, and a compiler.
//!
//! The tools come from Debian 13 and its backports and are unpacked with all their dependencies
//! into the cache: the machine's own release may be older, and nested runs need QEMU 11 (earlier
//! ones lose interrupts of CPUs with nested guests under multi-threaded TCG). A program from such a
//! tree starts with the loader and the libraries of the tree, without chroot and without root.

use super::Context;
use super::Qemu;
use super::apt::{self, Apt};
use super::cache::{Cache, Kind};
use super::closure::{self, File, LOADER, under};
use super::key::Key;
use crate::error::{Error, Result};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Raised when the same packages make a different tree.
const LAYOUT: &str = "2";

const PROGRAMS: [&str; 5] = [
    "qemu-system-x86/trixie-backports",
    "qemu-system-common/trixie-backports",
    "qemu-system-data/trixie-backports",
    "seabios/trixie-backports",
    "dbench",
];
const WEB: [&str; 2] = ["apache2-bin", "wrk"];
const TOOLCHAIN: [&str; 14] = [
    "gcc-14",
    "make",
    "binutils",
    "libc6-dev",
    "libelf1t64",
    "libssl3t64",
    "zlib1g",
    "dash",
    "bash",
    "coreutils",
    "sed",
    "grep",
    "findutils",
    "mawk",
];

/// Firmware of a PC with direct kernel boot and serial lines, without display or network.
const ROMS: [&str; 9] = [
    "bios-256k.bin",
    "bios.bin",
    "kvmvapic.bin",
    "linuxboot.bin",
    "linuxboot_dma.bin",
    "multiboot.bin",
    "multiboot_dma.bin",
    "pvh.bin",
    "vgabios-stdvga.bin",
];

const BUNDLE: &str = "usr/lib/x86_64-linux-gnu/qemu-bundle";

/// The tree of QEMU and dbench; unpacked at the first call.
pub fn programs(cache: &Cache, cx: &Context) -> Result<PathBuf> {
    tree(cache, "programs", &PROGRAMS, cx)
}

/// The tree of Apache and wrk.
pub fn web(cache: &Cache, cx: &Context) -> Result<PathBuf> {
    tree(cache, "web", &WEB, cx)
}

/// The tree of the tools that build kernel modules.
pub fn toolchain(cache: &Cache, cx: &Context) -> Result<PathBuf> {
    tree(cache, "toolchain", &TOOLCHAIN, cx)
}

fn tree(cache: &Cache, name: &str, packages: &[&str], cx: &Context) -> Result<PathBuf> {
    let key = packages.iter().fold(Key::new().text(LAYOUT), |key, p| key.text(p)).finish();
    cache.get_or_make(Kind::Tools, &format!("{name}_{key}"), cx, |root| {
        cx.progress.step(&format!("fetching {}", packages.join(", ")));
        let apt = Apt::open(cache, cx)?;
        let archives = root.join("packages");
        let fetch = || apt.download_closure(packages, &archives, cx);
        let files = apt.retrying(cache, cx, fetch)?;
        apt::unpack(&files, root, cx)?;
        // With this beside its executable (here: the loader that runs it) QEMU takes all its files
        // from below it, and none of the machine's own QEMU.
        let bundle = root.join(BUNDLE);
        std::os::unix::fs::symlink("../../..", &bundle).map_err(Error::io(&bundle))?;
        for unused in ["packages", "usr/share/doc", "usr/share/man", "usr/share/locale"] {
            let unused = root.join(unused);
            if unused.exists() {
                fs::remove_dir_all(&unused).map_err(Error::io(&unused))?;
            }
        }
        Ok(())
    })
}

/// A QEMU and the paths of its files.
#[derive(Clone, Debug)]
pub struct QemuFiles {
    /// How to start it on this machine.
    pub qemu: Qemu,
    /// The tree it belongs to (`/` for the machine's own).
    root: PathBuf,
    /// Path of the program within the tree.
    program: PathBuf,
    /// Directories of its firmware on this machine.
    rom_dirs: Vec<PathBuf>,
    /// Directory of its loadable modules on this machine.
    module_dir: Option<PathBuf>,
}

impl QemuFiles {
    /// The QEMU to use: `$REPRIEVE_QEMU`, else Debian 13's.
    pub fn find(cache: &Cache, cx: &Context) -> Result<QemuFiles> {
        if let Some(path) = std::env::var_os("REPRIEVE_QEMU").filter(|p| !p.is_empty()) {
            return QemuFiles::of_machine(Path::new(&path), cx);
        }
        QemuFiles::of_tree(&programs(cache, cx)?, cx)
    }

    fn of_machine(path: &Path, cx: &Context) -> Result<QemuFiles> {
        let program = path.canonicalize().map_err(Error::io(path))?;
        let mut qemu =
            Qemu { argv: vec![text(&program)?], env: Vec::new(), version: String::new() };
        qemu.version = version(&qemu, cx)?;
        let mut ask = command(&qemu);
        let dirs = process::run(ask.args(["-L", "help"]), LIMIT, cx.cancel)?;
        let rom_dirs = String::from_utf8_lossy(&dirs).lines().map(PathBuf::from).collect();
        let prefix = program.ancestors().nth(2).unwrap_or(Path::new("/")).to_path_buf();
        let module_dir = ["lib/x86_64-linux-gnu/qemu", "lib64/qemu", "lib/qemu"]
            .iter()
            .map(|dir| prefix.join(dir))
            .find(|dir| dir.is_dir());
        Ok(QemuFiles { qemu, root: "/".into(), program, rom_dirs, module_dir })
    }

    fn of_tree(root: &Path, cx: &Context) -> Result<QemuFiles> {
        let program = PathBuf::from("/usr/bin/qemu-system-x86_64");
        let rom_dirs = vec![root.join("usr/share/qemu"), root.join("usr/share/seabios")];
        let module_dir = root.join("usr/lib/x86_64-linux-gnu/qemu");
        let libraries = closure::library_dirs(root)
            .iter()
            .map(|dir| text(&under(root, dir)))
            .collect::<Result<Vec<_>>>()?;
        let mut qemu = start(
            &under(root, Path::new(LOADER)),
            &libraries,
            &under(root, &program),
            &rom_dirs,
            &module_dir,
        )?;
        qemu.version = version(&qemu, cx)?;
        Ok(QemuFiles { qemu, root: root.into(), program, rom_dirs, module_dir: Some(module_dir) })
    }

    /// The files that this QEMU needs in another system, with paths below `prefix` there, and how
    /// to start it there.
    pub fn portable(&self, prefix: &Path, cx: &Context) -> Result<(Vec<File>, Qemu)> {
        let module_dir = prefix.join("modules");
        let mut modules = Vec::new();
        for item in self.module_dir.iter().flat_map(fs::read_dir).flatten().flatten() {
            let name = item.file_name();
            if name.to_string_lossy().starts_with("accel-") {
                modules.push(item.path());
            }
        }
        let inner =
            |path: &Path| Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(path));
        let mut roots = vec![self.program.clone()];
        roots.extend(modules.iter().map(|m| inner(m)));
        let mut files = Vec::new();
        let mut library_dirs = Vec::new();
        for file in closure::closure(&self.root, &roots, cx)? {
            let path = prefix.join(file.inside.strip_prefix("/").unwrap_or(&file.inside));
            if file.inside != self.program {
                let dir = text(path.parent().unwrap_or(prefix))?;
                if !library_dirs.contains(&dir) {
                    library_dirs.push(dir);
                }
            }
            files.push(File::new(file.host, path));
        }
        for module in &modules {
            if let Some(name) = module.file_name() {
                files.push(File::new(module, module_dir.join(name)));
            }
        }
        let rom_dir = prefix.join("roms");
        for rom in ROMS {
            let found = self.rom_dirs.iter().map(|dir| dir.join(rom)).find(|p| p.is_file());
            files.extend(found.map(|path| File::new(path, rom_dir.join(rom))));
        }
        let at = |path: &Path| prefix.join(path.strip_prefix("/").unwrap_or(path));
        let mut qemu = start(
            &at(Path::new(LOADER)),
            &library_dirs,
            &at(&self.program),
            &[rom_dir],
            &module_dir,
        )?;
        qemu.version = self.qemu.version.clone();
        Ok((files, qemu))
    }
}

const LIMIT: Duration = Duration::from_secs(30);

fn start(
    loader: &Path,
    libraries: &[String],
    program: &Path,
    rom_dirs: &[PathBuf],
    module_dir: &Path,
) -> Result<Qemu> {
    let program = text(program)?;
    let mut argv = vec![text(loader)?, "--library-path".into(), libraries.join(":")];
    argv.extend(["--argv0".into(), program.clone(), program]);
    for dir in rom_dirs {
        argv.extend(["-L".into(), text(dir)?]);
    }
    let env = vec![("QEMU_MODULE_DIR".into(), text(module_dir)?)];
    Ok(Qemu { argv, env, version: String::new() })
}

fn command(qemu: &Qemu) -> Command {
    let mut command = Command::new(&qemu.argv[0]);
    command.args(&qemu.argv[1..]).envs(qemu.env.iter().map(|(k, v)| (k, v)));
    command
}

fn version(qemu: &Qemu, cx: &Context) -> Result<String> {
    let out = process::run(command(qemu).arg("--version"), LIMIT, cx.cancel)?;
    let out = String::from_utf8_lossy(&out);
    let version = out.strip_prefix("QEMU emulator version ");
    version.and_then(|rest| rest.split_whitespace().next()).map(String::from).ok_or_else(|| {
        Error::Format {
            path: qemu.argv.iter().find(|a| a.contains("qemu")).unwrap_or(&qemu.argv[0]).into(),
            message: format!("not QEMU: it said {:?}", out.lines().next().unwrap_or_default()),
        }
    })
}

/// A path as text, as plans and command lines need it.
fn text(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| {
        Error::Usage(format!("{}: the lab cannot use paths that are not UTF-8", path.display()))
    })?;
    if text.contains([':', ';']) {
        return Err(Error::Usage(format!(
            "{text}: the lab cannot use paths with a colon or semicolon"
        )));
    }
    Ok(text.into())
}
