// SPDX-License-Identifier: MIT OR Apache-2.0
//! The promises of guard, on simulated hosts.

use super::*;
use crate::constants::{MAX_EXTEND_NS, SLICE_NS};
use Habit::*;
use Yields::*;
use guest::{MS, US};

const S: u64 = 1_000 * MS;
const FULL: u32 = 1;
const PLAIN: u32 = 0;
const SLICE: u64 = SLICE_NS as u64;
const EXTEND: u64 = MAX_EXTEND_NS as u64;
/// The default of `--max-hold`.
const HOLD: u64 = 20 * MS;
/// How often a CPU looks at an extension or a rescue.
const LOOK: u64 = 100 * US;

/// The shares of VMs of weight 1 and 100 beside each other.
const LIGHT: f64 = 1.0 / 101.0;
const HEAVY: f64 = 100.0 / 101.0;

/// vCPUs that compute for a while and sleep for a while, that do so in small pieces, since they
/// wait for locks, and that compute for a moment and sleep for longer.
const NAPS: Habit = Sleeps(8 * MS, 6 * MS);
const BLOCKS: Habit = Sleeps(MS, MS / 4);
const RESTS: Habit = Sleeps(MS, 16 * MS);

/// A VM: weight, policy, what its vCPUs do and how many there are. It is due so much of the time
/// that VMs have, give or take that part of it.
type Due = (u32, u32, Habit, usize, f64, f64);

/// A host with those VMs, which has run for so long: they have what they are due.
#[track_caller]
fn shares(cpus: usize, seed: u64, time: u64, vms: &[Due]) -> Host {
    let host = Host::new(cpus, seed);
    for &(weight, policy, habit, vcpus, ..) in vms {
        host.vcpus(weight, policy, habit, vcpus);
    }
    host.run(time);
    for (vm, &(.., due, off)) in vms.iter().enumerate() {
        assert_share(&host, vm, due, off);
    }
    assert_bounds(&host, time);
    host
}

/// The VM has so much of the time, give or take that part of it.
#[track_caller]
fn assert_share(host: &Host, vm: usize, due: f64, off: f64) {
    let vms = machine().vms.len();
    let all: u64 = (0..vms).map(|vm| host.ran(vm)).sum();
    let share = host.ran(vm) as f64 / all as f64 / due;
    assert!((1.0 - off..=1.0 + off).contains(&share), "VM {vm}: {share:.4} of what it is due");
}

/// Whatever VMs claim, nothing is longer than its bound, and no CPU is wasted.
#[track_caller]
fn assert_bounds(host: &Host, time: u64) {
    let vms = machine().vms.len();
    let cpus = machine().cpus.len() as u64;
    for vm in 0..vms {
        let (extended, rescued) = host.told(vm, |guest| (guest.extended, guest.rescued));
        assert!(extended.max_ns <= EXTEND + 2 * LOOK, "VM {vm} extended: {}", extended.max_ns);
        assert!(rescued.max_ns <= MS + EXTEND + 2 * LOOK, "VM {vm} rescued: {}", rescued.max_ns);
        assert!(extended.total_ns <= time / 4 + 17 * EXTEND, "VM {vm}: {}", extended.total_ns);
        let borrowed = native::group(vm, |group| group.group.borrowed);
        // What is counted after it was granted, on each CPU.
        let granted = cpus * (MS + EXTEND + 2 * LOOK);
        assert!(borrowed <= 4 * 2 * HOLD + granted, "VM {vm} is {borrowed} ns ahead");
    }
}

#[test]
fn vms_share_by_weight_however_many_vcpus_and_cpus_there_are() {
    let hosts = [(1, PLAIN), (1, FULL), (2, PLAIN), (2, FULL), (4, FULL), (8_usize, FULL)];
    for (seed, (cpus, policy)) in hosts.into_iter().enumerate() {
        let time = if cpus < 4 { 10 * S } else { 5 * S };
        // None can have more than its VM's part: cpus / 4, cpus / 4, cpus / 2.
        let few = (100, policy, Computes, cpus.div_ceil(2), 0.25, 0.01);
        let many = (100, policy, Computes, cpus * 3, 0.25, 0.01);
        let heavy = (200, policy, Computes, cpus + 1, 0.5, 0.01);
        let host = shares(cpus, seed as u64, time, &[few, many, heavy]);
        assert_eq!((0..3).map(|vm| host.ran(vm)).sum::<u64>() / MS, cpus as u64 * time / MS - 1);
    }
}

