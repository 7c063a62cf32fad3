// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured in a guest during a phase, and what that costs.
//!
//! Prepared once; started and stopped around each phase. Nothing is sent, printed or parsed at length while a phase runs: samples lie in memory, in
//! the tracer's buffers and in the kernel module until [`Recorded::samples`] hands them out. A sample's time is relative to the beginning of the
//! phase; what was recorded before or after it is left out. Memory that measuring itself takes is no memory used.
//!
//! The callback probes are callbacks themselves: with them on, grace periods are asked for even where the load asks for none.

mod cost;
mod cpu;
mod fragmentation;
mod gp;
pub mod meminfo;
mod memory;
pub mod ring;
mod slow;
mod trace;

use crate::kmod;
use crate::protocol::{Measure, MeasureCost, Sample};
use crate::sys::{self, Result};
use memory::{MemorySampler, Readings, longest_gap};
use slow::{SlowReading, SlowSampler};
use trace::Trace;

/// Prepared measurements.
pub struct Meter {
    settings: Measure,
    trace: Trace,
    trace_event_ns: f64,
    /// Per CPU and second; 0 for none.
    probe_hz: u32,
}

/// Measurements under way; what of them has not been stopped when this is dropped is stopped then.
pub struct Running {
    memory: MemorySampler,
    slow: SlowSampler,
    probes: Option<Probes>,
    /// Memory that measuring takes during this phase.
    own_kb: u64,
}

/// The kernel module's callback probes, running until they are stopped or this is dropped.
struct Probes {
    records: u64,
    stopped: bool,
}

impl Probes {
    /// For a phase of `duration_ms`.
    fn start(hz: u32, duration_ms: u64) -> Result<Probes> {
        let hz = u64::from(hz.min(1_000));
        let records = probe_records(hz, duration_ms, sys::cpus());
        kmod::command(&format!("probe start {hz} {records}"))?;
        Ok(Probes { records, stopped: false })
    }

    fn stop(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        kmod::command("probe stop")
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// The module makes intervals of 3/4 to 5/4 of the period, and wants to know how many records to keep.
fn probe_records(hz: u64, duration_ms: u64, cpus: u32) -> u64 {
    let expected = duration_ms.saturating_mul(hz * u64::from(cpus)) / 1_000;
    (expected.saturating_mul(3) / 2 + 1_000).min(1 << 20)
}

/// Measurements that have ended.
pub struct Recorded<'a> {
    meter: &'a Meter,
    memory: Readings,
    slow: Vec<SlowReading>,
    slow_cpu_ns: u64,
    own_kb: u64,
}

impl Meter {
    /// Sets everything up; returns also what the user should know about it.
    pub fn prepare(settings: &Measure) -> Result<(Meter, Vec<String>)> {
        let mut notices: Vec<String> = fragmentation::check().into_iter().collect();
        let trace = Trace::prepare(settings.trace_kb)?;
        let trace_event_ns = cost::trace_event_ns(&trace).unwrap_or_else(|e| {
            notices.push(e);
            0.0
        });
        let mut probe_hz = settings.callback_probe_hz;
        if probe_hz > 0 && !kmod::is_loaded() {
            notices.push("no callback probes: kernel module reprieve_load is not loaded".into());
            probe_hz = 0;
        }
        Ok((Meter { settings: settings.clone(), trace, trace_event_ns, probe_hz }, notices))
    }

    /// Starts recording for a phase of `duration_ms`, forgetting what was recorded before.
    pub fn start(&self, duration_ms: u64) -> Result<Running> {
        let wanted = self.probe_hz > 0;
        let probes = wanted.then(|| Probes::start(self.probe_hz, duration_ms)).transpose()?;
        let memory = MemorySampler::start(self.settings.memory_ms, duration_ms)?;
        let slow = SlowSampler::start(self.settings.slow_ms)?;
        if let Err(e) = self.trace.start() {
            let _ = self.trace.stop();
            return Err(e);
        }
        let probe_kb = probes.as_ref().map_or(0, |p| (p.records * kmod::RECORD as u64) >> 10);
        let own_kb = self.trace.memory_kb() + memory.own_kb() + probe_kb;
        Ok(Running { memory, slow, probes, own_kb })
    }

    /// Stops recording.
    pub fn stop(&self, mut running: Running) -> Result<Recorded<'_>> {
        let stopped = self.trace.stop();
        let memory = running.memory.finish();
        let slow = running.slow.finish();
        if let Some(probes) = &mut running.probes {
            probes.stop()?;
        }
        stopped?;
        let (slow, slow_cpu_ns) = slow?;
        let own_kb = running.own_kb;
        Ok(Recorded { meter: self, memory: memory?, slow, slow_cpu_ns, own_kb })
    }
}

impl Recorded<'_> {
    /// Calls `each` for every sample of the phase that lasted from `from` to `to` (`CLOCK_MONOTONIC`, ns); returns the cost, and what the
    /// user should know.
    pub fn samples(
        self,
        from: u64,
        to: u64,
        mut each: impl FnMut(Sample),
    ) -> Result<(MeasureCost, Vec<String>)> {
        let mut notices = Vec::new();
        let within = |t: u64| (from..=to).contains(&t);
        let volume = self.meter.trace.read(from, to, |gp| {
            each(Sample::GracePeriod {
                start_ns: gp.start_ns - from,
                end_ns: gp.end_ns - from,
                cpu_ns: gp.cpu_ns,
            })
        })?;
        let memory = || self.memory.readings.iter().filter(|r| within(r.time_ns));
        for m in memory() {
            each(Sample::Memory {
                t_ns: m.time_ns - from,
                free_kb: m.free_kb,
                slab_kb: m.slab_kb,
                used_kb: m.used_kb.saturating_sub(self.own_kb),
            });
        }
        if let Some(ns) = self.memory.widened_to_ns {
            let ms = ns / 1_000_000;
            notices.push(format!("a long phase: of its memory, a sample every {ms} ms was kept"));
        }
        for reading in self.slow.into_iter().filter(|r| within(r.time_ns)) {
            let t_ns = reading.time_ns - from;
            if let Some(unusable) = reading.unusable {
                each(Sample::Fragmentation { t_ns, unusable });
            }
            if let Some(s) = reading.shares {
                each(Sample::Cpu {
                    t_ns,
                    steal: s.steal,
                    kernel: s.kernel,
                    user: s.user,
                    idle: s.idle,
                    callbacks: reading.callbacks,
                });
            }
        }
        if self.meter.probe_hz > 0 {
            kmod::probes(|p| {
                if within(p.registered_ns) {
                    let t_ns = p.registered_ns - from;
                    each(Sample::Callback { t_ns, cpu: p.cpu, latency_ns: p.latency_ns });
                }
            })?;
            let lost = kmod::stats()?.probes_lost;
            if lost > 0 {
                notices.push(format!("{lost} callback probes were lost"));
            }
        }
        let cost = MeasureCost {
            sampler_ns: self.memory.cpu_ns + self.slow_cpu_ns,
            trace_events: volume.events,
            trace_lost: volume.lost,
            trace_event_ns: self.meter.trace_event_ns,
            longest_gap_ns: longest_gap(memory().map(|r| r.time_ns), from, to),
        };
        Ok((cost, notices))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn probes_have_room_for_all_records_within_the_modules_limit() {
        assert_eq!(super::probe_records(50, 10_000, 2), 2_500);
        assert_eq!(super::probe_records(1_000, u64::MAX, 64), 1 << 20);
    }
}
