// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the scheduler's policy (`bpf/guard_policy.h`) through generated histories: a host of a
//! few CPUs and VMs, whose vCPUs run, sleep, claim to be in critical sections and hold up grace
//! periods at random.

use super::program::types::{
    policy_budget as Budget, policy_extension as Extension, policy_group as Group,
    policy_limits as Limits, policy_thread as Thread,
};

// The policy as a library, `bpf/guard_policy.c`.
unsafe extern "C" {
    fn policy_join(group: *mut Group, now: u64);
    fn policy_leave(group: *mut Group, now: u64);
    fn policy_stand(group: *mut Group, clock: u64, cpu: u64, lag: u64, limits: *const Limits);
    fn policy_begin(thread: *mut Thread, group: *mut Group, now: u64);
    fn policy_charge(thread: *mut Thread, group: *mut Group, now: u64) -> u64;
    fn policy_spend(thread: *mut Thread, ran: u64, rescued: i32, limits: *const Limits);
    fn policy_borrow(own: *mut u64, group: *mut Group, ran: u64);
    fn policy_repay(own: *mut u64, group: *mut Group);
    fn policy_weight(group: *const Group) -> u64;
    fn policy_lag(clock: u64, queue: u64) -> u64;
    fn policy_credit(
        group: *const Group,
        queue: u64,
        cpu: u64,
        lag: u64,
        limits: *const Limits,
    ) -> i64;
    fn policy_place(
        thread: *mut Thread,
        group: *const Group,
        queue: u64,
        load: u64,
        credit: i64,
    ) -> u64;
    fn policy_stays(thread: *mut Thread, group: *const Group, queue: u64, load: u64);
    fn policy_start(queue: *mut u64, thread: *const Thread);
    fn policy_behind(
        there: u64,
        there_weight: u64,
        here: u64,
        here_weight: u64,
        load: u64,
        limits: *const Limits,
    ) -> i32;
    fn policy_again(running: *const Thread, waits: i32, first: u64) -> i32;
    fn policy_preempts(
        woken: *const Thread,
        running: *const Thread,
        weight: u64,
        now: u64,
        limits: *const Limits,
    ) -> i32;
    fn policy_extend(
        extension: *mut Extension,
        budget: *mut Budget,
        section: i32,
        now: u64,
        limits: *const Limits,
    ) -> u32;
    fn policy_rescue(
        thread: *const Thread,
        group: *const Group,
        queue: u64,
        load: u64,
        age: u64,
        left: u64,
        need: u32,
        now: u64,
        limits: *const Limits,
    ) -> u32;
    fn policy_rescue_ns(need: u32, limits: *const Limits) -> u64;
    fn policy_yield(
        thread: *const Thread,
        group: *const Group,
        queue: u64,
        load: u64,
        limits: *const Limits,
    ) -> u32;
    fn policy_turn(count: u64, limits: *const Limits) -> u64;
    fn policy_left(length: u64, used: u64, grace: u64) -> u64;
    fn policy_grace_mean(mean: u64, ns: u64) -> u64;
    fn policy_late(mean: u64, tick: u64, limits: *const Limits) -> u64;
    fn policy_kthread_helps(awaited: i32, wanted: i32, age: u64, limits: *const Limits) -> i32;
}

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;
const LIMITS: Limits = Limits {
    slice: 3 * MS,
    max_extend: MS,
    max_hold: 20 * MS,
    late: 2 * MS,
    late_most: 7 * MS,
    rescue_share: 100,
};
/// How long a rescue lasts.
const RESCUE: u64 = 300_000;
/// Values of `enum policy_need`.
const DUE_TICK: u32 = 1;
const WORK: u32 = 2;
/// How long a vCPU has to be off its CPU before a rescue, by what it needs.
const GAPS: [u64; 3] = [4 * MS, 0, 500 * US];
/// Values of `enum policy_answer`.
const YES: u32 = 0;
const IN_DEBT: u32 = 2;
/// `enum policy_verdict`.
const GO: u32 = 0;
const STAY: u32 = 1;
const EXPIRED: u32 = 2;
const REFUSED: u32 = 3;
/// Lag that a vCPU keeps that did not sleep.
const KEPT: i64 = 200_000_000;

/// A generator that any seed makes different (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Waits,
    Runs,
    Sleeps(u64),
}

/// The behaviour of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    /// The vCPU always has something to compute.
    Computes,
    /// The vCPU computes for a while and sleeps for a while.
    Naps,
    /// As `Naps`, in small pieces: it waits for locks.
    Blocks,
    /// The vCPU computes for a moment and sleeps for longer.
    Rests,
    /// The vCPU computes for less than a slice, wakes the next one of its VM that sleeps, and
    /// sleeps until another wakes it.
    Relays,
    /// As `Computes`, and claims to be in a critical section, and to hold up an old grace period,
    /// all the time.
    Lies,
}

struct Vcpu {
    thread: Thread,
    extension: Extension,
    vm: usize,
    habit: Habit,
    /// The only CPU on which the vCPU may run.
    pinned: Option<usize>,
    doing: Doing,
    /// In whose queue it competes.
    cpu: usize,
    /// The longest that its rescue lasts, if it is rescued.
    rescued: Option<u64>,
    borrowed: u64,
    left: u64,
    waits_since: u64,
    turn: u64,
    /// When it goes to sleep by itself.
    sleeps_at: u64,
    ran: u64,
    longest_wait: u64,
}

