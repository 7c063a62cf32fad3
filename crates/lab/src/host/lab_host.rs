// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab host: a VM with a stock kernel that has KVM and sched_ext, in which this same program
//! runs the plan's VMs under KVM.
//!
//! The program inside gets the plan and the images' paths as arguments (`reprieve lab execute`) and
//! writes [`Message`]s to its standard output; the init of the lab host passes them on line by
//! line. So the program outside gets the same records and progress as if the VMs ran on this
//! machine, and has all of them up to the moment of a crash.

use super::{Bed, HostKind, RunContext, noise};
use crate::dilation::Dilation;
use crate::error::{Error, Result};
use crate::images::{ImageSet, LabHostImage};
use crate::limit::{self, scaled};
use crate::plan::Plan;
use crate::process::Cancel;
use crate::record::{HostInfo, Record};
use crate::vm::{self, Accel, Vm};
use reprieve_init::protocol::{BASE_SLICE, Command, Event};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The limit of the first attempt. A lab host under TCG takes 5 s to boot.
pub const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// How often a program in a lab host says something in any case, by the lab host's clock.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// A lab host that says nothing for this long, by its clock and by this machine's, stands still.
/// Many signs of life: a busy machine may be slower than the dilation says.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
const LEAST_SILENCE: Duration = Duration::from_secs(300);

/// Boot of a VM in a lab host, in boots of the lab host.
const GUEST_BOOT: f64 = 0.5;

/// Memory of the lab host in addition to its VMs' and twice its initramfs, MiB; and for each CPU.
const OWN_MIB: u64 = 680;
const CPU_MIB: u64 = 10;

/// A message of the program inside a lab host, one per line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    Record {
        record: Box<Record>,
    },
    /// A VM died, for the last time.
    GuestsDied,
    /// A result of a command other than `execute`.
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
    /// The program still runs; sent each [`SIGN_OF_LIFE`].
    Alive,
    /// A piece of a console log.
    Log {
        name: String,
        text: String,
    },
}

/// A lab host to boot.
pub struct Config {
    pub image: LabHostImage,
    accel: Accel,
    dilation: Dilation,
    cpus: u32,
    base_slice: Duration,
    /// Memory of the VMs, MiB.
    vms_mib: u64,
}

impl Config {
    pub fn new(bed: &Bed, accel: Accel, vms_mib: u64, image: LabHostImage) -> Config {
        let dilation = bed.dilation(HostKind::LabHost(accel));
        let (cpus, base_slice) = (bed.cpus(), bed.base_slice());
        Config { image, accel, dilation, cpus, base_slice, vms_mib }
    }
}

/// A running lab host.
pub struct LabHost {
    vm: Vm,
    /// Number of its console log.
    number: u32,
    dilation: Dilation,
    program: Vec<String>,
    inside: ImageSet,
}

impl LabHost {
    /// Boots a lab host. If there will be VMs, proves that KVM works in it. `number` is part of the
    /// name of its console log; `limit` is that of the boot, and of the proof, in the lab host's
    /// time.
    ///
    /// The program inside and its VMs live in that time; only the limits of this program are in
    /// this machine's.
    pub fn boot(
        wanted: &Config,
        number: u32,
        limit: Duration,
        run: &RunContext,
    ) -> Result<LabHost> {
        let Config { image: host, accel, dilation, cpus, base_slice, vms_mib } = wanted;
        let (accel, dilation, cpus) = (*accel, *dilation, *cpus);
        let initrd =
            std::fs::metadata(&host.image.initrd).map_err(Error::io(&host.image.initrd))?;
        let own_mib = OWN_MIB + CPU_MIB * u64::from(cpus);
        let memory_mib = vms_mib + 2 * initrd.len().div_ceil(1 << 20) + own_mib;
        let free = super::free_memory_mib();
        if memory_mib > free {
            return Err(Error::Other(format!(
                "a lab host for these VMs needs {memory_mib} MiB and {free} MiB are free: free some, or ask for fewer combinations"
            )));
        }
        let release = &host.image.release;
        run.progress
            .step(&format!("booting the lab host ({release}, {cpus} CPUs, {memory_mib} MiB)"));
        let console = run.logs.join(format!("labhost.{number}.log"));
        let config = vm::Config {
            dilation,
            // Under TCG a CPU whose SVM is enough for KVM, without MWAIT, which spins there; under
            // KVM the machine's own.
            cpu: (accel == Accel::Tcg).then(|| "EPYC,+svm,+npt,-monitor".into()),
            vcpus: cpus,
            memory_mib,
            args: format!("{BASE_SLICE}={}", base_slice.as_nanos()),
            ..vm::Config::new("labhost", accel, &host.image, console)
        };
        let limit = dilation.outside(limit);
        let vm = Vm::boot(&config, &run.set.qemu, limit, run.cancel)?;
        let (program, inside) = (host.program.clone(), host.inside.clone());
        let mut lab = LabHost { vm, number, dilation, program, inside };
        if run.vms {
            run.progress.step("checking that KVM works in the lab host");
            let exit = lab.exec(&["lab", "probe"], [limit; 2], run.cancel, &mut |_| Ok(None))?;
            exit.check("lab probe")?;
        }
        Ok(lab)
    }

