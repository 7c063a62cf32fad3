// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loads that guests run.
//!
//! A load is prepared once (files, processes, threads: everything that takes time), then started
//! and stopped any number of times. Stopping ends all work and returns the number of operations
//! since the start. Dropping a load undoes its preparation. The load of a competitor is started
//! once and never stopped; its VM may be paused and resumed at any time, so no load may depend on
//! the time that has passed.
//!
//! To add a load: a variant of [`Workload`], a file here, and a line in [`prepare`].

mod apache;
mod bursty;
mod clone;
pub mod cpus;
mod dbench;
mod directory;
mod files;
mod hinted;
mod hog;
mod hold;
mod membench;
mod postmark;
mod psearchy;
mod pty_program;
mod semaphores;
mod threads;
mod workers;

use crate::gate::{Gate, Slot};
use crate::protocol::{Figure, Program, Workload};
use crate::sys::{Result, now_ns};
use directory::Directory;
use std::io;
use std::path::Path;
use std::time::Duration;
pub use workers::ROLE as WORKER_ROLE;

/// A prepared load.
pub trait Load: Send {
    /// Makes the load ready to start without delay, for a phase of `duration_ms`, or for a phase
    /// without end.
    fn ready(&mut self, _duration_ms: Option<u64>) -> Result<()> {
        Ok(())
    }

    /// Starts the load; returns the time (`CLOCK_MONOTONIC`, ns) at which it began.
    fn start(&mut self) -> Result<u64>;

    /// Stops the load at the end of its phase.
    fn stop(&mut self) -> Result<Done>;

    /// An error if a part of the load that was started no longer does its work. For a load that is
    /// never stopped, which would tell as well; its VM has run for `ran` since the last check.
    fn check(&mut self, _ran: Duration) -> Result<()> {
        Ok(())
    }

    /// The figures of the last phase, of a load that measures by itself.
    fn figures(&mut self) -> Vec<Figure> {
        Vec::new()
    }
}

/// The operation that a worker repeats; an error ends the worker.
type Operation = Box<dyn FnMut(&Slot) -> io::Result<()> + Send>;

/// The work of a load between start and stop.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// When it stopped (`CLOCK_MONOTONIC`, ns).
    pub end_ns: u64,
    pub operations: f64,
    /// Singular.
    pub unit: &'static str,
    /// A message for the user.
    pub notice: Option<String>,
}

impl Done {
    /// With the counts of `gate`.
    fn counted(gate: &Gate, end_ns: u64, unit: &'static str) -> Done {
        let refusals = gate.refusals();
        Done {
            end_ns,
            operations: gate.operations() as f64,
            unit,
            notice: (refusals > 0)
                .then(|| format!("{refusals} attempts at a {unit} were refused and retried")),
        }
    }
}

/// Prepares `workload`: the one place that names every kind of load.
pub fn prepare(workload: &Workload) -> Result<Box<dyn Load>> {
    match workload {
        Workload::Idle => Ok(Box::new(Idle)),
        Workload::Postmark { instances, files, seed } => {
            postmark::prepare(*instances, *files, *seed)
        }
        Workload::Membench => membench::prepare(),
        Workload::Clone { workers } => clone::prepare(*workers),
        Workload::SemChurn { producer_cpu, reader_cpus, semaphores } => {
            semaphores::prepare(*producer_cpu, reader_cpus, *semaphores)
        }
        Workload::FileChurn { workers } => files::prepare(*workers),
        Workload::Psearchy { threads, files, seed } => psearchy::prepare(*threads, *files, *seed),
        Workload::Dbench { clients } => dbench::prepare(*clients),
        Workload::Apache { connections } => apache::prepare(*connections),
        Workload::Hog { threads } => hog::prepare(*threads),
        Workload::Bursty { processes, min_ops, max_ops, min_sleep_ms, max_sleep_ms, seed } => {
            let (ops, sleep) = ((*min_ops, *max_ops), (*min_sleep_ms, *max_sleep_ms));
            bursty::prepare(*processes, ops, sleep, *seed)
        }
        Workload::Hold { holds, graces } => hold::prepare(holds, *graces),
        Workload::Hinted { threads, section_us, pause_us } => {
            hinted::prepare(*threads, *section_us, *pause_us)
        }
    }
}

/// An error if a file of `program` is not here.
fn needs(program: Program) -> Result<()> {
    let mut paths = program.debian_programs().iter().chain(program.debian_data());
    match paths.find(|path| !Path::new(path).exists()) {
        Some(path) => Err(format!("{path} is not in this guest's image")),
        None => Ok(()),
    }
}

/// The life of a worker process, in loads whose workers are processes.
pub fn worker(arguments: &[String]) -> Result<()> {
    workers::main(arguments, |name, index, arguments| match (name, arguments) {
        ("clone", []) => Some(clone::operation()),
        ("postmark", [files, seed]) => Some(postmark::operation(index, *files, *seed)),
        ("bursty", [seed, ops, more_ops, sleep, more_sleep]) => {
            let (ops, sleep) = ((*ops, *more_ops), (*sleep, *more_sleep));
            Some(bursty::operation(*seed, index, ops, sleep))
        }
        _ => None,
    })
}

/// The load of an idle guest.
struct Idle;

impl Load for Idle {
    fn start(&mut self) -> Result<u64> {
        Ok(now_ns())
    }

    fn stop(&mut self) -> Result<Done> {
        Ok(Done { end_ns: now_ns(), operations: 0.0, unit: "operation", notice: None })
    }
}

/// The number of steps of [`compute`] that take `us` of CPU time, measured. A load of a known
/// number of steps need not read the clock, which may be a system call.
fn steps_in(us: u32) -> u64 {
    const MEASURED: u64 = 250_000;
    // The shortest time: the vCPU may have been preempted in the others.
    let measure = |_| {
        let from = now_ns();
        compute(1, MEASURED);
        now_ns().saturating_sub(from).max(1)
    };
    let ns = (0..8).map(measure).min().unwrap_or(1);
    let steps = u128::from(MEASURED) * u128::from(us) * 1_000 / u128::from(ns);
    u64::try_from(steps).unwrap_or(u64::MAX).max(1)
}

/// `steps` steps of two arithmetic operations, each depending on the one before, which the compiler
/// cannot shorten.
fn compute(mut x: u64, steps: u64) -> u64 {
    for i in 0..steps {
        x = std::hint::black_box(x.wrapping_mul(3).wrapping_add(i));
    }
    x
}
