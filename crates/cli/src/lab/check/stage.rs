// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the checks have in common: guests, and `watch` looking at them.

use crate::lab::outside::Watched;
use anyhow::{Context as _, Result, anyhow};
use reprieve_lab::error::Error;
use reprieve_lab::images::{GuestImage, ImageSet};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Progress;
use reprieve_lab::protocol::{Command, Event, Measure, Workload};
use reprieve_lab::vm::{Accel, Config, Vm, allowed_cpus};
use std::path::Path;
use std::time::Duration;

/// Boots of a guest that are tried.
const TRIES: u32 = 3;

const BOOT_LIMIT: Duration = Duration::from_secs(180);
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// Until a guest that runs is seen from outside. Not a claim about how long it takes: `attach` measures that.
const WATCH_LIMIT: Duration = Duration::from_secs(30);

/// Where guests run.
pub struct Stage<'a> {
    set: &'a ImageSet,
    image: &'a GuestImage,
    accel: Accel,
    logs: &'a Path,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
}

impl<'a> Stage<'a> {
    /// For guests with the kernel of that name in `set`.
    pub fn new(
        set: &'a ImageSet,
        kernel: &str,
        accel: Accel,
        logs: &'a Path,
        progress: &'a dyn Progress,
        cancel: &'a Cancel,
    ) -> Result<Stage<'a>> {
        let image = set.guests.get(kernel);
        let image = image.ok_or_else(|| anyhow!("no image of guest kernel {kernel}"))?;
        Ok(Stage { set, image, accel, logs, progress, cancel })
    }

    pub fn boot(&self, name: &str, vcpus: u32, memory_mib: u64, args: &str) -> Result<Vm> {
        self.progress.step(&format!("booting {name} ({}, {vcpus} vCPUs)", self.image.release));
        let mut tried = 1;
        loop {
            let config = Config {
                name: name.into(),
                accel: self.accel,
                cpu: None,
                vcpus,
                memory_mib,
                kernel: self.image.kernel.clone(),
                initrd: self.image.initrd.clone(),
                args: args.into(),
                console: self.logs.join(format!("{name}.{tried}.log")),
            };
            match Vm::boot(&config, &self.set.qemu, BOOT_LIMIT, self.cancel) {
                Err(error) if error.is_crash() && tried < TRIES => {
                    self.progress.notice(&format!("boot {tried} of {name} failed: {error}"));
                    tried += 1;
                }
                booted => return Ok(booted?),
            }
        }
    }

    /// What the guest called `name` has written to its console.
    pub fn console(&self, name: &str) -> Result<String> {
        // The last that was tried is the one that runs.
        let path = (1..=TRIES).rev().map(|tried| self.logs.join(format!("{name}.{tried}.log")));
        let path = path.into_iter().find(|path| path.exists());
        let path = path.ok_or_else(|| anyhow!("{name} has no console"))?;
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// A file of the guest's.
    pub fn read(&self, vm: &mut Vm, path: &str) -> Result<String> {
        let mut text = String::new();
        vm.call(&Command::Read { path: path.into() }, CALL_LIMIT, self.cancel, |event| {
            if let Event::Content { text: part } = event {
                text += &part;
            }
            Ok(())
        })?;
        Ok(text)
    }

    /// Whether the guests run on KVM.
    pub fn on_kvm(&self) -> bool {
        self.accel == Accel::Kvm
    }

    /// Has the guest prepare `workload`, ending what it did before.
    pub fn prepare(&self, vm: &mut Vm, workload: Workload, measure: Option<Measure>) -> Result<()> {
        self.call(vm, &Command::Prepare { workload, measure })
    }

    /// A command whose events are of no interest; a notice is one of something that does not work, and fails here.
    pub fn call(&self, vm: &mut Vm, command: &Command) -> Result<()> {
        let name = vm.name.clone();
        vm.call(command, CALL_LIMIT, self.cancel, |event| match event {
            Event::Notice { text } => Err(Error::Other(format!("{name}: {text}"))),
            _ => Ok(()),
        })?;
        Ok(())
    }

    /// Looks at `vm` with `watch`.
    pub fn watch(&self, vm: &Vm) -> Result<Watched> {
        self.open(vm, false)
    }

    /// The same, with its events.
    pub fn watch_events(&self, vm: &Vm) -> Result<Watched> {
        self.open(vm, true)
    }

    fn open(&self, vm: &Vm, events: bool) -> Result<Watched> {
        Watched::open(vm.threads().pid(), events, WATCH_LIMIT, self.cancel)
            .map_err(|why| anyhow!("{why}"))
            .with_context(|| format!("watching {}", vm.name))
    }

    pub fn sleep(&self, time: Duration) -> Result<()> {
        Ok(self.cancel.sleep(time)?)
    }
}

/// The first CPUs that this process may use, by their index among those: two if there are as many. What shall be overcommitted shares them.
pub fn few_cpus() -> Vec<u32> {
    (0..allowed_cpus().len().min(2) as u32).collect()
}
