// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program inside a lab host: it uses KVM, and writes messages instead of results.

use super::ebpf_watcher::EbpfWatcher;
use super::host_scheduler::HostScheduler;
use crate::progress::Messages;
use crate::signals::cancel_on_signal;
use anyhow::{Context as _, Result};
use reprieve_lab::error::Error;
use reprieve_lab::execute::{self, Context};
use reprieve_lab::host::{self, Message};
use reprieve_lab::images::ImageSet;
use reprieve_lab::plan::Plan;
use reprieve_lab::vm::Accel;
use std::path::{Path, PathBuf};

/// Executes the plan and writes each record as a message.
pub fn execute(plan: &str, from: u32, images: &str, watch: bool, logs: &Path) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("--plan")?;
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = Logs::at(logs)?;
    let cancel = cancel_on_signal()?;
    let context = Context {
        images: &images,
        accel: Accel::Kvm,
        logs: &logs.dir,
        boot_limit: host::BOOT_LIMIT,
        progress: &Messages,
        cancel: &cancel,
        watcher: watch.then_some(&EbpfWatcher),
        scheduler: Some(&HostScheduler),
    };
    let info = host::info("kvm", "inside a lab host", &images.qemu.version);
    let ran = execute::execute(&plan, from, info, &context, &mut |record| {
        Messages::send(&Message::Record { record: Box::new(record) })
            .map_err(Error::io("standard output"))
    });
    logs.send()?;
    if ran.as_ref().is_err_and(Error::is_crash) {
        Messages::send(&Message::GuestsDied)?;
    }
    Ok(ran?)
}

/// The console logs in a lab host. The program outside keeps them at the same path, so that errors
/// name files that are there afterwards.
pub struct Logs {
    pub dir: PathBuf,
    /// Relative paths are below it.
    _current: tempfile::TempDir,
}

impl Logs {
    /// Also lets the program outside know from now on that this one runs: it ends a lab host that
    /// is silent for long.
    pub fn at(dir: &Path) -> Result<Logs> {
        std::thread::spawn(Messages::show_life);
        let current = tempfile::tempdir().context("log directory")?;
        std::env::set_current_dir(current.path()).context("log directory")?;
        std::fs::create_dir_all(dir).with_context(|| format!("log directory {}", dir.display()))?;
        Ok(Logs { dir: dir.into(), _current: current })
    }

    /// Sends those that were not sent yet.
    pub fn send(&self) -> Result<()> {
        for entry in self.dir.read_dir()?.flatten() {
            Messages::send_log(&entry.path())?;
        }
        Ok(())
    }
}

pub fn probe(images: &str) -> Result<()> {
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    Ok(host::prove_kvm(&images, logs.path(), &cancel_on_signal()?)?)
}
