// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the VMs of a plan run: on this machine under KVM or TCG, or inside a lab host.
//!
//! A `/dev/kvm` that exists may be unable to run a stock kernel. So a mode is chosen only after a
//! VM has booted in it, within a time limit.

mod bed;
mod info;
mod lab_host;
mod messages;
mod noise;
mod other_work;
mod plan_host;

pub use bed::Bed;
pub use info::{free_memory_mib, info};
pub use lab_host::{LabHost, Message, SIGN_OF_LIFE, told_again};
pub use messages::{Logs, Messages};
pub use noise::MOST_AGAIN;
pub use plan_host::{BOOT_LIMIT, PlanHost};

use crate::error::{Error, Result};
use crate::images::{GuestImage, ImageSet};
use crate::limit::scaled;
use crate::policy::Need;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::vm::{Accel, Config, Vm};
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// How long a guest that proves KVM may take to boot. A real KVM takes 1 s, one inside a TCG lab
/// host 6 to 12 s.
const PROOF_LIMIT: Duration = Duration::from_secs(45);

/// The same where the CPU shows no hardware virtualization: whatever `/dev/kvm` is there, it is
/// rarely one that works, and every run would wait for it. Not scaled: to find no KVM is no error.
const DOUBTFUL_PROOF_LIMIT: Duration = Duration::from_secs(10);

/// A directory for the console logs of a command without results. It goes at the end, unless it is
/// kept.
///
/// # Errors
/// [`Error::Io`] if it cannot be made.
pub fn log_directory() -> Result<TempDir> {
    let named = tempfile::Builder::new().prefix("reprieve-lab-").tempdir();
    named.map_err(Error::io(std::env::temp_dir()))
}

/// The part of the run that the code of this folder needs to know.
#[derive(Clone, Copy)]
pub struct RunContext<'a> {
    pub set: &'a ImageSet,
    /// Directory for console logs.
    pub logs: &'a Path,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// The demands of all plans' policies on the host's kernel.
    pub need: Need,
    /// Whether a VM has a limit of CPU time.
    pub limits: bool,
    /// Whether VMs will be booted: then a lab host has to prove that KVM works in it.
    pub vms: bool,
}

/// The modes that the user can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Auto,
    Kvm,
    Nested,
    Tcg,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Auto, Mode::Kvm, Mode::Nested, Mode::Tcg];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Kvm => "kvm",
            Mode::Nested => "nested",
            Mode::Tcg => "tcg",
        }
    }
}

/// Boots a stock guest under KVM on this machine.
///
/// # Errors
/// The reason why that does not work.
pub fn prove_kvm(images: &ImageSet, logs: &Path, cancel: &Cancel) -> Result<()> {
    let device = "/dev/kvm";
    if let Err(error) = OpenOptions::new().read(true).write(true).open(device) {
        return Err(Error::Other(format!("{device} cannot be opened ({error})")));
    }
    let image = any_guest(images)?;
    let config = Config::new("probe", Accel::Kvm, image, logs.join("probe.log"));
    let limit = if info::has_virtualization() { scaled(PROOF_LIMIT) } else { DOUBTFUL_PROOF_LIMIT };
    let proof = Vm::boot(&config, &images.qemu, limit, cancel).map(drop);
    // The error has their last lines; in the logs of a run, the failed probe would look like a
    // failure of the run.
    for log in [config.console.with_extension("qemu.log"), config.console] {
        let _ = std::fs::remove_file(log);
    }
    match proof {
        Ok(()) => Ok(()),
        Err(Error::Cancelled) => Err(Error::Cancelled),
        Err(Error::Timeout { after, .. }) => Err(Error::Other(format!(
            "{device} opens but boots no stock kernel within {} s",
            after.as_secs()
        ))),
        Err(error) => {
            let brief = error.without_log().brief();
            Err(Error::Other(format!("{device} opens but runs no stock kernel ({brief})")))
        }
    }
}

fn any_guest(images: &ImageSet) -> Result<&GuestImage> {
    let first = images.guests.values().next();
    first.ok_or_else(|| Error::missing("a guest image", "ask for a guest kernel"))
}

/// The host of the VMs, as it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub kind: HostKind,
    /// The reason, for the user and the report.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    Direct(Accel),
    /// A lab host run by the given accelerator.
    LabHost(Accel),
}

/// Resolves the mode of `bed`. `Auto` prefers KVM on this machine, then a lab host. Only its boot
/// proves a lab host, so the caller falls back to `Direct(Tcg)` when it does not boot.
pub fn choose(bed: &Bed, run: &RunContext) -> Result<Choice> {
    bed.check()?;
    let mode = if bed.needs_lab_host() { Mode::Nested } else { bed.mode };
    let choice = |kind, why: String| Ok(Choice { kind, why });
    if mode == Mode::Tcg {
        return choice(HostKind::Direct(Accel::Tcg), "asked for".into());
    }
    if let Some(why) = bed.needs_tcg() {
        return choice(HostKind::LabHost(Accel::Tcg), why);
    }
    run.progress.step("checking whether KVM works here");
    let kvm = prove_kvm(run.set, run.logs, run.cancel);
    if let Err(Error::Cancelled) = kvm {
        return Err(Error::Cancelled);
    }
    match (mode, kvm) {
        (Mode::Kvm, Ok(())) => choice(HostKind::Direct(Accel::Kvm), "asked for".into()),
        (Mode::Kvm, Err(error)) => Err(Error::Other(format!(
            "--host kvm: {error}; use --host nested, which needs no KVM, or --host tcg"
        ))),
        (Mode::Auto, Ok(())) => choice(HostKind::Direct(Accel::Kvm), "KVM works here".into()),
        (Mode::Auto, Err(error)) => {
            choice(HostKind::LabHost(Accel::Tcg), format!("no KVM here: {error}"))
        }
        (_, Ok(())) => {
            choice(HostKind::LabHost(Accel::Kvm), "asked for; KVM carries the lab host".into())
        }
        (_, Err(error)) => choice(
            HostKind::LabHost(Accel::Tcg),
            format!("asked for; TCG carries the lab host: {error}"),
        ),
    }
}
