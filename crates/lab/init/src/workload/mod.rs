// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loads that guests run.
//!
//! A load is prepared once (files, processes, threads: everything that takes time), then started and stopped any number of times. Stopping
//! leaves nothing running and says how many operations were done since the start. Dropping a load undoes its preparation.
//! The load of a competitor is started once and never stopped; its VM may be paused and resumed at any time, so no load
//! depends on how much time has passed.

mod directory;
mod files;
mod hog;
mod semaphores;
mod threads;

use crate::protocol::Workload;
use crate::sys::{Result, now_ns};
use directory::Directory;

/// A prepared load.
pub trait Load: Send {
    /// Starts the load; returns the time (`CLOCK_MONOTONIC`, ns) at which it began. A phase of `duration_ms` is ahead, or one without end.
    fn start(&mut self, duration_ms: Option<u64>) -> Result<u64>;

    /// Stops the load at the end of its phase.
    fn stop(&mut self) -> Result<Done>;
}

/// What a load did between start and stop.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// When it stopped (`CLOCK_MONOTONIC`, ns).
    pub end_ns: u64,
    pub operations: f64,
    /// Singular.
    pub unit: &'static str,
    /// Something worth telling about it.
    pub notice: Option<String>,
}

pub fn prepare(workload: &Workload) -> Result<Box<dyn Load>> {
    match workload {
        Workload::Idle => Ok(Box::new(Idle)),
        Workload::SemChurn { producer_cpu, reader_cpus, semaphores } => {
            semaphores::prepare(*producer_cpu, reader_cpus, *semaphores)
        }
        Workload::FileChurn { workers } => files::prepare(*workers),
        Workload::Hog { threads } => hog::prepare(*threads),
        other => Err(format!("workload {other:?} is not there yet")),
    }
}

/// Nothing.
struct Idle;

impl Load for Idle {
    fn start(&mut self, _: Option<u64>) -> Result<u64> {
        Ok(now_ns())
    }

    fn stop(&mut self) -> Result<Done> {
        Ok(Done { end_ns: now_ns(), operations: 0.0, unit: "operation", notice: None })
    }
}

/// `steps` dependent arithmetic operations, which the compiler cannot shorten.
fn compute(mut x: u64, steps: u64) -> u64 {
    for i in 0..steps {
        x = std::hint::black_box(x.wrapping_mul(3).wrapping_add(i));
    }
    x
}
