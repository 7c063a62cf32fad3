// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM of the data model, from the state of its machine and the program's entries.

use super::visibility;
use crate::model::{
    Class, CurrentGrace, Grace, Held, Histogram, Location, Preemptions, Vcpu, VcpuNow, VmSnapshot,
    VmState,
};
use crate::raw::constants::{BUCKETS, NO_SEQ};
use crate::raw::types;
use crate::vms::machine::{Attached, Kvm, Machine, Vcpu as MachineVcpu};
use crate::vms::slots::woken;
use reprieve_guest::Guest;
use reprieve_guest::vmm::Accel;
use std::collections::HashMap;

const _: () = assert!(Histogram::BUCKETS == BUCKETS, "the program's histograms are shown whole");

/// The VM as of `now`, with what the program knew of its vCPUs then.
pub fn vm(machine: &Machine, entries: &[types::vcpu], kvm: &Kvm, now: u64) -> VmSnapshot {
    let attached = machine.attached();
    let guest = attached.map(|a| &*a.guest);
    let kind = machine.vm.as_ref().map(|vm| match vm.accel {
        Accel::Kvm => "qemu-kvm",
        Accel::Tcg => "qemu-tcg",
    });
    VmSnapshot {
        pid: machine.key.pid,
        name: machine.name.clone().unwrap_or_else(|| machine.key.pid.to_string()),
        vmm: kind.unwrap_or("unknown").into(),
        state: machine.state(),
        reason: machine.reason().map(Into::into),
        kernel: guest.map(|guest| guest.release().into()),
        blind: visibility::restrictions(machine, kvm),
        vcpus: machine
            .vcpus
            .iter()
            .zip(entries)
            .map(|(v, entry)| vcpu(v.index, v.slot.tid(), entry, guest, now))
            .collect(),
        grace: attached.and_then(|attached| grace(machine, attached, now)),
        tracks_user: attached.is_some_and(Attached::tracks_user),
        held: None,
        takers: Vec::new(),
    }
}

/// Late grace periods of the guest that preempted vCPUs held up.
pub fn held(machine: &Machine) -> Held {
    let held = machine.entry().map(|entry| entry.held).unwrap_or_default();
    Held { graces: held.graces, count: held.count, total_ns: held.total_ns, max_ns: held.max_ns }
}

