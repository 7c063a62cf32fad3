// SPDX-License-Identifier: MIT OR Apache-2.0
//! The collector on a real guest: its figures add up, and it notices what happens to the VM.
//! `reprieve-dev check` compares classes and durations with the guest's own.

mod common;

use common::patience::{NO_LIMIT, Wait};
use common::{boot, only, spin, spin_on, wait_for, wait_until_watching, watch};
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::{Command, Workload};
use reprieve_watch::Watch;
use reprieve_watch::model::{Class, Event as Seen, Histogram, Snapshot, Vcpu, VcpuNow, VmState};
use rustix::thread::{CpuSet, Pid};
use std::time::Instant;

fn count(histogram: &Histogram) -> u64 {
    histogram.counts.iter().sum()
}

/// The time that a thread waited for a CPU by the scheduler's own count, and how often it had one.
fn run_delay(pid: u32, tid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap();
    let field = |n| text.split_whitespace().nth(n).unwrap().parse().unwrap();
    (field(1), field(2))
}

/// Time accounted for up to `now`: on a CPU, ready and given up.
fn accounted(vcpu: &Vcpu, now: u64) -> u64 {
    let current = match &vcpu.now {
        VcpuNow::Preempted { since_ns, .. } | VcpuNow::Halted { since_ns } => now - since_ns,
        VcpuNow::Ready { halted_ns, .. } => now - halted_ns,
        // Contained in `on_cpu_ns`.
        VcpuNow::Running { .. } | VcpuNow::Unseen => 0,
    };
    vcpu.on_cpu_ns + vcpu.ready_ns + vcpu.blocks.total_ns + current
}

fn preemptions(vcpu: &Vcpu) -> u64 {
    vcpu.preemptions.iter().map(|p| count(&p.off_cpu)).sum()
}

/// Preemptions that could not be classified.
fn unknown(vcpu: &Vcpu) -> u64 {
    let unknown = vcpu.preemptions.iter().filter(|p| p.class == Class::Unknown);
    unknown.map(|p| count(&p.off_cpu)).sum()
}

/// A snapshot, and how long it took: the vCPUs' entries are read within that time after its clock.
struct Timed {
    snapshot: Snapshot,
    took_ns: u64,
}

impl Timed {
    fn take(watch: &mut Watch) -> Timed {
        let start = Instant::now();
        let snapshot = watch.snapshot().unwrap();
        Timed { snapshot, took_ns: start.elapsed().as_nanos() as u64 }
    }

    fn end_ns(&self) -> u64 {
        self.snapshot.time_ns + self.took_ns
    }
}

/// Runs until both sides have seen enough of the load: events and the last snapshot.
fn observe(watch: &mut Watch, before: &Snapshot) -> (Vec<Seen>, Timed) {
    let named = |e: &Seen| matches!(e, Seen::Preempted { at, class, .. } if *class != Class::User && at.function.is_some() && at.task.is_some());
    let (mut events, mut kernel_named) = (Vec::new(), false);
    let mut wait = Wait::new("preemptions, grace periods and names of functions");
    loop {
        let new = watch.events();
        kernel_named |= new.iter().any(named);
        events.extend(new);
        let now = Timed::take(watch);
        let (old_vm, vm) = (&before.vms[0], &now.snapshot.vms[0]);
        let ended = |(old, new): (&Vcpu, &Vcpu)| preemptions(new) - preemptions(old);
        let preempted = old_vm.vcpus.iter().zip(&vm.vcpus).map(ended).all(|n| n > 20);
        let graces = vm.grace.as_ref().map_or(0, |grace| count(&grace.durations));
        // Errors at the edges are relative to the length.
        let long = now.snapshot.time_ns - before.time_ns >= 5_000_000_000;
        if preempted && graces > 10 && kernel_named && long {
            return (events, now);
        }
        wait.pause(|| format!("{:#?}", now.snapshot));
    }
}

