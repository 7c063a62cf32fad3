// SPDX-License-Identifier: MIT OR Apache-2.0
//! Preempted vCPUs are classed right: each is kept in a known state, and they share few CPUs.
//!
//! The guest does little else on these vCPUs: no tick (`nohz_full`), no other tasks
//! (`isolcpus`). What remains between two holds is told apart by the instruction pointer, which
//! has no part in classing: only preemptions in the function that holds are judged. How many the
//! others are depends on the machine's speed (a slow machine spends more of a vCPU's time in
//! emulated interrupts), so their share is reported and marked, and is not what passes.
//!
//! Nothing is judged before `watch` knows where every vCPU's registers are: QEMU's have to be
//! found, which takes some preemptions, and until then user mode and disabled interrupts count as
//! kernel. They are found soonest in user mode, and that class shows that they are: the first round
//! keeps all vCPUs there.
//!
//! The guest's kernel has to have no complaint.

use super::guest_setup::{GuestSetup, few_cpus};
use super::{Check, Finding};
use crate::ebpf_watcher::Watched;
use crate::limit::scaled;
use crate::vm::Vm;
use anyhow::Result;
use reprieve_init::protocol::{Held, Hold, Workload};
use reprieve_watch::model::{Class, Event};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// vCPU 0 does all other work of the guest.
const VCPUS: u32 = 4;
const KEPT: usize = VCPUS as usize - 1;

/// `idle=poll`, because an idle vCPU that halts cannot be preempted. The kernel's complaints about
/// a vCPU that gets no CPU for long say nothing.
const ARGS: &str = "nohz_full=1-3 isolcpus=1-3 irqaffinity=0 rcu_nocb_poll idle=poll nowatchdog \
    rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0";

/// Long compared with the work between two holds. Longer where a hold keeps interrupts waiting,
/// which makes that work longer; elsewhere RCU would turn the tick on again in so long a hold.
const HOLD_US: u32 = 100_000;
const HOLD_ATOMIC_US: u32 = 500_000;

/// The share of the judged preemptions that must be right.
const RIGHT: f64 = 0.99;

/// The share of all preemptions that is judged on an ordinary machine. An interrupt of a guest that
/// shares busy CPUs takes its time when it is emulated, and is where the vCPU then is (up to 7 % of
/// the preemptions of user mode); more so of an idle vCPU, since polling keeps the tick going.
const JUDGED: f64 = 0.85;
const JUDGED_IDLE: f64 = 0.7;

const SETTLE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(100);
const ROUND_LIMIT: Duration = Duration::from_secs(60);

/// The state in which a vCPU is kept; `None` for idle.
struct Kept(Option<Held>);

impl Kept {
    fn name(&self) -> &'static str {
        self.0.map_or("idle", Held::name)
    }

    fn class(&self) -> Class {
        match self.0 {
            None => Class::Idle,
            Some(Held::User) => Class::User,
            Some(Held::Kernel) => Class::Kernel,
            Some(Held::Reader) => Class::Reader,
            Some(Held::Spinlock | Held::Bh) => Class::NoPreempt,
            Some(Held::Softirq) => Class::Softirq,
            Some(Held::Hardirq) => Class::Hardirq,
            Some(Held::IrqsOff) => Class::IrqsOff,
        }
    }

    /// Whether the vCPU was not in the function that holds it, by its instruction pointer, if that
    /// is known. User mode has no function.
    fn elsewhere(&self, function: Option<&str>) -> bool {
        let Some(function) = function else { return false };
        let name = match self.0 {
            Some(Held::User) => return true,
            Some(held) => format!("reprieve_hold_{}+", held.name().replace('-', "_")),
            None => "cpu_idle_poll".into(),
        };
        !function.starts_with(&name)
    }

    fn hold(&self, cpu: u32) -> Option<Hold> {
        let held = self.0?;
        let atomic = matches!(held, Held::Hardirq | Held::IrqsOff);
        let hold_us = if atomic { HOLD_ATOMIC_US } else { HOLD_US };
        Some(Hold { cpu, held, hold_us })
    }
}

/// Preemptions of one vCPU.
#[derive(Default)]
struct Seen {
    classes: BTreeMap<Class, u64>,
    elsewhere: u64,
}

impl Seen {
    fn judged(&self) -> u64 {
        self.classes.values().sum()
    }
}

