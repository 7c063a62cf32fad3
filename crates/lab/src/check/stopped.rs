// SPDX-License-Identifier: MIT OR Apache-2.0
//! `watch` names a vCPU that lost its CPU inside a reader as the one that holds up the grace
//! period.
//!
//! How long that takes depends on the machine too, so the time is only reported beside the promise.
//! The check passes if the vCPU is named within a number of looks, once it is stopped in the reader
//! and a grace period waits for it.

use super::guest_setup::{GuestSetup, few_cpus};
use super::load::{Spinner, Starved};
use super::{Check, Finding};
use crate::ebpf_watcher::Watched;
use crate::limit::scaled;
use anyhow::{Result, anyhow, bail};
use reprieve_init::protocol::{Command, Event, Held, Hold, Workload};
use reprieve_watch::model::{Vcpu, VcpuNow, VmSnapshot as Seen};
use serde_json::json;
use std::time::{Duration, Instant};

/// The vCPU with the reader.
const READER: u32 = 1;

/// For the guest: no other work on the vCPU that is stopped.
const ARGS: &str = "nohz_full=1 isolcpus=1 irqaffinity=0";

/// Longer than the vCPU is stopped.
const HOLD_US: u32 = 10_000_000;
const FUNCTION: &str = "reprieve_hold_reader";

/// The promise: the vCPU is named within this time.
const PROMISE: Duration = Duration::from_secs(1);

/// A look every 20 ms: 50 fit into the promised time if looking takes no time.
const POLL: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;

/// The vCPU may be stopped in an interrupt on top of the reader, or (if emulated) while it waits
/// for QEMU's lock because of one, most often where the tick is on. Then it is released and stopped
/// again.
const TRIES: u32 = 500;
const HIT: Duration = Duration::from_millis(30);

/// How long it stays stopped, so that the age of the grace period grows.
const STOPPED: Duration = Duration::from_secs(2);

/// Longer than all tries together; the check does not wait for its end.
const PHASE_MS: u64 = 24 * 3600 * 1000;

/// How long the guest may take to begin its phase, to begin a grace period, or to end it once its
/// reader runs again; and `watch`, to find the registers of a vCPU that competes for its CPU.
const GUEST_LIMIT: Duration = Duration::from_secs(120);

/// A grace period in progress that waits for the reader, as `watch` names it.
struct Named {
    seq: i64,
    age: Duration,
    function: String,
    task: String,
    /// The vCPU's time on a CPU until then.
    on_cpu_ns: u64,
}

fn reader(seen: &Seen) -> Option<&Vcpu> {
    seen.vcpus.iter().find(|vcpu| vcpu.index == READER)
}

fn named(seen: &Seen, now_ns: u64) -> Option<Named> {
    let current = seen.grace.as_ref()?.current.as_ref()?;
    let vcpu = reader(seen)?;
    let VcpuNow::Preempted { reader: true, at, .. } = &vcpu.now else { return None };
    let function = at.function.clone().filter(|f| f.starts_with(FUNCTION))?;
    current.owing.contains(&READER).then(|| Named {
        seq: current.seq,
        age: Duration::from_nanos(now_ns.saturating_sub(current.began_ns)),
        function,
        task: at.task.clone().unwrap_or_default(),
        on_cpu_ns: vcpu.on_cpu_ns,
    })
}

/// Whether the vCPU was stopped in the reader itself, not in an interrupt on top of it or asleep.
fn hit(seen: &Seen) -> bool {
    reader(seen).is_some_and(|vcpu| match &vcpu.now {
        VcpuNow::Preempted { at, .. } => {
            at.function.as_ref().is_none_or(|f| f.starts_with(FUNCTION))
        }
        _ => false,
    })
}

/// The grace period in progress that waits for the reader: its number and age.
fn held_up(seen: &Seen, now_ns: u64) -> Option<(i64, Duration)> {
    let current = seen.grace.as_ref()?.current.as_ref()?;
    let age = Duration::from_nanos(now_ns.saturating_sub(current.began_ns));
    current.owing.contains(&READER).then_some((current.seq, age))
}

/// A vCPU that was named: after how many looks at which it could be, and how long.
struct First {
    looks: u32,
    after: Duration,
    named: Named,
}

/// A vCPU that is being starved, since when, and how often it was stopped before it was hit in the
/// reader.
struct Stopped {
    starved: Starved,
    since: Instant,
    tries: u32,
}

