// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches and builds the images of a run that are not in the cache.
//!
//! The name of an initramfs is a hash of everything in it, so only a new init, module, kernel or
//! program makes a new one. Writing a new one drops those that were not used for a day and that no
//! run holds, and what is left of images whose making was killed.

use super::cache::{Cache, Entry, Hold, Kind};
use super::closure::{self, File};
use super::initramfs::Initramfs;
use super::kernels::{self, Kernel, KernelSpec, Kernels};
use super::key::Key;
use super::tools::{self, QemuFiles};
use super::{
    Context, GuestImage, ImageSet, Item, LabHostImage, Program, module_build, module_order,
};
use crate::error::{Error, Result};
use crate::process::Cancel;
use crate::progress::Progress;
use reprieve_init::protocol::REPRIEVE_ARGV;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Raised when the layout of initramfs changes though their inputs do not.
const LAYOUT: &str = "2";

/// An initramfs that was not used for this long is dropped.
const INITRD_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Initramfs that stay that long, the others for this long: each build of the command makes new
/// ones.
const INITRDS: usize = 16;
const INITRD_KEPT_SURELY: Duration = Duration::from_secs(3600);

/// Kernel modules of the lab's channel to a VM.
const CHANNEL_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];

/// The list of modules that the init loads, and their directory.
const MODULES: &str = "/lib/reprieve/modules";
const MODULE_DIR: &str = "/lib/reprieve/kmod";

/// The lab's own modules in a guest.
const OWN_MODULES: &str = "/lib/reprieve";

/// The lab's images, with the cache that holds them.
pub struct Images<'a> {
    cache: Cache,
    cx: Context<'a>,
    /// Keep other processes from cleaning the cache once a run has paths in it, and from dropping
    /// its initramfs.
    holds: Mutex<Vec<Hold>>,
}

