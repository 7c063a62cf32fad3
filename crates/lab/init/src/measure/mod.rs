// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures a guest during a phase.
//!
//! Measuring is prepared once, and started and stopped around each phase. Nothing is sent, printed
//! or parsed at length during a phase: samples stay in memory and in the tracer's buffers until
//! [`Recorded::samples`] returns them. A sample's time is relative to the beginning of the phase;
//! samples from before or after it are left out, except that of memory from right before the load:
//! it may take MiBs before the next. Memory that measuring itself takes does not count as used.

mod cpu;
mod fragmentation;
mod gp;
pub mod meminfo;
mod memory;
mod slow;
mod trace;

use crate::protocol::{self, Measure, MeasureCost, Sample};
use crate::sys::Result;
use memory::{MemorySampler, Reading, longest_gap, of_phase};
use slow::{SlowReading, SlowSampler};
use trace::Trace;

/// Prepared measurements.
pub struct Meter {
    settings: Measure,
    trace: Trace,
}

/// Running measurements; dropping this stops them.
pub struct Running {
    memory: MemorySampler,
    slow: SlowSampler,
    /// Memory that measuring takes during this phase.
    own_kb: u64,
}

/// Measurements that have ended.
pub struct Recorded<'a> {
    meter: &'a Meter,
    memory: Vec<Reading>,
    slow: Vec<SlowReading>,
    own_kb: u64,
}

impl Meter {
    /// Sets everything up.
    pub fn prepare(settings: &Measure) -> Result<Meter> {
        Ok(Meter { settings: settings.clone(), trace: Trace::prepare(settings.trace_kb)? })
    }

    /// Starts recording for a phase of `duration_ms`, forgetting what was recorded before.
    pub fn start(&self, duration_ms: u64) -> Result<Running> {
        let memory = MemorySampler::start(self.settings.memory_ms, duration_ms)?;
        let slow = SlowSampler::start(self.settings.slow_ms)?;
        if let Err(e) = self.trace.start() {
            let _ = self.trace.stop();
            return Err(e);
        }
        let own_kb = self.trace.memory_kb() + memory.own_kb();
        Ok(Running { memory, slow, own_kb })
    }

    /// Stops recording.
    pub fn stop(&self, running: Running) -> Result<Recorded<'_>> {
        let stopped = self.trace.stop();
        let memory = running.memory.finish();
        let slow = running.slow.finish();
        stopped?;
        let own_kb = running.own_kb;
        Ok(Recorded { meter: self, memory: memory?, slow: slow?, own_kb })
    }
}

impl Recorded<'_> {
    /// Calls `each` for every sample of the phase that lasted from `from` to `to`
    /// (`CLOCK_MONOTONIC`, ns); returns the cost.
    pub fn samples(self, from: u64, to: u64, mut each: impl FnMut(Sample)) -> Result<MeasureCost> {
        let within = |t: u64| (from..=to).contains(&t);
        let volume = self.meter.trace.read(from, to, |gp| {
            each(Sample::GracePeriod(protocol::GracePeriod {
                start_ns: gp.start_ns - from,
                end_ns: gp.end_ns - from,
                cpu_ns: gp.cpu_ns,
            }))
        })?;
        if let Some(start) = volume.open {
            let start = start.max(from);
            each(Sample::OpenGracePeriod {
                start_ns: start - from,
                open_ns: to.saturating_sub(start),
            });
        }
        let memory = || of_phase(&self.memory, from, to);
        for (t_ns, m) in memory() {
            each(Sample::Memory(protocol::Memory {
                t_ns,
                free_kb: m.free_kb,
                slab_kb: m.slab_kb,
                used_kb: m.used_kb.saturating_sub(self.own_kb),
            }));
        }
        for reading in self.slow.into_iter().filter(|r| within(r.time_ns)) {
            let t_ns = reading.time_ns - from;
            if let Some(unusable) = reading.unusable {
                each(Sample::Fragmentation(protocol::Fragmentation { t_ns, unusable }));
            }
            if let Some(s) = reading.shares {
                each(Sample::Cpu(protocol::Cpu {
                    t_ns,
                    steal: s.steal,
                    kernel: s.kernel,
                    user: s.user,
                    idle: s.idle,
                    callbacks: reading.callbacks,
                }));
            }
        }
        Ok(MeasureCost {
            trace_events: volume.events,
            trace_lost: volume.lost,
            trace_until_ns: volume.complete_until.map(|at| at.min(to).saturating_sub(from)),
            longest_gap_ns: longest_gap(memory().map(|(t_ns, _)| t_ns), 0, to.saturating_sub(from)),
        })
    }
}