    /// Runs `plan` in the lab host, from phase `from` on.
    ///
    /// # Errors
    /// [`Error::Died`] or [`Error::Timeout`] when the lab host itself died or hung;
    /// [`Error::GuestsDied`] or [`Error::Other`] with the reason when the program inside failed.
    pub fn execute(
        &mut self,
        plan: &Plan,
        (from, calibrated): (u32, bool),
        outer: HostInfo,
        run: &RunContext,
        sink: &mut dyn FnMut(Record) -> Result<()>,
        again: &dyn Fn() -> bool,
    ) -> Result<()> {
        let (mut reason, mut guests_died) = (None, false);
        let (number, dilation) = (self.number, self.dilation);
        // The lab host's own date falls behind when its time is dilated.
        let begun = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let mut on_message = |message| {
            match message {
                Message::Record { record } => match *record {
                    Record::Run { plan, host, .. } => {
                        let why = outer.why.clone();
                        let outer = Some(Box::new(outer.clone()));
                        let host = HostInfo { mode: "nested".into(), why, outer, dilation, ..host };
                        sink(Record::Run { plan, started: begun.clone(), host })?;
                    }
                    record @ Record::PhaseEnd { .. } => {
                        sink(record)?;
                        let line = if again() { AGAIN } else { NEXT };
                        return Ok(Some(Command::Input { line: line.into() }));
                    }
                    record => {
                        if let Record::End { reason: Some(text), .. } = &record {
                            reason = Some(text.clone());
                        }
                        sink(record)?;
                    }
                },
                Message::GuestsDied => guests_died = true,
                message => tell(run, number, dilation, message)?,
            }
            Ok(None)
        };
        let plan_text = serde_json::to_string(plan).map_err(|e| Error::Other(e.to_string()))?;
        let from = from.to_string();
        let logs = self.guest_logs(run)?;
        let mut args = vec!["lab", "execute", "--plan", &plan_text, "--from", &from];
        args.extend(["--logs", &logs]);
        args.extend(calibrated.then_some("--calibrated"));
        let limits = [outside(run_limit(plan), dilation), silence(dilation)];
        let outcome = self.exec(&args, limits, run.cancel, &mut on_message);
        // The same exit statuses as of this program: 2 is bad usage.
        match (outcome?, reason) {
            (Exit { status: 2, .. }, Some(reason)) => Err(Error::Usage(reason)),
            (Exit { status: 1, .. }, Some(reason)) if guests_died => Err(Error::GuestsDied(reason)),
            (Exit { status: 1, .. }, Some(reason)) => Err(Error::Other(reason)),
            (exit, _) => exit.check("lab execute"),
        }
    }

    /// Runs this program in the lab host with `args`; appends its results to `results`.
    pub fn run(
        &mut self,
        args: &[&str],
        limit: Duration,
        run: &RunContext,
        results: &mut Vec<serde_json::Value>,
    ) -> Result<()> {
        let (number, dilation) = (self.number, self.dilation);
        let logs = self.guest_logs(run)?;
        let args = [args, &["--logs", &logs]].concat();
        let limits = [outside(limit, dilation), silence(dilation)];
        let exit = self.exec(&args, limits, run.cancel, &mut |message| {
            match message {
                Message::Result { value } => results.push(value),
                message => tell(run, number, dilation, message)?,
            }
            Ok(None)
        })?;
        exit.check(&args.join(" "))
    }

    /// How long a VM in it takes to boot, by its clock: in proportion to its own boot.
    pub fn guest_boot(&self) -> Duration {
        self.vm.boot_time.mul_f64(GUEST_BOOT) / self.dilation.factor()
    }

    pub fn shut_down(self, cancel: &Cancel) {
        self.vm.shut_down(cancel);
    }

