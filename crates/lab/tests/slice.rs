// SPDX-License-Identifier: MIT OR Apache-2.0
//! rseq's newer parts, on a kernel that has them. Debian's kernels do not, so one is built from
//! Debian's source, small and without modules.
//!
//! - Time-slice extensions: the example `slice` of `reprieve-hint` is the first process. Emulated
//!   time goes by instructions: the result does not depend on the machine's speed.
//! - Both modes of rseq: the runtime's torture is the first process. The C library chooses the mode
//!   by the size of the area that it registers.

mod common;

use common::{built, run};
use reprieve_lab::error::{Error, Result};
use reprieve_lab::images::Context;
use reprieve_lab::images::apt::{self, Apt};
use reprieve_lab::images::cache::{Cache, Kind};
use reprieve_lab::images::catalogue;
use reprieve_lab::images::closure;
use reprieve_lab::images::initramfs::Initramfs;
use reprieve_lab::images::key::Key;
use reprieve_lab::images::tools::{self, QemuFiles};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options that `make tinyconfig` lacks.
const CONFIG: &str = "\
CONFIG_64BIT=y
CONFIG_SMP=y
CONFIG_PRINTK=y
CONFIG_TTY=y
CONFIG_SERIAL_8250=y
CONFIG_SERIAL_8250_CONSOLE=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_BINFMT_ELF=y
CONFIG_FUTEX=y
CONFIG_SYSFS=y
CONFIG_PROC_FS=y
CONFIG_MEMBARRIER=y
CONFIG_DEBUG_FS=y
CONFIG_EXPERT=y
CONFIG_MULTIUSER=y
CONFIG_POSIX_TIMERS=y
CONFIG_HIGH_RES_TIMERS=y
CONFIG_ADVISE_SYSCALLS=y
CONFIG_PREEMPT=y
CONFIG_RSEQ=y
CONFIG_RSEQ_SLICE_EXTENSION=y
CONFIG_RSEQ_STATS=y
";

/// A kernel with time-slice extensions.
fn kernel(cache: &Cache, cx: &Context) -> Result<PathBuf> {
    let apt = Apt::open(cache, cx)?;
    let sources = apt.retrying(cache, cx, || apt.find(r"^linux-source-[0-9.]+$", cx))?;
    let newest = sources
        .iter()
        .max_by_key(|source| catalogue::numbers(&source["Version"]))
        .expect("Debian has sources of its kernels");
    let (package, version) = (&newest["Package"], &newest["Version"]);
    assert!(catalogue::numbers(version) >= vec![7, 0], "{version} has no time-slice extensions");
    let key = Key::new().text(CONFIG).text(version).finish();
    let dir = cache.get_or_make(Kind::Tools, &format!("slice-kernel_{key}"), cx, |dir| {
        let wanted = [format!("{package}={version}")];
        let files = apt.retrying(cache, cx, || apt.download(&wanted, &dir.join("deb"), cx))?;
        let source = dir.join("source");
        fs::create_dir(&source).map_err(Error::io(&source))?;
        apt::unpack(&files, &source, cx)?;
        let archive = source.join(format!("usr/src/{package}.tar.xz"));
        let mut tar = Command::new("tar");
        run(tar.arg("-xf").arg(archive).arg("-C").arg(&source), cx.cancel)?;
        let tree = source.join(package);
        let make = |more: &[&str]| {
            let mut make = Command::new("make");
            // `ARCH` or `MAKEFLAGS` of the caller would reach the build.
            make.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
            make.env("LC_ALL", "C").arg("-s").arg("-C").arg(&tree).args(more);
            run(&mut make, cx.cancel)
        };
        make(&["tinyconfig"])?;
        let config = tree.join(".config");
        let tiny = fs::read_to_string(&config).map_err(Error::io(&config))?;
        // The last word counts.
        fs::write(&config, tiny + CONFIG).map_err(Error::io(&config))?;
        make(&["olddefconfig"])?;
        let config = fs::read_to_string(&config).map_err(Error::io(&config))?;
        for line in CONFIG.lines() {
            assert!(config.lines().any(|l| l == line), "{version} does not take {line}");
        }
        let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
        make(&[&format!("-j{jobs}"), "bzImage"])?;
        let built = tree.join("arch/x86/boot/bzImage");
        fs::copy(&built, dir.join("bzImage")).map_err(Error::io(&built))?;
        for used in ["deb", "source"] {
            let used = dir.join(used);
            fs::remove_dir_all(&used).map_err(Error::io(&used))?;
        }
        Ok(())
    })?;
    Ok(dir.join("bzImage"))
}

/// An initramfs with the program and the C library of `root`.
fn initramfs(program: &Path, root: &Path, path: &Path) -> Result<()> {
    const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
    let mut image = Initramfs::new();
    image.file(program, "/init")?;
    image.file(&root.join(LOADER), format!("/{LOADER}"))?;
    let dirs = closure::library_dirs(root);
    for library in ["libc.so.6", "libgcc_s.so.1"] {
        let find = |dir: &PathBuf| {
            let file = root.join(dir.strip_prefix("/").unwrap_or(dir)).join(library);
            file.is_file().then_some(file)
        };
        let file = dirs.iter().find_map(find).expect("programs need it");
        image.file(&file, format!("/lib/{library}"))?;
    }
    image.write(path)
}