impl<'a> Images<'a> {
    /// Opens the cache, without fetching anything.
    pub fn open(cancel: &'a Cancel, progress: &'a dyn Progress) -> Result<Images<'a>> {
        Ok(Images::with_cache(Cache::open()?, cancel, progress))
    }

    pub fn with_cache(cache: Cache, cancel: &'a Cancel, progress: &'a dyn Progress) -> Images<'a> {
        Images { cache, cx: Context { cancel, progress }, holds: Mutex::default() }
    }

    pub fn root(&self) -> &Path {
        self.cache.root()
    }

    /// QEMU, and an image for each of `kernels` (`deb:6.12`, a path) with `programs` in it.
    pub fn prepare(&self, kernels: &[String], programs: &[Program]) -> Result<ImageSet> {
        let _: Vec<KernelSpec> = kernels.iter().map(|k| k.parse()).collect::<Result<_>>()?;
        self.keep()?;
        let qemu = QemuFiles::find(&self.cache, &self.cx)?.qemu;
        let mut guests = BTreeMap::new();
        for name in kernels {
            let kernel = Kernels::new(&self.cache).guest(&name.parse()?, &self.cx)?;
            guests.insert(name.clone(), self.guest(&kernel, &init_binary()?, programs)?);
        }
        Ok(ImageSet { qemu, guests })
    }

    /// A lab host with `set` and this program inside. `kernel` as in [`Images::prepare`]; `None`:
    /// the newest that is able to.
    pub fn lab_host(&self, kernel: Option<&str>, set: &ImageSet) -> Result<LabHostImage> {
        let spec = kernel.map(str::parse).transpose()?;
        self.keep()?;
        let kernel = Kernels::new(&self.cache).host(spec.as_ref(), &self.cx)?;
        let (mut files, qemu) =
            QemuFiles::find(&self.cache, &self.cx)?.portable(Path::new("/lib/reprieve/qemu"))?;
        let (more, program) = portable_self()?;
        files.extend(more);
        let mut inside = ImageSet { qemu, guests: BTreeMap::new() };
        for (index, (name, guest)) in set.guests.iter().enumerate() {
            let dir = Path::new("/lib/reprieve/guests").join(index.to_string());
            let here = GuestImage {
                release: guest.release.clone(),
                kernel: dir.join("vmlinuz"),
                initrd: dir.join("initrd"),
            };
            files.push(File::new(&guest.kernel, &here.kernel));
            files.push(File::new(&guest.initrd, &here.initrd));
            inside.guests.insert(name.clone(), here);
        }
        let image = self.host(&kernel, &init_binary()?, &files)?;
        let ability = kernels::ability(&kernel)?;
        Ok(LabHostImage { image, ability, program, inside })
    }

    /// Fetches everything that runs with `kernels` may need, so that they work without network.
    pub fn fetch(&self, kernels: &[String]) -> Result<()> {
        let set = self.prepare(kernels, &[Program::Postmark, Program::Dbench, Program::Apache])?;
        self.lab_host(None, &set)?;
        Ok(())
    }

    /// The content of the cache.
    pub fn list(&self) -> Result<Vec<Item>> {
        let entries = self.cache.list()?;
        Ok(entries.into_iter().map(item).collect())
    }

    /// Empties the cache and returns the bytes freed; fails while a run uses it.
    pub fn clean(&self) -> Result<u64> {
        self.release();
        self.cache.clean()
    }

    /// An initramfs with the init at `init` for a guest, and `kernel` with it.
    pub fn guest(&self, kernel: &Kernel, init: &Path, programs: &[Program]) -> Result<GuestImage> {
        let mut image = Initramfs::new();
        let mut key = Key::new().text(LAYOUT).text("guest").text(&kernel.id).content(init)?;
        image.file(init, "/init")?;
        for &program in programs {
            key = self.add_program(program, &mut image, key)?;
        }
        let mut own = Vec::new();
        let hold = programs.contains(&Program::Hold).then_some(module_build::HOLD_MODULE);
        for source in [module_build::LOAD_MODULE].into_iter().chain(hold) {
            match module_build::build(&self.cache, kernel, &source, &self.cx) {
                Ok(path) => {
                    key = key.content(&path)?;
                    let inside = format!("{OWN_MODULES}/{}.ko", source.name);
                    image.file(&path, &inside)?;
                    own.push(inside);
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(e) => {
                    let text = format!(
                        "kernel {}: the lab's kernel module {} is not available ({e}): workloads that need it ({}) will fail",
                        kernel.release, source.name, source.serves
                    );
                    self.cx.progress.notice(&text);
                }
            }
        }
        self.write("guest", kernel, key, image, &CHANNEL_MODULES, &own)
    }

    /// Puts `program` into `image`, and what it is made of into `key`.
    fn add_program(&self, program: Program, image: &mut Initramfs, mut key: Key) -> Result<Key> {
        let files = match program {
            // A kernel module; `guest` adds it, since it is built for one kernel.
            Program::Hold => return Ok(key),
            Program::Reprieve => {
                let (files, argv) = portable_self()?;
                let argv = argv.join("\n");
                key = key.text(&argv);
                for file in &files {
                    key = key.content(&file.host)?;
                }
                image.bytes(REPRIEVE_ARGV, argv, 0o644);
                files
            }
            Program::Postmark | Program::Dbench | Program::Apache => {
                let root = match program {
                    Program::Apache => tools::web(&self.cache, &self.cx)?,
                    _ => tools::programs(&self.cache, &self.cx)?,
                };
                key = key.text(program.name()).path(&root);
                let programs: Vec<PathBuf> =
                    program.debian_programs().iter().map(PathBuf::from).collect();
                let mut files = closure::closure(&root, &programs)?;
                let data = program.debian_data().iter();
                files.extend(data.map(|path| File::new(root.join(&path[1..]), *path)));
                files
            }
        };
        for file in &files {
            image.file(&file.host, &file.inside)?;
        }
        Ok(key)
    }

    /// An initramfs with the init at `init` for a lab host, with `files` and KVM's modules in it.
    pub fn host(&self, kernel: &Kernel, init: &Path, files: &[File]) -> Result<GuestImage> {
        let mut image = Initramfs::new();
        let mut key = Key::new().text(LAYOUT).text("host").text(&kernel.id).content(init)?;
        image.file(init, "/init")?;
        for file in files {
            let meta = fs::metadata(&file.host).map_err(Error::io(&file.host))?;
            key = key.path(&file.host).metadata(&meta).path(&file.inside);
            image.file(&file.host, &file.inside)?;
        }
        // QEMU keeps sockets and unlinked files there.
        image.bytes("/var/tmp/.keep", "", 0o644);
        let modules = ["irqbypass", "kvm", "kvm_amd"].into_iter();
        // Under KVM a lab host has this machine's kind of virtualization, under TCG AMD's.
        let intel = fs::read_to_string("/proc/cpuinfo").is_ok_and(|t| t.contains("GenuineIntel"));
        let modules = modules.chain(intel.then_some("kvm_intel"));
        let wanted: Vec<&str> = CHANNEL_MODULES.into_iter().chain(modules).collect();
        key = wanted.iter().fold(key, |key, name| key.text(name));
        self.write("host", kernel, key, image, &wanted, &[])
    }

    fn write(
        &self,
        purpose: &str,
        kernel: &Kernel,
        key: Key,
        mut image: Initramfs,
        modules: &[&str],
        // Modules of ours, already in `image`, that are loaded after them.
        own: &[String],
    ) -> Result<GuestImage> {
        self.keep()?;
        let name = format!("{purpose}_{}_{}", kernel.release, key.finish());
        let (dir, hold) = self.cache.get_or_make_held(Kind::Initrd, &name, &self.cx, |dir| {
            self.cx.progress.step(&format!("writing an initramfs for {}", kernel.release));
            self.drop_unused()?;
            let mut list = String::new();
            for module in module_order::load_order(kernel, modules, &self.cx)? {
                let path = format!("{MODULE_DIR}/{}.ko", module.name);
                list += &format!("{path}\n");
                image.bytes(path, module.data, 0o644);
            }
            own.iter().for_each(|path| list += &format!("{path}\n"));
            image.bytes(MODULES, list, 0o644);
            image.write(&dir.join("initrd"))
        })?;
        self.holds().push(hold);
        self.cache.touch(&dir);
        Ok(GuestImage {
            release: kernel.release.clone(),
            kernel: kernel.vmlinuz.clone(),
            initrd: dir.join("initrd"),
        })
    }

    fn drop_unused(&self) -> Result<()> {
        self.cache.drop_abandoned()?;
        let mut images = self.cache.list()?;
        images.retain(|entry| entry.kind == Kind::Initrd);
        images.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        for (newer, entry) in images.iter().enumerate() {
            let age = entry.used.elapsed().unwrap_or_default();
            if age > INITRD_KEPT || newer >= INITRDS && age > INITRD_KEPT_SURELY {
                self.cache.drop_item(entry)?;
            }
        }
        Ok(())
    }

    fn keep(&self) -> Result<()> {
        let mut holds = self.holds();
        if holds.is_empty() {
            holds.push(self.cache.hold()?);
        }
        Ok(())
    }

    fn release(&self) {
        self.holds().clear();
    }

    fn holds(&self) -> MutexGuard<'_, Vec<Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The init: `$REPRIEVE_INIT`, else the file beside this program, else in `../lib/reprieve`.
fn init_binary() -> Result<PathBuf> {
    let path = find_init()?;
    // A kernel that cannot start it says only that there is none.
    if closure::is_static(&path)? {
        return Ok(path);
    }
    Err(Error::Format {
        path,
        message: "not linked statically, so no guest can start it as its init: build it with \
                  `make build`"
            .into(),
    })
}

fn find_init() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("REPRIEVE_INIT").filter(|p| !p.is_empty()) {
        return Ok(path.into());
    }
    let program = own_path()?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    [dir.join("reprieve-init"), dir.join("../lib/reprieve/reprieve-init")]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Error::missing(
                format!(
                    "reprieve-init (looked beside {} and in ../lib/reprieve)",
                    program.display()
                ),
                "build it with `make build`, or set REPRIEVE_INIT to its path",
            )
        })
}

