// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard goes on while its host changes: a policy that is set for one VM, a VM that moves to
//! another cgroup, a VM that gets another vCPU.

use super::super::guest_setup::GuestSetup;
use super::process::{Guard, of};
use super::{PROGRESS_NS, wait};
use crate::plan::CpuControl;
use crate::vm::Vm;
use crate::vm::cgroup::Cgroups;
use anyhow::{Context as _, Result, bail};
use reprieve_guard::undo::slice::{self, SHORT};
use reprieve_guard::{Policy, Statistics, control};
use reprieve_init::protocol::Workload;

/// Returns a line for each thing that was seen.
pub fn check(setup: &GuestSetup, guard: &mut Guard, vms: &[Vm]) -> Result<&'static str> {
    policies(setup, guard, vms).context("guard set")?;
    moved(setup, guard, vms).context("a VM that moves to another cgroup")?;
    grown(setup, guard).context("a VM that gets another vCPU")?;
    Ok("  guard set: one VM's policy plain and full again; the other one's untouched\n  \
        a VM moved to another cgroup and back: its weight followed; with a CPU limit, it was left \
        to the kernel, in short slices\n  a VM got another vCPU, which guard schedules\n")
}

/// How often the VM was helped.
fn helped(statistics: &Statistics, vm: &Vm) -> Result<u64> {
    let own = of(statistics, vm)?;
    Ok(own.did.extended.count + own.did.rescued.count)
}

/// guard stops helping a VM as soon as its policy is set, and goes on helping the other one. Then
/// guard helps both again.
fn policies(setup: &GuestSetup, guard: &mut Guard, vms: &[Vm]) -> Result<()> {
    setup.progress.step("guard set");
    let [first, second, ..] = vms else { bail!("two VMs are needed") };
    control::set(Some(&first.name), Policy::Plain)?;
    let set = guard.statistics()?;
    if of(&set, first)?.policy != Policy::Plain || of(&set, second)?.policy != Policy::Full {
        bail!("after its policy was set, guard shows {set:?}");
    }
    let ran = |now: &Statistics| Ok::<_, anyhow::Error>(of(now, first)?.on_cpu_ns);
    // Extensions that were granted before have ended once the VM has run for that long.
    let settled = ran(&set)? + PROGRESS_NS / 10;
    let before = guard.until(setup, "extensions to end", |now| Ok(ran(now)? >= settled))?;
    guard.until(setup, "the VM without help to run", |now| {
        if helped(now, first)? != helped(&before, first)? {
            bail!("{} has policy plain and is helped: first {before:?}", first.name);
        }
        let other = helped(now, second)? > helped(&before, second)?;
        Ok(ran(now)? >= ran(&before)? + PROGRESS_NS && other)
    })?;
    control::set(Some(&first.name), Policy::Full)?;
    guard.until(setup, "the VM to be helped again", |now| {
        Ok(helped(now, first)? > helped(&before, first)?)
    })?;
    match control::set(Some("no such VM"), Policy::Full) {
        Err(error) if error.to_string().contains(&first.name) => Ok(()),
        other => bail!("a VM that does not exist: {other:?}"),
    }
}

/// The weight of the VM's new cgroup is its own. If that cgroup has a CPU limit, the kernel
/// schedules the VM. Once it has left, all is as before.
fn moved(setup: &GuestSetup, guard: &mut Guard, vms: &[Vm]) -> Result<()> {
    setup.progress.step("guard, and a VM that moves to another cgroup");
    let weight = CpuControl { weight: 300, max_percent: None };
    let cgroup = Cgroups::open(true)?.make("moved", weight)?;
    let limit = cgroup.path.join("cpu.max").display().to_string();
    let mut says = |what: &str, weight: u32, limited: bool| {
        guard.until(setup, what, |now| {
            let own = of(now, &vms[0])?;
            let named = own.trouble.as_ref().is_some_and(|trouble| trouble.contains(&limit));
            Ok(own.weight == weight && named == limited)
        })
    };
    cgroup.take(vms[0].threads().pid())?;
    says("the weight of the new cgroup", 300, false)?;
    cgroup.write("cpu.max", "50000 100000")?;
    says("guard to name the limit", 300, true)?;
    let vcpu = vms[0].threads().vcpus()[0];
    match (policy_of(vcpu), slice::get(vcpu)?) {
        (libc::SCHED_OTHER, SHORT) => (),
        (policy, slice) => bail!("a vCPU with a CPU limit has policy {policy}, slice {slice:?}"),
    }
    // Back to the root.
    drop(cgroup);
    says("guard to take the VM again", 100, false)?;
    Ok(())
}

/// guard schedules a vCPU that is added to a VM that runs.
fn grown(setup: &GuestSetup, guard: &mut Guard) -> Result<()> {
    let mut vm = setup.boot_with_spare("grows", 1, 1, 192, "")?;
    setup.progress.step("guard, and a VM that gets another vCPU");
    vm.plug_vcpu()?;
    wait(setup, "the guest to find its new vCPU", || {
        let present = setup.read(&mut vm, "/sys/devices/system/cpu/present")?;
        Ok(present.trim() == "0-1")
    })?;
    // Its guest takes the new vCPU into use.
    setup.start(&mut vm, Workload::Hog { threads: 2 })?;
    let [_, new] = *vm.threads().vcpus() else { bail!("{} has not two vCPUs", vm.name) };
    guard.until(setup, "guard to schedule the new vCPU", |now| {
        Ok(policy_of(new) == SCHED_EXT && of(now, &vm)?.vcpus == 2)
    })?;
    vm.shut_down(setup.cancel);
    Ok(())
}

pub const SCHED_EXT: libc::c_int = 7;

/// The scheduling policy of a thread.
pub fn policy_of(tid: u32) -> libc::c_int {
    // SAFETY: no memory is passed.
    unsafe { libc::sched_getscheduler(tid as libc::pid_t) }
}