/// Boots a program, and the directory of its C library, to the program's end. What it prints.
fn boot(
    init: impl Fn(&Cache, &Context) -> Result<(PathBuf, PathBuf)>,
    machine: &[&str],
    more: &str,
) -> String {
    let cancel = Cancel::default();
    let cx = Context { cancel: &cancel, progress: &Silent };
    let cache = Cache::open().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let initrd = scratch.path().join("initrd");
    let (program, root) = init(&cache, &cx).unwrap();
    initramfs(&program, &root, &initrd).unwrap();
    let qemu = QemuFiles::find(&cache, &cx).unwrap().qemu;
    let mut vm = Command::new(&qemu.argv[0]);
    vm.args(&qemu.argv[1..]).envs(qemu.env.iter().map(|(k, v)| (k, v)));
    vm.args(["-accel", "tcg", "-nodefaults", "-no-reboot", "-display", "none"]).args(machine);
    let line = format!("console=ttyS0 panic=-1 reboot=t {more}");
    vm.args(["-serial", "stdio", "-append", &line]);
    vm.arg("-kernel").arg(kernel(&cache, &cx).unwrap()).arg("-initrd").arg(&initrd);
    let output = run(&mut vm, &cancel).unwrap().replace('\r', "");
    println!("{output}");
    output
}

/// Sections restart in the mode that a C library asks for by a small area, and in the one that it
/// asks for by a large one: before glibc 2.41 the area has 32 bytes.
#[test]
#[ignore = "builds a kernel: make test-slice, make test-lab"]
fn torture_in_both_modes_of_rseq() {
    const TORTURE: [&str; 6] = ["test", "--no-run", "--package", "reprieve", "--test", "torture"];
    let mut sizes = vec![];
    for own in [false, true] {
        let output = boot(
            |cache, cx| {
                let root = if own { PathBuf::from("/") } else { tools::programs(cache, cx)? };
                Ok((built(&TORTURE, cx.cancel)?.remove("torture").unwrap(), root))
            },
            &["-smp", "2,sockets=2", "-m", "1024"],
            "REPRIEVE_TORTURE=20 -- --nocapture",
        );
        assert!(output.contains("test result: ok. 1 passed"), "own C library: {own}");
        let restarts = |line: &str| -> Option<u64> {
            line.split(", ").find_map(|word| word.strip_suffix(" restarts"))?.parse().ok()
        };
        assert!(output.lines().filter_map(restarts).sum::<u64>() > 0, "no section restarts");
        sizes.push(numbers(&output, "rseq area:", 0)[0]);
    }
    println!("areas of {sizes:?} bytes");
    if sizes[1] > 32 {
        println!("SKIPPED: the legacy mode takes a machine whose glibc is older than 2.41");
    }
    assert!(sizes[0] > 32, "no C library here asks for the newer mode: {sizes:?}");
}

/// The numbers in a line that begins with `label`, of its `nth` occurrence.
fn numbers(output: &str, label: &str, nth: usize) -> Vec<u64> {
    let line = output.lines().filter(|line| line.starts_with(label)).nth(nth);
    let line = line.unwrap_or_else(|| panic!("no {label} {nth} in:\n{output}"));
    let words = line[label.len()..].split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
#[ignore = "builds a kernel: make test-slice, make test-lab"]
fn sections_get_more_time() {
    const SLICE: [&str; 5] = ["build", "--package", "reprieve-hint", "--example", "slice"];
    let output = boot(
        |cache, cx| {
            let program = built(&SLICE, cx.cancel)?.remove("slice").unwrap();
            Ok((program, tools::programs(cache, cx)?))
        },
        &["-icount", "shift=4", "-m", "256"],
        "",
    );

    let preemptions = |round| numbers(&output, round, 0);
    let (asked, not) = (preemptions("non-preemptable:"), preemptions("preemptable:"));
    assert!(not[1] * 10 > not[0], "sections are too short to be preempted in");
    assert!(asked[1] * 10 < not[1], "of {} preemptions in sections, {} remain", not[1], asked[1]);
    // The kernel's own counts: before, between and after the rounds.
    let counts = |label| [0, 1, 2, 3].map(|nth| numbers(&output, label, nth)[0]);
    let (granted, yielded) = (counts("kernel: sgrant:"), counts("kernel: syield:"));
    let expired = counts("kernel: sexpir:");
    assert_eq!((granted[1], yielded[1]), (0, 0), "nobody had asked");
    assert!(yielded[2] * 10 > granted[2] * 9, "who is granted more gives it back");
    assert!(granted[3] > granted[2] && expired[3] > expired[2], "it is not granted for ever");
    assert_eq!(preemptions("endless:")[0], not[0], "the other thread had its turns");
}
