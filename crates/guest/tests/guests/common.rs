// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real guests to look into: the lab's kernels, init and QEMU, under TCG.

use crate::patience::{self, NO_LIMIT};
use reprieve_guest::{Guest, vmm};
use reprieve_lab::images::{ImageSet, Images};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Event};
use reprieve_lab::vm::{Accel, Config, Vm};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// Held by each test that runs a VM: VMs of several tests would compete for the CPUs.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// A directory that is removed when this is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "reprieve-guest-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    /// A name that no other VM on this machine has.
    pub fn name(&self) -> String {
        self.0.file_name().unwrap().to_str().unwrap().into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// QEMU and a guest with `kernel`; what the cache lacks is built.
pub fn images(kernel: &str) -> ImageSet {
    let cancel = Cancel::default();
    let images = Images::open(&cancel, &Silent).unwrap();
    images.prepare(&[kernel.to_owned()], &[]).unwrap()
}

/// A booted guest of the lab.
pub struct LabGuest {
    pub vm: Vm,
    /// Before it was booted.
    pub started: Instant,
    pub scratch: Scratch,
}

/// Boots `kernel` with `vcpus` and `memory_mib`.
pub fn boot(kernel: &str, vcpus: u32, memory_mib: u64, args: &str) -> LabGuest {
    let scratch = Scratch::new();
    let set = images(kernel);
    let image = &set.guests[kernel];
    let config = Config {
        name: scratch.name(),
        accel: Accel::Tcg,
        dilation: Default::default(),
        cpu: None,
        vcpus,
        spare_vcpus: 0,
        memory_mib,
        // Users' guests have KASLR.
        kernel: image.vmlinuz.clone(),
        initrd: image.initrd.clone(),
        args: args.into(),
        console: scratch.0.join("console"),
        region: false,
    };
    let started = Instant::now();
    LabGuest { vm: patience::boot(&config, &set.qemu), started, scratch }
}

impl LabGuest {
    pub fn attach(&self) -> Guest {
        Guest::attach(&self.find()).unwrap()
    }

    pub fn find(&self) -> vmm::Vm {
        let vm = vmm::find(&self.scratch.name()).unwrap();
        assert_eq!(vm.pid, self.vm.pid());
        vm
    }

    /// The content of a file in the guest.
    pub fn read(&mut self, path: &str) -> String {
        let mut text = String::new();
        let command = Command::Read { path: path.into() };
        let take = |event| {
            if let Event::Content { text: part } = event {
                text += &part;
            }
            Ok(())
        };
        self.vm.call(&command, NO_LIMIT, &Cancel::default(), take).unwrap();
        text
    }

    pub fn call(&mut self, command: &Command, each: impl FnMut(Event)) -> Event {
        let mut each = each;
        let each = |event| {
            each(event);
            Ok(())
        };
        self.vm.call(command, NO_LIMIT, &Cancel::default(), each).unwrap()
    }
}

/// Resident memory of a process, KiB.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