#[test]
fn vcpus_of_a_vm_share_what_it_has() {
    let host = Host::new(2, 1);
    for (weight, vcpus) in [(100, 6), (300, 3)] {
        let vm = host.vcpus(weight, PLAIN, Computes, vcpus);
        host.run(10 * S);
        for vcpu in host.of(vm) {
            let ran = machine().ran(vcpu);
            let part = (ran * vcpus as u64) as f64 / host.ran(vm) as f64;
            assert!((0.95..=1.05).contains(&part), "{part}");
        }
    }
}

/// Nothing that a VM does gains it more than its share, or costs it a part of that.
#[test]
fn neither_habit_nor_weight_changes_a_share() {
    let half = |habit, vcpus, off| (100, FULL, habit, vcpus, 0.5, off);
    let plain = |habit, vcpus, part| (100, PLAIN, habit, vcpus, part, 0.03);
    let light = |policy, habit, vcpus, off| {
        let heavy = (100, policy, Computes, 2, HEAVY, 0.01);
        (2, 1, 40, vec![(1, policy, habit, vcpus, LIGHT, off), heavy])
    };
    for (cpus, seeds, seconds, vms) in [
        // Words of the guest that mean nothing, and vCPUs that sleep at the right moment.
        (2, 6, 5, vec![half(Wild, 20, 0.02), half(Computes, 3, 0.02)]),
        (2, 2, 10, vec![half(NAPS, 4, 0.01), half(Computes, 4, 0.01)]),
        // A single vCPU of a VM runs at a time, or few of many do: they have no share each.
        (1, 1, 10, vec![plain(Relays, 2, 0.5), plain(Computes, 1, 0.5)]),
        (1, 1, 10, vec![plain(Relays, 8, 0.5), plain(Computes, 1, 0.5)]),
        (1, 1, 10, vec![plain(RESTS, 16, 0.5), plain(Computes, 1, 0.5)]),
        // The VM could use more than twice as much. Waking up last in the queue, it would get half.
        (2, 1, 10, [BLOCKS, Computes, Computes, Computes].map(|h| plain(h, 2, 0.25)).to_vec()),
        // Each vCPU of a light VM has few turns, and stands far ahead, or gets there by rescues.
        light(PLAIN, Computes, 4, 0.03),
        light(PLAIN, Computes, 8, 0.03),
        light(FULL, Computes, 1, 0.03),
        light(FULL, Computes, 2, 0.05),
        light(FULL, Lies, 8, 0.1),
        // What a VM is ahead by is never forgiven, also if an extension follows a rescue.
        (1, 1, 60, vec![(1, FULL, Lies, 1, LIGHT, 0.2), (100, PLAIN, Computes, 1, HEAVY, 0.01)]),
    ] {
        (1..=seeds).for_each(|seed| _ = shares(cpus, seed, seconds * S, &vms));
    }
}

/// On one of two CPUs, and on nodes, of which one has VMs of its own.
#[test]
fn vms_have_their_share_where_they_cannot_leave() {
    let third = 1.0 / 3.0;
    let pinned = |habit| {
        (PLAIN, 0.03, [(habit, 4, 0..1, 0.25), (Computes, 1, 0..1, 0.25), (Computes, 1, 1..2, 0.5)])
    };
    let nodes = [0..2, 2..4, 0..4].map(|cpus| (Computes, 4, cpus, third));
    let hosts = [Relays, BLOCKS, Computes].map(pinned);
    for (policy, off, vms) in hosts.into_iter().chain([(FULL, 0.05, nodes)]) {
        let host = Host::new(vms[2].2.end, 1);
        for (vm, (habit, vcpus, cpus, _)) in vms.iter().cloned().enumerate() {
            host.vcpus(100, policy, habit, vcpus);
            host.pin(vm, cpus);
        }
        host.run(10 * S);
        (0..3).for_each(|vm| assert_share(&host, vm, vms[vm].3, off));
    }
}