pub fn check(setup: &GuestSetup, preemptions: u64) -> Result<Finding> {
    let mut vm = setup.boot("classes", VCPUS, 512, ARGS)?;
    let few = few_cpus();
    vm.threads().pin(&vec![few; VCPUS as usize], &[])?;
    let mut watched = setup.watch_events(&vm)?;
    let (mut text, mut figures) = (String::new(), Vec::new());
    let (mut passed, mut lost) = (true, 0);
    if !registers_are_found(setup, &mut vm, &mut watched)? {
        let blind = watched.vm().map_err(anyhow::Error::msg)?.0.blind;
        let text = format!("! a vCPU in user mode is never seen there: {blind:?}\n");
        return Ok(Finding::new(Check::Classes, false, text, json!({ "blind": blind })));
    }
    let kept: Vec<Kept> = Held::ALL.map(Some).into_iter().chain([None]).map(Kept).collect();
    for round in kept.chunks(KEPT) {
        let names: Vec<&str> = round.iter().map(Kept::name).collect();
        setup.progress.step(&format!("vCPUs in {}", names.join(", ")));
        let holds = round.iter().zip(1..).filter_map(|(kept, cpu)| kept.hold(cpu)).collect();
        setup.start(&mut vm, Workload::Hold { holds, graces: false })?;
        // Until all vCPUs are in their states.
        setup.sleep(SETTLE)?;
        watched.events();
        let mut seen: Vec<Seen> = round.iter().map(|_| Seen::default()).collect();
        let began = Instant::now();
        while seen.iter().any(|s| s.judged() < preemptions) && began.elapsed() < scaled(ROUND_LIMIT)
        {
            setup.sleep(POLL)?;
            for event in watched.events() {
                match event {
                    Event::Preempted { vcpu: vcpu @ 1.., class, at, .. } => {
                        let index = vcpu as usize - 1;
                        let Some(kept) = round.get(index) else { continue };
                        match kept.elsewhere(at.function.as_deref()) {
                            true => seen[index].elsewhere += 1,
                            false => *seen[index].classes.entry(class).or_default() += 1,
                        }
                    }
                    Event::Lost { count, .. } => lost += count,
                    _ => {}
                }
            }
        }
        for (kept, seen) in round.iter().zip(&seen) {
            let (good, line, figure) = judge(kept, seen, preemptions);
            passed &= good;
            text += &line;
            figures.push(figure);
        }
    }
    let blind = watched.vm().map_err(anyhow::Error::msg)?.0.blind;
    blind.iter().for_each(|what| text += &format!("  not seen: {what}\n"));
    if lost > 0 {
        let _ = writeln!(text, "  {lost} events lost");
    }
    // Of the module that holds the vCPUs, most likely.
    let said = setup.console("classes")?;
    for line in said.lines().filter(|l| l.contains("BUG") || l.contains("WARNING")) {
        passed = false;
        let _ = writeln!(text, "! the guest's kernel: {line}");
    }
    vm.shut_down(setup.cancel);
    let figures = json!({ "held": figures, "blind": blind, "lost": lost });
    Ok(Finding::new(Check::Classes, passed, text, figures))
}

/// Keeps the vCPUs in user mode until each was seen to be preempted there. Says whether they were.
fn registers_are_found(setup: &GuestSetup, vm: &mut Vm, watched: &mut Watched) -> Result<bool> {
    setup.progress.step("finding the vCPUs' registers");
    let kept = Kept(Some(Held::User));
    let holds = (1..VCPUS).filter_map(|cpu| kept.hold(cpu)).collect();
    setup.start(vm, Workload::Hold { holds, graces: false })?;
    let mut missing: BTreeSet<u32> = (1..VCPUS).collect();
    setup.wait_until(ROUND_LIMIT, || {
        for event in watched.events() {
            if let Event::Preempted { vcpu, class: Class::User, .. } = event {
                missing.remove(&vcpu);
            }
        }
        Ok(missing.is_empty())
    })
}

/// Whether the preemptions of one vCPU were classed right; the line and the figures that say so.
fn judge(kept: &Kept, seen: &Seen, preemptions: u64) -> (bool, String, Value) {
    let (name, expected) = (kept.name(), kept.class());
    let judged = seen.judged();
    let right = seen.classes.get(&expected).copied().unwrap_or(0);
    let share = right as f64 / judged.max(1) as f64;
    let judged_share = judged as f64 / (judged + seen.elsewhere).max(1) as f64;
    let usual = if kept.0.is_some() { JUDGED } else { JUDGED_IDLE };
    let good = judged >= preemptions && share >= RIGHT;
    let mark = match (good, judged_share >= usual) {
        (false, _) => '!',
        (true, false) => '?',
        (true, true) => ' ',
    };
    let others = seen.classes.iter().filter(|(class, _)| **class != expected);
    let others: String = others.map(|(c, n)| format!(", {n} {}", c.name())).collect();
    let line = format!(
        "{mark} {name:<9}{judged:>6} preemptions, {:>6.2} % {}{others} (and {} between two holds)\n",
        100.0 * share,
        expected.name(),
        seen.elsewhere
    );
    let classes: BTreeMap<&str, u64> = seen.classes.iter().map(|(c, n)| (c.name(), *n)).collect();
    let figures = json!({
        "held": name, "expected": expected.name(), "preemptions": judged, "right": right, "share": share,
        "elsewhere": seen.elsewhere, "judged_share": judged_share, "classes": classes,
    });
    (good, line, figures)
}
