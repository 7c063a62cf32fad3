// SPDX-License-Identifier: MIT OR Apache-2.0
//! VMMs whose guests are not read. Their vCPUs are found by the names of their threads, so when
//! they are off their CPUs can be seen.

use super::process::Process;
use super::{Kind, VcpuThread, Vm, Vmm, threads};
use crate::error::{Error, Result};

pub struct Other;

/// Program, how the names of its vCPUs' threads begin, and the option with the VM's name.
const KNOWN: [(&str, &str, &str); 3] = [
    ("cloud-hypervisor", "vcpu", ""),
    ("firecracker", "fc_vcpu ", "--id"),
    ("crosvm", "crosvm_vcpu", "--name"),
];

fn known(process: &Process) -> Option<(&'static str, &'static str, &'static str)> {
    let program = process.program();
    KNOWN.into_iter().find(|(name, ..)| *name == program)
}

fn vcpus(pid: u32, prefix: &str) -> Vec<VcpuThread> {
    threads::by_name(pid, |name| name.strip_prefix(prefix)?.parse().ok())
}

impl Vmm for Other {
    fn name(&self) -> &'static str {
        "another VMM"
    }

    fn owns(&self, process: &Process) -> bool {
        known(process).is_some()
    }

    fn describe(&self, process: &Process) -> Result<Vm> {
        let pid = process.pid;
        let (program, prefix, _) = known(process).ok_or(Error::Gone { pid })?;
        let vm = Vm {
            pid,
            start_time: process.start_time,
            name: self.name_of(process),
            kind: Kind::Other(program),
            memory: Vec::new(),
            vcpus: vcpus(pid, prefix),
            encrypted: None,
            alternatives: Vec::new(),
        };
        if vm.exists() { Ok(vm) } else { Err(Error::Gone { pid }) }
    }

    fn name_of(&self, process: &Process) -> Option<String> {
        let (_, _, option) = known(process).filter(|(.., option)| !option.is_empty())?;
        let mut words = process.argv.iter();
        words
            .find_map(|word| match word.strip_prefix(option) {
                Some("") => Some(None),
                Some(rest) => rest.strip_prefix('=').map(|name| Some(name.to_owned())),
                None => None,
            })?
            .or_else(|| words.next().cloned())
    }

    fn vcpus(&self, vm: &Vm) -> Vec<VcpuThread> {
        let Kind::Other(program) = vm.kind else { return vm.vcpus.clone() };
        let prefix = KNOWN.iter().find(|(name, ..)| *name == program).map(|(_, prefix, _)| prefix);
        prefix.map_or_else(Vec::new, |prefix| vcpus(vm.pid, prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guest;
    use std::process::Command;

    #[test]
    fn a_vmm_that_cannot_be_read_has_a_name_and_vcpus() {
        // A shell by another name, whose only thread takes a vCPU's.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("firecracker");
        // By another process: one that another test starts would hold the file open for writing.
        let copied = Command::new("cp").arg("/bin/sh").arg(&program).status().unwrap();
        assert!(copied.success());
        let mut child = Command::new(&program)
            .args(["-c", "printf 'fc_vcpu 3' > /proc/self/comm; read never"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&comm).unwrap() != "fc_vcpu 3\n" {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let process = Process::read(child.id()).unwrap();
        let vm = Other.describe(&process).unwrap();
        let refused = Guest::attach(&vm);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Other.owns(&process) && vm.kind == Kind::Other("firecracker"));
        assert_eq!(vm.vcpus, [VcpuThread { index: 3, tid: vm.pid }]);
        assert!(matches!(refused, Err(Error::NotVmm { program, .. }) if program == "firecracker"));
        let named = |words: &[&str]| {
            let argv = words.iter().map(|&word| word.into()).collect();
            Other.name_of(&Process { argv, ..process.clone() })
        };
        // The program is that of this process, which has ended: of the first word.
        assert_eq!(named(&["firecracker", "--id", "db"]).as_deref(), Some("db"));
        assert_eq!(named(&["crosvm", "run", "--name=web"]).as_deref(), Some("web"));
        assert_eq!(named(&["cloud-hypervisor", "--id", "db"]), None);
        assert_eq!(named(&["firecracker"]), None);
    }
}