/// The turn of a vCPU goes on after a change of its CPUs, or after an ordinary thread: it ends when
/// it would have ended.
#[test]
fn a_turn_that_is_interrupted_is_one_turn() {
    for changes in [true, false] {
        let host = Host::new(1, 1);
        let vms = [0; 2].map(|_| host.vcpus(100, FULL, Computes, 1));
        if !changes {
            kernel::ordinary(0, 20 * US, 300 * US);
        }
        for _ in 0..10_000 {
            host.run(300 * US);
            if changes {
                host.pin(0, [0]);
            }
        }
        for vm in vms {
            assert_share(&host, vm, 0.5, 0.01);
            assert!(host.longest_wait(vm) < 3 * SLICE, "{}", host.longest_wait(vm));
        }
    }
}

#[test]
fn a_vcpu_that_is_plugged_in_changes_no_share() {
    let host = Host::new(2, 1);
    let (one, other) = (host.vcpus(100, FULL, Computes, 2), host.vcpus(100, FULL, Computes, 3));
    host.run(S);
    let added = host.add(one, Computes);
    host.run(100 * MS);
    host.tell(added);
    host.run(9 * S);
    assert_share(&host, one, 0.5, 0.01);
    assert_share(&host, other, 0.5, 0.01);
    assert!(machine().ran(added) > 9 * 2 * S / 6 * 95 / 100);
}

#[test]
fn nobody_waits_for_ever() {
    for (seed, cpus) in [(0, 2), (1, 4)] {
        let host = Host::new(cpus, seed);
        let habits = [(100, Lies), (100, NAPS), (1000, Lies), (1, Computes), (10_000, BLOCKS)];
        let vms = habits.map(|(weight, habit)| host.vcpus(weight, FULL, habit, 8));
        kernel::ordinary(0, 20 * MS, 5 * MS);
        host.run(15 * S);
        for vm in vms {
            // The kernel ends guard after 20 s. A CPU takes one after 8 s.
            assert!(host.longest_wait(vm) < 10 * S, "VM {vm}: {}", host.longest_wait(vm));
        }
        assert_bounds(&host, 15 * S);
    }
}

/// By virtual time the light one would wait for minutes: the heavy ones came while it was ahead.
#[test]
fn heavy_vms_that_come_hold_no_light_one_back_for_long() {
    let host = Host::new(1, 1);
    let [light, ..] = [1, 100].map(|weight| host.vcpus(weight, PLAIN, Computes, 1));
    host.run(S);
    (0..20).for_each(|_| _ = host.vcpus(10_000, PLAIN, Computes, 1));
    host.run(15 * S);
    assert!(host.longest_wait(light) < 10 * S, "{}", host.longest_wait(light));
}

#[test]
fn a_vm_that_always_claims_gets_no_more_than_its_share() {
    for seed in 0..2 {
        let [liar, honest] = [Lies, Computes].map(|habit| (100, FULL, habit, 3, 0.5, 0.01));
        let host = shares(2, seed, 10 * S, &[liar, honest]);
        let told = host.told(0, |guest| (guest.rescued.count, guest.extended.count));
        assert!(told.0 > 100 && told.1 > 100, "the lies were believed: {told:?}");
    }
}

/// Each vCPU may get ahead of its turn a little: so many of them must not do so together.
#[test]
fn lies_of_many_vcpus_gain_nothing() {
    let host = Host::new(2, 5);
    let vms = [Computes, Lies, Computes, Lies].map(|habit| host.vcpus(100, FULL, habit, 64));
    host.run(8 * S);
    for vm in vms {
        // A turn of all its vCPUs, a slice and an extension: they come in turn together.
        let off = host.ran(vm).abs_diff(4 * S);
        assert!(off <= 64 * (SLICE + EXTEND), "VM {vm} is {} ms off", off / MS);
    }
    assert_bounds(&host, 8 * S);
}

/// An ordinary thread has one of two CPUs for ever: vCPUs do not wait there.
#[test]
fn a_cpu_that_is_taken_keeps_no_vcpu() {
    let host = Host::new(2, 1);
    let vms = [0; 2].map(|_| host.vcpus(100, FULL, Computes, 1));
    host.run(S);
    kernel::ordinary(0, 1000 * S, S);
    host.run(9 * S);
    for vm in vms {
        assert_share(&host, vm, 0.5, 0.03);
        assert!(host.longest_wait(vm) < 30 * MS, "{}", host.longest_wait(vm));
    }
}