/// A host, in steps of a tick.
struct Host {
    now: u64,
    /// The vCPU that each CPU runs.
    cpus: Vec<Option<usize>>,
    /// Virtual time of the queue of each.
    vtimes: Vec<u64>,
    vms: Vec<(Group, Budget)>,
    vcpus: Vec<Vcpu>,
    random: Random,
    rescues: u64,
    extensions: u64,
    longest_extension: u64,
    /// Whether vCPUs are extended and rescued.
    policy: bool,
}

const STEP: u64 = 100 * US;

impl Host {
    fn new(cpus: usize, weights: &[u64], seed: u64, policy: bool) -> Host {
        let now = 1000 * S;
        let vm =
            |&weight: &u64| (Group { weight, since: now, ..Group::default() }, Budget::default());
        Host {
            now,
            cpus: vec![None; cpus],
            vtimes: vec![S; cpus],
            vms: weights.iter().map(vm).collect(),
            vcpus: Vec::new(),
            random: Random(seed),
            rescues: 0,
            extensions: 0,
            longest_extension: 0,
            policy,
        }
    }

    fn add(&mut self, vm: usize, habit: Habit) {
        self.add_pinned(vm, habit, None);
    }

    fn add_pinned(&mut self, vm: usize, habit: Habit, pinned: Option<usize>) {
        let cpu = pinned.unwrap_or(self.vcpus.len() % self.cpus.len());
        self.vcpus.push(Vcpu {
            thread: Thread::default(),
            extension: Extension::default(),
            vm,
            habit,
            pinned,
            doing: Doing::Sleeps(self.now),
            cpu,
            rescued: None,
            borrowed: 0,
            left: 0,
            waits_since: self.now,
            turn: 0,
            sleeps_at: u64::MAX,
            ran: 0,
            longest_wait: 0,
        });
        self.vcpus.last_mut().unwrap().thread.vtime = self.vtimes[cpu];
    }

    /// Virtual time of the queue that is furthest.
    fn clock(&self) -> u64 {
        self.vtimes.iter().copied().max().unwrap()
    }

    /// The weight that competes for one CPU.
    fn load(&self) -> u64 {
        let runnable = self.vms.iter().filter(|vm| vm.0.runnable > 0);
        runnable.map(|vm| vm.0.weight).sum::<u64>() / self.cpus.len() as u64
    }

    fn weight(&self, vcpu: usize) -> u64 {
        // SAFETY: reads its argument only.
        unsafe { policy_weight(&self.vms[self.vcpus[vcpu].vm].0) }
    }

    fn enqueue(&mut self, vcpu: usize) {
        let (clock, load, now) = (self.clock(), self.load(), self.now);
        let one = &mut self.vcpus[vcpu];
        let (group, at) = (&mut self.vms[one.vm].0, self.vtimes[one.cpu]);
        let mut credit = KEPT;
        // SAFETY: all point to values of their types, none of which is used elsewhere.
        unsafe {
            if matches!(one.doing, Doing::Sleeps(_)) {
                let lag = policy_lag(clock, at);
                policy_join(group, now);
                policy_stand(group, clock, one.cpu as u64, lag, &LIMITS);
                credit = policy_credit(group, clock, one.cpu as u64, lag, &LIMITS);
            }
            policy_place(&mut one.thread, group, at, load, credit);
        }
        let (woken, cpu) = (matches!(one.doing, Doing::Sleeps(_)), one.cpu);
        (one.doing, one.waits_since) = (Doing::Waits, now);
        if woken {
            self.preempt(vcpu, cpu);
        }
    }

    /// The vCPU, which was woken, ends the turn of the one that the CPU runs, if it may.
    fn preempt(&mut self, woken: usize, cpu: usize) {
        let Some(runs) = self.cpus[cpu].filter(|&runs| self.vcpus[runs].rescued.is_none()) else {
            return;
        };
        let (weight, now) = (self.weight(runs), self.now);
        let (woken, running) = (&self.vcpus[woken].thread, &self.vcpus[runs].thread);
        // SAFETY: as in `enqueue`.
        if unsafe { policy_preempts(woken, running, weight, now, &LIMITS) } != 0 {
            self.vcpus[runs].turn = now - LIMITS.slice;
        }
    }

    fn charge(&mut self, vcpu: usize) {
        let (clock, now) = (self.clock(), self.now);
        let one = &mut self.vcpus[vcpu];
        let (group, at) = (&mut self.vms[one.vm].0, self.vtimes[one.cpu]);
        // SAFETY: as in `enqueue`.
        unsafe {
            let ran = policy_charge(&mut one.thread, group, now);
            one.ran += ran;
            if one.rescued.is_some() {
                policy_borrow(&mut one.borrowed, group, ran);
            }
            policy_stand(group, clock, one.cpu as u64, policy_lag(clock, at), &LIMITS);
        }
    }

