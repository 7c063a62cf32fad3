// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures a guest during a phase.
//!
//! Measuring is prepared once, and started and stopped around each phase. Nothing is sent, printed
//! or parsed at length during a phase: samples stay in memory, in the tracer's buffers and in the
//! kernel module until [`Recorded::samples`] returns them. A sample's time is relative to the
//! beginning of the phase; samples from before or after it are left out, except that of memory from
//! right before the load: it may take MiBs before the next. Memory that measuring itself takes does
//! not count as used.
//!
//! The probes of callback latency are callbacks themselves: with them, there are grace periods even
//! if the load needs none.

mod cpu;
mod fragmentation;
mod gp;
pub mod meminfo;
mod memory;
mod ring;
mod slow;
mod trace;

use crate::kmod;
use crate::protocol::{Measure, MeasureCost, Sample};
use crate::sys::{self, Result};
use memory::{MemorySampler, Reading, longest_gap, of_phase};
use slow::{SlowReading, SlowSampler};
use trace::Trace;

/// Prepared measurements.
pub struct Meter {
    settings: Measure,
    trace: Trace,
    /// Per CPU and second; 0 for none.
    probe_hz: u32,
}

/// Running measurements; dropping this stops them.
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

/// How many records the module has to keep: it makes intervals of 3/4 to 5/4 of the period.
fn probe_records(hz: u64, duration_ms: u64, cpus: u32) -> u64 {
    let expected = duration_ms.saturating_mul(hz * u64::from(cpus)) / 1_000;
    (expected.saturating_mul(3) / 2 + 1_000).min(1 << 20)
}

/// Measurements that have ended.
pub struct Recorded<'a> {
    meter: &'a Meter,
    memory: Vec<Reading>,
    slow: Vec<SlowReading>,
    own_kb: u64,
}

impl Meter {
    /// Sets everything up; also returns notices for the user.
    pub fn prepare(settings: &Measure) -> Result<(Meter, Vec<String>)> {
        let mut notices = Vec::new();
        let trace = Trace::prepare(settings.trace_kb)?;
        let mut probe_hz = settings.callback_probe_hz;
        if probe_hz > 0 && !kmod::is_loaded() {
            notices.push("no callback probes: kernel module reprieve_load is not loaded".into());
            probe_hz = 0;
        }
        Ok((Meter { settings: settings.clone(), trace, probe_hz }, notices))
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
        let own_kb = running.own_kb;
        Ok(Recorded { meter: self, memory: memory?, slow: slow?, own_kb })
    }
}

impl Recorded<'_> {
    /// Calls `each` for every sample of the phase that lasted from `from` to `to`
    /// (`CLOCK_MONOTONIC`, ns); returns the cost, and notices for the user.
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
        if let Some(start) = volume.open {
            let start = start.max(from);
            each(Sample::OpenGracePeriod {
                start_ns: start - from,
                open_ns: to.saturating_sub(start),
            });
        }
        let memory = || of_phase(&self.memory, from, to);
        for (t_ns, m) in memory() {
            each(Sample::Memory {
                t_ns,
                free_kb: m.free_kb,
                slab_kb: m.slab_kb,
                used_kb: m.used_kb.saturating_sub(self.own_kb),
            });
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
            notices.extend(callbacks(from, to, &mut each)?);
        }
        let cost = MeasureCost {
            trace_events: volume.events,
            trace_lost: volume.lost,
            trace_until_ns: volume.complete_until.map(|at| at.min(to).saturating_sub(from)),
            longest_gap_ns: longest_gap(memory().map(|(t_ns, _)| t_ns), 0, to.saturating_sub(from)),
        };
        Ok((cost, notices))
    }
}

/// Calls `each` for every probe that was registered in the phase; returns a notice if any were
/// lost.
fn callbacks(from: u64, to: u64, mut each: impl FnMut(Sample)) -> Result<Option<String>> {
    kmod::probes(|p| {
        if (from..=to).contains(&p.registered_ns) {
            let t_ns = p.registered_ns - from;
            each(Sample::Callback { t_ns, cpu: p.cpu, latency_ns: p.latency_ns });
        }
    })?;
    let lost = kmod::stats()?.probes_lost;
    Ok((lost > 0).then(|| format!("{lost} callback probes were lost")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn probes_have_room_for_all_records_within_the_modules_limit() {
        assert_eq!(super::probe_records(50, 10_000, 2), 2_500);
        assert_eq!(super::probe_records(1_000, u64::MAX, 64), 1 << 20);
    }
}