#[test]
fn no_cpu_is_idle_while_a_vcpu_waits() {
    let host = Host::new(4, 1);
    for habit in [NAPS, BLOCKS, RESTS] {
        host.vcpus(100, FULL, habit, 4);
    }
    let mut wasted = 0;
    for _ in 0..2000 {
        host.run(MS);
        let (m, idle) = (machine(), |m: &Machine| (0..4).any(|cpu| m.is_idle(cpu)));
        wasted += u32::from(idle(&m) && m.threads.iter().any(|one| one.waits.is_some()));
    }
    assert!(wasted <= 20, "{wasted} of 2000");
}

#[test]
fn vcpus_leave_critical_sections_first() {
    let [plain, full] = [PLAIN, FULL].map(|policy| {
        let host = Host::new(2, 1);
        (0..3).for_each(|_| _ = host.vcpus(100, policy, Computes, 2));
        host.run(10 * S);
        machine().vms.iter().map(|vm| vm.preempted_in_section).sum::<u64>()
    });
    assert!(plain > 100 && full < plain / 20, "{plain} {full}");
}

/// A vCPU that kicks yields to the next owner of its spin lock, but leaves its section before.
#[test]
fn vcpus_that_kick_leave_critical_sections_first() {
    let host = Host::new(2, 1);
    let vm = host.vcpus(100, FULL, Locks(ToNext), 4);
    host.vcpus(100, FULL, Computes, 2);
    host.run(5 * S);
    let yielded = host.told(vm, |guest| guest.yielded.count);
    let preempted = machine().vms[vm].preempted_in_section;
    assert!(yielded > 100 && preempted < yielded / 20, "{preempted} of {yielded}");
}

/// How often the VM's vCPUs took their lock, or had all their answers, beside another VM.
fn done(policy: u32, habit: Habit) -> u64 {
    let other = (100, policy, Computes, 2, 0.5, 0.01);
    let host = shares(2, 1, 5 * S, &[(100, policy, habit, 4, 0.5, 0.01), other]);
    let (gave_way, yielded) = host.told(0, |g| (g.gave_way, g.yielded.count));
    assert_eq!(gave_way > 100, policy == FULL && habit == Calls, "{gave_way}");
    let yields = habit == Locks(ToNext) || (policy == PLAIN && habit == Locks(ToHolder));
    assert_eq!(yielded > 100, gave_way > 100 || yields, "{yielded}");
    machine().vms[0].done
}

/// vCPUs of the VM run for those who spin until all have answered.
#[test]
fn vcpus_that_wait_for_answers_give_way() {
    assert!(done(FULL, Calls) > 0 && done(PLAIN, Calls) > 0);
}

/// vCPUs that spin for a lock stay in line.
#[test]
fn vcpus_that_wait_for_a_lock_keep_their_cpus() {
    let plain = done(PLAIN, Locks(Not));
    for (policy, yields) in [(PLAIN, ToHolder), (FULL, Not), (FULL, ToHolder), (FULL, ToNext)] {
        assert!(done(policy, Locks(yields)) > plain);
    }
}

/// All vCPUs of a VM need one mutex, which is handed to those that have waited for long. The one
/// that has it next runs in place of one that spins. Else the VM would do less than it does without
/// rescues.
#[test]
fn a_vcpu_that_is_handed_a_mutex_runs_for_those_that_spin() {
    let [plain, full] = [PLAIN, FULL].map(|policy| {
        let done = |seed| {
            let host = Host::new(8, seed);
            let vm = host.vcpus(100, policy, Churns, 8);
            (0..3).for_each(|_| _ = host.vcpus(100, policy, Computes, 8));
            host.run(5 * S);
            machine().vms[vm].done
        };
        (0..6).map(done).sum::<u64>()
    });
    assert!(full * 100 > plain * 94, "{full} of {plain}");
}

/// The lab's `lowweight`: a vCPU of little weight shares its CPU with three hogs.
fn lowweight(policy: u32, hogs: usize) -> (u64, u64) {
    let host = Host::new(2, 1);
    let vm = host.vcpus(10, policy, Computes, 2);
    for (cpu, vcpu) in host.of(vm).into_iter().enumerate() {
        kernel::set_mask(vcpu, [cpu].into());
    }
    (0..hogs).for_each(|_| host.pin(host.vcpus(100, policy, Computes, 1), [0]));
    host.run(20 * S);
    assert_bounds(&host, 20 * S);
    host.graces(vm)
}

#[test]
fn rescues_keep_grace_periods_short() {
    let (alone, plain, full) = (lowweight(FULL, 0), lowweight(PLAIN, 3), lowweight(FULL, 3));
    assert!(full.0 < plain.0 / 3 && full.1 < plain.1 / 3);
    assert!(full.0 < 3 * alone.0);
}