    /// The vCPU that the CPU runs leaves it: to sleep until then, or to wait.
    fn stop(&mut self, cpu: usize, sleeps: Option<u64>) {
        let vcpu = self.cpus[cpu].take().unwrap();
        self.charge(vcpu);
        let now = self.now;
        let one = &mut self.vcpus[vcpu];
        (one.left, one.rescued, one.extension) = (now, None, Extension::default());
        match sleeps {
            Some(until) => {
                one.doing = Doing::Sleeps(until);
                // SAFETY: as in `enqueue`.
                unsafe { policy_leave(&mut self.vms[one.vm].0, now) };
            }
            None => {
                one.doing = Doing::Runs;
                self.enqueue(vcpu);
            }
        }
    }

    fn run_on(&mut self, cpu: usize, vcpu: usize, rescued: Option<u64>) {
        self.cpus[cpu] = Some(vcpu);
        let sleeps_in = match self.vcpus[vcpu].habit {
            Habit::Naps => Some(self.random.below(8 * MS)),
            Habit::Blocks | Habit::Rests => Some(self.random.below(MS)),
            Habit::Relays => Some(LIMITS.slice - STEP),
            Habit::Computes | Habit::Lies => None,
        };
        let now = self.now;
        let one = &mut self.vcpus[vcpu];
        one.longest_wait = one.longest_wait.max(now - one.waits_since);
        (one.doing, one.turn, one.cpu, one.rescued) = (Doing::Runs, now, cpu, rescued);
        one.sleeps_at = sleeps_in.map_or(u64::MAX, |time| now + time);
        // SAFETY: as in `enqueue`.
        unsafe { policy_begin(&mut one.thread, &mut self.vms[one.vm].0, now) };
        if rescued.is_none() {
            self.start(cpu, vcpu);
        }
    }

    /// The vCPU has its turn.
    fn start(&mut self, cpu: usize, vcpu: usize) {
        let one = &mut self.vcpus[vcpu];
        // SAFETY: as in `enqueue`.
        unsafe {
            policy_start(&mut self.vtimes[cpu], &one.thread);
            policy_repay(&mut one.borrowed, &mut self.vms[one.vm].0);
        }
    }

    /// The vCPU that is rescued now, and for how long.
    fn rescue(&mut self, cpu: usize) -> Option<(usize, u64)> {
        let (load, now) = (self.load(), self.now);
        (0..self.vcpus.len()).find_map(|vcpu| {
            let need = self.random.below(3) as u32;
            let one = &self.vcpus[vcpu];
            let may = one.pinned.is_none_or(|only| only == cpu);
            if one.doing != Doing::Waits || one.habit != Habit::Lies || !may {
                return None;
            }
            let (group, at, left) = (&self.vms[one.vm].0, self.vtimes[one.cpu], one.left);
            // SAFETY: as in `enqueue`.
            let said =
                unsafe { policy_rescue(&one.thread, group, at, load, S, left, need, now, &LIMITS) };
            // SAFETY: reads its argument only.
            (said == YES).then(|| (vcpu, unsafe { policy_rescue_ns(need, &LIMITS) }))
        })
    }

    /// The first that waits in that queue, and may run on `cpu`.
    fn first(&self, queue: usize, cpu: usize) -> Option<usize> {
        let waits = |vcpu: &usize| {
            let one = &self.vcpus[*vcpu];
            let may = one.pinned.is_none_or(|only| only == cpu);
            one.doing == Doing::Waits && one.cpu == queue && may
        };
        let all = (0..self.vcpus.len()).filter(waits);
        all.min_by_key(|&vcpu| self.vcpus[vcpu].thread.vtime as i64)
    }

    /// The vCPU of another queue that is so far behind that it should run here.
    fn behind(&mut self, cpu: usize, runs: Option<usize>) -> Option<usize> {
        let here = self.first(cpu, cpu).or(runs)?;
        (0..2).find_map(|_| {
            let other = self.random.below(self.cpus.len() as u64) as usize;
            let there = self.first(other, cpu).filter(|_| other != cpu)?;
            let vtime = |vcpu: usize| self.vcpus[vcpu].thread.vtime;
            let (heavy, light) = (self.weight(there), self.weight(here));
            let load = self.load();
            // SAFETY: reads its argument only.
            let behind =
                unsafe { policy_behind(vtime(there), heavy, vtime(here), light, load, &LIMITS) };
            (behind != 0).then_some(there)
        })
    }

    fn step(&mut self) {
        self.now += STEP;
        for vcpu in 0..self.vcpus.len() {
            match self.vcpus[vcpu].doing {
                Doing::Sleeps(until) if until <= self.now => self.enqueue(vcpu),
                _ => {}
            }
        }
        for cpu in 0..self.cpus.len() {
            self.choose(cpu);
        }
    }

