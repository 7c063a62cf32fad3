// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU limits of cgroups (`cpu.max`) under `guard`, beside the stock scheduler: two threads that
//! compute have the limit's share of a CPU, also when it changes, and the rest when it is lifted;
//! so has a VM, also in a cgroup of a user who sets more limits than guard keeps, and so have the
//! threads when their limit is set after those, and when one of them changes its policy all the
//! time. Many threads whose limit is far too small all run, late, and guard stays. One limit of
//! root's too many ends it.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use super::super::{Check, Finding};
use super::cgroup::Cgroup;
use super::delegated::Delegated;
use super::process::Guard;
use super::{progress, wait};
use crate::vm::{Threads, Vm};
use anyhow::{Context as _, Result, bail};
use reprieve_guard::{Options, Policy};
use reprieve_init::protocol::{Command, Workload};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::os::unix::fs::chown;
use std::time::{Duration, Instant};

const FILE: &str = "cpu.max";
/// How long a share is measured. A period more or less is 0.7 points of 20.
const WINDOW: Duration = Duration::from_secs(3);
/// After a change.
const SETTLE: Duration = Duration::from_millis(300);
/// Points that a share may be off.
const OFF: f64 = 2.0;

/// So many threads in a cgroup that has [`TINY`]: were each to wait for its turn, the last would
/// wait for longer than the kernel's watchdog allows (20 s).
const MANY: usize = 40;
/// 1 ms in a second.
const TINY: &str = "1000 1000000";
/// How often each of them has to run.
const RUNS: u32 = 3;

/// A user's limits, in each other and beside each other: more than guard keeps, and more than it
/// has entries.
const NESTED: usize = 6;
const BESIDE: usize = 600;
/// Larger than root's limit above them, so that they change nothing.
const LARGER: &str = "90000 100000";

/// Of one CPU, in percent.
#[derive(Clone, Copy)]
struct Shares {
    limited: f64,
    vm: f64,
}

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let mut vm = setup.boot("hog", 2, 256, "")?;
    setup.prepare(&mut vm, Workload::Hog { threads: 2 }, None)?;
    setup.call(&mut vm, &Command::Start)?;
    let cgroup = Cgroup::make()?;
    let domain = Cgroup::make_named("reprieve-check-vm")?;
    cgroup.write("cgroup.type", "threaded")?;
    cgroup.write(FILE, "20000 100000")?;
    if reprieve_guard::kept_limits(&Options::default()).is_empty() {
        let text = "  this kernel does not tell a scheduler of limits; guard refuses them\n";
        return Ok(Finding::new(Check::GuardLimits, true, text.into(), json!({})));
    }
    let mut spinners = Vec::new();
    for cpu in few_cpus().into_iter().take(2) {
        spinners.push(within(&cgroup, Spinner::start(cpu)?)?);
    }
    let mut text = String::new();
    let mut figures = Vec::new();
    let mut passed = true;
    let mut note = |what: &str, share: f64, wanted: Option<f64>, rest: f64| -> Result<()> {
        let right = wanted.is_none_or(|wanted| (share - wanted).abs() <= OFF);
        passed &= right;
        let mark = if right { "" } else { "  <- wrong" };
        writeln!(text, "  {what}: {share:.1} % of a CPU, others {rest:.1} %{mark}")?;
        figures.push(json!({ "what": what, "percent": share, "others": rest }));
        Ok(())
    };

    setup.progress.step("limits under the stock scheduler");
    let stock = measure(setup, &cgroup, &vm)?;
    note("stock scheduler, 20 %", stock.limited, Some(20.0), stock.vm)?;

    setup.progress.step("limits under guard");
    let mut guard = Guard::start(setup, Policy::Full, &[])?;
    let seen = measure(setup, &cgroup, &vm)?;
    note("guard, 20 %", seen.limited, Some(20.0), seen.vm)?;
    if seen.vm < stock.vm - 10.0 {
        bail!("beside the limit the VM had {:.1} % of a CPU, {:.1} % before", seen.vm, stock.vm);
    }
    let last = few_cpus().last().copied().context("no CPU")?;
    let restless = within(&cgroup, Spinner::restless(last)?)?;
    spinners.pop();
    let seen = measure(setup, &cgroup, &vm)?;
    note("one of the threads changes its policy all the time", seen.limited, Some(20.0), seen.vm)?;
    spinners.push(within(&cgroup, Spinner::start(last)?)?);
    drop(restless);
    cgroup.write(FILE, "50000 100000")?;
    let seen = measure(setup, &cgroup, &vm)?;
    note("changed to 50 %", seen.limited, Some(50.0), seen.vm)?;
    cgroup.write(FILE, "max")?;
    let free = measure(setup, &cgroup, &vm)?;
    note("lifted", free.limited, None, free.vm)?;
    if free.limited < 70.0 {
        bail!("without a limit the threads had {:.1} % of a CPU", free.limited);
    }

    setup.progress.step("a VM in a limited cgroup");
    domain.write(FILE, "30000 100000")?;
    let moved = domain.take(vm.threads().pid())?;
    note("a VM of 2 vCPUs, 30 %", share_of(setup, &domain)?, Some(30.0), 0.0)?;
    setup.read(&mut vm, "/proc/uptime").context("the limited guest")?;
    let path = domain.path.display().to_string();
    let limit = wait(setup, "the limit in guard's statistics", || {
        let line = guard.line(setup)?;
        let all = line["limits"].as_array().cloned().unwrap_or_default();
        Ok(all.into_iter().find(|limit| measured(limit, &path)))
    })?;
    drop(moved);

    setup.progress.step(&format!("{} limits of a user", NESTED + BESIDE));
    let users = Delegated::make(&domain, NESTED, BESIDE, LARGER)?;
    let moved = domain.move_to(&users.leaf, vm.threads().pid())?;
    let share = share_of(setup, &domain)?;
    note("the VM below a user's limits, root's 30 % above", share, Some(30.0), 0.0)?;
    let lost = wait(setup, "a user's limit that is not kept", || {
        let lost = guard.line(setup)?["user_limits_lost"].as_u64();
        Ok(lost.filter(|&lost| lost > 0))
    })?;
    drop(moved);
    cgroup.write(FILE, "20000 100000")?;
    let seen = measure(setup, &cgroup, &vm)?;
    note("20 % again, beside a user's limits", seen.limited, Some(20.0), seen.vm)?;
    drop((users, spinners));
    cgroup.write(FILE, "max")?;
    figures_of(&mut text, &limit)?;
    writeln!(text, "  of a user's limits, guard has left out {lost}, and goes on")?;
    progress(setup, [&vm]).context("the VM, no longer limited")?;
    text += &many(setup, &cgroup).context("many threads under a small limit")?;
    guard.check()?;
    text += &too_many(setup, guard, &domain, &vm)?;
    progress(setup, [&vm]).context("after guard ended")?;
    vm.shut_down(setup.cancel);
    Ok(Finding::new(Check::GuardLimits, passed, text, json!({ "shares": figures })))
}

