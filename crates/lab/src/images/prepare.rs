// SPDX-License-Identifier: MIT OR Apache-2.0
//! The images of a run: what the cache lacks is fetched or built, and initramfs are written anew.

use super::cache::Cache;
use super::closure::{self, File};
use super::initramfs::Initramfs;
use super::kernels::{self, Kernel, KernelSpec, Kernels};
use super::tools::{self, QemuFiles};
use super::{
    Context, GuestImage, ImageSet, LabHostImage, Program, Qemu, module_build, module_order,
};
use crate::error::{Error, Result};
use crate::process::Cancel;
use crate::progress::Progress;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
}

impl<'a> Images<'a> {
    /// Opens the cache, without fetching anything.
    pub fn open(cancel: &'a Cancel, progress: &'a dyn Progress) -> Result<Images<'a>> {
        Ok(Images { cache: Cache::open()?, cx: Context { cancel, progress } })
    }

    /// QEMU, and an image for each of `kernels` (`deb:6.12`, a path) with `programs` in it.
    pub fn prepare(&self, kernels: &[String], programs: &[Program]) -> Result<ImageSet> {
        let _: Vec<KernelSpec> = kernels.iter().map(|k| k.parse()).collect::<Result<_>>()?;
        let qemu = QemuFiles::find(&self.cache, &self.cx)?.qemu;
        let mut guests = BTreeMap::new();
        for name in kernels {
            let kernel = Kernels::new(&self.cache).guest(&name.parse()?, &self.cx)?;
            guests.insert(name.clone(), self.guest(&kernel, &init_binary(&self.cx)?, programs)?);
        }
        Ok(ImageSet { qemu, guests })
    }

    /// A lab host with `set` and this program inside. `kernel` as in [`Images::prepare`]; `None`:
    /// the newest that is able to.
    pub fn lab_host(&self, kernel: Option<&str>, set: &ImageSet) -> Result<LabHostImage> {
        let spec = kernel.map(str::parse).transpose()?;
        let kernel = Kernels::new(&self.cache).host(spec.as_ref(), &self.cx)?;
        let (mut files, qemu) = QemuFiles::find(&self.cache, &self.cx)?
            .portable(Path::new("/lib/reprieve/qemu"), &self.cx)?;
        let (more, program) = portable_self(&self.cx)?;
        files.extend(more);
        let mut inside = ImageSet { qemu, guests: BTreeMap::new() };
        for (index, (name, guest)) in set.guests.iter().enumerate() {
            let dir = Path::new("/lib/reprieve/guests").join(index.to_string());
            let here = GuestImage {
                release: guest.release.clone(),
                kernel: dir.join("kernel"),
                vmlinuz: PathBuf::new(),
                initrd: dir.join("initrd"),
                _file: None,
            };
            files.push(File::new(&guest.kernel, &here.kernel));
            files.push(File::new(&guest.initrd, &here.initrd));
            inside.guests.insert(name.clone(), here);
        }
        let image = self.host(&kernel, &init_binary(&self.cx)?, &files)?;
        let ability = kernels::ability(&kernel)?;
        Ok(LabHostImage { image, ability, program, inside })
    }

    /// A lab host's kernel for a machine with `programs` of this one, at the same paths, and QEMU.
    pub fn machine(&self, programs: &[PathBuf]) -> Result<(GuestImage, Qemu)> {
        let kernel = Kernels::new(&self.cache).host(None, &self.cx)?;
        let files = closure::closure(Path::new("/"), programs, &self.cx)?;
        let qemu = QemuFiles::find(&self.cache, &self.cx)?.qemu;
        Ok((self.host(&kernel, &init_binary(&self.cx)?, &files)?, qemu))
    }

    /// Fetches everything that runs with `kernels` may need, so that they work without network.
    pub fn fetch(&self, kernels: &[String]) -> Result<()> {
        let set = self.prepare(kernels, &[Program::Dbench, Program::Apache])?;
        self.lab_host(None, &set)?;
        Ok(())
    }

    /// An initramfs with the init at `init` for a guest, and `kernel` with it.
    fn guest(&self, kernel: &Kernel, init: &Path, programs: &[Program]) -> Result<GuestImage> {
        let mut image = Initramfs::new();
        image.file(init, "/init")?;
        for &program in programs {
            self.add_program(program, &mut image)?;
        }
        let mut own = Vec::new();
        let hold = programs.contains(&Program::Hold).then_some(module_build::HOLD_MODULE);
        for source in [module_build::LOAD_MODULE].into_iter().chain(hold) {
            match module_build::build(&self.cache, kernel, &source, &self.cx) {
                Ok(path) => {
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
        self.write(kernel, image, &CHANNEL_MODULES, &own)
    }

    /// Puts `program` into `image`.
    fn add_program(&self, program: Program, image: &mut Initramfs) -> Result<()> {
        let root = match program {
            // A kernel module; `guest` adds it, since it is built for one kernel.
            Program::Hold => return Ok(()),
            Program::Apache => tools::web(&self.cache, &self.cx)?,
            Program::Dbench => tools::programs(&self.cache, &self.cx)?,
        };
        let programs: Vec<PathBuf> = program.debian_programs().iter().map(PathBuf::from).collect();
        for file in closure::closure(&root, &programs, &self.cx)? {
            image.file(&file.host, &file.inside)?;
        }
        for path in program.debian_data() {
            image.file(&root.join(&path[1..]), path)?;
        }
        Ok(())
    }

    /// An initramfs with the init at `init` for a lab host, with `files` and KVM's modules in it.
    fn host(&self, kernel: &Kernel, init: &Path, files: &[File]) -> Result<GuestImage> {
        let mut image = Initramfs::new();
        image.file(init, "/init")?;
        for file in files {
            image.file(&file.host, &file.inside)?;
        }
        // QEMU keeps sockets and unlinked files there.
        image.bytes("/var/tmp/.keep", "", 0o644);
        let modules = ["irqbypass", "kvm", "kvm_amd"].into_iter();
        // Under KVM a lab host has this machine's kind of virtualization, under TCG AMD's.
        let intel = fs::read_to_string("/proc/cpuinfo").is_ok_and(|t| t.contains("GenuineIntel"));
        let modules = modules.chain(intel.then_some("kvm_intel"));
        let wanted: Vec<&str> = CHANNEL_MODULES.into_iter().chain(modules).collect();
        self.write(kernel, image, &wanted, &[])
    }

    /// `own`: modules of ours, already in `image`, that are loaded after `modules`.
    fn write(
        &self,
        kernel: &Kernel,
        mut image: Initramfs,
        modules: &[&str],
        own: &[String],
    ) -> Result<GuestImage> {
        self.cx.progress.step(&format!("writing an initramfs for {}", kernel.release));
        let mut list = String::new();
        for module in module_order::load_order(kernel, modules, &self.cx)? {
            let path = format!("{MODULE_DIR}/{}.ko", module.name);
            list += &format!("{path}\n");
            image.bytes(path, module.data, 0o644);
        }
        own.iter().for_each(|path| list += &format!("{path}\n"));
        image.bytes(MODULES, list, 0o644);
        let file =
            tempfile::tempfile_in(self.cache.root()).map_err(Error::io(self.cache.root()))?;
        let initrd = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        image.write_to(&file, self.cache.root())?;
        Ok(GuestImage {
            release: kernel.release.clone(),
            kernel: kernels::unpacked(&self.cache, kernel, &self.cx)?,
            vmlinuz: kernel.vmlinuz.clone(),
            initrd,
            _file: Some(Arc::new(file)),
        })
    }
}

/// The init: `$REPRIEVE_INIT`, else the file beside this program, else in `../lib/reprieve`.
fn init_binary(cx: &Context) -> Result<PathBuf> {
    let path = find_init()?;
    // A kernel that cannot start it says only that there is none.
    if closure::is_static(&path, cx)? {
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
fn portable_self(cx: &Context) -> Result<(Vec<File>, Vec<String>)> {
    let program = own_path()?;
    let prefix = Path::new("/lib/reprieve/program");
    let mut files = Vec::new();
    let mut dirs: Vec<String> = Vec::new();
    let mut loader = None;
    for file in closure::closure(Path::new("/"), std::slice::from_ref(&program), cx)? {
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