    /// As `pick` in `bpf/policy_turn.bpf.h`.
    fn choose(&mut self, cpu: usize) {
        let (mut was_rescued, mut previous) = (false, None);
        if let Some(vcpu) = self.cpus[cpu] {
            let one = &self.vcpus[vcpu];
            was_rescued = one.rescued.is_some();
            let over = self.now - one.turn >= one.rescued.unwrap_or(LIMITS.slice);
            if one.sleeps_at <= self.now {
                let long = match one.habit {
                    Habit::Blocks => MS / 4,
                    Habit::Rests => 16 * MS,
                    _ => 6 * MS,
                };
                let until = match one.habit {
                    Habit::Relays => u64::MAX,
                    _ => self.now + self.random.below(long),
                };
                // The other is runnable before this one sleeps.
                if let Some(next) = self.relayed(vcpu) {
                    self.enqueue(next);
                }
                self.stop(cpu, Some(until));
            } else if over && !self.extended(vcpu) {
                self.charge(vcpu);
                previous = Some(vcpu);
            } else {
                return;
            }
        }
        let mut next = None;
        if self.policy && !was_rescued {
            next = self.rescue(cpu).map(|(vcpu, ns)| (vcpu, Some(ns)));
            self.rescues += u64::from(next.is_some());
        }
        let turn = |vcpu| (vcpu, None);
        next = next.or_else(|| self.behind(cpu, previous).map(turn));
        let first = self.first(cpu, cpu);
        if let (Some(vcpu), None, false) = (previous, next, was_rescued) {
            let (load, at) = (self.load(), self.vtimes[cpu]);
            let there = first.map(|first| self.vcpus[first].thread.vtime);
            let one = &mut self.vcpus[vcpu];
            // SAFETY: as in `enqueue`.
            let again = unsafe {
                policy_stays(&mut one.thread, &self.vms[one.vm].0, at, load);
                policy_again(&one.thread, there.is_some().into(), there.unwrap_or(0))
            };
            if again != 0 {
                return self.repeat(cpu, vcpu);
            }
        }
        next = next.or(first.map(turn));
        match (previous, next) {
            (Some(vcpu), None) => self.repeat(cpu, vcpu),
            (_, Some((vcpu, rescued))) => {
                if previous.is_some() {
                    self.stop(cpu, None);
                }
                self.run_on(cpu, vcpu, rescued);
            }
            (None, None) => {
                let any = (0..self.cpus.len()).find_map(|other| self.first(other, cpu));
                if let Some(vcpu) = any {
                    self.run_on(cpu, vcpu, None);
                }
            }
        }
    }

    /// The vCPU has another turn.
    fn repeat(&mut self, cpu: usize, vcpu: usize) {
        let now = self.now;
        let one = &mut self.vcpus[vcpu];
        (one.turn, one.rescued, one.extension) = (now, None, Extension::default());
        self.start(cpu, vcpu);
    }

    /// The vCPU of the same VM that this one wakes when it falls asleep.
    fn relayed(&self, vcpu: usize) -> Option<usize> {
        let vm = self.vcpus[vcpu].vm;
        let sleeps = |&other: &usize| {
            let other = &self.vcpus[other];
            other.vm == vm && other.doing == Doing::Sleeps(u64::MAX)
        };
        let count = self.vcpus.len();
        (1..count).map(|n| (vcpu + n) % count).find(sleeps)
    }

    /// Whether it keeps its CPU beyond its turn.
    fn extended(&mut self, vcpu: usize) -> bool {
        if !self.policy {
            return false;
        }
        let one = &mut self.vcpus[vcpu];
        let (began, section) = (one.extension.began, i32::from(one.habit == Habit::Lies));
        let budget = &mut self.vms[one.vm].1;
        // SAFETY: as in `enqueue`.
        let verdict =
            unsafe { policy_extend(&mut one.extension, budget, section, self.now, &LIMITS) };
        match verdict {
            STAY if began == 0 => self.extensions += 1,
            EXPIRED => self.longest_extension = self.longest_extension.max(self.now - began),
            _ => {}
        }
        verdict == STAY
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
        // The vCPUs that run now are charged too.
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].is_some() {
                self.stop(cpu, None);
            }
        }
    }

    fn vm_ran(&self, vm: usize) -> u64 {
        self.vcpus.iter().filter(|vcpu| vcpu.vm == vm).map(|vcpu| vcpu.ran).sum()
    }
}

#[track_caller]
fn assert_share(ran: u64, entitled: u64, off: f64, what: &str) {
    let share = ran as f64 / entitled as f64;
    assert!((1.0 - off..=1.0 + off).contains(&share), "{what}: {share:.4} of its entitlement");
}

#[test]
fn vms_share_by_weight_however_many_vcpus_and_cpus_there_are() {
    for (cpus, policy) in [(1, false), (2, false), (2, true), (4, true), (8, true)] {
        for seed in 0..4 {
            let mut host = Host::new(cpus, &[100, 100, 200], seed, policy);
            // None can have more than its VM's part: cpus / 4, cpus / 4, cpus / 2.
            for (vm, vcpus) in [(0, cpus.div_ceil(2)), (1, cpus * 3), (2, cpus + 1)] {
                (0..vcpus).for_each(|_| host.add(vm, Habit::Computes));
            }
            host.run(10 * S);
            for (vm, part) in [(0, 4), (1, 4), (2, 2)] {
                let entitled = cpus as u64 * 10 * S / part;
                assert_share(host.vm_ran(vm), entitled, 0.015, &format!("VM {vm}, {cpus} CPUs"));
            }
        }
    }
}

