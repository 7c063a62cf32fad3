// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program inside a lab host: it uses KVM, and writes messages instead of results.

use crate::error::Error;
use crate::execute::{self, Context};
use crate::host::Logs;
use crate::host::Messages;
use crate::host::{self, Message};
use crate::host_scheduler::HostScheduler;
use crate::images::ImageSet;
use crate::plan::Plan;
use crate::signals::cancel_on_signal;
use crate::vm::Accel;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Executes the plan and writes each record as a message.
pub fn execute(plan: &str, from: u32, calibrated: bool, images: &str, logs: &Path) -> Result<()> {
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
        scheduler: &HostScheduler,
        again: &host::told_again,
        calibrated,
        cgroups: true,
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

pub fn probe(images: &str) -> Result<()> {
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    Ok(host::prove_kvm(&images, logs.path(), &cancel_on_signal()?)?)
}
