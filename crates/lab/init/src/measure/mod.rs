// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured in a guest during a phase, and what that costs.
//!
//! Prepared once; started and stopped around each phase. Nothing is sent, printed or parsed at length while a phase runs: samples lie in memory and
//! in the tracer's buffers until [`Recorded::samples`] hands them out. A sample's time is relative to the beginning of the phase; what was
//! recorded before or after it is left out.

mod gp;
pub mod meminfo;
mod memory;
pub mod ring;
mod trace;

use crate::protocol::{Measure, MeasureCost, Sample};
use crate::sys::Result;
use memory::{MemorySampler, Readings, longest_gap};
use trace::Trace;

/// Prepared measurements.
pub struct Meter {
    settings: Measure,
    trace: Trace,
}

/// Measurements under way.
pub struct Running {
    memory: MemorySampler,
}

/// Measurements that have ended.
pub struct Recorded<'a> {
    meter: &'a Meter,
    memory: Readings,
}

impl Meter {
    pub fn prepare(settings: &Measure) -> Result<Meter> {
        let trace = Trace::prepare(settings.trace_kb)?;
        Ok(Meter { settings: settings.clone(), trace })
    }

    /// Starts recording for a phase of `duration_ms`, forgetting what was recorded before.
    pub fn start(&self, duration_ms: u64) -> Result<Running> {
        let memory = MemorySampler::start(self.settings.memory_ms, duration_ms)?;
        self.trace.start()?;
        Ok(Running { memory })
    }

    /// Stops recording.
    pub fn stop(&self, running: Running) -> Result<Recorded<'_>> {
        self.trace.stop()?;
        Ok(Recorded { meter: self, memory: running.memory.finish()? })
    }
}

impl Recorded<'_> {
    /// Calls `each` for every sample of the phase that lasted from `from` to `to` (`CLOCK_MONOTONIC`, ns).
    pub fn samples(self, from: u64, to: u64, mut each: impl FnMut(Sample)) -> Result<MeasureCost> {
        let volume = self.meter.trace.read(from, to, |gp| {
            each(Sample::GracePeriod {
                start_ns: gp.start_ns - from,
                end_ns: gp.end_ns - from,
                cpu_ns: gp.cpu_ns,
            })
        })?;
        let within = |t: u64| (from..=to).contains(&t);
        let memory = || self.memory.readings.iter().filter(|r| within(r.0));
        for (t, m) in memory() {
            each(Sample::Memory {
                t_ns: t - from,
                free_kb: m.free_kb,
                slab_kb: m.slab_kb,
                used_kb: m.used_kb(),
            });
        }
        Ok(MeasureCost {
            sampler_ns: self.memory.cpu_ns,
            trace_events: volume.events,
            trace_lost: volume.lost,
            trace_event_ns: 0.0,
            longest_gap_ns: longest_gap(memory().map(|r| r.0), from, to),
        })
    }
}