#[test]
fn vcpus_of_a_vm_share_what_it_has() {
    for seed in 0..4 {
        let mut host = Host::new(2, &[100, 300], seed, false);
        for (vm, vcpus) in [(0, 6), (1, 3)] {
            (0..vcpus).for_each(|_| host.add(vm, Habit::Computes));
        }
        host.run(20 * S);
        for (vm, vcpus) in [(0, 6), (1, 3)] {
            for one in host.vcpus.iter().filter(|one| one.vm == vm) {
                assert_share(one.ran, host.vm_ran(vm) / vcpus, 0.05, "a vCPU");
            }
        }
    }
}

#[test]
fn light_and_heavy_vms_have_their_shares() {
    let mut host = Host::new(2, &[1, 100, 10_000], 3, true);
    (0..3).for_each(|vm| (0..2).for_each(|_| host.add(vm, Habit::Computes)));
    host.run(20 * S);
    let all = 40 * S;
    assert_share(host.vm_ran(2), all * 10_000 / 10_101, 0.02, "the heavy VM");
    assert!(host.vm_ran(1) > host.vm_ran(0) && host.vm_ran(0) > 0);
    assert!(host.vm_ran(0) + host.vm_ran(1) < all / 25);
}

#[test]
fn vms_have_their_share_where_they_cannot_leave() {
    for habit in [Habit::Relays, Habit::Blocks, Habit::Computes] {
        for seed in 0..4 {
            let mut host = Host::new(2, &[100, 100, 100], seed, false);
            (0..4).for_each(|_| host.add_pinned(0, habit, Some(0)));
            host.add_pinned(1, Habit::Computes, Some(0));
            host.add_pinned(2, Habit::Computes, Some(1));
            host.run(20 * S);
            assert_share(host.vm_ran(0), 10 * S, 0.03, "the VM of several vCPUs");
            assert_share(host.vm_ran(1), 10 * S, 0.03, "the VM that computes");
        }
    }
}

#[test]
fn nobody_waits_for_ever() {
    for (seed, cpus) in [(0, 2), (1, 2), (2, 4), (3, 8)] {
        let mut host = Host::new(cpus, &[100, 100, 1000, 1, 10_000], seed, true);
        let habits = [Habit::Lies, Habit::Naps, Habit::Lies, Habit::Computes, Habit::Blocks];
        for (vm, habit) in habits.into_iter().enumerate() {
            (0..8).for_each(|_| host.add(vm, habit));
        }
        host.run(30 * S);
        for one in &host.vcpus {
            let waits = one.doing == Doing::Waits;
            let wait = one.longest_wait.max(if waits { host.now - one.waits_since } else { 0 });
            // The kernel's watchdog would end guard after 20 s; the glue takes one after 8 s.
            assert!(wait < 12 * S, "a vCPU of VM {} waited {} ms", one.vm, wait / MS);
            assert!(one.ran > 0);
        }
    }
}

#[test]
fn a_vm_that_always_claims_gets_no_more_than_its_share() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100, 100], seed, true);
        for vm in 0..2 {
            let habit = if vm == 0 { Habit::Lies } else { Habit::Computes };
            (0..3).for_each(|_| host.add(vm, habit));
        }
        host.run(10 * S);
        assert!(host.rescues > 100 && host.extensions > 100, "the lies were believed");
        for vm in 0..2 {
            assert_share(host.vm_ran(vm), 10 * S, 0.015, "a VM");
        }
        // A look per step.
        assert!(host.longest_extension <= LIMITS.max_extend + STEP);
    }
}

/// Each vCPU may get ahead of its turn a little: so many of them must not do so together.
#[test]
fn lies_of_many_vcpus_gain_nothing() {
    use Habit::{Computes, Lies};
    let mut host = Host::new(2, &[100; 4], 5, true);
    for (vm, habit) in [Computes, Lies, Computes, Lies].into_iter().enumerate() {
        (0..64).for_each(|_| host.add(vm, habit));
    }
    host.run(8 * S);
    assert!(host.rescues > 100 && host.extensions > 100);
    for vm in 0..4 {
        // A turn of all its vCPUs, a slice and an extension: they come in turn together.
        let off = host.vm_ran(vm).abs_diff(4 * S);
        assert!(off <= 64 * (LIMITS.slice + LIMITS.max_extend), "VM {vm} is {} ms off", off / MS);
    }
}

#[test]
fn sleeping_at_the_right_moment_gains_nothing() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100, 100], seed, false);
        for _ in 0..4 {
            host.add(0, Habit::Naps);
            host.add(1, Habit::Computes);
        }
        host.run(10 * S);
        assert!(host.vm_ran(0) <= 10 * S * 101 / 100, "{} ms", host.vm_ran(0) / MS);
    }
}

/// A single vCPU of each VM runs at a time, or few of many do.
#[test]
fn vcpus_that_take_turns_have_no_share_each() {
    for (habit, vcpus) in [(Habit::Relays, 2), (Habit::Relays, 8), (Habit::Rests, 16)] {
        for seed in 0..4 {
            let mut host = Host::new(1, &[100, 100], seed, false);
            (0..vcpus).for_each(|_| host.add(0, habit));
            host.add(1, Habit::Computes);
            host.run(10 * S);
            assert_share(host.vm_ran(1), 5 * S, 0.02, "the VM that computes");
            assert_share(host.vm_ran(0), 5 * S, 0.02, "the VM whose vCPUs take turns");
        }
    }
}

