// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes the lab's commands, one after the other.
//!
//! The steps of a phase: wait until the callbacks of the phase before have run; start recording;
//! send `PhaseStarted`; start the load (time 0); sleep; stop the load; send `LoadStopped`; stop
//! recording; and only then send the samples.

use crate::calibrate;
use crate::channel::Sender;
use crate::exec;
use crate::kmod;
use crate::measure::Meter;
use crate::protocol::{Command, Event, Measure, PhaseResult, Sample, Workload};
use crate::read;
use crate::sys::{self, Result};
use crate::workload::{self, Load};
use reprieve_init::gaps::Typical;
use std::time::Duration;

/// Events per write while sending samples.
const BATCH: usize = 256;

/// Samples are kept in memory until the phase is over.
const LONGEST_PHASE_MS: u64 = 24 * 3600 * 1000;

pub struct Session {
    out: Sender,
    load: Option<Box<dyn Load>>,
    meter: Option<Meter>,
}

impl Session {
    pub fn new(out: Sender) -> Session {
        Session { out, load: None, meter: None }
    }

    /// Executes one command and answers it.
    pub fn handle(&mut self, command: Command) {
        let answer = match command {
            Command::Prepare { workload, measure } => {
                self.prepare(&workload, measure.as_ref()).map(|()| Event::Ready)
            }
            Command::Start => self.start().map(|()| Event::Ready),
            Command::Check { ran_ms } => self.check(ran_ms).map(|()| Event::Ready),
            Command::Phase { phase, duration_ms } => {
                self.phase(phase, duration_ms).map(|result| Event::PhaseDone { phase, result })
            }
            // The receiving thread has executed them.
            Command::Input { .. } | Command::PowerOff => return,
            Command::Calibrate { cost, duration_ms } => {
                calibrate::measure(cost, Duration::from_millis(duration_ms)).map(|found| {
                    if let Some(Typical { ns, count }) = found {
                        self.out.send(&Event::Cost { ns, count });
                    }
                    Event::Ready
                })
            }
            Command::Read { path } => {
                let part = |text| self.out.send(&Event::Content { text });
                read::file(&path, part).map(|()| Event::Ready)
            }
            // Returns only after an error.
            Command::Kexec { kernel, initrd, cmdline } => {
                sys::kexec(&kernel, &initrd, &cmdline).map(|()| Event::Ready)
            }
            Command::Exec { argv, env } => {
                exec::run(&argv, &env, &self.out).map(|status| Event::Exited { status })
            }
        };
        self.out.send(&answer.unwrap_or_else(|message| Event::Error { message }));
    }

    fn prepare(&mut self, workload: &Workload, measure: Option<&Measure>) -> Result<()> {
        // The load before is dropped first: both may use the same files.
        self.load = None;
        self.meter = None;
        // Before the meter, which measures on the CPUs that it finds.
        workload::cpus::use_all()?;
        if let Some(measure) = measure {
            self.meter = Some(Meter::prepare(measure)?);
        }
        self.load = Some(workload::prepare(workload)?);
        Ok(())
    }

    fn prepared(&mut self) -> Result<&mut Box<dyn Load>> {
        self.load.as_mut().ok_or_else(|| "nothing is prepared: send `prepare` first".into())
    }

    fn start(&mut self) -> Result<()> {
        let load = self.prepared()?;
        load.ready(None)?;
        load.start().map(drop)
    }

    fn check(&mut self, ran_ms: u64) -> Result<()> {
        self.prepared()?.check(Duration::from_millis(ran_ms))
    }

    fn phase(&mut self, phase: u32, duration_ms: u64) -> Result<PhaseResult> {
        self.prepared()?;
        if duration_ms > LONGEST_PHASE_MS {
            return Err(format!("a phase of {duration_ms} ms is longer than a day"));
        }
        drain();
        let out = self.out.clone();
        let load = self.load.as_mut().ok_or("nothing is prepared")?;
        load.ready(Some(duration_ms))?;
        let running = match self.meter.as_ref().map(|m| m.start(duration_ms)).transpose() {
            Ok(running) => running,
            Err(e) => {
                let _ = load.stop();
                return Err(e);
            }
        };
        out.send(&Event::PhaseStarted { phase });
        let started = load.start();
        if let Ok(from) = started {
            sys::sleep_until(from.saturating_add(duration_ms.saturating_mul(1_000_000)));
        }
        // Everything is stopped before the first error is returned: the guest stays usable.
        let done = load.stop();
        out.send(&Event::LoadStopped { phase });
        let recorded = match (&self.meter, running) {
            (Some(meter), Some(running)) => Some(meter.stop(running)?),
            _ => None,
        };
        let (from, done, figures) = (started?, done?, load.figures());
        if let Some(text) = done.notice {
            out.send(&Event::Notice { text });
        }
        let mut result = PhaseResult {
            elapsed_ns: done.end_ns.saturating_sub(from),
            operations: done.operations,
            unit: done.unit.into(),
            figures,
            ..Default::default()
        };
        if let Some(recorded) = recorded {
            let mut batch = Vec::with_capacity(BATCH);
            result.cost = recorded.samples(from, done.end_ns, |sample: Sample| {
                batch.push(Event::Sample { phase, sample });
                if batch.len() == BATCH {
                    out.send_all(batch.iter());
                    batch.clear();
                }
            })?;
            out.send_all(batch.iter());
        }
        Ok(result)
    }
}

/// Waits until the pending RCU callbacks have run.
fn drain() {
    if kmod::is_loaded() && kmod::command("drain").is_ok() {
        return;
    }
    for _ in 0..2 {
        if sys::synchronize_rcu().is_err() {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // The callbacks run shortly after the end of their grace period.
    std::thread::sleep(Duration::from_millis(50));
}
