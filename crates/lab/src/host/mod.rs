// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the VMs of a plan run: on this machine under KVM or TCG, or inside a lab host.
//!
//! What a machine claims proves nothing (`/dev/kvm` can be there and unable to run a stock kernel), so a mode is chosen by booting
//! something in it, with a time limit.

mod carrier;
mod info;
mod nested;
mod quiet;

pub use carrier::{BOOT_LIMIT, Carrier};
pub use info::{cpus, free_memory_mib, info};
pub use nested::{LabHost, LabHostImage, Message};

use crate::error::{Error, Result};
use crate::images::{GuestImage, ImageSet};
use crate::outside::Watcher;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::vm::{Accel, Config, Vm};
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

/// How long a guest that proves KVM may take to boot. A real KVM takes 1 s, one inside a TCG lab host 6 to 12 s.
const PROOF_LIMIT: Duration = Duration::from_secs(45);

/// The same where the CPU shows no hardware virtualization: whatever `/dev/kvm` is there, it is rarely one that works, and every run would
/// wait for it.
const DOUBTFUL_PROOF_LIMIT: Duration = Duration::from_secs(10);

/// What everything here needs of the run around it.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub set: &'a ImageSet,
    /// Directory for console logs.
    pub logs: &'a Path,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// Looks into the guest under test of runs on this machine; in a lab host, the program inside brings its own.
    pub watcher: Option<&'a dyn Watcher>,
}

/// What the user can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Auto,
    Kvm,
    Nested,
    Tcg,
}

/// Whether KVM runs a stock guest on this machine.
///
/// # Errors
/// Why it does not.
pub fn prove_kvm(images: &ImageSet, logs: &Path, cancel: &Cancel) -> Result<()> {
    let device = "/dev/kvm";
    if let Err(error) = OpenOptions::new().read(true).write(true).open(device) {
        return Err(Error::Other(format!("{device} cannot be opened ({error})")));
    }
    let image = any_guest(images)?;
    let config = Config {
        name: "probe".into(),
        accel: Accel::Kvm,
        cpu: None,
        vcpus: 1,
        memory_mib: 256,
        kernel: image.kernel.clone(),
        initrd: image.initrd.clone(),
        args: String::new(),
        console: logs.join("probe.log"),
    };
    let limit = if info::has_virtualization() { PROOF_LIMIT } else { DOUBTFUL_PROOF_LIMIT };
    let proof = Vm::boot(&config, &images.qemu, limit, cancel).map(drop);
    // What it says is in the error; a run's own logs should not begin with a failure that is none.
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
            let brief = error.brief();
            Err(Error::Other(format!("{device} opens but runs no stock kernel ({brief})")))
        }
    }
}

fn any_guest(images: &ImageSet) -> Result<&GuestImage> {
    let first = images.guests.values().next();
    first.ok_or_else(|| Error::missing("a guest image", "ask for a guest kernel"))
}

/// Directly or in a lab host, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub place: Place,
    /// Why, for the user and the report.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Direct(Accel),
    /// A lab host run by the given accelerator.
    LabHost(Accel),
}

/// Resolves `mode`. `Auto` prefers KVM here, then a lab host; that one is proven by its boot, so the caller falls back to
/// `Direct(Tcg)` when it fails.
pub fn choose(mode: Mode, setting: &Setting) -> Result<Choice> {
    let choice = |place, why: String| Ok(Choice { place, why });
    if mode == Mode::Tcg {
        return choice(Place::Direct(Accel::Tcg), "asked for".into());
    }
    setting.progress.step("checking whether KVM works here");
    let kvm = prove_kvm(setting.set, setting.logs, setting.cancel);
    if let Err(Error::Cancelled) = kvm {
        return Err(Error::Cancelled);
    }
    match (mode, kvm) {
        (Mode::Kvm, Ok(())) => choice(Place::Direct(Accel::Kvm), "asked for".into()),
        (Mode::Kvm, Err(error)) => Err(Error::Other(format!(
            "--host kvm: {error}; use --host nested, which needs no KVM, or --host tcg"
        ))),
        (Mode::Auto, Ok(())) => choice(Place::Direct(Accel::Kvm), "KVM works here".into()),
        (Mode::Auto, Err(error)) => {
            choice(Place::LabHost(Accel::Tcg), format!("no KVM here: {error}"))
        }
        (_, Ok(())) => {
            choice(Place::LabHost(Accel::Kvm), "asked for; KVM carries the lab host".into())
        }
        (_, Err(error)) => choice(
            Place::LabHost(Accel::Tcg),
            format!("asked for; TCG carries the lab host: {error}"),
        ),
    }
}