fn own_path() -> Result<PathBuf> {
    std::env::current_exe().map_err(Error::io("/proc/self/exe"))
}

/// This program's files for another system, and how to start it there.
fn portable_self() -> Result<(Vec<File>, Vec<String>)> {
    let program = own_path()?;
    let prefix = Path::new("/lib/reprieve/program");
    let mut files = Vec::new();
    let mut dirs: Vec<String> = Vec::new();
    let mut loader = None;
    for file in closure::closure(Path::new("/"), std::slice::from_ref(&program))? {
        let target = prefix.join(file.inside.strip_prefix("/").unwrap_or(&file.inside));
        let text = target.to_string_lossy().into_owned();
        if file.inside == program {
            files.push(File::new(file.host, prefix.join("reprieve")));
            continue;
        }
        if file.inside.to_string_lossy().contains("/ld-linux") {
            loader = Some(text);
        }
        let dir = target.parent().unwrap_or(prefix).to_string_lossy().into_owned();
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
        files.push(File::new(file.host, target));
    }
    let mut argv = Vec::new();
    if let Some(loader) = loader {
        argv.extend([loader, "--library-path".into(), dirs.join(":")]);
    }
    argv.push(prefix.join("reprieve").to_string_lossy().into_owned());
    Ok((files, argv))
}

fn item(entry: Entry) -> Item {
    let used = entry.used.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Item {
        name: entry.name,
        what: entry.kind.describe().into(),
        bytes: entry.size,
        used_unix_s: used.as_secs(),
    }
}