    /// The directory for logs of its guests, as text. The program inside uses the same path, so
    /// that its messages name files that are there afterwards.
    fn guest_logs(&self, run: &RunContext) -> Result<String> {
        let dir = guest_logs(run, self.number);
        dir.to_str().map(String::from).ok_or_else(|| {
            Error::Usage(format!("{}: a lab host takes names in UTF-8 only", dir.display()))
        })
    }

    /// Runs this program in the lab host with `args` and the images' paths. `limits`: of the whole,
    /// and of the time without a message, by this machine's clock.
    fn exec(
        &mut self,
        args: &[&str],
        [limit, silence]: [Duration; 2],
        cancel: &Cancel,
        on_message: &mut dyn FnMut(Message) -> Result<Option<Command>>,
    ) -> Result<Exit> {
        let images =
            serde_json::to_string(&self.inside).map_err(|e| Error::Other(e.to_string()))?;
        let mut argv = self.program.clone();
        argv.extend(args.iter().map(ToString::to_string));
        argv.extend(["--images".into(), images]);
        let mut said = Vec::new();
        let command = Command::Exec { argv, env: limit::environment() };
        let end = self.vm.call_audible(&command, limit, silence, cancel, |event| match event {
            Event::Output { stderr: false, line } => match serde_json::from_str(&line) {
                Ok(message) => on_message(message),
                Err(error) => Err(Error::Other(format!(
                    "the lab host sent a line that is not a message ({error}): {line:?}"
                ))),
            },
            Event::Output { line, .. } => {
                said.push(line);
                said.drain(..said.len().saturating_sub(20));
                Ok(None)
            }
            _ => Ok(None),
        })?;
        match end {
            Event::Exited { status } => Ok(Exit { status, said: said.join("\n") }),
            other => Err(Error::Other(format!("the lab host answered {other:?}"))),
        }
    }
}

/// The words to the program inside after each phase.
const AGAIN: &str = "again";
const NEXT: &str = "next";

/// In a lab host: whether the phase that has just ended is to be measured again.
pub fn told_again() -> Result<bool> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Error::io("standard input"))?;
    match line.trim_end() {
        AGAIN => Ok(true),
        NEXT => Ok(false),
        other => Err(Error::Other(format!("the program outside answered {other:?} to a phase"))),
    }
}

fn silence(dilation: Dilation) -> Duration {
    outside(SILENCE_LIMIT, dilation).max(scaled(LEAST_SILENCE))
}

/// A limit for what happens in the lab host, by this machine's clock.
fn outside(limit: Duration, dilation: Dilation) -> Duration {
    dilation.outside(scaled(limit))
}

/// Passes on the progress and the logs of the program inside. Its times become the user's.
fn tell(run: &RunContext, number: u32, dilation: Dilation, message: Message) -> Result<()> {
    let progress = run.progress;
    match message {
        Message::Step { what } => progress.step(&what),
        Message::Timed { what, ms } => {
            progress.timed(&what, dilation.outside(Duration::from_millis(ms)));
        }
        Message::Notice { text } => progress.notice(&text),
        Message::Remaining { ms } => {
            progress.remaining(dilation.outside(Duration::from_millis(ms)));
        }
        Message::Log { name, text } => append_log(&guest_logs(run, number), &name, &text)?,
        Message::Alive | Message::GuestsDied | Message::Record { .. } | Message::Result { .. } => {}
    }
    Ok(())
}

/// Exit status of the program inside, and the end of its standard error.
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

/// The directory for logs of the guests of lab host `number`.
fn guest_logs(run: &RunContext, number: u32) -> PathBuf {
    run.logs.join(format!("labhost.{number}"))
}

/// Appends to the log `name` of a guest. A lab host is not trusted, so the name is checked.
fn append_log(logs: &Path, name: &str, text: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(Error::Other(format!(
            "the lab host sent a log with an invalid name: {name:?}"
        )));
    }
    std::fs::create_dir_all(logs).map_err(Error::io(logs))?;
    let path = logs.join(name);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io(&path))
}

/// Limit of a whole run: the sum of the limits of all boots and phases.
fn run_limit(plan: &Plan) -> Duration {
    let boots = (plan.variants.len() + plan.competitors.len()) as u32;
    let phases =
        plan.repeat.saturating_mul(plan.variants.len() as u32 * 2 * (1 + noise::MOST_AGAIN));
    let phase = Duration::from_millis(plan.phase_ms) * 4 + Duration::from_secs(150);
    let boot = Duration::from_millis(plan.warmup_ms) * 4 + Duration::from_secs(900);
    let tries = 3;
    boot.saturating_mul(boots).saturating_add(phase.saturating_mul(phases)).saturating_mul(tries)
}