/// Stops the vCPU and looks until it is named; `None` if it is not.
fn stop_until_named(
    setup: &GuestSetup,
    watched: &mut Watched,
    tid: u32,
    cpu: u32,
) -> Result<(Stopped, Option<First>)> {
    let stop = |tries| -> Result<Stopped> {
        let starved = Starved::start(tid, cpu)?;
        Ok(Stopped { starved, since: Instant::now(), tries })
    };
    let mut stopped = stop(1)?;
    let mut looks = 0;
    loop {
        let (seen, snapshot) = watched.vm().map_err(anyhow::Error::msg)?;
        let hit = hit(&seen);
        // A slow guest takes its time to begin a grace period.
        looks += u32::from(hit && held_up(&seen, snapshot.time_ns).is_some());
        if let Some(named) = named(&seen, snapshot.time_ns) {
            let first = First { looks, after: stopped.since.elapsed(), named };
            return Ok((stopped, Some(first)));
        }
        if stopped.tries < TRIES && stopped.since.elapsed() > HIT && !hit {
            let tries = stopped.tries + 1;
            drop(stopped.starved);
            setup.sleep(HIT)?;
            stopped = stop(tries)?;
            looks = 0;
            continue;
        }
        if looks >= 5 * LOOKS || stopped.since.elapsed() > scaled(GUEST_LIMIT) {
            let vcpus: Vec<_> = seen.vcpus.iter().map(|vcpu| &vcpu.now).collect();
            let current = seen.grace.as_ref().and_then(|grace| grace.current.as_ref());
            setup.progress.notice(&format!("vCPUs {vcpus:?}, grace period {current:?}"));
            return Ok((stopped, None));
        }
        setup.sleep(POLL)?;
    }
}

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let mut vm = setup.boot("stopped", 2, 512, ARGS)?;
    let cpu = few_cpus().pop().unwrap_or(0);
    let mut watched = setup.watch(&vm)?;
    let tid = vm.threads().vcpus().get(READER as usize).copied();
    let tid = tid.ok_or_else(|| anyhow!("the VM has no vCPU {READER}"))?;
    let hold = Hold { cpu: READER, held: Held::Reader, hold_us: HOLD_US };
    setup.prepare(&mut vm, Workload::Hold { holds: vec![hold], graces: true }, None)?;
    vm.send(&Command::Phase { phase: 0, duration_ms: PHASE_MS })?;
    let deadline = Instant::now() + scaled(GUEST_LIMIT);
    while !matches!(vm.next_event(deadline, setup.cancel)?, Event::PhaseStarted { .. }) {}
    // `watch` finds the instruction pointer of an emulated vCPU only while the vCPU is preempted
    // now and then, as on every host that needs watching. Without it no function is named.
    vm.threads().pin(&[vec![], vec![cpu]], &[])?;
    let spinner = Spinner::start(cpu)?;
    let mut blind = vec![];
    let found = setup.wait_until(GUEST_LIMIT, || {
        let (seen, _) = watched.vm().map_err(anyhow::Error::msg)?;
        let now = reader(&seen).map(|vcpu| &vcpu.now);
        let found = matches!(now, Some(VcpuNow::Preempted { at, .. }) if at.function.is_some());
        blind = seen.blind;
        Ok(found)
    })?;
    if !found {
        bail!("the instruction pointer of vCPU {READER} is not found: {blind:?}");
    }
    drop(spinner);

    setup.progress.step("stopping a vCPU in a reader");
    let mut rounds = 0;
    let (tries, first, last) = loop {
        rounds += 1;
        let (stopped, first) = stop_until_named(setup, &mut watched, tid, cpu)?;
        let tries = stopped.tries;
        let Some(first) = first else {
            let text = format!("! not named after {tries} stops\n");
            let figures = json!({ "named_after_ms": null, "tries": tries });
            return Ok(Finding::new(Check::Stopped, false, text, figures));
        };
        setup.sleep(STOPPED.saturating_sub(stopped.since.elapsed()))?;
        let (seen, snapshot) = watched.vm().map_err(anyhow::Error::msg)?;
        drop(stopped);
        let last = held_up(&seen, snapshot.time_ns);
        // Even a starved thread gets its CPU for a moment now and then. It may lose it in an
        // interrupt on top of the reader, so this looks only at the grace period; and if the reader
        // left meanwhile, so that the grace period ended, the vCPU is stopped again.
        let ran = reader(&seen).is_some_and(|vcpu| vcpu.on_cpu_ns > first.named.on_cpu_ns);
        let same = last.is_some_and(|(seq, _)| seq == first.named.seq);
        if same || !ran || rounds >= TRIES {
            break (tries, first, last);
        }
    };
    // The reader runs again: its grace period must end.
    let ended = setup.wait_until(GUEST_LIMIT, || {
        let (seen, snapshot) = watched.vm().map_err(anyhow::Error::msg)?;
        Ok(held_up(&seen, snapshot.time_ns).is_none_or(|(seq, _)| seq != first.named.seq))
    })?;
    if !ended {
        bail!("the grace period does not end though its reader runs again");
    }
    vm.shut_down(setup.cancel);
    Ok(judged(tries, &first, last))
}

/// `last`: the grace period that waited for the vCPU when it had been stopped for [`STOPPED`].
fn judged(tries: u32, first: &First, last: Option<(i64, Duration)>) -> Finding {
    let First { looks, after, named } = first;
    // Still the same grace period, older by the time that passed, and still waiting for this vCPU.
    let grew = last.is_some_and(|(seq, age)| seq == named.seq && age + *after >= STOPPED);
    let kept = *after <= PROMISE;
    let age = last.map(|(_, age)| age);
    let text = format!(
        "  vCPU {READER}, hit in the reader at try {tries}, named at look {looks}, after {} ms (promised: {} ms, {}): in {} of {:?}; its grace period was {} ms old, and {} ms when it had been stopped for {} ms\n",
        after.as_millis(),
        PROMISE.as_millis(),
        if kept { "kept" } else { "NOT kept" },
        named.function,
        named.task,
        named.age.as_millis(),
        age.map_or_else(|| "gone".into(), |age| age.as_millis().to_string()),
        STOPPED.as_millis(),
    );
    let figures = json!({
        "named_after_ms": after.as_millis() as u64, "looks": looks, "promise_kept": kept, "tries": tries,
        "function": named.function, "task": named.task, "age_ms": named.age.as_millis() as u64,
        "age_at_end_ms": age.map(|age| age.as_millis() as u64),
    });
    Finding::new(Check::Stopped, *looks <= LOOKS && grew, text, figures)
}