#[test]
fn a_vm_whose_vcpus_block_gets_its_share() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100; 4], seed, false);
        for vm in 0..4 {
            let habit = if vm == 0 { Habit::Blocks } else { Habit::Computes };
            (0..2).for_each(|_| host.add(vm, habit));
        }
        host.run(10 * S);
        // The VM could use more than twice as much. Waking up last in the queue, it would get half.
        assert_share(host.vm_ran(0), 20 * S / 4, 0.03, "the VM");
    }
}

#[test]
fn a_sleeper_preempts_and_a_hog_does_not() {
    let group = Group { weight: 100, runnable: 1, ..Group::default() };
    let running = Thread { vtime: 10 * S, began: S, ..Thread::default() };
    let preempts = |lacks: u64, vtime: u64, after: u64| {
        let mut woken = Thread { vtime, ..Thread::default() };
        let of = Group { vtime: 10 * S - lacks, ..group };
        // SAFETY: all point to values of their types.
        unsafe {
            let credit = policy_credit(&of, 10 * S, of.cpu, of.lag, &LIMITS);
            policy_place(&mut woken, &of, 10 * S, 100, credit);
            policy_preempts(&woken, &running, 100, S + after, &LIMITS) != 0
        }
    };
    assert!(preempts(20 * MS, 0, 100 * US), "its VM lacks a lot");
    assert!(!preempts(0, 0, 100 * US), "its VM had its share");
    assert!(preempts(0, 0, 2 * MS), "the other has run for longer");
    assert!(!preempts(0, 10 * S + 5 * MS, MS), "it had more than its share");
}

#[test]
fn what_a_vm_borrows_is_repaid_and_bounded() {
    let (mut group, mut own) = (Group { weight: 100, runnable: 8, ..Group::default() }, [0; 8]);
    let queue = 100 * S;
    let thread = Thread { vtime: 100 * S, ..Thread::default() };
    let rescued = |group: &Group| {
        // SAFETY: all point to values of their types.
        unsafe { policy_rescue(&thread, group, queue, 100, S, 0, DUE_TICK, S, &LIMITS) == YES }
    };
    // SAFETY: reads its arguments only.
    let longest = unsafe { policy_rescue_ns(WORK, &LIMITS) };
    let mut rescues = 0;
    while rescued(&group) {
        // SAFETY: as above.
        unsafe { policy_borrow(&mut own[rescues % 8], &mut group, longest) };
        rescues += 1;
        assert!(rescues < 10_000, "it is bounded");
    }
    // Four may be ahead by twice the longest hold.
    assert_eq!(rescues as u64, 8 * LIMITS.max_hold / longest);
    for one in &mut own {
        // SAFETY: as above.
        unsafe { policy_repay(one, &mut group) };
        assert!(rescued(&group), "a part is repaid");
    }
    assert_eq!((group.borrowed, own), (0, [0; 8]));
}

/// A vCPU that owes a grace period at every moment, which ends whenever the vCPU runs: for 3 ms of
/// 15 in its turn, if `turns`. How much of 10 s it runs in rescues and in turns, and the age of the
/// oldest grace period.
fn rescued_with_share(rescue_share: u64, turns: bool) -> (u64, u64, u64) {
    let limits = Limits { rescue_share, ..LIMITS };
    let group = Group { weight: 100, runnable: 1, ..Group::default() };
    let mut thread = Thread { vtime: S, ..Thread::default() };
    let (mut rescued, mut turn, mut oldest, mut began) = (0, 0, 0, 0);
    for ms in 0..10_000 {
        let (now, age) = (ms * MS, ms * MS - began);
        let ran = if turns && ms % 15 < 3 { MS } else { 0 };
        turn += ran;
        // SAFETY: all point to values of their types.
        let rescue = ran == 0
            && unsafe {
                policy_rescue(&thread, &group, S, 100, age, 0, DUE_TICK, now, &limits) == YES
            };
        let ran = if rescue { RESCUE } else { ran };
        rescued += u64::from(rescue) * RESCUE;
        if ran > 0 {
            // SAFETY: as above.
            unsafe { policy_spend(&mut thread, ran, rescue.into(), &limits) };
            (oldest, began) = (oldest.max(age), now);
        }
    }
    (rescued, turn, oldest)
}

#[test]
fn rescues_have_a_share_of_the_time_but_for_the_oldest_grace_periods() {
    let part = |(rescued, turn, _)| rescued as f64 / (rescued + turn) as f64;
    let free = part(rescued_with_share(100, true));
    assert!(free > 0.25, "{free}");
    for share in [5, 10, 20] {
        let held = part(rescued_with_share(share, true));
        let due = share as f64 / 100.0;
        assert!((due - 0.02..=due + 0.01).contains(&held), "{held} where {due} is due");
    }
    let none = part(rescued_with_share(0, true));
    assert!(none < 0.01, "{none}: the first ones only, no grace period becomes old");
    for share in [0, 10, 100] {
        let (.., oldest) = rescued_with_share(share, false);
        assert!(oldest <= LIMITS.max_hold, "{share} %: {} ms", oldest / MS);
    }
}

