// SPDX-License-Identifier: MIT OR Apache-2.0
//! The collector on a real guest: its figures hold together, and it notices what happens to the VM. Whether the classes are right and grace periods are
//! timed right is for `reprieve lab check`.

mod common;

use common::{boot, spin, wait_for, wait_until_watching, watch};
use reprieve_host::watch::model::{Class, Event as Seen, Histogram, Vcpu, VcpuNow, VmState};
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::{Command, Measure, Workload};
use std::time::Duration;

fn count(histogram: &Histogram) -> u64 {
    histogram.counts.iter().sum()
}

/// Time accounted for up to `now`: on a CPU, preempted and given up.
fn accounted(vcpu: &Vcpu, now: u64) -> u64 {
    let off: u64 = vcpu.preemptions.iter().map(|p| p.off_cpu.total_ns).sum();
    let current = match &vcpu.now {
        VcpuNow::Preempted { since_ns, .. } | VcpuNow::Halted { since_ns } => now - since_ns,
        // Contained in `on_cpu_ns`.
        VcpuNow::Running { .. } | VcpuNow::Unseen => 0,
    };
    vcpu.on_cpu_ns + off + vcpu.blocks.total_ns + current
}

fn preemptions(vcpu: &Vcpu) -> u64 {
    vcpu.preemptions.iter().map(|p| count(&p.off_cpu)).sum()
}

#[test]
fn every_nanosecond_of_a_vcpu_is_accounted_for_once() {
    let mut guest = boot("deb:6.12", 2, "");
    let mut watch = watch(&guest, true);
    let seen = wait_until_watching(&mut watch);
    assert!(seen.kernel.as_deref().is_some_and(|k| k.starts_with("6.12")), "{:?}", seen.kernel);
    assert_eq!(seen.vcpus.iter().map(|v| v.index).collect::<Vec<_>>(), [0, 1]);

    let cancel = Cancel::default();
    let limit = Duration::from_secs(60);
    let measure = Measure { memory_ms: 1000, slow_ms: 1000, trace_kb: 1024, callback_probe_hz: 0 };
    let workload = Workload::FileChurn { workers: 2 };
    let prepare = Command::Prepare { workload, measure: Some(measure) };
    guest.vm.call(&prepare, limit, &cancel, |_| Ok(())).unwrap();
    wait_for(&mut watch, Duration::from_secs(30), |vm| vm.blind.is_empty());

    let spinners = spin(2);
    let _ = watch.events();
    let before = watch.snapshot().unwrap();
    let phase = Command::Phase { phase: 0, duration_ms: 5000 };
    let mut events = Vec::new();
    let mut collect = |_| {
        events.extend(watch.events());
        Ok(())
    };
    guest.vm.call(&phase, limit, &cancel, &mut collect).unwrap();
    let after = watch.snapshot().unwrap();
    // The youngest are kept back for a moment.
    std::thread::sleep(Duration::from_millis(20));
    events.extend(watch.events());
    drop(spinners);

    let elapsed = after.time_ns - before.time_ns;
    for (old, new) in before.vms[0].vcpus.iter().zip(&after.vms[0].vcpus) {
        let sum = accounted(new, after.time_ns) - accounted(old, before.time_ns);
        // A vCPU may come or go between the reading of the clock and of its entry.
        let error = sum.abs_diff(elapsed);
        assert!(error < elapsed / 1000, "vCPU {}: {error} ns: {old:?} {new:?}", new.index);
        let of = |event: &&Seen| match **event {
            Seen::Preempted { vcpu, time_ns, .. } => {
                vcpu == new.index && (before.time_ns..after.time_ns).contains(&time_ns)
            }
            _ => false,
        };
        let (ended, began) =
            (preemptions(new) - preemptions(old), events.iter().filter(of).count() as u64);
        assert!(ended > 20, "two spinners on two CPUs take them away: {ended}");
        assert!(ended.abs_diff(began) <= 1, "vCPU {}: {ended} ended, {began} events", new.index);
        let unknown = new.preemptions.iter().filter(|p| p.class == Class::Unknown);
        let unknown: u64 = unknown.map(|p| count(&p.off_cpu)).sum();
        let known_before = old.preemptions.iter().filter(|p| p.class == Class::Unknown);
        assert_eq!(unknown, known_before.map(|p| count(&p.off_cpu)).sum::<u64>());
    }
    let in_order = events.windows(2).all(|w| time(&w[0]) <= time(&w[1]));
    assert!(in_order, "events come in the order of time");
    assert!(!events.iter().any(|e| matches!(e, Seen::Lost { .. })));
    let named = |e: &Seen| matches!(e, Seen::Preempted { at, class, .. } if *class != Class::User && at.function.is_some() && at.task.is_some());
    assert!(events.iter().any(named), "kernel functions are named");
    let grace = after.vms[0].grace.as_ref().unwrap();
    assert!(count(&grace.durations) > 10 && grace.unseen < count(&grace.durations), "{grace:?}");

    guest.vm.pause().unwrap();
    wait_for(&mut watch, Duration::from_secs(20), |vm| vm.state == VmState::Paused);
    guest.vm.resume().unwrap();
    wait_for(&mut watch, Duration::from_secs(20), |vm| vm.state == VmState::Watching);
    drop(guest);
    let gone = wait_for(&mut watch, Duration::from_secs(10), |vm| vm.state == VmState::Gone);
    assert!(preemptions(&gone.vcpus[0]) > 0, "what was counted stays");
}

fn time(event: &Seen) -> u64 {
    match event {
        Seen::On { time_ns, .. }
        | Seen::Preempted { time_ns, .. }
        | Seen::Blocked { time_ns, .. }
        | Seen::GraceBegan { time_ns, .. }
        | Seen::GraceEnded { time_ns, .. }
        | Seen::Lost { time_ns, .. } => *time_ns,
    }
}
