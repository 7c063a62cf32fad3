// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU, x86-64 PCs.
//!
//! Whoever runs a program with QEMU's name is asked like QEMU. So nothing that it says reaches
//! beyond its own process: its vCPUs are threads of it, and the guest's RAM is memory of it.

use super::cmdline::Options;
use super::monitor::Monitor;
use super::process::Process;
use super::{Accel, Kind, Segment, VcpuThread, Vm, Vmm, maps, mtree, ram, threads};
use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

pub struct Qemu;

/// Names of QEMU's programs for x86-64 guests.
const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "qemu-kvm", "qemu-system-i386", "kvm"];

/// Monitors that are tried: each may take its time to stay silent.
const MONITORS_MAX: usize = 4;

/// Open files of a VMM that are inspected.
const DESCRIPTORS_MAX: usize = 65536;

/// A QEMU without a machine, which libvirt asks for its features.
fn is_probe(argv: &[String]) -> bool {
    let none = |machine: &String| {
        let kind = machine.split(',').next().unwrap_or_default();
        kind.strip_prefix("type=").unwrap_or(kind) == "none"
    };
    argv.windows(2).any(|words| {
        let option = words[0].trim_start_matches('-');
        words[0].starts_with('-') && matches!(option, "machine" | "M") && none(&words[1])
    })
}

impl Vmm for Qemu {
    fn name(&self) -> &'static str {
        "QEMU"
    }

    fn owns(&self, process: &Process) -> bool {
        let program = process.program();
        // A QEMU that brings its own libraries is started through their dynamic loader.
        let loaded = program.starts_with("ld-linux") || program.starts_with("ld-");
        let names = process.argv.iter().take(if loaded { 8 } else { 1 });
        let base =
            |path: &String| Path::new(path).file_name().map(|n| n.to_string_lossy().into_owned());
        let known = |name: &str| {
            PROGRAMS.contains(&name.trim_start_matches('.').trim_end_matches("-wrapped"))
        };
        let named = known(&program) || (loaded && names.filter_map(base).any(|name| known(&name)));
        named && !is_probe(&process.argv)
    }

    fn name_of(&self, process: &Process) -> Option<String> {
        Options::parse(&process.argv).name
    }

    fn describe(&self, process: &Process) -> Result<Vm> {
        let pid = process.pid;
        let options = Options::parse(&process.argv);
        let mappings = maps::read(pid)?;
        let accel = accel(pid)?;
        let mut layouts = ram::layouts(&options, &mappings);
        let (mut vcpus, mut qmp) = (Vec::new(), None);
        for path in options.qmp.iter().take(MONITORS_MAX) {
            let path = seen_by(pid, path);
            // A socket that does not answer is no obstacle.
            let Ok(mut monitor) = Monitor::connect(pid, &path) else { continue };
            let threads = monitor.vcpus().ok();
            vcpus = threads.and_then(|told| threads::of_process(pid, &told)).unwrap_or_default();
            let told = told(&mut monitor, &options, &mappings);
            if let Some(told) = told.filter(|told| ram::are_mapped(told, &mappings)) {
                layouts.retain(|other| *other != told);
                layouts.insert(0, told);
            }
            qmp = Some(path);
            break;
        }
        if vcpus.is_empty() {
            vcpus = threads::vcpus(pid, accel, options.vcpus);
        }
        vcpus.sort_by_key(|v: &VcpuThread| v.index);
        if layouts.is_empty() {
            let mib = options.memory >> 20;
            let reason = format!(
                "no mapping of the {mib} MiB that its command line names, and its monitor does not tell"
            );
            return Err(Error::Layout { pid, reason });
        }
        let vm = Vm {
            pid,
            start_time: process.start_time,
            name: options.name,
            kind: Kind::Qemu(accel),
            memory: layouts.remove(0),
            vcpus,
            qmp,
            encrypted: options.confidential,
            alternatives: layouts,
        };
        if vm.exists() { Ok(vm) } else { Err(Error::Gone { pid }) }
    }

    fn vcpus(&self, vm: &Vm) -> Vec<VcpuThread> {
        let named = threads::named(vm.pid);
        if !named.is_empty() {
            return named;
        }
        let monitor = vm.qmp.as_ref().and_then(|path| Monitor::connect(vm.pid, path).ok());
        let asked = monitor.and_then(|mut monitor| monitor.vcpus().ok());
        let own = asked.and_then(|told| threads::of_process(vm.pid, &told));
        own.filter(|all| !all.is_empty()).unwrap_or_else(|| vm.vcpus.clone())
    }

    fn paused(&self, vm: &Vm) -> Option<bool> {
        Monitor::connect(vm.pid, vm.qmp.as_ref()?).ok()?.paused().ok()
    }
}

