// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab host: a VM with a stock kernel that has KVM and sched_ext, in which this same program runs the plan's VMs under KVM.
//!
//! The program inside gets the plan and the images' paths as arguments (`reprieve lab execute`) and writes [`Message`]s on its standard
//! output; the init of the lab host passes them on line by line. So the program outside sees the same records and progress as
//! if the VMs ran here, and whatever was measured before a crash has already been passed on.

use super::{PROOF_LIMIT, Setting};
use crate::error::{Error, Result};
use crate::images::{GuestImage, ImageSet};
use crate::plan::Plan;
use crate::process::Cancel;
use crate::record::{HostInfo, Record};
use crate::vm::{Accel, Config, Vm};
use reprieve_init::protocol::{Command, Event};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// A lab host under TCG takes 5 s to boot.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// The lab host's own memory besides its VMs' and twice its initramfs, MiB.
const OWN_MIB: u64 = 700;

/// What the program inside a lab host writes, one per line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    Record {
        record: Box<Record>,
    },
    /// Of a command that is no run.
    Result {
        value: serde_json::Value,
    },
    Step {
        what: String,
    },
    Timed {
        what: String,
        ms: u64,
    },
    Notice {
        text: String,
    },
    Remaining {
        ms: u64,
    },
    /// The end of a file of the inner log directory.
    Log {
        name: String,
        text: String,
    },
}

/// What a lab host boots, and where it finds things inside.
#[derive(Clone, Debug)]
pub struct LabHostImage {
    pub image: GuestImage,
    /// How to start this program inside.
    pub program: Vec<String>,
    /// The plan's images, by their paths inside.
    pub inside: ImageSet,
}

/// A running lab host.
pub struct LabHost {
    vm: Vm,
    program: Vec<String>,
    inside: ImageSet,
}

impl LabHost {
    /// Boots a lab host with as many CPUs as this machine and room for `vms_mib` MiB of VMs, and proves that KVM works in it. `number`
    /// tells its console log from those of earlier boots.
    pub fn boot(
        host: &LabHostImage,
        accel: Accel,
        vms_mib: u64,
        number: u32,
        setting: &Setting,
    ) -> Result<LabHost> {
        let initrd =
            std::fs::metadata(&host.image.initrd).map_err(Error::io(&host.image.initrd))?;
        let memory_mib = vms_mib + 2 * initrd.len().div_ceil(1 << 20) + OWN_MIB;
        let free = super::free_memory_mib();
        if memory_mib > free {
            return Err(Error::Other(format!(
                "a lab host for these VMs needs {memory_mib} MiB and {free} MiB are free: free some, or ask for fewer combinations"
            )));
        }
        let release = &host.image.release;
        setting.progress.step(&format!("booting the lab host ({release}, {memory_mib} MiB)"));
        let config = Config {
            name: "labhost".into(),
            accel,
            // An SVM that KVM accepts under TCG; under KVM whatever the CPU has.
            cpu: (accel == Accel::Tcg).then(|| "EPYC,+svm,+npt".into()),
            vcpus: super::cpus(),
            memory_mib,
            kernel: host.image.kernel.clone(),
            initrd: host.image.initrd.clone(),
            args: String::new(),
            console: setting.logs.join(format!("labhost.{number}.log")),
        };
        let vm = Vm::boot(&config, &setting.set.qemu, BOOT_LIMIT, setting.cancel)?;
        let (program, inside) = (host.program.clone(), host.inside.clone());
        let mut lab = LabHost { vm, program, inside };
        setting.progress.step("checking that KVM works in the lab host");
        let exit = lab.exec(&["lab", "probe"], PROOF_LIMIT * 2, setting.cancel, &mut |_| Ok(()))?;
        exit.check("lab probe")?;
        Ok(lab)
    }

