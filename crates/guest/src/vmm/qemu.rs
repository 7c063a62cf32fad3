// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU, x86-64 PCs.
//!
//! Anybody may run a program with QEMU's name. So nothing that its command line says reaches beyond
//! its own process: its vCPUs are threads of it, and the guest's RAM is memory of it.

use super::cmdline::Options;
use super::process::Process;
use super::{Accel, VcpuThread, Vm, maps, ram, threads};
use crate::error::{Error, Result};
use std::fs;
use std::path::Path;

/// Names of QEMU's programs for x86-64 guests.
const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "qemu-kvm", "qemu-system-i386", "kvm"];

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

/// Whether the process is one.
pub fn owns(process: &Process) -> bool {
    let program = process.program();
    // A QEMU that brings its own libraries is started through their dynamic loader.
    let loaded = program.starts_with("ld-linux") || program.starts_with("ld-");
    let names = process.argv.iter().take(if loaded { 8 } else { 1 });
    let base =
        |path: &String| Path::new(path).file_name().map(|n| n.to_string_lossy().into_owned());
    let known =
        |name: &str| PROGRAMS.contains(&name.trim_start_matches('.').trim_end_matches("-wrapped"));
    let named = known(&program) || (loaded && names.filter_map(base).any(|name| known(&name)));
    named && !is_probe(&process.argv)
}

/// The VM's name, without the rest.
pub fn name_of(process: &Process) -> Option<String> {
    Options::parse(&process.argv).name
}

/// Everything about the VM of the process.
///
/// # Errors
/// If it is ending, if this process may not look into it, or if its RAM is not found.
pub fn describe(process: &Process) -> Result<Vm> {
    let pid = process.pid;
    let options = Options::parse(&process.argv);
    let mappings = maps::read(pid)?;
    let accel = accel(pid)?;
    let mut layouts = ram::layouts(&options, &mappings);
    let mut vcpus = threads::vcpus(pid, accel, options.vcpus);
    vcpus.sort_by_key(|v: &VcpuThread| v.index);
    if layouts.is_empty() {
        let mib = options.memory >> 20;
        let reason = format!("no mapping of the {mib} MiB that its command line names");
        return Err(Error::Layout { pid, reason });
    }
    let vm = Vm {
        pid,
        start_time: process.start_time,
        name: options.name,
        accel,
        memory: layouts.remove(0),
        vcpus,
        encrypted: options.confidential,
        alternatives: layouts,
    };
    if vm.exists() { Ok(vm) } else { Err(Error::Gone { pid }) }
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
            assert_eq!(owns(&process(&argv)), is_vm, "{machine}");
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
            assert!(owns(&process(argv)), "{argv:?}");
        }
        for argv in [
            &["vi", "qemu-system-x86_64"][..],
            &["/bin/sh", "-c", "qemu-kvm"],
            &["qemu-system-arm"],
        ] {
            assert!(!owns(&process(argv)), "{argv:?}");
        }
    }
}
