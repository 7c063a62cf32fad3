// SPDX-License-Identifier: MIT OR Apache-2.0
//! A vCPU that loses its CPU inside a reader, and does not get it back, is named as what holds up the grace period.

use super::load::{Spinner, Starved};
use super::stage::{Stage, few_cpus};
use super::{Check, Finding};
use anyhow::{Result, anyhow};
use reprieve_host::watch::model::{VcpuNow, Vm as Seen};
use reprieve_lab::protocol::{Command, Event, Held, Hold, Measure, Workload};
use serde_json::json;
use std::time::{Duration, Instant};

/// The vCPU with the reader.
const READER: u32 = 1;

/// vCPU 0 must not share the CPU on which the other starves.
const ARGS: &str = "nohz_full=1 isolcpus=1 irqaffinity=0";

/// Longer than it is stopped.
const HOLD_US: u32 = 10_000_000;
const FUNCTION: &str = "reprieve_hold_reader";

/// Within this time it must be named.
const LIMIT: Duration = Duration::from_secs(1);

/// An interrupt may have come upon the reader just when the vCPU is stopped, or an emulated vCPU wait for QEMU's lock because of one, most of all where the tick
/// is on; then it is let go and stopped again.
const TRIES: u32 = 50;
const HIT: Duration = Duration::from_millis(30);

/// How long it stays stopped, to see the grace period grow old.
const STOPPED: Duration = Duration::from_secs(2);

/// How long it only competes before.
const COMPETED: Duration = Duration::from_secs(2);

const PHASE_MS: u64 = 4_000;

/// A grace period in progress that waits for the reader, as `watch` names it.
struct Named {
    seq: u64,
    age: Duration,
    function: String,
    task: String,
}

fn named(seen: &Seen, now_ns: u64) -> Option<Named> {
    let current = seen.grace.as_ref()?.current.as_ref()?;
    let vcpu = seen.vcpus.iter().find(|vcpu| vcpu.index == READER)?;
    let VcpuNow::Preempted { reader: true, at, .. } = &vcpu.now else { return None };
    let function = at.function.clone().filter(|f| f.starts_with(FUNCTION))?;
    current.owing.contains(&READER).then(|| Named {
        seq: current.seq,
        age: Duration::from_nanos(now_ns.saturating_sub(current.began_ns)),
        function,
        task: at.task.clone().unwrap_or_default(),
    })
}

/// Whether the vCPU was hit in the reader itself, and not in an interrupt on top of it or while it was asleep.
fn hit(seen: &Seen) -> bool {
    let vcpu = seen.vcpus.iter().find(|vcpu| vcpu.index == READER);
    vcpu.is_some_and(|vcpu| match &vcpu.now {
        VcpuNow::Preempted { at, .. } => {
            at.function.as_ref().is_none_or(|f| f.starts_with(FUNCTION))
        }
        _ => false,
    })
}

pub fn check(stage: &Stage) -> Result<Finding> {
    let mut vm = stage.boot("stopped", 2, 512, ARGS)?;
    let cpu = few_cpus().pop().unwrap_or(0);
    let mut watched = stage.watch(&vm)?;
    let tid = vm.threads().vcpus().get(READER as usize).copied();
    let tid = tid.ok_or_else(|| anyhow!("the VM has no vCPU {READER}"))?;
    let hold = Hold { cpu: READER, held: Held::Reader, hold_us: HOLD_US, pause_us: 0 };
    // The probes ask for grace periods all the time.
    let measure = Measure { memory_ms: 100, slow_ms: 1_000, trace_kb: 256, callback_probe_hz: 50 };
    stage.prepare(&mut vm, Workload::Hold { holds: vec![hold] }, Some(measure))?;
    vm.send(&Command::Phase { phase: 0, duration_ms: PHASE_MS })?;
    let deadline = Instant::now() + Duration::from_secs(120);
    while !matches!(vm.next_event(deadline, stage.cancel)?, Event::PhaseStarted { .. }) {}
    // An emulated vCPU's instruction pointer is found while it is preempted now and then, as it is on any host that needs watching.
    vm.threads().pin(&[vec![], vec![cpu]], &[])?;
    let spinner = Spinner::start(cpu)?;
    stage.sleep(COMPETED)?;
    drop(spinner);

    stage.progress.step("stopping a vCPU in a reader");
    let mut tries = 1;
    let mut starved = Starved::start(tid, cpu)?;
    let mut stopped = Instant::now();
    let first = loop {
        let (seen, snapshot) = watched.vm().map_err(anyhow::Error::msg)?;
        if let Some(named) = named(&seen, snapshot.time_ns) {
            break Some((stopped.elapsed(), named));
        }
        if tries < TRIES && stopped.elapsed() > HIT && !hit(&seen) {
            drop(starved);
            stage.sleep(HIT)?;
            starved = Starved::start(tid, cpu)?;
            stopped = Instant::now();
            tries += 1;
            continue;
        }
        if stopped.elapsed() > 5 * LIMIT {
            let vcpus: Vec<_> = seen.vcpus.iter().map(|vcpu| &vcpu.now).collect();
            let current = seen.grace.as_ref().and_then(|grace| grace.current.as_ref());
            stage.progress.notice(&format!("vCPUs {vcpus:?}, grace period {current:?}"));
            break None;
        }
        stage.sleep(Duration::from_millis(20))?;
    };
    stage.sleep(STOPPED.saturating_sub(stopped.elapsed()))?;
    // Even a starved thread gets a moment on its CPU now and then, and may lose it in an interrupt upon the reader: the grace period is what counts.
    let (seen, snapshot) = watched.vm().map_err(anyhow::Error::msg)?;
    let current = seen.grace.as_ref().and_then(|grace| grace.current.as_ref());
    let last = current
        .filter(|current| current.owing.contains(&READER))
        .map(|c| (c.seq, Duration::from_nanos(snapshot.time_ns.saturating_sub(c.began_ns))));
    drop(starved);
    let deadline = Instant::now() + Duration::from_secs(120);
    while !matches!(vm.next_event(deadline, stage.cancel)?, Event::PhaseDone { .. }) {}
    vm.shut_down();

    let Some((after, first)) = first else {
        let text = format!("! not named within {} s\n", (5 * LIMIT).as_secs());
        return Ok(Finding::new(Check::Stopped, false, text, json!({ "named_after_ms": null })));
    };
    // Still the same grace period, older by the time that passed, and still waiting for this vCPU.
    let grew = last.is_some_and(|(seq, age)| seq == first.seq && age + after >= STOPPED);
    let passed = after <= LIMIT && grew;
    let age = last.map(|(_, age)| age);
    let text = format!(
        "  vCPU {READER}, hit in the reader at try {tries}, named after {} ms: in {} of {:?}; its grace period was {} ms old, and {} ms when it had been stopped for {} ms\n",
        after.as_millis(),
        first.function,
        first.task,
        first.age.as_millis(),
        age.map_or_else(|| "gone".into(), |age| age.as_millis().to_string()),
        STOPPED.as_millis(),
    );
    let figures = json!({
        "named_after_ms": after.as_millis() as u64, "tries": tries, "function": first.function, "task": first.task,
        "age_ms": first.age.as_millis() as u64, "age_at_end_ms": age.map(|age| age.as_millis() as u64),
    });
    Ok(Finding::new(Check::Stopped, passed, text, figures))
}