    /// Runs `plan` inside, from phase `from` on.
    ///
    /// # Errors
    /// [`Error::Died`] or [`Error::Timeout`] when the lab host itself died or hung; [`Error::Other`] with the reason for anything that
    /// the program inside could not do.
    pub fn execute(
        &mut self,
        plan: &Plan,
        from: u32,
        outer: HostInfo,
        setting: &Setting,
        sink: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        let mut reason = None;
        let mut on_message = |message| {
            match message {
                Message::Record { record } => match *record {
                    Record::Run { plan, started, host } => {
                        let why = outer.why.clone();
                        let outer = Some(Box::new(outer.clone()));
                        let host = HostInfo { mode: "nested".into(), why, outer, ..host };
                        sink(Record::Run { plan, started, host })?;
                    }
                    record => {
                        if let Record::End { reason: Some(text), .. } = &record {
                            reason = Some(text.clone());
                        }
                        sink(record)?;
                    }
                },
                message => tell(setting, message)?,
            }
            Ok(())
        };
        let plan_text = serde_json::to_string(plan).map_err(|e| Error::Other(e.to_string()))?;
        let from = from.to_string();
        let mut args = vec!["lab", "execute", "--plan", &plan_text, "--from", &from];
        if setting.watcher.is_none() {
            args.push("--no-watch");
        }
        let outcome = self.exec(&args, run_limit(plan), setting.cancel, &mut on_message);
        // The program inside fails as this one would: 2 is bad usage.
        match (outcome?, reason) {
            (Exit { status: 2, .. }, Some(reason)) => Err(Error::Usage(reason)),
            (Exit { status: 1, .. }, Some(reason)) => Err(Error::Other(reason)),
            (exit, _) => exit.check("lab execute"),
        }
    }

    /// Runs this program inside with `args`; its results are added to `results`.
    pub fn run(
        &mut self,
        args: &[&str],
        limit: Duration,
        setting: &Setting,
        results: &mut Vec<serde_json::Value>,
    ) -> Result<()> {
        let exit = self.exec(args, limit, setting.cancel, &mut |message| {
            match message {
                Message::Result { value } => results.push(value),
                message => tell(setting, message)?,
            }
            Ok(())
        })?;
        exit.check(&args.join(" "))
    }

    pub fn shut_down(self) {
        self.vm.shut_down();
    }

    /// Runs this program inside with `args` and the images' paths.
    fn exec(
        &mut self,
        args: &[&str],
        limit: Duration,
        cancel: &Cancel,
        on_message: &mut dyn FnMut(Message) -> Result<()>,
    ) -> Result<Exit> {
        let images =
            serde_json::to_string(&self.inside).map_err(|e| Error::Other(e.to_string()))?;
        let mut argv = self.program.clone();
        argv.extend(args.iter().map(ToString::to_string));
        argv.extend(["--images".into(), images]);
        let mut said = Vec::new();
        let command = Command::Exec { argv, env: Vec::new() };
        let end = self.vm.call(&command, limit, cancel, |event| match event {
            Event::Output { stderr: false, line } => match serde_json::from_str(&line) {
                Ok(message) => on_message(message),
                Err(error) => Err(Error::Other(format!(
                    "the lab host wrote a line that is no message ({error}): {line:?}"
                ))),
            },
            Event::Output { line, .. } => {
                said.push(line);
                said.drain(..said.len().saturating_sub(20));
                Ok(())
            }
            _ => Ok(()),
        })?;
        match end {
            Event::Exited { status } => Ok(Exit { status, said: said.join("\n") }),
            other => Err(Error::Other(format!("the lab host answered {other:?}"))),
        }
    }
}

/// Passes on what the program inside tells about its work.
fn tell(setting: &Setting, message: Message) -> Result<()> {
    let progress = setting.progress;
    match message {
        Message::Step { what } => progress.step(&what),
        Message::Timed { what, ms } => progress.timed(&what, Duration::from_millis(ms)),
        Message::Notice { text } => progress.notice(&text),
        Message::Remaining { ms } => progress.remaining(Duration::from_millis(ms)),
        Message::Log { name, text } => append_log(setting.logs, &name, &text)?,
        Message::Record { .. } | Message::Result { .. } => {}
    }
    Ok(())
}

/// How the program inside ended, and the last it wrote on standard error.
struct Exit {
    status: i32,
    said: String,
}

impl Exit {
    fn check(self, command: &str) -> Result<()> {
        if self.status == 0 {
            return Ok(());
        }
        Err(Error::Program {
            program: format!("reprieve {command} in the lab host"),
            status: format!("exit status {}", self.status),
            detail: self.said,
        })
    }
}

/// Adds to the log `name` of a guest. What comes out of a lab host is not trusted with names.
fn append_log(logs: &Path, name: &str, text: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(Error::Other(format!("the lab host sent a log with an odd name: {name:?}")));
    }
    let path = logs.join(format!("guest-{name}"));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(&path))
}

/// Bound of a whole run: every boot at its limit, every phase at its own.
fn run_limit(plan: &Plan) -> Duration {
    let boots = (plan.variants.len() + plan.competitors.len()) as u32;
    let phases = plan.repeat.saturating_mul(plan.variants.len() as u32 * 2);
    let phase = Duration::from_millis(plan.phase_ms) * 4 + Duration::from_secs(150);
    let tries = 3;
    (Duration::from_secs(600) * boots).saturating_add(phase.saturating_mul(phases)) * tries
}