/// All vCPUs of a guest owe something at the same time.
#[test]
fn grace_periods_are_short_in_guests_of_many_vcpus() {
    for (vcpus, cpus) in [(8, 8), (8, 2), (16, 8)] {
        let host = Host::new(cpus, 1);
        let vms = [0; 3].map(|_| host.vcpus(100, FULL, Computes, vcpus));
        host.run(2 * S);
        for (mean, p90) in vms.map(|vm| host.graces(vm)) {
            assert!(mean < 10 * MS && p90 < 14 * MS, "{vcpus} on {cpus}: {mean}, {p90}");
        }
    }
}

#[test]
fn many_vms_share_many_cpus() {
    for (cpus, time) in [(64, S / 4), (512, S / 8)] {
        let host = Host::new(cpus, 1);
        for vm in 0..1000 {
            let habit = [Computes, Lies, Computes, NAPS][vm % 4];
            host.vcpus(100, FULL, habit, 2);
        }
        host.run(time);
        // Liars are ahead of their turns for a while. All others have the same.
        let due = cpus as u64 * time / 1000;
        let ran: Vec<(usize, u64)> = (0..1000).map(|vm| (vm, host.ran(vm))).collect();
        let (liars, others): (Vec<(usize, u64)>, Vec<_>) =
            ran.iter().partition(|(vm, _)| vm % 4 == 1);
        let most = liars.iter().map(|ran| ran.1).max().unwrap();
        assert!(most <= due + 2 * (2 * HOLD + SLICE + EXTEND), "{most} of {due}");
        let mean = others.iter().map(|ran| ran.1).sum::<u64>() / others.len() as u64;
        let off = others.iter().map(|ran| ran.1.abs_diff(mean)).max().unwrap();
        assert!(off <= mean / 5 + 2 * SLICE, "{off} of {mean}");
        let busy = ran.iter().map(|ran| ran.1).sum::<u64>() as f64;
        assert!(busy > 0.998 * (cpus as u64 * time) as f64, "{busy}");
        assert_bounds(&host, time);
    }
}

/// Two CPUs look at a guest at once. The first has read the number of a grace period when that
/// ends, and notes it after the other has noted the next one.
#[test]
fn a_look_that_stalls_undoes_no_newer_one() {
    let host = Host::new(2, 1);
    let vm = host.vcpus(100, FULL, Computes, 2);
    host.run(100 * MS);
    let began = machine().now;
    machine().stall = Some(Box::new(move || {
        let mut m = machine();
        (m.here, m.now, m.vms[vm].seq) = (1, began + 1, m.vms[vm].seq / 4 * 4 + 5);
        drop(m);
        native::look_at_rcu(began + 1);
    }));
    machine().here = 0;
    native::look_at_rcu(began);
    let noted = native::guest(vm, |guest| (guest.grace.seq, guest.grace.since));
    assert_eq!(noted, (machine().vms[vm].seq, began + 1));
}

/// However little of its VM's weight a vCPU has, its debt is what it ran out of turn.
#[test]
fn debt_is_run_time() {
    for (weight, runnable) in [(1, 1), (1, 64), (100, 1), (100, 51), (199, 100), (10_000, 3)] {
        let debt = native::native_debt(weight, runnable, 2 * HOLD);
        assert!(debt.abs_diff(2 * HOLD) <= 10 * US, "{runnable} of {weight}: {debt}");
    }
}

/// A round takes as long as with four threads, until turns are so short that each is hardly worth
/// its switch.
#[test]
fn turns_are_shorter_where_many_compete() {
    let turn = |threads: u64| native::native_turn(threads);
    assert_eq!([1, 2, 4].map(turn), [SLICE; 3]);
    for threads in 5..=12 {
        assert!((turn(threads) * threads).abs_diff(4 * SLICE) < threads, "{threads} threads");
    }
    assert_eq!([13, 1000, 8000].map(turn), [MS; 3]);
    // Many thousands each have one before the kernel loses its patience with guard.
    for threads in [10_000, 20_000, 80_000] {
        assert!((turn(threads) * threads).abs_diff(8 * S) < threads, "{threads} threads");
    }
    assert_eq!(turn(u64::MAX / 1000), 100 * US);
}
