// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard goes on while its host changes: a policy that is set for one VM, a VM that moves to
//! another cgroup, a VM that gets another vCPU. What it changes of threads it gives back.

use super::super::guest_setup::GuestSetup;
use super::process::{End, Guard};
use super::{PROGRESS_NS, wait};
use crate::host_scheduler::own_command;
use crate::plan::CpuControl;
use crate::vm::cgroup::Cgroups;
use crate::vm::{Threads, Vm};
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_guard::Policy;
use reprieve_init::protocol::{Command, Workload};
use serde_json::Value;

/// Returns a line for each thing that was seen.
pub fn check(setup: &GuestSetup, vms: &[Vm]) -> Result<Vec<String>> {
    let mut guard = Guard::start(setup, Policy::Full, &[])?;
    guard.work(setup, Policy::Full, vms)?;
    let mut lines = vec![policies(setup, &mut guard, vms)?];
    lines.push(moved(setup, &mut guard, vms)?);
    lines.push(grown(setup, &mut guard)?);
    guard.end(setup, End::Signal)?;
    lines.push(classes(setup, vms)?);
    Ok(lines)
}

/// The output of `reprieve guard ARGS`.
fn ask(args: &[&str]) -> Result<String> {
    let output = own_command().map_err(anyhow::Error::msg)?.arg("guard").args(args).output()?;
    if !output.status.success() {
        bail!("guard {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The statistics of a VM.
fn of<'a>(statistics: &'a Value, vm: &Vm) -> Result<&'a Value> {
    let mut all = statistics["vms"].as_array().into_iter().flatten();
    all.find(|own| own["pid"] == vm.threads().pid())
        .ok_or_else(|| anyhow!("{} is not in {statistics}", vm.name))
}

/// How often the VM was helped.
fn helped(statistics: &Value, vm: &Vm) -> Result<u64> {
    let own = of(statistics, vm)?;
    let kinds = ["extended", "rescued"];
    Ok(kinds.iter().filter_map(|kind| own[kind]["count"].as_u64()).sum())
}

/// A VM is helped no more from the moment on at which `guard set` has returned; the other one is.
/// Then it is helped again.
fn policies(setup: &GuestSetup, guard: &mut Guard, vms: &[Vm]) -> Result<String> {
    setup.progress.step("guard set");
    let [first, second, ..] = vms else { bail!("two VMs are needed") };
    let show = || -> Result<Value> { Ok(serde_json::from_str(&ask(&["show", "--json"])?)?) };
    ask(&["set", "--vm", &first.name, "--policy", "plain"])?;
    let seen = show()?;
    if of(&seen, first)?["policy"] != "plain" || of(&seen, second)?["policy"] != "full" {
        bail!("after guard set, it shows {seen}");
    }
    // Extensions that were granted before have ended once the VM has run for that long.
    let ran = |all: &Value, vm: &Vm| Ok::<_, anyhow::Error>(of(all, vm)?["on_cpu_ns"].as_u64());
    let settled = Some(ran(&seen, first)?.unwrap_or(0) + PROGRESS_NS / 10);
    let mut before = None;
    wait(setup, "the VM without help to run", || {
        let now = guard.line(setup)?;
        if before.is_none() && ran(&now, first)? >= settled {
            before = Some(now);
            return Ok(None);
        }
        let Some(before) = &before else { return Ok(None) };
        if helped(&now, first)? != helped(before, first)? {
            bail!("{} has policy plain and is helped: {before}, then {now}", first.name);
        }
        let enough = ran(before, first)?.map(|ns| ns + PROGRESS_NS);
        let other = helped(&now, second)? > helped(before, second)?;
        Ok((ran(&now, first)? >= enough && other).then_some(()))
    })?;
    ask(&["set", "--vm", &first.name, "--policy", "full"])?;
    let seen = show()?;
    if of(&seen, first)?["policy"] != "full" {
        bail!("after guard set --policy, it shows {seen}");
    }
    let without = helped(&seen, first)?;
    wait(setup, "the VM to be helped again", || {
        Ok((helped(&guard.line(setup)?, first)? > without).then_some(()))
    })?;
    match ask(&["set", "--vm", "no such VM", "--policy", "full"]) {
        Err(error) if error.to_string().contains(&first.name) => (),
        other => bail!("a VM that does not exist: {other:?}"),
    }
    Ok("guard set: one VM's policy plain and full again; the other one's untouched".into())
}

/// The weight of the VM's new cgroup is its own. If that cgroup has a CPU limit, the kernel
/// schedules the VM. Once it has left, all is as before.
fn moved(setup: &GuestSetup, guard: &mut Guard, vms: &[Vm]) -> Result<String> {
    setup.progress.step("guard, and a VM that moves to another cgroup");
    let weight = CpuControl { weight: 300, max_percent: None };
    let cgroup = Cgroups::open(true)?.make("moved", weight)?;
    let limit = cgroup.path.join("cpu.max").display().to_string();
    let mut says = |what: &str, weight: u64, limited: bool| {
        wait(setup, what, || {
            let now = guard.line(setup)?;
            let own = of(&now, &vms[0])?;
            let named = own["trouble"].as_str().unwrap_or_default().contains(&limit);
            Ok((own["weight"] == weight && named == limited).then_some(()))
        })
    };
    cgroup.take(vms[0].threads().pid())?;
    says("the weight of the new cgroup", 300, false)?;
    cgroup.write("cpu.max", "50000 100000")?;
    says("guard to name the limit", 300, true)?;
    let tid = vms[0].threads().vcpus()[0] as libc::pid_t;
    // SAFETY: no memory is passed.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    if policy != libc::SCHED_OTHER {
        bail!("a vCPU with a CPU limit has policy {policy}");
    }
    // Back to the root.
    drop(cgroup);
    says("guard to take the VM again", 100, false)?;
    Ok("a VM moved to another cgroup and back: its weight followed; with a CPU limit, it was left to the kernel".into())
}

