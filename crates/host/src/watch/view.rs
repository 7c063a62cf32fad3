// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what is kept to what is shown: a VM as the data model has it.

use super::machine::{Attached, Kvm, Machine, Vcpu as MachineVcpu};
use super::model::{
    Class, CurrentGrace, Grace, Histogram, Place, Preemptions, Vcpu, VcpuNow, Vm, VmState,
};
use super::raw::types;
use super::slots::NO_SEQ;
use reprieve_guest::Guest;
use reprieve_guest::vmm::{Accel, Kind};

/// `enum doing` of `bpf/watch.h`.
const RUNNING: u32 = 1;
const PREEMPTED: u32 = 2;
const BLOCKED: u32 = 3;

/// The VM as of `now`, with what the program knew of its vCPUs then.
pub fn vm(machine: &Machine, entries: &[types::vcpu], kvm: &Kvm, now: u64) -> Vm {
    let attached = machine.attached.as_ref();
    let guest = attached.map(|a| &*a.guest);
    let kind = machine.vm.as_ref().map(|vm| match vm.kind {
        Kind::Qemu(Accel::Kvm) => "qemu-kvm",
        Kind::Qemu(Accel::Tcg) => "qemu-tcg",
        _ => "unknown",
    });
    Vm {
        pid: machine.key.pid,
        name: machine.name.clone().unwrap_or_else(|| machine.key.pid.to_string()),
        vmm: kind.unwrap_or("unknown").into(),
        state: machine.state.clone(),
        kernel: guest.map(|guest| guest.release().into()),
        blind: machine.blind(kvm),
        vcpus: machine
            .vcpus
            .iter()
            .zip(entries)
            .map(|(v, entry)| vcpu(v.index, v.slot.tid(), entry, guest, now))
            .collect(),
        grace: attached.and_then(|attached| grace(machine, attached, now)),
    }
}

fn vcpu(index: u32, tid: u32, entry: &types::vcpu, guest: Option<&Guest>, now: u64) -> Vcpu {
    let since_ns = entry.since.min(now);
    let mut on_cpu_ns = entry.on_cpu_ns;
    let state = match entry.doing {
        RUNNING => {
            on_cpu_ns += now - since_ns;
            VcpuNow::Running { since_ns, cpu: entry.cpu }
        }
        PREEMPTED => {
            let class = class(entry.class);
            let at = guest.map(|g| place(g, class, entry.task, entry.rip)).unwrap_or_default();
            VcpuNow::Preempted { since_ns, class, reader: entry.reader != 0, at }
        }
        BLOCKED => VcpuNow::Halted { since_ns },
        _ => VcpuNow::Unseen,
    };
    let times = Class::ALL.iter().zip(&entry.classes);
    let preemptions = times.map(|(&class, times)| Preemptions {
        class,
        off_cpu: histogram(&times.off_cpu),
        readers: times.readers,
        readers_off_cpu_ns: times.readers_off_cpu_ns,
    });
    Vcpu {
        index,
        tid,
        now: state,
        preemptions: preemptions.filter(|p| !p.off_cpu.counts.is_empty()).collect(),
        blocks: histogram(&entry.blocks),
        on_cpu_ns,
    }
}

/// The class with the program's number.
pub fn class(number: u32) -> Class {
    Class::ALL.get(number as usize).copied().unwrap_or(Class::Unknown)
}

fn histogram(from: &types::histogram) -> Histogram {
    let used = from.counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
    Histogram { counts: from.counts[..used].to_vec(), total_ns: from.total_ns, max_ns: from.max_ns }
}

/// Where a vCPU was that is off its CPU: its task is still its current one.
fn place(guest: &Guest, class: Class, task: u64, rip: u64) -> Place {
    let task = (task != 0).then(|| guest.task(task).ok()).flatten();
    Place {
        pid: task.as_ref().map(|task| task.pid),
        task: task.map(|task| task.comm),
        function: function(guest, class, rip),
    }
}

/// `function+0x12 [module]` of a kernel address.
pub fn function(guest: &Guest, class: Class, rip: u64) -> Option<String> {
    // User mode has no symbols here, and its addresses are in the lower half.
    if class == Class::User || rip >> 47 != 0x1_ffff {
        return None;
    }
    let at = guest.resolve(rip)?;
    let module = at.module.map(|module| format!(" [{module}]")).unwrap_or_default();
    Some(format!("{}+{:#x}{module}", at.name, at.offset))
}

fn grace(machine: &Machine, attached: &Attached, now: u64) -> Option<Grace> {
    let rcu = attached.guest.rcu().ok()?;
    let entry = machine.entry()?;
    let running = machine.state == VmState::Watching || machine.state == VmState::Paused;
    let owing = rcu.owing().ok().filter(|owing| running && owing.seq & 3 != 0);
    let current = owing.map(|owing| {
        let seen = entry.began_seq != NO_SEQ && entry.began_seq >> 2 == owing.seq >> 2;
        let (began_ns, began_earlier) = if seen {
            (entry.began.min(now), false)
        } else if entry.seq != NO_SEQ && entry.seq >> 2 == owing.seq >> 2 {
            // In progress when it was first looked at: only the guest knows, by its own clock, since when.
            let age = rcu.grace_period().ok().and_then(|g| g.age).unwrap_or_default();
            let age = u64::try_from(age.as_nanos()).unwrap_or(0);
            (attached.since_ns.min(now.saturating_sub(age)), true)
        } else {
            // So new that no vCPU has been looked at since.
            (now, false)
        };
        let vcpu = |cpu: &u32| machine.vcpus.iter().find(|v| v.cpu == Some(*cpu)).map(|v| v.index);
        let mut owed: Vec<u32> = owing.cpus.iter().filter_map(vcpu).collect();
        // A CPU has reported when its guest's scheduler preempted a reader. That one may run again, and then it is its CPU that the grace period waits for.
        let mut blocked_readers = Vec::new();
        for reader in &owing.blocked {
            let runs = |v: &&MachineVcpu| {
                let view = v.cpu.and_then(|cpu| attached.guest.vcpu(cpu).ok());
                view.and_then(|view| view.current_task_address().ok()) == Some(reader.task.address)
            };
            match machine.vcpus.iter().find(runs) {
                Some(vcpu) if !owed.contains(&vcpu.index) => owed.push(vcpu.index),
                Some(_) => {}
                None => blocked_readers.push(Place {
                    task: Some(reader.task.comm.clone()),
                    pid: Some(reader.task.pid),
                    function: None,
                }),
            }
        }
        owed.sort_unstable();
        CurrentGrace { seq: owing.seq, began_ns, began_earlier, owing: owed, blocked_readers }
    });
    Some(Grace { durations: histogram(&entry.graces), unseen: entry.unseen, current })
}