#[test]
fn a_rescue_is_no_longer_than_a_turn() {
    let rescue = |need, slice| {
        let limits = Limits { slice, ..LIMITS };
        // SAFETY: reads its arguments only.
        unsafe { policy_rescue_ns(need, &limits) }
    };
    for slice in [100_000, MS / 2, LIMITS.slice, 20 * MS] {
        assert_eq!(rescue(DUE_TICK, slice), RESCUE);
        assert!((RESCUE..=slice.max(RESCUE)).contains(&rescue(WORK, slice)), "{slice}");
    }
    assert!(rescue(WORK, LIMITS.slice) > RESCUE, "other threads may be before the kthread");
}

#[test]
fn rescues_begin_later_where_grace_periods_are_short() {
    // SAFETY: reads its arguments only.
    let late = |mean, tick| unsafe { policy_late(mean, tick, &LIMITS) };
    for tick in [0, 10 * MS, 4 * MS, S / 300 / 4 * 4, MS] {
        assert_eq!(late(0, tick), LIMITS.late, "none has ended");
        let (natural, long) = (tick / 4 * 7, tick / 4 * 5);
        let mut before = u64::MAX;
        for mean in (MS / 10..60 * MS).step_by(10_000) {
            let now = late(mean, tick);
            assert!(now <= before, "a longer mean of {mean} ns has later rescues, ticks {tick}");
            let most = natural.clamp(LIMITS.late, LIMITS.late_most);
            assert!((LIMITS.late..=most).contains(&now), "{now} ns, ticks {tick}");
            assert!(mean < long || now == LIMITS.late, "{mean} ns are long, ticks {tick}");
            before = now;
        }
    }
    assert_eq!(late(4 * MS, 4 * MS), LIMITS.late_most);
    assert_eq!(late(9 * MS / 2, 4 * MS), (LIMITS.late + LIMITS.late_most) / 2);
    assert_eq!(late(MS, MS), LIMITS.late, "its ticks are shorter than any grace period is late");
    let fixed = Limits { late_most: LIMITS.late, ..LIMITS };
    // SAFETY: as above.
    assert_eq!(unsafe { policy_late(4 * MS, 4 * MS, &fixed) }, LIMITS.late);
    let held = Limits { max_hold: 5 * MS, ..LIMITS };
    // SAFETY: as above.
    assert_eq!(unsafe { policy_late(MS, 4 * MS, &held) }, held.max_hold);
    // Also for any tick.
    let huge = u64::MAX / 8;
    for (mean, tick) in
        [(u64::MAX, S / 50), (1, huge), (u64::MAX, 1), (3, 3), (26 * MS, 16 * MS), (huge, huge)]
    {
        // SAFETY: as above.
        let now = unsafe { policy_late(mean, tick, &LIMITS) };
        assert!((LIMITS.late..=LIMITS.late_most).contains(&now), "{mean} {tick}: {now}");
    }
}

#[test]
fn the_mean_follows_the_last_grace_periods() {
    // SAFETY: reads its arguments only.
    let next = |mean, ns| unsafe { policy_grace_mean(mean, ns) };
    assert_eq!(next(0, 5 * MS), 5 * MS, "the first");
    let after = |mean, ns, times| (0..times).fold(mean, |mean, _| next(mean, ns));
    let paused = next(5 * MS, 3600 * S);
    assert!(paused < 15 * MS, "{paused} after a pause of an hour");
    for (from, to) in [(4 * MS, 12 * MS), (12 * MS, 4 * MS), (80 * MS, 5 * MS)] {
        let (few, many) = (after(from, to, 4), after(from, to, 200));
        assert!(few.abs_diff(to) > from.abs_diff(to) / 2, "{few} after four of {to}");
        assert!(many.abs_diff(to) < to / 50, "{many} after many of {to}");
    }
}

#[test]
fn the_kthread_runs_for_what_it_can_do() {
    let limits = |max_hold| Limits { max_hold, ..LIMITS };
    let asked = |awaited: bool, wanted: bool, age, limits| {
        // SAFETY: reads its arguments only.
        unsafe { policy_kthread_helps(awaited.into(), wanted.into(), age, &limits) != 0 }
    };
    let helps = |awaited, wanted, age| asked(awaited, wanted, age, LIMITS);
    for age in [0, LIMITS.late, LIMITS.max_hold - 1] {
        assert!(helps(false, false, age), "it has to end the grace period");
        assert!(helps(true, true, age), "it reports for who was idle");
        assert!(!helps(true, false, age), "who is busy reports itself");
    }
    assert!(helps(true, false, LIMITS.max_hold), "the host holds it up for too long");
    assert!(!asked(true, false, 40 * MS, limits(S)));
    assert!(asked(true, false, 50 * MS, limits(S)), "it may have to ask");
}