/// A vCPU that is added to a VM that runs counts as that VM's.
fn grown(setup: &GuestSetup, guard: &mut Guard) -> Result<String> {
    let mut vm = setup.boot_with_spare("grows", 1, 1, 192, "")?;
    setup.progress.step("guard, and a VM that gets another vCPU");
    vm.plug_vcpu()?;
    wait(setup, "the guest to find its new vCPU", || {
        let present = setup.read(&mut vm, "/sys/devices/system/cpu/present")?;
        Ok((present.trim() == "0-1").then_some(()))
    })?;
    // Its guest takes the new vCPU into use.
    setup.prepare(&mut vm, Workload::Hog { threads: 2 }, None)?;
    setup.call(&mut vm, &Command::Start)?;
    let [_, new] = *vm.threads().vcpus() else { bail!("{} has not two vCPUs", vm.name) };
    let of_new = Threads::new(vm.threads().pid(), vec![new]);
    // Counted by guard and by the kernel, over a time in which both vCPUs run.
    let ran = |guard: &mut Guard| {
        let statistics = guard.line(setup)?;
        let counted = of(&statistics, &vm).ok().and_then(|own| own["on_cpu_ns"].as_u64());
        let all = vm.threads().vcpu_counters().run_ns;
        Ok::<_, anyhow::Error>((counted.unwrap_or(0), all, of_new.vcpu_counters().run_ns))
    };
    let mut before = ran(guard)?;
    wait(setup, "guard to count the new vCPU's time", || {
        let now = ran(guard)?;
        if now.2 < before.2 + PROGRESS_NS {
            return Ok(None);
        }
        let (counted, all) = (now.0 - before.0, now.1 - before.1);
        before = now;
        // A vCPU that guard did not know would be half of it.
        Ok((counted >= all / 10 * 8).then_some(()))
    })?;
    vm.shut_down(setup.cancel);
    Ok("a VM got another vCPU: its time counts as the VM's".into())
}

/// A vCPU with a real-time priority keeps that, and another one is an ordinary thread again
/// afterwards.
fn classes(setup: &GuestSetup, vms: &[Vm]) -> Result<String> {
    setup.progress.step("guard, and a vCPU with a real-time priority");
    let vm = setup.boot("urgent", 1, 192, "")?;
    let [urgent, ordinary] = [&vm, &vms[0]].map(|vm| vm.threads().vcpus()[0] as libc::pid_t);
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: `priority` is valid for the read.
    if unsafe { libc::sched_setscheduler(urgent, libc::SCHED_FIFO, &priority) } != 0 {
        return Err(std::io::Error::last_os_error()).context("a real-time priority");
    }
    // SAFETY: no memory is passed.
    let seen = || [urgent, ordinary].map(|tid| unsafe { libc::sched_getscheduler(tid) });
    let mut guard = Guard::start(setup, Policy::Full, &[])?;
    wait(setup, "guard to know both VMs", || {
        let now = guard.line(setup)?;
        let knows = |vm| of(&now, vm).is_ok_and(|own| own["weight"].as_u64() > Some(0));
        Ok((knows(&vm) && knows(&vms[0])).then_some(()))
    })?;
    let during = seen();
    guard.end(setup, End::Signal)?;
    let after = seen();
    let expected = ([libc::SCHED_FIFO, SCHED_EXT], [libc::SCHED_FIFO, libc::SCHED_OTHER]);
    if (during, after) != expected {
        bail!("policies are {during:?}, and {after:?} afterwards: not {expected:?}");
    }
    vm.shut_down(setup.cancel);
    Ok("a vCPU keeps its real-time priority, and another one is given back".into())
}

const SCHED_EXT: libc::c_int = 7;