#[test]
fn every_nanosecond_of_a_vcpu_is_accounted_for_once() {
    let mut guest = boot("deb:6.12", 2, "");
    let mut watch = watch(&guest, true);
    let seen = wait_until_watching(&mut watch);
    assert!(seen.kernel.as_deref().is_some_and(|k| k.starts_with("6.12")), "{:?}", seen.kernel);
    assert_eq!(seen.vcpus.iter().map(|v| v.index).collect::<Vec<_>>(), [0, 1]);

    let cancel = Cancel::default();
    let prepare = Command::Prepare { workload: Workload::FileChurn { workers: 2 }, measure: None };
    guest.vm.call(&prepare, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
    wait_for(&mut watch, "everything to be visible", |vm| vm.blind.is_empty());

    // As many as there are CPUs: wherever a vCPU runs, one competes with it.
    let spinners = spin(std::thread::available_parallelism().unwrap().get());
    let pid = guest.vm.threads().pid();
    an_idle_guests_ready_time_is_that_of_the_scheduler(&mut watch, pid);
    let _ = watch.events();
    let before = Timed::take(&mut watch);
    guest.vm.call(&Command::Start, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
    let (mut events, after) = observe(&mut watch, &before.snapshot);
    // Events come in order, so one that is younger than the last snapshot is the last to wait for.
    let mut wait = Wait::new("an event after the last snapshot");
    while events.last().is_none_or(|event| event.time_ns() <= after.end_ns()) {
        wait.pause(String::new);
        events.extend(watch.events());
    }
    drop(spinners);

    let from = before.snapshot.time_ns;
    let until = after.snapshot.time_ns;
    let elapsed = until - from;
    // None, unless this thread had no CPU for as long as it takes to fill the buffer.
    let lost = events.iter().map(|event| match event {
        Seen::Lost { count, .. } => *count,
        _ => 0,
    });
    let lost: u64 = lost.sum();
    eprintln!("{} events, {lost} lost", events.len());
    // A vCPU may come or go between the reading of the clock and of its entry.
    let slack = (elapsed / 1000).max(before.took_ns + after.took_ns);
    for (old, new) in before.snapshot.vms[0].vcpus.iter().zip(&after.snapshot.vms[0].vcpus) {
        let error = (accounted(new, until) - accounted(old, from)).abs_diff(elapsed);
        assert!(error < slack, "vCPU {}: {error} ns: {old:?} {new:?}", new.index);
        let began = |range: std::ops::Range<u64>| {
            let of = |event: &&Seen| matches!(**event, Seen::Preempted { vcpu, time_ns, .. } if vcpu == new.index && range.contains(&time_ns));
            events.iter().filter(of).count() as u64
        };
        let (ended, events) = (preemptions(new) - preemptions(old), began(from..until));
        let edges = began(from..before.end_ns()) + began(until..after.end_ns());
        let (index, error) = (new.index, ended.abs_diff(events));
        assert!(
            error <= 1 + edges + lost,
            "vCPU {index}: {ended} ended, {events} events, {edges} at edges, {lost} lost"
        );
        // A host that moves QEMU's pages (between NUMA nodes, say) hides them for a moment.
        let unknown = unknown(new) - unknown(old);
        assert!(unknown <= ended / 20, "vCPU {index}: {unknown} of {ended} unknown");
    }
    let in_order = events.windows(2).all(|w| w[0].time_ns() <= w[1].time_ns());
    assert!(in_order, "events come in the order of time");
    let grace = after.snapshot.vms[0].grace.as_ref().unwrap();
    assert!(grace.unseen < count(&grace.durations), "{grace:?}");

    guest.vm.pause().unwrap();
    wait_for(&mut watch, "the pause", |vm| vm.state == VmState::Paused);
    guest.vm.resume().unwrap();
    wait_for(&mut watch, "the end of the pause", |vm| vm.state == VmState::Watching);
    a_starved_vm_is_not_paused_and_a_stopped_one_is(&mut watch, pid);
    drop(guest);
    let mut wait = Wait::new("the end");
    let gone = loop {
        let snapshot = watch.snapshot().unwrap();
        match only(&snapshot) {
            // Shown for 10 s, in which this thread had no CPU.
            None => break None,
            Some(vm) if vm.state == VmState::Gone => break Some(vm.clone()),
            Some(_) => wait.pause(|| format!("{snapshot:#?}")),
        }
    };
    assert!(gone.is_none_or(|gone| preemptions(&gone.vcpus[0]) > 0), "what was counted stays");
}

/// The CPUs that this test may use.
fn cpus() -> Vec<CpuSet> {
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let one = |cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).map(one).collect()
}

fn pin(tid: u32, cpus: &CpuSet) {
    let _ = rustix::thread::sched_setaffinity(Pid::from_raw(tid as i32), cpus);
}

/// The guest runs nothing beside threads that want all CPUs: within 5 %. A vCPU may not migrate:
/// Linux 6.12 and newer count the sleep of a thread that the load balancer moved before its delayed
/// dequeue as a wait for a CPU.
fn an_idle_guests_ready_time_is_that_of_the_scheduler(watch: &mut Watch, pid: u32) {
    // The scheduler also counts a vCPU's wait before the first event that `watch` sees of the vCPU.
    wait_for(watch, "an event of each vCPU", |vm| {
        !vm.vcpus.iter().any(|vcpu| matches!(vcpu.now, VcpuNow::Unseen))
    });
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let tids: Vec<u32> =
        watch.snapshot().unwrap().vms[0].vcpus.iter().map(|vcpu| vcpu.tid).collect();
    tids.iter().zip(cpus().iter().cycle()).for_each(|(tid, cpu)| pin(*tid, cpu));
    let turns = || tids.iter().map(|tid| run_delay(pid, *tid).1).collect::<Vec<_>>();
    let (pinned, mut wait) = (turns(), Wait::new("a turn of each vCPU after its last migration"));
    while turns().iter().zip(&pinned).any(|(now, then)| now == then) {
        wait.pause(String::new);
    }
    // Each total was read between the two sums of the scheduler's.
    let mut look = || {
        let delays = || tids.iter().map(|tid| run_delay(pid, *tid).0).sum::<u64>();
        let before = delays();
        let vcpus = &watch.snapshot().unwrap().vms[0].vcpus;
        let ready = vcpus.iter().map(|vcpu| vcpu.ready_ns).sum::<u64>();
        (before, ready, delays())
    };
    let (first, mut wait) = (look(), Wait::new("waits for a CPU"));
    loop {
        let now = look();
        let (least, most) = (now.0.saturating_sub(first.2), now.2 - first.0);
        if least > 500_000_000 {
            let seen = now.1 - first.1;
            assert!(seen * 100 >= least * 95 && seen * 100 <= most * 105, "{least} {seen} {most}");
            tids.iter().for_each(|tid| pin(*tid, &all));
            return;
        }
        wait.pause(|| format!("{first:?} {now:?}"));
    }
}

fn a_starved_vm_is_not_paused_and_a_stopped_one_is(watch: &mut Watch, pid: u32) {
    // SAFETY: a process of this test.
    let kill = |signal| assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    kill(libc::SIGSTOP);
    wait_for(watch, "the stop", |vm| vm.state == VmState::Paused);
    kill(libc::SIGCONT);
    wait_for(watch, "its end", |vm| vm.state == VmState::Watching);

    // Threads that compute have the only CPU that the VMM may use, and nearly all of its time.
    let tids = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
    };
    let spinners = starve(tids());
    let starved = |vcpu: &Vcpu, now: u64| match vcpu.now {
        VcpuNow::Preempted { since_ns, .. } | VcpuNow::Ready { since_ns, .. } => {
            now.saturating_sub(since_ns) > 7_000_000_000
        }
        _ => false,
    };
    let mut wait = Wait::new("a vCPU that has no CPU for long");
    loop {
        let snapshot = watch.snapshot().unwrap();
        let vm = only(&snapshot).unwrap();
        assert_eq!(vm.state, VmState::Watching, "{vm:#?}");
        if vm.vcpus.iter().any(|vcpu| starved(vcpu, snapshot.time_ns)) {
            break;
        }
        wait.pause(|| format!("{vm:#?}"));
    }
    drop(spinners);
}

/// Lets `tids` run in the time that threads on the same CPU leave, until the result is dropped.
fn starve(tids: impl Iterator<Item = u32>) -> impl Drop {
    let one = cpus()[0];
    for tid in tids {
        let idle = libc::sched_param { sched_priority: 0 };
        // SAFETY: a thread of a VMM of this test; the parameters are a local variable.
        unsafe { libc::sched_setscheduler(tid as i32, libc::SCHED_IDLE, &idle) };
        pin(tid, &one);
    }
    // 30,000 times the weight of `SCHED_IDLE`: the others wait for half a minute at a time.
    spin_on(1, move || {
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        rustix::process::setpriority_process(None, -20).unwrap();
    })
}