/// The accelerator, by the process's open files.
fn accel(pid: u32) -> Result<Accel> {
    let dir = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&dir).map_err(Error::io(dir))?;
    let kvm = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?;
        (link.to_str()? == "anon_inode:kvm-vm").then_some(())
    };
    let found = entries.flatten().take(DESCRIPTORS_MAX).find_map(kvm).is_some();
    Ok(if found { Accel::Kvm } else { Accel::Tcg })
}

/// The layout as QEMU tells it.
fn told(
    monitor: &mut Monitor,
    options: &Options,
    mappings: &[maps::Mapping],
) -> Option<Vec<Segment>> {
    let ranges = mtree::flat_view(&monitor.info("info mtree -f").ok()?);
    let blocks = mtree::ram_blocks(&monitor.info("info ramblock").ok()?);
    mtree::segments(&ranges, &blocks, |block| {
        // QEMU did not print an address: look for a mapping of this block alone.
        let alone = Options { memory: block.len, memory_devices: Vec::new(), ..options.clone() };
        let named = options.backends.iter().find(|b| block.name.ends_with(&b.id));
        let alone = match named {
            Some(backend) => Options { memory_devices: vec![backend.id.clone()], ..alone },
            None => alone,
        };
        ram::layouts(&alone, mappings).first()?.first().map(|s| s.hva)
    })
}

/// `path` in the VMM's own view of the file system, as a path here: it may run in a container or
/// have changed its directory.
fn seen_by(pid: u32, path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(below) => Path::new(&format!("/proc/{pid}/root")).join(below),
        Err(_) => Path::new(&format!("/proc/{pid}/cwd")).join(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(argv: &[&str]) -> Process {
        // No such process, so that the arguments decide.
        Process { pid: u32::MAX, start_time: 1, argv: argv.iter().map(|a| a.to_string()).collect() }
    }

    #[test]
    fn a_qemu_without_a_machine_is_no_vm() {
        for (machine, is_vm) in [
            ("-machine none,accel=kvm:tcg", false),
            ("--machine type=none", false),
            ("-M none", false),
            ("-M q35", true),
            ("-name none", true),
        ] {
            let argv = format!("qemu-system-x86_64 {machine} -nographic");
            let argv: Vec<&str> = argv.split(' ').collect();
            assert_eq!(Qemu.owns(&process(&argv)), is_vm, "{machine}");
        }
    }

    #[test]
    fn qemu_is_recognised_by_its_program() {
        for argv in [
            &["/usr/bin/qemu-system-x86_64", "-m", "1G"][..],
            &["/usr/libexec/qemu-kvm"],
            &[
                "/x/ld-linux-x86-64.so.2",
                "--library-path",
                "/x",
                "/x/qemu-system-x86_64",
                "-m",
                "1G",
            ],
        ] {
            assert!(Qemu.owns(&process(argv)), "{argv:?}");
        }
        for argv in [
            &["vi", "qemu-system-x86_64"][..],
            &["/bin/sh", "-c", "qemu-kvm"],
            &["qemu-system-arm"],
        ] {
            assert!(!Qemu.owns(&process(argv)), "{argv:?}");
        }
    }
}