fn vcpu(index: u32, tid: u32, entry: &types::vcpu, guest: Option<&Guest>, now: u64) -> Vcpu {
    let since_ns = entry.since.min(now);
    let mut on_cpu_ns = entry.on_cpu_ns;
    let state = match entry.doing {
        types::doing::DOING_RUNNING => {
            on_cpu_ns += now - since_ns;
            VcpuNow::Running { since_ns, cpu: entry.cpu }
        }
        types::doing::DOING_PREEMPTED => {
            let class = class(entry.class);
            let at = guest.map(|g| location(g, class, entry.task, entry.rip)).unwrap_or_default();
            VcpuNow::Preempted {
                since_ns,
                class,
                reader: entry.reader != 0,
                at,
                throttled: entry.throttled != 0,
            }
        }
        types::doing::DOING_BLOCKED => match woken(entry) {
            Some(woken) => VcpuNow::Ready { since_ns: woken.min(now), halted_ns: since_ns },
            None => VcpuNow::Halted { since_ns },
        },
        _ => VcpuNow::Unseen,
    };
    let off_ns: u64 = entry.classes.iter().map(|class| class.off_cpu.total_ns).sum();
    let times = (0..).map(types::class).zip(&entry.classes);
    let preemptions = times.map(|(number, times)| Preemptions {
        class: class(number),
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
        wakes: histogram(&entry.wakes),
        ready_ns: off_ns + entry.wakes.total_ns,
        throttled: entry.throttled_count,
        throttled_ns: entry.throttled_ns,
        on_cpu_ns,
        announced: entry.announced_count,
        announced_off_cpu_ns: entry.announced_off_cpu_ns,
    }
}

/// The class that the program's number stands for.
pub fn class(number: types::class) -> Class {
    match number {
        types::class::CLASS_USER => Class::User,
        types::class::CLASS_KERNEL => Class::Kernel,
        types::class::CLASS_READER => Class::Reader,
        types::class::CLASS_NO_PREEMPT => Class::NoPreempt,
        types::class::CLASS_SPINNING => Class::Spinning,
        types::class::CLASS_IRQS_OFF => Class::IrqsOff,
        types::class::CLASS_SOFTIRQ => Class::Softirq,
        types::class::CLASS_HARDIRQ => Class::Hardirq,
        types::class::CLASS_IDLE => Class::Idle,
        _ => Class::Unknown,
    }
}

fn histogram(from: &types::histogram) -> Histogram {
    let used = from.counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
    Histogram { counts: from.counts[..used].to_vec(), total_ns: from.total_ns, max_ns: from.max_ns }
}

/// Where a vCPU lost its CPU. Its task is still the current one.
fn location(guest: &Guest, class: Class, task: u64, rip: u64) -> Location {
    let task = (task != 0).then(|| guest.task(task).ok()).flatten();
    Location {
        pid: task.as_ref().map(|task| task.pid),
        task: task.map(|task| task.comm),
        function: function(guest, class, rip),
    }
}

/// `function+0x12 [module]` of a kernel address.
pub fn function(guest: &Guest, class: Class, rip: u64) -> Option<String> {
    // Symbols are the kernel's, whose addresses are in the upper half.
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
    // The grace period of a paused VM does not age: its guest's time stands still.
    let running = machine.state() == VmState::Watching;
    let owing = if running { rcu.owing().ok() } else { None };
    let owing = owing.filter(|owing| owing.seq & 3 != 0 && !owing.torn);
    let current = owing.map(|owing| {
        let seen = entry.began_seq != NO_SEQ && entry.began_seq >> 2 == owing.seq >> 2;
        let (began_ns, began_earlier) = if seen {
            (entry.began.min(now), false)
        } else if entry.seq != NO_SEQ && entry.seq >> 2 == owing.seq >> 2 {
            // The grace period began before the guest was watched: only the guest's own clock gives
            // its age.
            let age = rcu.age().ok().flatten().unwrap_or_default();
            let age = u64::try_from(age.as_nanos()).unwrap_or(0);
            (attached.since_ns.min(now.saturating_sub(age)), true)
        } else {
            // The grace period is so new that the program has not seen it yet.
            (now, false)
        };
        let vcpu = |cpu: &u32| machine.vcpus.iter().find(|v| v.cpu == Some(*cpu)).map(|v| v.index);
        let mut owed: Vec<u32> = owing.cpus.iter().filter_map(vcpu).collect();
        // When the guest's scheduler preempts a reader, the reader's CPU has reported. If the
        // reader runs again, the grace period waits for the CPU that runs it.
        let mut blocked_readers = Vec::new();
        let task = |v: &MachineVcpu| Some((attached.guest.current_task(v.cpu?).ok()?, v.index));
        let blocked = !owing.blocked.is_empty();
        let running: HashMap<u64, u32> =
            machine.vcpus.iter().filter(|_| blocked).filter_map(task).collect();
        for reader in &owing.blocked {
            match running.get(&reader.task.address) {
                Some(vcpu) if !owed.contains(vcpu) => owed.push(*vcpu),
                Some(_) => {}
                None => blocked_readers.push(Location {
                    task: Some(reader.task.comm.clone()),
                    pid: Some(reader.task.pid),
                    function: None,
                }),
            }
        }
        owed.sort_unstable();
        CurrentGrace {
            seq: owing.seq as i64,
            began_ns,
            began_earlier,
            owing: owed,
            blocked_readers,
        }
    });
    Some(Grace { durations: histogram(&entry.graces), unseen: entry.unseen, current })
}