#[test]
fn debt_is_bounded() {
    let mut random = Random(1);
    let group = Group { weight: 100, runnable: 1, ..Group::default() };
    for _ in 0..100_000 {
        let (now, vtime) = (100 * S, 50 * S);
        // Run time is known to a hundred nanoseconds.
        let ahead = random.below(4 * MS) * 100;
        let thread = Thread { vtime: vtime + ahead, ..Thread::default() };
        let (age, off) = (random.below(2 * S), random.below(10 * MS));
        let need = random.below(3) as u32;
        // SAFETY: all point to values of their types.
        let answer = unsafe {
            policy_rescue(&thread, &group, vtime, 100, age, now - off, need, now, &LIMITS)
        };
        let (late, off) = (age >= LIMITS.late, off >= GAPS[need as usize]);
        // SAFETY: as above.
        let after = ahead + unsafe { policy_rescue_ns(WORK, &LIMITS) };
        match answer {
            YES => assert!(after <= 2 * LIMITS.max_hold && late && off),
            IN_DEBT => assert!(after > LIMITS.slice && late && off),
            _ => assert!(!late || !off),
        }
        if answer == IN_DEBT && age >= LIMITS.max_hold {
            assert!(after > 2 * LIMITS.max_hold, "refused {ahead}");
        }
        // SAFETY: as above.
        let yields = |load| unsafe { policy_yield(&thread, &group, vtime, load, &LIMITS) == YES };
        assert_eq!(yields(100), ahead + LIMITS.slice <= LIMITS.max_hold, "{ahead}");
        // Where 8 ms of debt are forgiven, nobody runs into more.
        assert_eq!(yields(50_000), ahead + LIMITS.slice <= 8 * MS, "{ahead}");
    }
}

#[test]
fn extensions_end_in_time_and_have_a_budget() {
    let mut random = Random(2);
    let (mut extension, mut budget) = (Extension::default(), Budget::default());
    let (mut now, mut granted, mut refused) = (S, 0, 0);
    let begun = now;
    for _ in 0..200_000 {
        now += random.below(200 * US) + 1;
        let before = extension.began;
        let section = i32::from(random.below(20) != 0);
        // SAFETY: all point to values of their types.
        let verdict = unsafe { policy_extend(&mut extension, &mut budget, section, now, &LIMITS) };
        match verdict {
            STAY => assert!(section == 1 && (before == 0 || now - before < LIMITS.max_extend)),
            GO | EXPIRED => {
                assert_eq!(extension.began, 0);
                assert_eq!(verdict == EXPIRED, section == 1);
                if before != 0 {
                    granted += now - before;
                }
            }
            REFUSED => refused += 1,
            other => panic!("verdict {other}"),
        }
    }
    assert!(refused > 0, "there is a budget");
    // A quarter of the time, and what may be saved up; each may be overdrawn by one look.
    let most = (now - begun) / 4 + 16 * LIMITS.max_extend;
    assert!(granted <= most * 11 / 10, "{granted} of {most}");
    assert!(granted >= most / 2, "{granted} of {most}");
}

#[test]
fn extensions_of_several_vcpus_have_one_budget() {
    let mut budget = Budget::default();
    let mut extensions = [Extension::default(); 8];
    let (mut now, mut granted, begun) = (S, 0, S);
    while now < begun + 10 * S {
        now += 100 * US;
        for extension in &mut extensions {
            let began = extension.began;
            // SAFETY: all point to values of their types.
            let verdict = unsafe { policy_extend(extension, &mut budget, 1, now, &LIMITS) };
            if verdict == EXPIRED {
                granted += now - began;
            }
        }
    }
    let most = (now - begun) / 4 + 16 * LIMITS.max_extend;
    assert!(granted <= most * 11 / 10, "{granted} of {most}");
    assert!(granted >= most / 2, "{granted} of {most}");
}

/// A round takes as long as with four threads, until turns are so short that each is hardly worth
/// its switch.
#[test]
fn turns_are_shorter_where_many_compete() {
    let turn = |threads: u64, slice| {
        let limits = Limits { slice, ..LIMITS };
        // SAFETY: `limits` is valid for the call.
        unsafe { policy_turn(threads * 100, &limits) }
    };
    let slice = 3 * MS;
    assert_eq!([1, 2, 4].map(|threads| turn(threads, slice)), [slice; 3]);
    for threads in 5..=12 {
        let round = turn(threads, slice) * threads;
        assert!(round.abs_diff(4 * slice) < threads, "{threads} threads: {round} ns");
    }
    assert_eq!([13, 1000, 8000].map(|threads| turn(threads, slice)), [MS; 3]);
    // Many thousands each have one before the kernel loses its patience with guard.
    for threads in [10_000, 20_000, 80_000] {
        let round = turn(threads, slice) * threads;
        assert!(round.abs_diff(8 * S) < threads, "{threads} threads: {round} ns");
    }
    assert_eq!(turn(u64::MAX / 1000, slice), 100 * US);
    // A slice that is chosen shorter than that stays.
    assert_eq!([1, 1000].map(|threads| turn(threads, MS / 2)), [MS / 2; 2]);
}

/// Whoever changes its CPUs or its niceness all the time has one turn for that.
#[test]
fn what_is_left_of_a_turn_ends() {
    let grace = 100 * US;
    let mut used = 0;
    while used < LIMITS.slice + grace {
        // SAFETY: no pointers.
        let left = unsafe { policy_left(LIMITS.slice, used, grace) };
        assert!(left > 0 && left <= LIMITS.slice + grace - used, "{left} of {used}");
        used += left.min(7 * US);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { policy_left(LIMITS.slice, used + S, grace) }, 1);
}