/// Root's limits, nested too deeply: guard ends rather than drop one.
fn too_many(setup: &GuestSetup, guard: Guard, domain: &Cgroup, vm: &Vm) -> Result<String> {
    setup.progress.step("limits of root's that guard does not keep");
    let roots = Delegated::make(domain, NESTED, 0, LARGER)?;
    // Files are root's again, and so are the limits.
    for path in roots.leaf.ancestors().take(NESTED) {
        chown(path, Some(0), None)?;
        chown(path.join(FILE), Some(0), None)?;
    }
    let moved = domain.move_to(&roots.leaf, vm.threads().pid())?;
    let said = guard.gives_up(setup)?;
    drop((moved, roots));
    if !said.lines().last().is_some_and(|line| line.contains("the CPU limit in")) {
        bail!("beside limits that it does not keep, guard said: {said}");
    }
    Ok(format!("  {NESTED} nested limits of root's: ended, one named, stock scheduler back\n"))
}

/// Puts the thread into the cgroup.
fn within(cgroup: &Cgroup, spinner: Spinner) -> Result<Spinner> {
    cgroup.write("cgroup.threads", &spinner.tid.to_string())?;
    Ok(spinner)
}

/// A line of after the measurement.
fn measured(limit: &Value, path: &str) -> bool {
    limit["cgroup"] == path
        && limit["throttled"].as_u64() > Some(0)
        && limit["used_ns"].as_u64() > Some(WINDOW.as_nanos() as u64 / 4)
}

fn figures_of(text: &mut String, limit: &Value) -> Result<()> {
    let number = |name: &str| limit[name].as_u64().unwrap_or(0);
    writeln!(
        text,
        "  guard counts {} periods of the VM's limit, throttled {} times for {:.1} s, {:.1} s used",
        number("periods"),
        number("throttled"),
        number("throttled_ns") as f64 / 1e9,
        number("used_ns") as f64 / 1e9,
    )?;
    Ok(())
}

/// Waits until each of many threads has run several times.
fn many(setup: &GuestSetup, cgroup: &Cgroup) -> Result<String> {
    setup.progress.step(&format!("{MANY} threads under a limit of 0.1 %"));
    let cpus = few_cpus();
    let mut spinners = Vec::new();
    for cpu in cpus.iter().cycle().take(MANY) {
        spinners.push(within(cgroup, Spinner::start(*cpu)?)?);
    }
    cgroup.write(FILE, TINY)?;
    let thread = |spinner: &Spinner| Threads::new(std::process::id(), vec![spinner.tid]);
    let mut seen = vec![(0, 0); MANY];
    let began = Instant::now();
    wait(setup, "threads under a small limit", || {
        for (spinner, (turns, ran)) in spinners.iter().zip(&mut seen) {
            let now = thread(spinner).vcpu_counters().run_ns;
            if now > *ran {
                (*turns, *ran) = (*turns + 1, now);
            }
        }
        Ok(seen.iter().all(|&(turns, _)| turns > RUNS).then_some(()))
    })?;
    let took = began.elapsed();
    // They exit in their turn too.
    cgroup.write(FILE, "max")?;
    Ok(format!(
        "  {MANY} threads under 0.1 % of a CPU: each ran {RUNS} times within {:.1} s\n",
        took.as_secs_f64(),
    ))
}

fn percent(ns: u64, of: Duration) -> f64 {
    100.0 * ns as f64 / of.as_nanos() as f64
}

/// Of a cgroup.
fn share_of(setup: &GuestSetup, cgroup: &Cgroup) -> Result<f64> {
    setup.sleep(SETTLE)?;
    let (began, before) = (Instant::now(), cgroup.used_ns()?);
    setup.sleep(WINDOW)?;
    Ok(percent(cgroup.used_ns()? - before, began.elapsed()))
}

fn measure(setup: &GuestSetup, cgroup: &Cgroup, vm: &Vm) -> Result<Shares> {
    setup.sleep(SETTLE)?;
    let ran = || vm.threads().vcpu_counters().run_ns;
    let (began, used, others) = (Instant::now(), cgroup.used_ns()?, ran());
    setup.sleep(WINDOW)?;
    let (used, others) = (cgroup.used_ns()? - used, ran() - others);
    let time = began.elapsed();
    Ok(Shares { limited: percent(used, time), vm: percent(others, time) })
}
