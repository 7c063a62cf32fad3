// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests for the checks, and a `watch` for each.

use crate::ebpf_watcher::Watched;
use crate::error::Error;
use crate::images::{GuestImage, ImageSet};
use crate::limit::scaled;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::vm::{Accel, Config, Vm, allowed_cpus};
use anyhow::{Context as _, Result, anyhow};
use reprieve_init::protocol::{Command, Event, Measure, Workload};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BOOT_LIMIT: Duration = Duration::from_secs(180);
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// Far beyond any file that a check reads.
const FILE_MAX: usize = 1 << 20;

/// How long it may take until `watch` sees a running guest. Not a claim about how long it takes:
/// `attach` measures that.
const WATCH_LIMIT: Duration = Duration::from_secs(30);

/// The kernel and the accelerator of the checks' guests.
pub struct GuestSetup<'a> {
    set: &'a ImageSet,
    image: &'a GuestImage,
    accel: Accel,
    logs: &'a Path,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
}

impl<'a> GuestSetup<'a> {
    /// For guests with the kernel that `set` lists as `kernel`.
    pub fn new(
        set: &'a ImageSet,
        kernel: &str,
        accel: Accel,
        logs: &'a Path,
        progress: &'a dyn Progress,
        cancel: &'a Cancel,
    ) -> Result<GuestSetup<'a>> {
        let image = set.guests.get(kernel);
        let image = image.ok_or_else(|| anyhow!("no image of guest kernel {kernel}"))?;
        Ok(GuestSetup { set, image, accel, logs, progress, cancel })
    }

    pub fn boot(&self, name: &str, vcpus: u32, memory_mib: u64, args: &str) -> Result<Vm> {
        self.boot_with_spare(name, vcpus, 0, memory_mib, args)
    }

    /// With so many vCPUs that can be added later.
    pub fn boot_with_spare(
        &self,
        name: &str,
        vcpus: u32,
        spare_vcpus: u32,
        memory_mib: u64,
        args: &str,
    ) -> Result<Vm> {
        self.progress.step(&format!("booting {name} ({}, {vcpus} vCPUs)", self.image.release));
        let config = |attempt| Config {
            vcpus,
            spare_vcpus,
            memory_mib,
            args: args.into(),
            ..Config::new(name, self.accel, self.image, self.console_log(name, attempt))
        };
        let failed = |attempt, error: &Error| {
            self.progress.notice(&format!("boot {attempt} of {name} failed: {error}"));
            Ok(())
        };
        let qemu = &self.set.qemu;
        Ok(Vm::boot_with_retries(config, qemu, BOOT_LIMIT, self.cancel, failed)?)
    }

    fn console_log(&self, name: &str, attempt: u32) -> PathBuf {
        self.logs.join(format!("{name}.{attempt}.log"))
    }

    /// The console output of the guest called `name`.
    pub fn console(&self, name: &str) -> Result<String> {
        // The last that was tried is the one that runs.
        let logs = (1..).map(|attempt| self.console_log(name, attempt));
        let path = logs.take_while(|path| path.exists()).last();
        let path = path.ok_or_else(|| anyhow!("{name} has no console"))?;
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Reads a file of the guest, of at most [`FILE_MAX`] bytes.
    pub fn read(&self, vm: &mut Vm, path: &str) -> Result<String> {
        let mut text = String::new();
        vm.call(&Command::Read { path: path.into() }, scaled(CALL_LIMIT), self.cancel, |event| {
            if let Event::Content { text: part } = event {
                text += &part;
            }
            if text.len() > FILE_MAX {
                return Err(Error::Other(format!("{path} of a guest: more than {FILE_MAX} bytes")));
            }
            Ok(())
        })?;
        Ok(text)
    }

    /// Whether the guests run on KVM.
    pub fn on_kvm(&self) -> bool {
        self.accel == Accel::Kvm
    }

    /// Tells the guest to end its workload and to prepare `workload`.
    pub fn prepare(&self, vm: &mut Vm, workload: Workload, measure: Option<Measure>) -> Result<()> {
        self.call(vm, &Command::Prepare { workload, measure })
    }

    /// Lets the guest do `workload` from now on, in place of another.
    pub fn start(&self, vm: &mut Vm, workload: Workload) -> Result<()> {
        self.prepare(vm, workload, None)?;
        self.call(vm, &Command::Start)
    }

    /// Sends a command and ignores its events, except notices: they report something that does not
    /// work, so a notice is an error here.
    pub fn call(&self, vm: &mut Vm, command: &Command) -> Result<()> {
        let name = vm.name.clone();
        vm.call(command, scaled(CALL_LIMIT), self.cancel, |event| match event {
            Event::Notice { text } => Err(Error::Other(format!("{name}: {text}"))),
            _ => Ok(()),
        })?;
        Ok(())
    }

    /// Watches `vm`, without events.
    pub fn watch(&self, vm: &Vm) -> Result<Watched> {
        self.open(vm, false)
    }

    /// Watches `vm`, with events.
    pub fn watch_events(&self, vm: &Vm) -> Result<Watched> {
        self.open(vm, true)
    }

    fn open(&self, vm: &Vm, events: bool) -> Result<Watched> {
        Watched::open(vm.threads().pid(), events, scaled(WATCH_LIMIT), self.cancel)
            .map_err(|why| anyhow!("{why}"))
            .with_context(|| format!("watching {}", vm.name))
    }

    /// Resets the VM under whatever it does, and waits for the init of its new boot.
    pub fn reset(&self, vm: &mut Vm) -> Result<()> {
        Ok(vm.reset(scaled(BOOT_LIMIT), self.cancel)?)
    }

    /// Waits for at most `limit` of an ordinary machine until that `is` so; says whether it is.
    pub fn wait_until(&self, limit: Duration, is: impl FnMut() -> Result<bool>) -> Result<bool> {
        self.cancel.wait_until(scaled(limit), is)
    }

    pub fn sleep(&self, time: Duration) -> Result<()> {
        Ok(self.cancel.sleep(time)?)
    }
}

/// The first two CPUs that this process may use (one, if it may use but one), as indices into the
/// list of those CPUs. The vCPUs of a check share them, so that they are overcommitted.
pub fn few_cpus() -> Vec<u32> {
    (0..allowed_cpus().len().min(2) as u32).collect()
}
