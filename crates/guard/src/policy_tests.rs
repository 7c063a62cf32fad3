// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the scheduler's policy (`bpf/guard_policy.h`) through generated histories: a host of a
//! few CPUs, VMs and ordinary threads, whose threads run, sleep, claim to be in critical sections
//! and hold up grace periods at random.

use std::collections::BTreeMap;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    pub(super) slice: u64,
    pub(super) max_extend: u64,
    pub(super) max_hold: u64,
    pub(super) late: u64,
    pub(super) late_most: u64,
    pub(super) rescue_share: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    weight: u64,
    runnable: u64,
    rate: u64,
    since: u64,
    vtime: u64,
    mask: u64,
    lag: u64,
    borrowed: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thread {
    pub(super) vtime: u64,
    pub(super) weight: u64,
    pub(super) began: u64,
    pub(super) rate: u64,
    pub(super) overrun: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    pub(super) vtime: u64,
    pub(super) first: u64,
}

/// A sum of weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    all: u64,
    moment: u64,
}

/// Threads that may run on the same part of a queue's CPUs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Mask {
    vtime: u64,
    started: u64,
    moved: u64,
    forgot: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Extension {
    began: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    left: u64,
    since: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kinds {
    pub(super) served: [u64; 2],
}

const GO: u32 = 0;
const STAY: u32 = 1;
const EXPIRED: u32 = 2;
const REFUSED: u32 = 3;

#[link(name = "guard_policy", kind = "static")]
unsafe extern "C" {
    fn guard_join(group: *mut Group, now: u64);
    fn guard_leave(group: *mut Group, now: u64);
    fn guard_stand(group: *mut Group, clock: u64, mask: u64, lag: u64, limits: *const Limits);
    pub(super) fn guard_begin(thread: *mut Thread, group: *mut Group, now: u64);
    pub(super) fn guard_charge(thread: *mut Thread, group: *mut Group, fine: u64, now: u64) -> u64;
    fn guard_weight_of(shares: u64) -> u64;
    fn guard_above(fine: u64, part: u64, all: u64, weight: u64) -> u64;
    fn guard_beside(vms: u64, tops: u64) -> u64;
    fn guard_beside_vms(fine: u64, beside: u64) -> u64;
    fn guard_sum_add(sum: *mut Sum, more: u64, now: u64);
    fn guard_sum_set(sum: *mut Sum, all: u64, now: u64);
    fn guard_sum_integral(sum: *const Sum, now: u64) -> u64;
    fn guard_mean(from: u64, to: u64, ns: u64, all: u64) -> u64;
    fn guard_fine_scaled(ns: u64, fine: u64) -> u64;
    fn guard_stand_in(vtime: *mut u64, credit: u64, clock: u64);
    fn guard_place_in(
        thread: *mut Thread,
        vtime: u64,
        most: u64,
        clock: u64,
        queue: *const Queue,
        load: u64,
        woken: i32,
        limits: *const Limits,
    ) -> u64;
    pub(super) fn guard_place(
        thread: *mut Thread,
        group: *const Group,
        queue: *const Queue,
        mask: u64,
        lag: u64,
        load: u64,
        woken: i32,
        inherited: u64,
        limits: *const Limits,
    ) -> u64;
    fn guard_born(
        parent: *const Thread,
        group: *const Group,
        queue: *const Queue,
        now: u64,
        owed: u64,
        limits: *const Limits,
    ) -> u64;
    fn guard_owed(inherited: u64, limits: *const Limits) -> u64;
    fn guard_stays(
        thread: *mut Thread,
        group: *const Group,
        queue: *const Queue,
        load: u64,
        inherited: u64,
    );
    fn guard_mask_begin(mask: *mut Mask, here: u64, forgot: u64, now: u64);
    fn guard_mask_advance(
        mask: *mut Mask,
        queue: *const Queue,
        here: u64,
        forgot: *mut u64,
        now: u64,
        limits: *const Limits,
    );
    fn guard_mask_view(mask: *const Mask, queue: *const Queue, out: *mut Queue);
    fn guard_mask_woken(view: *mut Queue, here: u64);
    fn guard_part(mask: u64, domain: u32) -> u64;
    fn guard_mask_move(mask: *const Mask, thread: *mut Thread, moved: *mut u64);
    fn guard_mask_start(mask: *mut Mask, thread: *const Thread, now: u64);
    fn guard_move(thread: *mut Thread, from: *const Queue, to: *const Queue);
    fn guard_bequeath(thread: *const Thread, queue: *const Queue, limits: *const Limits) -> u64;
    fn guard_repeat(queue: *mut Queue, thread: *const Thread, waits: i32, first: u64);
    fn guard_again(
        running: *const Thread,
        waits: i32,
        first: u64,
        kinds: *const Kinds,
        kind: u32,
        other_waits: i32,
    ) -> i32;
    fn guard_borrow(own: *mut u64, group: *mut Group, ran: u64);
    fn guard_grace_mean(mean: u64, ns: u64) -> u64;
    fn guard_late(mean: u64, tick: u64, limits: *const Limits) -> u64;
    fn guard_ticked(ticks: *mut Ticks, tick: u64, due: u64, now: u64);
    fn guard_tick_in(ticks: *const Ticks, tick: u64, now: u64) -> u64;
    fn guard_tick_due(ticks: *const Ticks, tick: u64, left: u64, now: u64) -> i32;
    fn guard_kthread_helps(awaited: i32, wanted: i32, age: u64, limits: *const Limits) -> i32;
    fn guard_two_ticks(in_ns: u64) -> i32;
    fn guard_noticed_only(in_ns: u64, tick: u64, ran: u64) -> i32;
    fn guard_two_ticks_in(in_ns: u64, tick: u64) -> u64;
    fn guard_rescue_to_tick(need: u32, in_ns: u64, tick: u64, limits: *const Limits) -> u64;
    fn guard_spend(thread: *mut Thread, ran: u64, rescued: i32, limits: *const Limits);
    fn guard_repay(own: *mut u64, group: *mut Group);
    pub(super) fn guard_start(queue: *mut Queue, thread: *const Thread, early: i32);
    fn guard_extend(
        extension: *mut Extension,
        budget: *mut Budget,
        section: i32,
        now: u64,
        limits: *const Limits,
    ) -> u32;
    fn guard_rescue(
        thread: *const Thread,
        group: *const Group,
        queue: *const Queue,
        load: u64,
        age: u64,
        left: u64,
        need: u32,
        now: u64,
        limits: *const Limits,
    ) -> u32;
    fn guard_rescue_ns(need: u32, limits: *const Limits) -> u64;
    fn guard_yield(
        thread: *const Thread,
        group: *const Group,
        queue: *const Queue,
        load: u64,
        limits: *const Limits,
    ) -> u32;
    fn guard_prefers(
        thread: *const Thread,
        group: *const Group,
        first: *const Thread,
        first_group: *const Group,
        load: u64,
        limits: *const Limits,
    ) -> i32;
    fn guard_behind(
        there: *const Thread,
        there_weight: u64,
        here: *const Thread,
        here_weight: u64,
        load: u64,
        limits: *const Limits,
    ) -> i32;
    pub(super) fn guard_preempts_in(
        woken: *const Thread,
        running: *const Thread,
        group: *const Group,
        now: u64,
        limits: *const Limits,
    ) -> u64;
    pub(super) fn guard_kind(kinds: *const Kinds) -> u32;
    pub(super) fn guard_kind_preempts_in(
        kinds: *const Kinds,
        kind: u32,
        ran: u64,
        turn: u64,
        limits: *const Limits,
    ) -> u64;
    pub(super) fn guard_may_lead(
        woken: *const Thread,
        first: *const Thread,
        kinds: *const Kinds,
        kind: u32,
        other_waits: i32,
        limits: *const Limits,
    ) -> i32;
    pub(super) fn guard_settles(kinds: *mut Kinds, kind: u32);
    pub(super) fn guard_turn(count: u64, limits: *const Limits) -> u64;
    pub(super) fn guard_left(length: u64, used: u64, grace: u64) -> u64;
    pub(super) fn guard_served(
        kinds: *mut Kinds,
        kind: u32,
        ran: u64,
        count: u64,
        limits: *const Limits,
    );
}

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000 * US;
pub(super) const S: u64 = 1_000 * MS;
pub(super) const LIMITS: Limits = Limits {
    slice: 3 * MS,
    max_extend: MS,
    max_hold: 20 * MS,
    late: 2 * MS,
    late_most: 7 * MS,
    rescue_share: 100,
};
/// How long a rescue lasts, and how long a vCPU has to be off its CPU before one.
const RESCUE: u64 = 300_000;
/// Of `enum policy_need`.
const DUE_TICK: u32 = 1;
const WORK: u32 = 2;
/// By what the vCPU needs.
const GAPS: [u64; 3] = [4 * MS, 0, 500 * US];
/// Of the scheduler's glue.
const LOOK_AHEAD: usize = 8;
const LOOK_FIRST: usize = 64;
const ELSEWHERE: u64 = 20 * MS;
/// Of `enum policy_answer`.
const YES: u32 = 0;
const IN_DEBT: u32 = 2;
/// Weights in task groups are in parts of a weight.
const FINE: u32 = 10;
/// The normal weight, in these parts.
pub(super) const NORMAL: u64 = 100 << FINE;

/// A generator that any seed makes different (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Waits,
    Runs,
    Sleeps(u64),
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    /// It always has something to compute.
    Computes,
    /// It computes for a while and sleeps for a while.
    Naps,
    /// As `Naps`, in small pieces: it waits for locks.
    Blocks,
    /// It computes for a moment and sleeps for longer.
    Rests,
    /// It computes for less than a slice, wakes the next one of its VM or of its task group that
    /// sleeps, and sleeps until another wakes it.
    Relays,
    /// It starts another thread of its task group, computes for less than a slice, and is gone
    /// (which then is that other thread).
    Begets,
    /// It computes for a slice, wakes the `Helps` of its task group, and sleeps until all of them
    /// have slept again.
    Forks,
    /// It computes for a moment and sleeps until it is woken.
    Helps,
    /// As `Computes`, and claims to be in a critical section, and to hold up an old grace period,
    /// all the time.
    Lies,
}

struct Actor {
    thread: Thread,
    vm: Option<usize>,
    /// Of no vCPU: its weight among those of its task group, and which that is.
    own: u64,
    within: Option<usize>,
    /// Integrals when it was charged last: of the weights in its task group and in those above, and
    /// of `Host::beside`.
    sums: [u64; 8],
    beside_sum: u64,
    /// What its task group weighed in its last turn.
    whole: u64,
    habit: Habit,
    /// The CPUs on which it may run, a bit each.
    mask: u64,
    /// Of its domain and mask, when it was placed last; `None` where that is all of the domain.
    key: Option<(usize, u64)>,
    /// As its mask's when it was moved last.
    moved: u64,
    /// Its virtual time counts from its queue's.
    unplaced: bool,
    /// It was started, and came to no queue yet.
    fresh: bool,
    doing: Doing,
    left: u64,
    waits_since: u64,
    turn: u64,
    /// The CPU on which it ran last.
    cpu: usize,
    /// In whose queue it waits.
    domain: usize,
    /// The longest that its rescue lasts, if it is rescued.
    rescued: Option<u64>,
    borrowed: u64,
    extension: Extension,
    /// Of no vCPU; a vCPU has its VM's.
    budget: Budget,
    /// When it goes to sleep by itself.
    sleeps_at: u64,
    ran: u64,
    longest_wait: u64,
}

/// CPUs that have a queue in common.
#[derive(Clone, Copy, Default)]
struct Domain {
    queue: Queue,
    /// Of the thread that was the first last.
    weight: u64,
    /// When what masks lack was forgotten.
    forgot: u64,
}

/// Ordinary threads and other groups share its weight.
struct TaskGroup {
    weight: u64,
    above: Option<usize>,
    vtime: u64,
    credit: u64,
    active: Sum,
}

/// A host, in steps of a tick.
struct Host {
    now: u64,
    cpus: Vec<Option<usize>>,
    masks: BTreeMap<(usize, u64), Mask>,
    /// Virtual time of the last that started on each, and when.
    started: Vec<(u64, u64)>,
    /// When each looks at other domains again.
    elsewhere: Vec<u64>,
    domains: Vec<Domain>,
    vms: Vec<(Group, Budget)>,
    /// The weight of the outermost task groups that these are in; `None`: in none.
    tops: Option<u64>,
    groups: Vec<TaskGroup>,
    /// By how much time of all but the VMs counts less.
    beside: Sum,
    actors: Vec<Actor>,
    random: Random,
    rescues: u64,
    extensions: u64,
    longest_extension: u64,
    policy: bool,
}

const STEP: u64 = 100 * US;

impl Host {
    fn new(cpus: usize, weights: &[u64], seed: u64, policy: bool) -> Host {
        let now = 1000 * S;
        let vms = weights
            .iter()
            .map(|&weight| (Group { weight, since: now, ..Group::default() }, Budget::default()));
        Host {
            now,
            cpus: vec![None; cpus],
            masks: BTreeMap::new(),
            started: vec![(0, 0); cpus],
            elsewhere: vec![0; cpus],
            domains: vec![Domain::default()],
            vms: vms.collect(),
            tops: None,
            groups: Vec::new(),
            beside: Sum::default(),
            actors: Vec::new(),
            random: Random(seed),
            rescues: 0,
            extensions: 0,
            longest_extension: 0,
            policy,
        }
    }

    /// Its CPUs have `domains` queues.
    fn divided(self, domains: usize) -> Host {
        Host { domains: vec![Domain::default(); domains], ..self }
    }

    /// CPUs are dealt out to the domains.
    fn domain_of(&self, cpu: usize) -> usize {
        cpu % self.domains.len()
    }

    /// Virtual time of the domain that is furthest.
    fn clock(&self) -> u64 {
        let clocks = self.domains.iter().map(|domain| domain.queue.vtime);
        clocks.max_by_key(|&vtime| vtime as i64).unwrap()
    }

    fn add(&mut self, vm: Option<usize>, weight: u64, habit: Habit) {
        self.add_bound(vm, weight, habit, u64::MAX);
    }

    /// A thread that may run on the CPUs of the mask.
    fn add_bound(&mut self, vm: Option<usize>, weight: u64, habit: Habit, mask: u64) {
        let thread = Thread { weight, ..Thread::default() };
        self.actors.push(Actor {
            thread,
            vm,
            own: weight,
            within: None,
            sums: [0; 8],
            beside_sum: 0,
            whole: 0,
            habit,
            mask,
            key: None,
            moved: 0,
            unplaced: true,
            fresh: true,
            doing: Doing::Sleeps(self.now),
            left: self.now,
            waits_since: self.now,
            turn: 0,
            cpu: mask.trailing_zeros() as usize,
            domain: 0,
            rescued: None,
            borrowed: 0,
            extension: Extension::default(),
            budget: Budget::default(),
            sleeps_at: u64::MAX,
            ran: 0,
            longest_wait: 0,
        });
    }

    /// A task group, in another one or none.
    fn group_threads(&mut self, weight: u64, above: Option<usize>) -> usize {
        let active = Sum::default();
        self.groups.push(TaskGroup { weight, above, vtime: 0, credit: 0, active });
        self.groups.len() - 1
    }

    /// A thread of the task group.
    fn add_in(&mut self, within: usize, weight: u64, habit: Habit) {
        self.add(None, weight, habit);
        self.actors.last_mut().unwrap().within = Some(within);
    }

    /// The weight of all that is runnable in the task group, or in none.
    fn active(&self, within: Option<usize>) -> u64 {
        let awake = |actor: &&Actor| !matches!(actor.doing, Doing::Sleeps(_));
        let threads = self.actors.iter().filter(awake);
        let threads = threads.filter(|actor| actor.vm.is_none() && actor.within == within);
        let groups = self.groups.iter().enumerate();
        let groups = groups.filter(|&(g, of)| of.above == within && self.active(Some(g)) > 0);
        let groups = groups.map(|(_, of)| of.weight);
        threads.map(|actor| actor.own).sum::<u64>() + groups.sum::<u64>()
    }

    /// By how much time of all but the VMs counts less, now.
    fn beside(&self) -> u64 {
        let vms = self.vms.iter().filter(|vm| vm.0.runnable > 0).map(|vm| vm.0.weight).sum();
        let tops = if vms > 0 { self.tops.unwrap_or(vms) } else { 0 };
        // SAFETY: computes a number.
        unsafe { guard_beside(vms, tops) }
    }

    /// The sums of weights change when what is runnable does.
    fn count(&mut self) {
        let (now, beside) = (self.now, self.beside());
        if self.beside.all != beside {
            // SAFETY: points to a sum.
            unsafe { guard_sum_set(&mut self.beside, beside, now) };
        }
        let set = |sum: &mut Sum, all: u64| {
            if sum.all != all {
                // SAFETY: points to a sum.
                unsafe { guard_sum_add(sum, all.wrapping_sub(sum.all), now) };
            }
        };
        for group in 0..self.groups.len() {
            let all = self.active(Some(group));
            set(&mut self.groups[group].active, all);
        }
    }

    /// As `weigh` of the scheduler's glue.
    fn weigh(&mut self, actor: usize, ran: u64) -> u64 {
        self.count();
        let (now, one) = (self.now, &mut self.actors[actor]);
        let mean = |sum: &Sum, before: &mut u64| {
            // SAFETY: points to a sum.
            let integral = unsafe { guard_sum_integral(sum, now) };
            // SAFETY: computes a number.
            unsafe { guard_mean(std::mem::replace(before, integral), integral, ran, sum.all) }
        };
        let (mut fine, mut part, mut within) = (one.own << FINE, one.own, one.within);
        let (mut turn, mut whole) = (fine, 0);
        for before in &mut one.sums {
            let Some(of) = within.map(|group| &self.groups[group]) else { break };
            // SAFETY: computes a number.
            let above = |fine, all| unsafe { guard_above(fine, part, all, of.weight) };
            fine = above(fine, of.active.all);
            let all = mean(&of.active, before);
            turn = above(turn, all);
            whole = if whole == 0 { of.weight << FINE } else { above(whole, all) };
            (part, within) = (of.weight, of.above);
        }
        let part = mean(&self.beside, &mut one.beside_sum);
        // SAFETY: computes a number.
        let beside = |fine, part| unsafe { guard_beside_vms(fine, part) };
        one.thread.weight = (beside(fine, self.beside.all) >> FINE).max(1);
        one.whole = beside(whole, part);
        beside(turn, part)
    }

    /// The kernel takes a thread that waits out of its queue, and enqueues it again.
    fn change(&mut self, actor: usize, mask: u64) {
        let one = &mut self.actors[actor];
        one.mask = mask;
        if mask >> one.cpu & 1 == 0 {
            one.cpu = mask.trailing_zeros() as usize;
            if let Some(cpu) = self.cpus.iter().position(|runs| *runs == Some(actor)) {
                self.stop(cpu, None);
            }
        }
        if self.actors[actor].doing == Doing::Waits {
            let since = self.actors[actor].waits_since;
            self.enqueue(actor);
            self.actors[actor].waits_since = since;
        }
    }

    fn group(&mut self, actor: usize) -> *mut Group {
        match self.actors[actor].vm {
            Some(vm) => &raw mut self.vms[vm].0,
            None => std::ptr::null_mut(),
        }
    }

    /// The weight of all that are runnable, per CPU.
    fn load(&self) -> u64 {
        let vms = self.vms.iter().filter(|vm| vm.0.runnable > 0).map(|vm| vm.0.weight);
        // SAFETY: computes a number.
        let rest = unsafe { guard_beside_vms(self.active(None) << FINE, self.beside()) } >> FINE;
        (rest + vms.sum::<u64>()) / self.cpus.len() as u64 + 1
    }

    /// The CPUs of the mask in the domain, if they are a part of them only.
    fn key(&self, mask: u64, domain: usize) -> Option<(usize, u64)> {
        let all = (0..self.cpus.len()).filter(|&cpu| self.domain_of(cpu) == domain);
        let all = all.fold(0, |all, cpu| all | 1 << cpu);
        let part = mask & all;
        (part != 0 && part != all).then_some((domain, part))
    }

    /// As `seen` of the scheduler's glue.
    fn seen(&self, actor: usize) -> Queue {
        let one = &self.actors[actor];
        let queue = self.domains[one.domain].queue;
        let Some(mask) = one.key.and_then(|key| self.masks.get(&key)) else { return queue };
        let mut out = queue;
        // SAFETY: all point to values of their types.
        unsafe { guard_mask_view(mask, &queue, &mut out) };
        out
    }

    /// As `move_on` there.
    fn move_on(&mut self, actor: usize) {
        let one = &mut self.actors[actor];
        if let Some(mask) = one.key.and_then(|key| self.masks.get(&key)) {
            // SAFETY: as in `enqueue`.
            unsafe { guard_mask_move(mask, &mut one.thread, &mut one.moved) };
        }
    }

    /// As `vtime_here` there, of the mask's CPUs of the domain.
    fn here(&self, (domain, mask): (usize, u64)) -> u64 {
        let vtime = self.domains[domain].queue.vtime;
        let cpus = (0..self.cpus.len()).filter(|cpu| mask >> cpu & 1 != 0);
        let started = cpus.map(|cpu| {
            let (started, at) = self.started[cpu];
            (self.cpus[cpu].is_some() || self.now - at <= 8 * LIMITS.slice).then_some(started)
        });
        // `None`: one is free.
        let started: Option<Vec<u64>> = started.collect();
        started.and_then(|started| started.into_iter().max()).unwrap_or(vtime).min(vtime)
    }

    /// As `place` there, up to the place; `woken`: the thread slept.
    fn enter(&mut self, actor: usize, domain: usize, woken: bool) -> Queue {
        let key = self.key(self.actors[actor].mask, domain);
        self.move_on(actor);
        let (from, now) = (self.seen(actor), self.now);
        let moves = key != self.actors[actor].key;
        (self.actors[actor].domain, self.actors[actor].key) = (domain, key);
        if let Some(key) = key {
            let here = self.here(key);
            let Domain { queue, forgot, .. } = &mut self.domains[domain];
            let mask = self.masks.entry(key).or_insert_with(|| {
                let mut mask = Mask::default();
                // SAFETY: as in `enqueue`.
                unsafe { guard_mask_begin(&mut mask, here, *forgot, now) };
                mask
            });
            // SAFETY: as in `enqueue`.
            unsafe { guard_mask_advance(mask, queue, here, forgot, now, &LIMITS) };
            if moves {
                self.actors[actor].moved = mask.moved;
            }
            self.move_on(actor);
        }
        let mut to = self.seen(actor);
        if let Some(key) = key.filter(|_| woken || moves) {
            // SAFETY: as in `enqueue`.
            unsafe { guard_mask_woken(&mut to, self.here(key)) };
        }
        let one = &mut self.actors[actor];
        if std::mem::take(&mut one.unplaced) {
            one.thread.vtime += to.vtime;
        } else if moves {
            // SAFETY: as in `enqueue`.
            unsafe { guard_move(&mut one.thread, &from, &to) };
        }
        to
    }

    fn enqueue(&mut self, actor: usize) {
        let group = self.group(actor);
        let domain = self.domain_of(self.actors[actor].cpu);
        let (load, clock) = (self.load(), self.clock());
        let alone = self.domains.len() > 1 && self.waiting(domain).is_empty();
        let woken = matches!(self.actors[actor].doing, Doing::Sleeps(_));
        if self.actors[actor].vm.is_none() {
            self.weigh(actor, 0);
        }
        let seen = self.enter(actor, domain, woken);
        let (mask, lag) = (self.mask_and_lag(actor).0, clock - seen.vtime);
        let queue = &mut self.domains[domain].queue;
        let one = &mut self.actors[actor];
        let slept = i32::from(woken || std::mem::take(&mut one.fresh));
        let woken = i32::from(woken);
        // SAFETY: all point to values of their types, none of which is used elsewhere.
        unsafe {
            let limits = &LIMITS;
            match one.within.map(|within| &self.groups[within]) {
                Some(of) => {
                    let (vtime, credit) = (of.vtime, of.credit);
                    let thread = &mut one.thread;
                    guard_place_in(thread, vtime, credit, clock, &seen, load, slept, limits)
                }
                None => {
                    guard_place(&mut one.thread, group, &seen, mask, lag, load, woken, 0, limits)
                }
            };
        }
        if alone && one.thread.vtime as i64 > queue.first as i64 {
            queue.first = one.thread.vtime;
        }
        one.doing = Doing::Waits;
        one.waits_since = self.now;
    }

    /// As `part_of` and `lag_of` there.
    fn mask_and_lag(&self, actor: usize) -> (u64, u64) {
        let one = &self.actors[actor];
        let mask = one.key.map_or(0, |(domain, part)| (domain as u64 + 1) << 32 | part << 1 | 1);
        // SAFETY: computes a number.
        let part = unsafe { guard_part(mask, one.domain as u32) };
        (part, self.clock() - self.seen(actor).vtime)
    }

    fn charge(&mut self, actor: usize) {
        let (group, now, clock) = (self.group(actor), self.now, self.clock());
        let (mask, lag) = self.mask_and_lag(actor);
        let began = self.actors[actor].thread.began;
        let fine = if group.is_null() { self.weigh(actor, now - began) } else { 0 };
        let one = &mut self.actors[actor];
        // SAFETY: as in `enqueue`.
        let ran = unsafe { guard_charge(&mut one.thread, group, fine, now) };
        one.ran += ran;
        self.tally(actor, ran);
        let one = &mut self.actors[actor];
        if one.rescued.is_some() && !group.is_null() {
            // SAFETY: as in `enqueue`.
            unsafe { guard_borrow(&mut one.borrowed, group, ran) };
        }
        if !group.is_null() {
            // SAFETY: as in `enqueue`.
            unsafe { guard_stand(group, clock, mask, lag, &LIMITS) };
        }
    }

    /// As `charge_thread` there.
    fn tally(&mut self, actor: usize, ran: u64) {
        let (within, clock) = (self.actors[actor].within, self.clock());
        let (Some(group), whole) = (within, self.actors[actor].whole) else { return };
        let of = &mut self.groups[group];
        // SAFETY: as in `enqueue`.
        unsafe {
            of.vtime += guard_fine_scaled(ran, whole);
            of.credit = guard_fine_scaled((4 + of.active.all / 100) * LIMITS.slice, whole);
            guard_stand_in(&mut of.vtime, of.credit, clock);
        }
    }

    fn stop(&mut self, cpu: usize, sleeps: Option<u64>) {
        let actor = self.cpus[cpu].take().unwrap();
        self.charge(actor);
        let (group, now) = (self.group(actor), self.now);
        let one = &mut self.actors[actor];
        one.left = now;
        one.rescued = None;
        one.extension = Extension::default();
        match sleeps {
            Some(until) => {
                one.doing = Doing::Sleeps(until);
                if !group.is_null() {
                    // SAFETY: as in `enqueue`.
                    unsafe { guard_leave(group, now) };
                }
            }
            None => self.enqueue(actor),
        }
    }

    fn run_on(&mut self, cpu: usize, actor: usize, rescued: Option<u64>) {
        let (group, now) = (self.group(actor), self.now);
        self.cpus[cpu] = Some(actor);
        let sleeps_in = match self.actors[actor].habit {
            Habit::Naps => Some(self.random.below(8 * MS)),
            Habit::Blocks | Habit::Rests => Some(self.random.below(MS)),
            Habit::Relays | Habit::Forks | Habit::Begets => Some(LIMITS.slice - STEP),
            Habit::Helps => Some(STEP),
            Habit::Computes | Habit::Lies => None,
        };
        if self.actors[actor].vm.is_none() {
            self.weigh(actor, 0);
        }
        let one = &mut self.actors[actor];
        one.longest_wait = one.longest_wait.max(now - one.waits_since);
        one.doing = Doing::Runs;
        (one.turn, one.cpu, one.rescued) = (now, cpu, rescued);
        one.sleeps_at = sleeps_in.map_or(u64::MAX, |time| now + time);
        // SAFETY: as in `enqueue`.
        unsafe { guard_begin(&mut one.thread, group, now) };
        if one.habit == Habit::Begets {
            self.beget(actor);
        }
    }

    /// Who is rescued now, and for how long.
    fn rescue(&mut self) -> Option<(usize, u64)> {
        let load = self.load();
        (0..self.actors.len()).find_map(|actor| {
            let (group, now) = (self.group(actor), self.now);
            let need = self.random.below(3) as u32;
            let one = &self.actors[actor];
            let owes = one.doing == Doing::Waits && one.habit == Habit::Lies && one.vm.is_some();
            // SAFETY: as in `enqueue`.
            let yes = owes
                && unsafe {
                    let queue = &self.seen(actor);
                    let (thread, left) = (&one.thread, one.left);
                    guard_rescue(thread, group, queue, load, S, left, need, now, &LIMITS) == YES
                };
            // SAFETY: reads its arguments only.
            yes.then(|| (actor, unsafe { guard_rescue_ns(need, &LIMITS) }))
        })
    }

    fn step(&mut self) {
        self.now += STEP;
        for actor in 0..self.actors.len() {
            if let Doing::Sleeps(until) = self.actors[actor].doing {
                if until <= self.now {
                    let (group, now) = (self.group(actor), self.now);
                    if !group.is_null() {
                        // SAFETY: as in `enqueue`.
                        unsafe { guard_join(group, now) };
                        // SAFETY: as in `enqueue`.
                        let (mask, lag) = self.mask_and_lag(actor);
                        // SAFETY: as in `enqueue`.
                        unsafe { guard_stand(group, self.clock(), mask, lag, &LIMITS) };
                    }
                    self.enqueue(actor);
                }
            }
        }
        for cpu in 0..self.cpus.len() {
            let mut was_rescued = false;
            // The kernel enqueues it only after the choice.
            let mut previous = None;
            if let Some(actor) = self.cpus[cpu] {
                let one = &self.actors[actor];
                was_rescued = one.rescued.is_some();
                let over = self.now - one.turn >= one.rescued.unwrap_or(LIMITS.slice);
                if one.sleeps_at <= self.now {
                    let long = match one.habit {
                        Habit::Blocks => MS / 4,
                        Habit::Rests => 16 * MS,
                        _ => 6 * MS,
                    };
                    let habit = one.habit;
                    let waits = [Habit::Relays, Habit::Forks, Habit::Helps, Habit::Begets];
                    let waits = waits.contains(&habit);
                    let until = if waits { u64::MAX } else { self.now + self.random.below(long) };
                    // The others are runnable before it sleeps.
                    let wakes = self.wakes(actor);
                    for &next in &wakes {
                        self.enqueue(next);
                    }
                    self.stop(cpu, Some(until));
                } else if over && !self.stays(actor) {
                    self.charge(actor);
                    previous = Some(actor);
                } else {
                    continue;
                }
            }
            let mut source = self.source(cpu, previous);
            let mut next = None;
            if self.policy && !was_rescued {
                next = self.rescue().map(|(actor, ns)| (actor, Some(ns)));
                self.rescues += u64::from(next.is_some());
            }
            if next.is_none() && source != self.domain_of(cpu) {
                next = self.next(cpu, source).map(|actor| (actor, None));
                if next.is_none() {
                    self.elsewhere[cpu] = self.now + ELSEWHERE;
                    source = self.domain_of(cpu);
                }
            }
            if next.is_none() {
                if let Some(actor) = previous {
                    if !was_rescued && source == self.domain_of(cpu) && self.again(cpu, actor) {
                        self.go_on(actor);
                        continue;
                    }
                }
                next = self.next(cpu, source).map(|actor| (actor, None));
            }
            match (previous, next) {
                (Some(actor), None) => self.go_on(actor),
                (_, Some((actor, rescued))) => {
                    if previous.is_some() {
                        self.stop(cpu, None);
                    }
                    self.run_on(cpu, actor, rescued);
                }
                (None, None) => {}
            }
        }
    }

    /// Whom it wakes when it falls asleep.
    fn wakes(&self, actor: usize) -> Vec<usize> {
        let one = &self.actors[actor];
        let sleeps = |other: &usize| matches!(self.actors[*other].doing, Doing::Sleeps(_));
        let all = |habit| {
            let of = move |other: &usize| {
                self.actors[*other].habit == habit && self.actors[*other].within == one.within
            };
            (0..self.actors.len()).filter(of)
        };
        match one.habit {
            Habit::Relays => self.next_of_vm(actor).into_iter().collect(),
            Habit::Forks => all(Habit::Helps).filter(sleeps).collect(),
            // The last of them wakes the thread that waits for all.
            Habit::Helps if all(Habit::Helps).all(|other| other == actor || sleeps(&other)) => {
                all(Habit::Forks).filter(sleeps).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The vCPU after this one that sleeps, of the same VM, or the thread in its task group.
    fn next_of_vm(&self, actor: usize) -> Option<usize> {
        let of = |actor: usize| (self.actors[actor].vm, self.actors[actor].within);
        let sleeps = |actor: usize| matches!(self.actors[actor].doing, Doing::Sleeps(_));
        let count = self.actors.len();
        let others = (1..count).map(|n| (actor + n) % count);
        others.into_iter().find(|&other| of(other) == of(actor) && sleeps(other))
    }

    /// The thread starts another one.
    fn beget(&mut self, parent: usize) {
        let Some(child) = self.next_of_vm(parent) else { return };
        let (now, seen, thread) = (self.now, self.seen(parent), self.actors[parent].thread);
        // SAFETY: all point to values of their types; no group.
        let ahead = unsafe { guard_born(&thread, std::ptr::null_mut(), &seen, now, 0, &LIMITS) };
        let child_of = &mut self.actors[child];
        child_of.thread = Thread { vtime: ahead, weight: child_of.own, ..Thread::default() };
        (child_of.unplaced, child_of.fresh, child_of.doing) = (true, true, Doing::Runs);
        self.enqueue(child);
    }

    /// The first that waits for the CPU. `Err` where it is too far behind others.
    fn first_of(&self, cpu: usize) -> Result<Option<usize>, ()> {
        let queue = self.waiting(self.domain_of(cpu));
        let allowed = |&&actor: &&usize| self.actors[actor].mask >> cpu & 1 != 0;
        match queue.iter().take(LOOK_FIRST).find(allowed) {
            None if queue.len() > LOOK_FIRST => Err(()),
            first => Ok(first.copied()),
        }
    }

    /// Whether the thread that runs on the CPU has another turn.
    fn again(&mut self, cpu: usize, actor: usize) -> bool {
        let (group, domain) = (self.group(actor), self.domain_of(cpu));
        let (queue, load) = (self.enter(actor, domain, false), self.load());
        // SAFETY: as in `enqueue`.
        unsafe { guard_stays(&mut self.actors[actor].thread, group, &queue, load, 0) };
        let vtime = |first: usize| self.actors[first].thread.vtime;
        let first = self.first_of(cpu).map_or(Some(queue.vtime), |first| first.map(vtime));
        let (thread, kinds) = (&self.actors[actor].thread, Kinds::default());
        let (waits, first) = (i32::from(first.is_some()), first.unwrap_or_default());
        // SAFETY: as in `enqueue`.
        unsafe { guard_again(thread, waits, first, &kinds, 0, 0) != 0 }
    }

    /// The thread, which was charged, keeps its CPU for another turn.
    fn go_on(&mut self, actor: usize) {
        let one = &mut self.actors[actor];
        (one.turn, one.rescued, one.extension) = (self.now, None, Extension::default());
        let cpu = one.cpu;
        let domain = self.domain_of(cpu);
        let head = self.first_of(cpu).ok().flatten();
        let head = head.map(|head| (self.actors[head].thread.vtime, self.weight(head)));
        let group = self.group(actor);
        let (to, one) = (&mut self.domains[domain], &mut self.actors[actor]);
        let (waits, vtime) = (i32::from(head.is_some()), head.unwrap_or_default().0);
        // SAFETY: as in `enqueue`.
        unsafe { guard_repeat(&mut to.queue, &one.thread, waits, vtime) };
        if let Some(mask) = one.key.and_then(|key| self.masks.get_mut(&key)) {
            // SAFETY: as in `enqueue`.
            unsafe { guard_mask_start(mask, &one.thread, self.now) };
        }
        self.started[cpu] = (one.thread.vtime, self.now);
        if let Some((_, weight)) = head {
            to.weight = weight;
        }
        if !group.is_null() {
            // SAFETY: as in `enqueue`.
            unsafe { guard_repay(&mut one.borrowed, group) };
        }
    }

    /// The thread, which waited, starts in its turn.
    fn start(&mut self, actor: usize, cpu: usize, domain: usize, first: bool) {
        let (group, weight) = (self.group(actor), self.weight(actor));
        let (from, one) = (&mut self.domains[domain], &mut self.actors[actor]);
        // SAFETY: as in `enqueue`.
        unsafe { guard_start(&mut from.queue, &one.thread, i32::from(!first)) };
        if let Some(mask) = one.key.and_then(|key| self.masks.get_mut(&key)) {
            // SAFETY: as in `enqueue`.
            unsafe { guard_mask_start(mask, &one.thread, self.now) };
        }
        self.started[cpu] = (one.thread.vtime, self.now);
        if !group.is_null() {
            // SAFETY: as in `enqueue`.
            unsafe { guard_repay(&mut one.borrowed, group) };
        }
        if first {
            from.weight = weight;
        }
    }

    /// Who waits in the domain's queue, in order.
    fn waiting(&self, domain: usize) -> Vec<usize> {
        let waits = |&actor: &usize| {
            self.actors[actor].doing == Doing::Waits && self.actors[actor].domain == domain
        };
        let mut queue: Vec<usize> = (0..self.actors.len()).filter(waits).collect();
        queue.sort_by_key(|&actor| self.actors[actor].thread.vtime as i64);
        queue
    }

    /// From whose queue the CPU takes a thread: it looks at one other, by chance.
    fn source(&mut self, cpu: usize, previous: Option<usize>) -> usize {
        let own = self.domain_of(cpu);
        let count = self.domains.len();
        if count == 1 || self.now < self.elsewhere[cpu] {
            return own;
        }
        let other = (own + 1 + self.random.below(count as u64 - 1) as usize) % count;
        let is_empty = |domain| self.waiting(domain).is_empty();
        let first = |domain: Domain| Thread { vtime: domain.queue.first, ..Thread::default() };
        let (here, here_weight) = match previous {
            _ if !is_empty(own) => (first(self.domains[own]), self.domains[own].weight),
            Some(actor) => (self.actors[actor].thread, self.weight(actor)),
            None => {
                return (own..own + count)
                    .map(|d| d % count)
                    .find(|&d| !is_empty(d))
                    .unwrap_or(own);
            }
        };
        let (there, load) = (self.domains[other], self.load());
        // SAFETY: as in `enqueue`.
        let behind = unsafe {
            guard_behind(&first(there), there.weight, &here, here_weight, load, &LIMITS) != 0
        };
        if behind && !is_empty(other) { other } else { own }
    }

    /// Whose turn it is on the CPU, of the domain.
    fn next(&mut self, cpu: usize, domain: usize) -> Option<usize> {
        let queue = self.waiting(domain);
        let &first = queue.first()?;
        let (first_group, load) = (self.group(first), self.load());
        let mut near = None;
        for &actor in queue.iter().take(LOOK_AHEAD) {
            let group = self.group(actor);
            let (one, first) = (&self.actors[actor], &self.actors[first].thread);
            // SAFETY: as in `enqueue`.
            let prefers = || unsafe {
                guard_prefers(&one.thread, group, first, first_group, load, &LIMITS) != 0
            };
            if one.cpu == cpu && prefers() {
                near = Some(actor);
                break;
            }
        }
        let allowed = |&&actor: &&usize| self.actors[actor].mask >> cpu & 1 != 0;
        let next = near.or(queue.iter().find(allowed).copied())?;
        self.start(next, cpu, domain, next == first);
        Some(next)
    }

    /// That the thread has now.
    fn weight(&self, actor: usize) -> u64 {
        let one = &self.actors[actor];
        one.vm.map_or(one.thread.weight, |vm| {
            let group = &self.vms[vm].0;
            group.weight / group.runnable.max(1)
        })
    }

    /// The slice is over: whether the thread keeps its CPU.
    fn stays(&mut self, actor: usize) -> bool {
        if !self.policy {
            return false;
        }
        let one = &mut self.actors[actor];
        let section = i32::from(one.habit == Habit::Lies);
        let began = one.extension.began;
        let budget = match one.vm {
            Some(vm) => &mut self.vms[vm].1,
            None => &mut one.budget,
        };
        // SAFETY: as in `enqueue`.
        let verdict =
            unsafe { guard_extend(&mut one.extension, budget, section, self.now, &LIMITS) };
        match verdict {
            STAY if began == 0 => self.extensions += 1,
            EXPIRED => self.longest_extension = self.longest_extension.max(self.now - began),
            _ => {}
        }
        verdict == STAY
    }

    /// Who runs now is charged later.
    fn run_on_and_on(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn run(&mut self, time: u64) {
        self.run_on_and_on(time);
        // What runs now is charged too.
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].is_some() {
                self.stop(cpu, None);
            }
        }
    }

    fn vm_ran(&self, vm: usize) -> u64 {
        self.actors.iter().filter(|a| a.vm == Some(vm)).map(|a| a.ran).sum()
    }
}

#[track_caller]
fn assert_share(ran: u64, entitled: u64, off: f64, what: &str) {
    let share = ran as f64 / entitled as f64;
    assert!((1.0 - off..=1.0 + off).contains(&share), "{what}: {share:.4} of its entitlement");
}

#[test]
fn vms_share_by_weight_however_many_vcpus_they_have() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100, 100, 200], seed, false);
        for (vm, vcpus) in [(0, 2), (1, 6), (2, 3)] {
            for _ in 0..vcpus {
                host.add(Some(vm), 0, Habit::Computes);
            }
        }
        host.run(10 * S);
        for (vm, part) in [(0, 4), (1, 4), (2, 2)] {
            assert_share(host.vm_ran(vm), 2 * 10 * S / part, 0.01, "a VM");
        }
        // Within a VM, each vCPU has the same.
        for (vm, vcpus) in [(0, 2), (1, 6), (2, 3)] {
            let mine = host.actors.iter().filter(|a| a.vm == Some(vm));
            for actor in mine {
                assert_share(actor.ran, host.vm_ran(vm) / vcpus, 0.02, "a vCPU");
            }
        }
    }
}

#[test]
fn vms_share_by_weight_however_many_queues_there_are() {
    for (cpus, domains) in [(2, 2), (4, 2), (6, 3), (8, 8)] {
        for seed in 0..4 {
            let mut host = Host::new(cpus, &[100, 100, 200], seed, true).divided(domains);
            // None can have more than its VM's part: cpus / 4, cpus / 4, cpus / 2.
            for (vm, vcpus) in [(0, cpus / 2), (1, cpus * 3 / 2), (2, cpus)] {
                for _ in 0..vcpus {
                    host.add(Some(vm), 0, Habit::Computes);
                }
            }
            host.run(10 * S);
            for (vm, part) in [(0, 4), (1, 4), (2, 2)] {
                let entitled = cpus as u64 * 10 * S / part;
                assert_share(host.vm_ran(vm), entitled, 0.01, "a VM");
            }
        }
    }
}

#[test]
fn nobody_waits_for_ever_in_one_of_several_queues() {
    for seed in 0..4 {
        let mut host = Host::new(4, &[100, 50, 200], seed, true).divided(4);
        for habit in [Habit::Computes, Habit::Naps, Habit::Lies, Habit::Blocks] {
            for vm in 0..3 {
                host.add(Some(vm), 0, habit);
            }
            for weight in [15, 100, 300] {
                host.add(None, weight, habit);
            }
        }
        host.run(30 * S);
        for actor in &host.actors {
            assert!(
                actor.ran > 0 && actor.longest_wait < 5 * S,
                "waited {} ns",
                actor.longest_wait
            );
        }
    }
}

#[test]
fn threads_beside_vms_have_the_share_of_their_weight() {
    let mut host = Host::new(2, &[100], 3, false);
    for _ in 0..4 {
        host.add(Some(0), 0, Habit::Computes);
    }
    for weight in [100, 200, 50] {
        host.add(None, weight, Habit::Computes);
    }
    host.run(10 * S);
    assert_share(host.vm_ran(0), 20 * S * 100 / 450, 0.02, "the VM");
    for (actor, weight) in [(4, 100), (5, 200), (6, 50)] {
        assert_share(host.actors[actor].ran, 20 * S * weight / 450, 0.02, "a thread");
    }
}

/// A CPU has two threads, so that at each end of a turn only one waits.
#[test]
fn two_threads_of_a_cpu_share_it_by_weight() {
    for (weights, seed) in [([400, 100], 1), ([10, 100], 2), ([10_000, 100], 3)] {
        let mut host = Host::new(1, &[], seed, true);
        for weight in weights {
            host.add(None, weight, Habit::Computes);
        }
        host.run(60 * S);
        for (actor, weight) in weights.into_iter().enumerate() {
            let entitled = 60 * S * weight / weights.iter().sum::<u64>();
            assert_share(host.actors[actor].ran, entitled, 0.05, "a thread");
            assert!(host.actors[actor].longest_wait < 9 * S);
        }
    }
    // A process beside a VM that could use both CPUs.
    let mut host = Host::new(2, &[100], 4, true);
    for _ in 0..2 {
        host.add(Some(0), 0, Habit::Computes);
    }
    host.add(None, 10, Habit::Computes);
    host.run(10 * S);
    assert_share(host.actors[2].ran, 20 * S / 11, 0.02, "the process");
}

/// Threads that end before their turn is over, each started by the one before or by one that waits
/// for it, have together what one thread has.
#[test]
fn a_chain_of_short_threads_has_the_share_of_one() {
    let limits = &LIMITS;
    for (waits, part) in [(false, MS), (true, MS), (true, 2 * MS), (false, 2 * MS)] {
        let (mut now, mut queue) = (S, Queue { vtime: S, first: S });
        let mut hog = Thread { vtime: S, weight: 100, ..Thread::default() };
        let (mut parent, mut ran) = (hog, [0u64; 2]);
        let mut child = hog;
        // Only one of the chain wants the CPU at any time, beside the hog.
        let (mut is_child, mut inherited) = (true, 0);
        while now < 20 * S {
            let none = std::ptr::null_mut();
            let short = if is_child { child } else { parent };
            let chain = (short.vtime as i64) < hog.vtime as i64;
            let one = match (chain, is_child) {
                (false, _) => &mut hog,
                (true, true) => &mut child,
                (true, false) => &mut parent,
            };
            let time = match (chain, is_child) {
                (false, _) => limits.slice,
                (true, true) => part,
                (true, false) => MS / 10,
            };
            // SAFETY: all point to values of their types; no group.
            unsafe {
                guard_start(&mut queue, one, 0);
                guard_begin(one, none, now);
                now += time;
                guard_charge(one, none, NORMAL, now);
                if chain && !is_child {
                    // It starts the next one at the end of its turn, and waits.
                    child = Thread { weight: 100, ..Thread::default() };
                    child.vtime = queue.vtime + guard_born(&parent, none, &queue, now, 0, limits);
                }
            }
            ran[usize::from(chain)] += time;
            match (chain, is_child) {
                (false, _) => {}
                (true, false) => is_child = true,
                (true, true) if waits => {
                    // SAFETY: as above.
                    unsafe {
                        inherited += guard_bequeath(&child, &queue, limits);
                        guard_place(&mut parent, none, &queue, 0, 0, 200, 1, inherited, limits);
                    }
                    (is_child, inherited) = (false, 0);
                }
                (true, true) => {
                    let before = child;
                    // SAFETY: as above. The child was charged: it started the next one just then.
                    let ahead =
                        unsafe { guard_born(&before, none, &queue, before.began, 0, limits) };
                    child.vtime = queue.vtime + ahead;
                }
            }
        }
        let share = ran[1] as f64 / (ran[0] + ran[1]) as f64;
        assert!((0.4..0.6).contains(&share), "{share} where a half is due (waits: {waits})");
    }
}

/// Each starts the next one early in its turn, computes, and ends. Who would inherit its debt
/// sleeps.
#[test]
fn a_chain_whose_threads_start_the_next_one_early_has_the_share_of_one() {
    for lead in [20 * US, 100 * US, MS] {
        let (mut now, mut queue) = (S, Queue { vtime: S, first: S });
        let mut hog = Thread { vtime: S, weight: 100, ..Thread::default() };
        let (mut one, mut ran, mut inherited) = (hog, [0u64; 2], 0);
        let none = std::ptr::null_mut();
        while now < 20 * S {
            // SAFETY: all point to values of their types; no group.
            unsafe {
                if hog.vtime as i64 <= one.vtime as i64 {
                    guard_start(&mut queue, &hog, 0);
                    guard_begin(&mut hog, none, now);
                    now += LIMITS.slice;
                    ran[0] += guard_charge(&mut hog, none, NORMAL, now);
                    continue;
                }
                guard_start(&mut queue, &one, 0);
                guard_begin(&mut one, none, now);
                let owed = guard_owed(inherited, &LIMITS);
                inherited -= owed;
                let ahead = guard_born(&one, none, &queue, now + lead, owed, &LIMITS);
                now += LIMITS.slice - lead;
                ran[1] += guard_charge(&mut one, none, NORMAL, now);
                let mut next = Thread { vtime: queue.vtime + ahead, weight: 100, ..one };
                guard_place(&mut next, none, &queue, 0, 0, 200, 1, 0, &LIMITS);
                inherited += guard_bequeath(&one, &queue, &LIMITS);
                one = next;
            }
        }
        let share = ran[1] as f64 / (ran[0] + ran[1]) as f64;
        assert!((0.4..0.6).contains(&share), "{share} where a half is due, with {lead} ns");
    }
}

#[test]
fn a_vm_that_always_claims_gets_no_more_than_its_share() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100, 100], seed, true);
        for vm in 0..2 {
            for _ in 0..3 {
                host.add(Some(vm), 0, if vm == 0 { Habit::Lies } else { Habit::Computes });
            }
        }
        host.run(10 * S);
        assert!(host.rescues > 100 && host.extensions > 100, "the lies were believed");
        for vm in 0..2 {
            assert_share(host.vm_ran(vm), 10 * S, 0.01, "a VM");
        }
        // A look per step.
        assert!(host.longest_extension <= LIMITS.max_extend + STEP);
    }
}

/// An ordinary thread, with a budget of its own for extensions.
#[test]
fn a_thread_that_always_claims_gets_no_more_than_its_share() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[], seed, true);
        let habits = [Habit::Lies, Habit::Computes, Habit::Lies, Habit::Computes, Habit::Computes];
        for habit in habits {
            host.add(None, 100, habit);
        }
        host.run(10 * S);
        assert!(host.extensions > 100, "the lies were believed");
        for (actor, habit) in host.actors.iter().zip(habits) {
            let who = if habit == Habit::Lies { "a liar" } else { "an honest thread" };
            assert_share(actor.ran, 20 * S / habits.len() as u64, 0.01, who);
        }
        assert!(host.longest_extension <= LIMITS.max_extend + STEP);
    }
}

/// With a full budget each: what one takes is not missing for the others.
#[test]
fn liars_among_threads_do_not_use_up_what_others_have() {
    let mut host = Host::new(1, &[], 7, true);
    for _ in 0..8 {
        host.add(None, 100, Habit::Lies);
    }
    host.run(10 * S);
    for actor in &host.actors {
        assert_share(actor.ran, 10 * S / 8, 0.01, "a thread");
        // Each of the others has a slice and an extension, once round.
        assert!(actor.longest_wait <= 2 * 7 * (LIMITS.slice + LIMITS.max_extend + STEP));
    }
    assert!(host.extensions > 10 * S / (8 * (LIMITS.slice + LIMITS.max_extend + STEP)));
}

#[test]
fn sleeping_at_the_right_moment_gains_nothing() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100, 100], seed, false);
        for _ in 0..4 {
            host.add(Some(0), 0, Habit::Naps);
            host.add(Some(1), 0, Habit::Computes);
        }
        host.run(10 * S);
        assert!(host.vm_ran(0) <= 10 * S * 101 / 100, "{} ms", host.vm_ran(0) / MS);
    }
}

/// Of each VM only one vCPU runs at a time, or few of many do.
#[test]
fn vcpus_that_take_turns_have_no_share_each() {
    for (habit, vcpus) in [(Habit::Relays, 2), (Habit::Relays, 8), (Habit::Rests, 16)] {
        for seed in 0..4 {
            let mut host = Host::new(1, &[100, 100], seed, false);
            for _ in 0..vcpus {
                host.add(Some(0), 0, habit);
            }
            host.add(Some(1), 0, Habit::Computes);
            host.run(10 * S);
            assert_share(host.vm_ran(1), 5 * S, 0.02, "the VM that computes");
            assert_share(host.vm_ran(0), 5 * S, 0.02, "the VM whose vCPUs take turns");
        }
    }
}

/// Threads that may run on some CPUs only, of which some are busier than others.
#[test]
fn task_groups_share_as_under_the_stock_scheduler() {
    for seed in 0..4 {
        // One outermost group has two VMs.
        let mut host = Host::new(2, &[100, 200], seed, false);
        host.tops = Some(100);
        for vm in [0, 0, 1, 1, 1] {
            host.add(Some(vm), 0, Habit::Computes);
        }
        let batch = host.group_threads(100, None);
        let users = host.group_threads(200, None);
        let inner = [100, 300].map(|weight| host.group_threads(weight, Some(users)));
        for _ in 0..16 {
            host.add_in(batch, 100, Habit::Computes);
        }
        for own in [100, 300] {
            host.add_in(inner[0], own, Habit::Computes);
        }
        for _ in 0..4 {
            host.add_in(inner[1], 100, Habit::Computes);
        }
        host.add(None, 100, Habit::Computes);
        host.run(20 * S);
        // The VMs together, the batch job and the last thread have a fifth each.
        let fifth = 2 * 20 * S / 5;
        assert_share(host.vm_ran(0), fifth / 3, 0.03, "a VM");
        assert_share(host.vm_ran(1), 2 * fifth / 3, 0.03, "a VM of twice the weight");
        let ran = |range: std::ops::Range<usize>| host.actors[range].iter().map(|a| a.ran).sum();
        assert_share(ran(5..21), fifth, 0.03, "the batch job");
        assert_share(ran(21..22), 2 * fifth / 16, 0.03, "a thread");
        assert_share(ran(22..23), 2 * 3 * fifth / 16, 0.03, "a thread of less niceness");
        assert_share(ran(23..27), 2 * 3 * fifth / 4, 0.03, "a group in a group");
        assert_share(ran(27..28), fifth, 0.03, "a thread in no group");
        for thread in &host.actors[5..21] {
            assert_share(thread.ran, fifth / 16, 0.1, "a thread of the batch job");
        }
    }
}

/// Threads that come and go in a group change the weight of those that run.
#[test]
fn a_group_whose_threads_sleep_has_its_share() {
    for habit in [Habit::Naps, Habit::Blocks] {
        let mut host = Host::new(2, &[100], 5, false);
        for _ in 0..4 {
            host.add(Some(0), 0, Habit::Computes);
        }
        let group = host.group_threads(100, None);
        for _ in 0..24 {
            host.add_in(group, 100, habit);
        }
        host.run(20 * S);
        assert_share(host.vm_ran(0), 20 * S, 0.05, "the VM");
        assert_share(host.actors[4..].iter().map(|a| a.ran).sum(), 20 * S, 0.05, "the group");
    }
}

#[test]
fn threads_of_a_group_that_take_turns_have_no_share_each() {
    let mut host = Host::new(1, &[100], 5, false);
    host.add(Some(0), 0, Habit::Computes);
    let group = host.group_threads(100, None);
    for _ in 0..8 {
        host.add_in(group, 100, Habit::Relays);
    }
    for relay in 2..9 {
        host.actors[relay].doing = Doing::Sleeps(u64::MAX);
    }
    host.run(20 * S);
    assert_share(host.vm_ran(0), 10 * S, 0.1, "the VM");
}

/// A round of the others moves the virtual time of the group, but not of the host.
/// Of many threads, some are awake, each for one turn: what each is ahead by then passes while it
/// sleeps. What the group is ahead by does not.
#[test]
fn threads_of_a_group_that_are_awake_for_a_turn_have_no_share_each() {
    for (weight, awake) in [(1, 16), (1, 64), (100, 16), (100, 64)] {
        let mut host = Host::new(2, &[100], 5, false);
        for _ in 0..2 {
            host.add(Some(0), 0, Habit::Computes);
        }
        let group = host.group_threads(100, None);
        for _ in 0..410 {
            host.add_in(group, weight, Habit::Relays);
        }
        for relay in 2 + awake..412 {
            host.actors[relay].doing = Doing::Sleeps(u64::MAX);
        }
        host.run(10 * S);
        assert_share(host.vm_ran(0), 10 * S, 0.1, &format!("the VM, {awake} of weight {weight}"));
    }
}

/// None of them ever ends, so nobody inherits what they ran too much.
#[test]
fn threads_of_a_group_that_start_each_other_have_no_share_each() {
    let mut host = Host::new(1, &[100], 5, false);
    host.add(Some(0), 0, Habit::Computes);
    let group = host.group_threads(100, None);
    for _ in 0..3 {
        host.add_in(group, 100, Habit::Begets);
    }
    for other in 2..4 {
        host.actors[other].doing = Doing::Sleeps(u64::MAX);
    }
    host.run(20 * S);
    assert_share(host.vm_ran(0), 10 * S, 0.1, "the VM");
}

#[test]
fn a_light_thread_of_a_group_with_many_others_runs_soon() {
    let waits = |hogs: usize| {
        let mut host = Host::new(2, &[100], 5, false);
        let group = host.group_threads(100, None);
        host.add_in(group, 1000, Habit::Rests);
        for _ in 0..hogs {
            host.add_in(group, 100, Habit::Computes);
        }
        host.run(20 * S);
        (host.actors[0].ran, host.actors[0].longest_wait)
    };
    let ((alone, _), (ran, longest)) = (waits(1), waits(64));
    assert!(ran >= alone * 6 / 10, "{} ms, {} beside one other", ran / MS, alone / MS);
    assert!(longest < 100 * MS, "{} ms", longest / MS);
}

/// A thread that wakes many others at the end of its turn was alone in its group until then.
#[test]
fn a_group_that_forks_and_joins_has_its_share() {
    for (cpus, helpers) in [(1, 16), (1, 64), (2, 64)] {
        let mut host = Host::new(cpus, &[100], 5, false);
        for _ in 0..cpus {
            host.add(Some(0), 0, Habit::Computes);
        }
        let group = host.group_threads(100, None);
        host.add_in(group, 100, Habit::Forks);
        for _ in 0..helpers {
            host.add_in(group, 100, Habit::Helps);
        }
        host.run(20 * S);
        let ran: u64 = host.actors[cpus..].iter().map(|actor| actor.ran).sum();
        assert_share(ran, cpus as u64 * 10 * S, 0.1, &format!("{helpers} helpers, {cpus} CPUs"));
    }
}

/// The mean of a sum over a turn, also where it is read in the middle of a change.
#[test]
fn the_mean_of_a_sum_is_over_time() {
    let mut sum = Sum::default();
    let start = 77 * S;
    // SAFETY: these compute numbers, and change the sum.
    unsafe {
        let integral = |sum: &Sum, at| guard_sum_integral(sum, start + at);
        guard_sum_add(&mut sum, 100, start);
        let before = integral(&sum, 0);
        guard_sum_add(&mut sum, 6400, start + 2 * MS);
        guard_sum_add(&mut sum, -6400i64 as u64, start + 3 * MS);
        let after = integral(&sum, 4 * MS);
        assert_eq!(guard_mean(before, after, 4 * MS, sum.all), (3 * 100 + 6500) / 4);
        assert_eq!(guard_mean(before, before, 0, 100), 100);
        let mut sum = sum;
        guard_sum_set(&mut sum, 40, start + 4 * MS);
        let (before, after) = (after, integral(&sum, 8 * MS));
        assert_eq!(guard_mean(before, after, 4 * MS, sum.all), 40);
        for more in [1, 100, 10_000, -1, -100] {
            let torn = Sum { all: sum.all.wrapping_add_signed(more), ..sum };
            let after = integral(&torn, 8 * MS);
            assert_eq!(guard_mean(before, after, 4 * MS, torn.all), torn.all, "{more}");
        }
    }
}

#[test]
fn groups_weigh_what_their_cgroups_say() {
    // SAFETY: these compute numbers.
    unsafe {
        for (cpu_weight, weight) in [(1, 1), (100, 100), (150, 150), (10_000, 10_000)] {
            // As the kernel converts it.
            assert_eq!(guard_weight_of(((cpu_weight * 1024 + 50) / 100) << 10), weight);
        }
        assert_eq!((guard_weight_of(0), guard_weight_of(u64::MAX)), (1, 10_000));
        assert_eq!(guard_above(100 << FINE, 100, 400, 200), 50 << FINE);
        // Nobody has more than the whole, nor nothing.
        assert_eq!(guard_above(100 << FINE, 100, 0, 200), 200 << FINE);
        assert_eq!(guard_above(1, 100, u64::MAX, 1), 1);
        let beside = |fine, vms, tops| guard_beside_vms(fine, guard_beside(vms, tops));
        assert_eq!(beside(7 << FINE, 0, 0), 7 << FINE);
        assert_eq!(beside(7 << FINE, 400, 100), 28 << FINE);
        assert_eq!(beside(7 << FINE, 50, 100), 7 << FINE);
        assert_eq!(beside(u64::MAX, 10_000_000, 1), 1 << 34);
        assert_eq!(guard_beside_vms(1 << FINE, u64::MAX), 1 << (FINE + 16));
        assert_eq!(guard_fine_scaled(3 * MS, 50 << FINE), 6 * MS);
    }
}

#[test]
fn threads_share_by_weight_where_they_may_run() {
    let (vms, threads) = ([500, 100, 100, 100, 100, 100, 100, 100], [200, 100, 100, 100]);
    // VMs and a thread that mostly sleeps, on two CPUs of their own.
    let busy = |mut host: Host, mask| {
        for vm in 0..vms.len() {
            host.add_bound(Some(vm), 0, Habit::Computes, mask);
        }
        host.add_bound(None, 100, Habit::Rests, mask);
        host
    };
    for seed in 0..8 {
        let mut alone = busy(Host::new(2, &vms, seed, true), u64::MAX);
        let mut host = busy(Host::new(4, &vms, seed, true), 0b1100);
        let rests = vms.len();
        for weight in threads {
            host.add_bound(None, weight, Habit::Computes, 0b0011);
        }
        alone.run(20 * S);
        host.run(20 * S);
        let left = 2 * 20 * S - host.actors[rests].ran;
        for (vm, weight) in vms.into_iter().enumerate() {
            let due = left * weight / vms.iter().sum::<u64>();
            assert_share(host.vm_ran(vm), due, 0.05, "a VM");
        }
        for (n, weight) in threads.into_iter().enumerate() {
            let due = 2 * 20 * S * weight / threads.iter().sum::<u64>();
            assert_share(host.actors[rests + 1 + n].ran, due, 0.05, "a thread");
        }
        let wait = |host: &Host| host.actors[rests].longest_wait;
        let (wait, apart) = (wait(&host), wait(&alone));
        assert!(
            wait <= 2 * apart,
            "who sleeps waited {wait} ns, and {apart} ns without the others"
        );
    }
}

/// Many that wait may not run on the CPUs where two share by weight.
#[test]
fn weights_count_beside_many_that_wait_for_other_cpus() {
    // More than the scheduler looks at, too.
    for others in [24, LOOK_FIRST + 16] {
        for seed in 0..4 {
            let mut host = Host::new(4, &[], seed, true);
            for _ in 0..others {
                host.add_bound(None, 100, Habit::Computes, 0b1100);
            }
            for weight in [300, 100, 300, 100] {
                host.add_bound(None, weight, Habit::Computes, 0b0011);
            }
            host.run(10 * S);
            for (actor, weight) in (others..).zip([300, 100, 300, 100]) {
                assert_share(host.actors[actor].ran, 2 * 10 * S * weight / 800, 0.05, "a thread");
            }
        }
    }
}

/// The only thread of a mask sleeps most of the time, on CPUs that are as busy as others.
#[test]
fn who_sleeps_gains_nothing_by_its_mask() {
    for (habit, vm) in [(Habit::Rests, None), (Habit::Rests, Some(0))] {
        for seed in 0..4 {
            let mut host = Host::new(4, &[100], seed, false);
            for _ in 0..8 {
                host.add(None, 100, Habit::Computes);
            }
            host.add_bound(vm, 100, habit, 0b0011);
            host.run_on_and_on(20 * S);
            let before = host.actors[8].ran;
            host.actors[8].habit = Habit::Computes;
            host.run_on_and_on(S);
            let ran = host.actors[8].ran - before;
            assert!(ran <= S * 6 / 10, "{habit:?}: it ran {ran} ns of the first second");
        }
    }
}

/// Threads of a busier part of the CPUs sleep for a moment, in which another one runs there.
#[test]
fn threads_of_one_mask_wait_alike_after_others_ran_there() {
    for seed in 0..8 {
        let mut host = Host::new(4, &[], seed, true);
        for _ in 0..3 {
            host.add_bound(None, 100, Habit::Naps, 0b1100);
        }
        for _ in 0..4 {
            host.add_bound(None, 100, Habit::Computes, 0b1100);
        }
        for _ in 0..2 {
            host.add_bound(None, 100, Habit::Computes, 0b0011);
        }
        host.add(None, 100, Habit::Rests);
        host.run(20 * S);
        for actor in &host.actors {
            let wait = actor.longest_wait;
            assert!(actor.ran > 0 && wait < S / 2, "seed {seed}: one waited {} ms", wait / MS);
        }
    }
}

/// The vCPUs of a VM have CPUs of their own, of which some are busier.
#[test]
fn a_vcpu_on_busy_cpus_wakes_as_soon_as_others_there() {
    for seed in 0..4 {
        let mut host = Host::new(8, &[100, 100], seed, true);
        for _ in 0..3 {
            host.add_bound(None, 100, Habit::Computes, 0x0f);
        }
        for _ in 0..16 {
            host.add_bound(None, 100, Habit::Computes, 0xf0);
        }
        host.add_bound(Some(0), 0, Habit::Computes, 0x0f);
        host.add_bound(Some(0), 0, Habit::Rests, 0xf0);
        host.add_bound(Some(1), 0, Habit::Rests, 0xf0);
        host.run(10 * S);
        let wait = |actor: usize| host.actors[actor].longest_wait;
        let (mixed, other) = (wait(20), wait(21));
        assert!(mixed <= 2 * other + 2 * LIMITS.slice, "{mixed} ns; one of its own VM {other} ns");
    }
}

/// Threads of other masks come to CPUs where those that have been there lack a lot.
#[test]
fn overlapping_masks_share_the_cpus_that_they_have_in_common() {
    for seed in 0..4 {
        for habit in [Habit::Rests, Habit::Computes] {
            let mut host = Host::new(8, &[], seed, true);
            for _ in 0..4 {
                host.add_bound(None, 100, Habit::Computes, 0x0f);
            }
            for _ in 0..16 {
                host.add_bound(None, 100, Habit::Computes, 0xf0);
            }
            host.run(3 * S);
            host.add_bound(None, 100, habit, 0x30);
            host.run(10 * S);
            let (one, others) = (&host.actors[20], &host.actors[4..20]);
            assert!(one.longest_wait < S / 4, "it waited {} ms", one.longest_wait / MS);
            if habit == Habit::Computes {
                let mean = others.iter().map(|one| one.ran).sum::<u64>() / 16 * 10 / 13;
                assert_share(one.ran, mean, 0.25, "a thread on a part of their CPUs");
            }
        }
    }
}

/// Virtual time passes quickly where a thread of little weight is alone.
#[test]
fn weights_count_on_busy_cpus_beside_a_light_thread_elsewhere() {
    let mut host = Host::new(4, &[], 1, true);
    host.add_bound(None, 1, Habit::Computes, 0b0011);
    for weight in [1000; 4].into_iter().chain([100; 40]) {
        host.add_bound(None, weight, Habit::Computes, 0b1100);
    }
    host.run(20 * S);
    for (actor, weight) in (1..).zip([1000; 4]) {
        assert_share(host.actors[actor].ran, 2 * 20 * S * weight / 8000, 0.1, "a heavy thread");
    }
}

/// What the threads of a part of the CPUs lacked for an hour is no claim on it for hours.
#[test]
fn others_have_their_share_of_cpus_that_were_busy_for_long() {
    let mut host = Host::new(4, &[], 1, true);
    for _ in 0..4 {
        host.add_bound(None, 100, Habit::Computes, 0b1100);
    }
    for _ in 0..2 {
        host.add_bound(None, 100, Habit::Computes, 0b0011);
    }
    host.run(60 * S);
    // They may run everywhere; on the CPUs of the two they have less than on those of the four.
    for _ in 0..16 {
        host.add_bound(None, 100, Habit::Computes, 0b0011);
    }
    for _ in 0..4 {
        host.add(None, 100, Habit::Computes);
    }
    host.run(10 * S);
    let everywhere = |host: &Host| host.actors[22..].iter().map(|one| one.ran).collect::<Vec<_>>();
    let before = everywhere(&host);
    host.run(10 * S);
    for (after, before) in everywhere(&host).into_iter().zip(before) {
        let ran = after - before;
        // 22 threads at four CPUs, or eight at two.
        assert!(ran > 10 * S / 8, "{} ms", ran / MS);
    }
}

/// A thread that changes its CPUs again and again, to those where virtual time passes more slowly
/// and back, gains nothing.
#[test]
fn changes_of_the_mask_gain_nothing() {
    for seed in 0..4 {
        let mut host = Host::new(4, &[], seed, true);
        for _ in 0..8 {
            host.add_bound(None, 100, Habit::Computes, 0b1100);
        }
        for _ in 0..6 {
            host.add(None, 100, Habit::Computes);
        }
        let one = host.actors.len() - 1;
        host.run(5 * S);
        let before: Vec<u64> = host.actors.iter().map(|actor| actor.ran).collect();
        for turn in 0..100 {
            host.change(one, if turn % 2 == 0 { 0b1100 } else { u64::MAX });
            host.run_on_and_on(100 * MS);
        }
        let ran = |actor: usize| host.actors[actor].ran - before[actor];
        let honest = (8..one).map(ran).sum::<u64>() / (one as u64 - 8);
        assert!(ran(one) <= honest * 11 / 10, "{} of {} ms", ran(one) / MS, honest / MS);
    }
}

/// Masks of which a thread is the only one know no more of virtual time than its own last turns.
/// Who takes another one in each turn has no more than others, and loses a part of its turns at
/// most.
#[test]
fn a_new_mask_for_each_turn_gains_nothing() {
    for (seed, stays) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut host = Host::new(4, &[], seed, true);
        for _ in 0..9 {
            host.add(None, 100, Habit::Computes);
        }
        let one = host.actors.len() - 1;
        host.run(S);
        let before: Vec<u64> = host.actors.iter().map(|actor| actor.ran).collect();
        let (mut changes, mut turn) = (0, 0);
        for _ in 0..10 * S / STEP {
            host.step();
            let actor = &host.actors[one];
            if actor.turn != turn {
                (turn, changes) = (actor.turn, changes + 1);
                // Two CPUs, or three; with the one where it runs, or perhaps without it.
                let (own, other) = (1 << actor.cpu, 1 << ((actor.cpu + 1 + changes % 3) % 4));
                host.change(one, if stays { own | other } else { 0b1111 & !(1 << (changes % 4)) });
            }
        }
        let ran = |actor: usize| host.actors[actor].ran - before[actor];
        let honest = (0..one).map(ran).sum::<u64>() / one as u64;
        let part = ran(one) * 100 / honest;
        assert!((20..=110).contains(&part), "{part} % of what the others have");
    }
}

/// While each has a CPU of its own, virtual times drift apart by weight. What a thread lacks then
/// is no claim when others come, however long it keeps its CPU.
#[test]
fn what_was_lacking_while_nobody_waited_is_forgotten() {
    for seed in 0..4 {
        let mut host = Host::new(8, &[100; 8], seed, true);
        for (vm, vcpus) in [(0, 2), (1, 6)] {
            for _ in 0..vcpus {
                host.add(Some(vm), 0, Habit::Computes);
            }
        }
        host.run_on_and_on(10 * S);
        for vm in 2..8 {
            for _ in 0..8 {
                host.add(Some(vm), 0, Habit::Computes);
            }
        }
        let before: Vec<u64> = (0..8).map(|vm| host.vm_ran(vm)).collect();
        host.run_on_and_on(10 * S);
        for (vm, before) in before.into_iter().enumerate() {
            assert_share(host.vm_ran(vm) - before, 10 * S, 0.05, "a VM");
        }
    }
}

/// Threads that may not leave their domain, of which one is busier.
#[test]
fn threads_share_by_weight_where_they_cannot_leave() {
    for seed in 0..4 {
        let mut host = Host::new(4, &[], seed, true).divided(2);
        let (weights, few, many) = ([300, 100, 300, 100], 0b0101, 0b1010);
        for weight in weights {
            host.add_bound(None, weight, Habit::Computes, few);
        }
        for _ in 0..16 {
            host.add_bound(None, 100, Habit::Computes, many);
        }
        host.run(20 * S);
        for (actor, weight) in weights.into_iter().enumerate() {
            let due = 2 * 20 * S * weight / weights.iter().sum::<u64>();
            assert_share(host.actors[actor].ran, due, 0.05, "a thread of the domain with few");
        }
        // A new one has its first turn after one of each at most, and those that were preferred.
        host.add_bound(None, 100, Habit::Computes, many);
        let new = host.actors.len() - 1;
        host.run(S);
        assert!(host.actors[new].ran > 0);
        let wait = host.actors[new].longest_wait;
        assert!(wait <= 3 * 16 * LIMITS.slice / 2, "a new thread waited {wait} ns");
    }
}

/// VMs that may not leave their domain, which is busier than the other.
#[test]
fn vms_have_their_share_where_they_cannot_leave() {
    for habit in [Habit::Relays, Habit::Blocks] {
        for seed in 0..4 {
            let mut host = Host::new(2, &[100, 100], seed, false).divided(2);
            let (busy, other) = (0b01, 0b10);
            for _ in 0..4 {
                host.add_bound(Some(0), 0, habit, busy);
            }
            host.add_bound(Some(1), 0, Habit::Computes, busy);
            host.add_bound(None, 100, Habit::Computes, other);
            host.run(20 * S);
            assert_share(host.vm_ran(0), 10 * S, 0.03, "the VM whose vCPUs sleep");
            assert_share(host.vm_ran(1), 10 * S, 0.03, "the VM that computes");
        }
    }
}

#[test]
fn a_vm_whose_vcpus_block_gets_its_share() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100; 4], seed, false);
        for vm in 0..4 {
            for _ in 0..2 {
                host.add(Some(vm), 0, if vm == 0 { Habit::Blocks } else { Habit::Computes });
            }
        }
        host.run(10 * S);
        // It could use more than twice as much. Waking up last in the queue, it would get half.
        assert_share(host.vm_ran(0), 20 * S / 4, 0.02, "the VM");
    }
}

#[test]
fn nobody_waits_for_ever() {
    for seed in 0..8 {
        let mut host = Host::new(2, &[100, 100, 1000], seed, true);
        for (vm, habit) in [(0, Habit::Lies), (1, Habit::Naps), (2, Habit::Lies)] {
            for _ in 0..8 {
                host.add(Some(vm), 0, habit);
            }
        }
        for weight in [1, 100, 10_000] {
            for habit in [Habit::Computes, Habit::Naps] {
                host.add(None, weight, habit);
            }
        }
        host.run(20 * S);
        for actor in &host.actors {
            let wait = actor.longest_wait.max(match actor.doing {
                Doing::Waits => host.now - actor.waits_since,
                _ => 0,
            });
            // The kernel's watchdog would end guard after 20 s.
            assert!(wait < 9 * S, "weight {} waited {} ms", actor.thread.weight, wait / MS);
            assert!(actor.ran > 0);
        }
    }
}

/// Each vCPU may get ahead of its turn a little: so many of them must not do so together.
#[test]
fn lies_of_many_vcpus_gain_nothing() {
    use Habit::{Computes, Lies};
    let mut host = Host::new(2, &[100; 4], 5, true);
    for (vm, habit) in [Computes, Lies, Computes, Lies].into_iter().enumerate() {
        for _ in 0..64 {
            host.add(Some(vm), 0, habit);
        }
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
fn what_a_vm_borrows_is_repaid_and_bounded() {
    let (mut group, mut own) = (Group { weight: 100, runnable: 8, ..Group::default() }, [0; 8]);
    let queue = Queue { vtime: 100 * S, first: 100 * S };
    let thread = Thread { vtime: 100 * S, ..Thread::default() };
    let rescued = |group: &Group| {
        // SAFETY: all point to values of their types.
        unsafe { guard_rescue(&thread, group, &queue, 100, S, 0, DUE_TICK, S, &LIMITS) == YES }
    };
    // SAFETY: reads its arguments only.
    let longest = unsafe { guard_rescue_ns(WORK, &LIMITS) };
    let mut rescues = 0;
    while rescued(&group) {
        // SAFETY: as above.
        unsafe { guard_borrow(&mut own[rescues % 8], &mut group, longest) };
        rescues += 1;
        assert!(rescues < 10_000, "it is bounded");
    }
    // Four may be ahead by twice the longest hold.
    assert_eq!(rescues as u64, 8 * LIMITS.max_hold / longest);
    for one in &mut own {
        // SAFETY: as above.
        unsafe { guard_repay(one, &mut group) };
        assert!(rescued(&group), "a part is repaid");
    }
    assert_eq!((group.borrowed, own), (0, [0; 8]));
}

/// A vCPU that owes a grace period at every moment, which ends whenever the vCPU runs: for 3 ms of
/// 15 in its turn, if `turns`. How much of 10 s it runs in rescues and in turns, and the age of the
/// oldest grace period.
fn rescued_with_share(rescue_share: u64, turns: bool) -> (u64, u64, u64) {
    let limits = Limits { rescue_share, ..LIMITS };
    let queue = Queue { vtime: S, first: S };
    let mut thread = Thread { vtime: S, weight: 100, ..Thread::default() };
    let (mut rescued, mut turn, mut oldest, mut began) = (0, 0, 0, 0);
    for ms in 0..10_000 {
        let (now, age, none) = (ms * MS, ms * MS - began, std::ptr::null());
        let ran = if turns && ms % 15 < 3 { MS } else { 0 };
        turn += ran;
        // SAFETY: all point to values of their types; no group.
        let rescue = ran == 0
            && unsafe {
                guard_rescue(&thread, none, &queue, 100, age, 0, DUE_TICK, now, &limits) == YES
            };
        let ran = if rescue { RESCUE } else { ran };
        rescued += u64::from(rescue) * RESCUE;
        if ran > 0 {
            // SAFETY: as above.
            unsafe { guard_spend(&mut thread, ran, rescue.into(), &limits) };
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
fn a_thread_that_was_alone_does_not_pay_for_it() {
    let mut host = Host::new(1, &[], 1, false);
    host.add(None, 1, Habit::Computes);
    host.run(10 * S);
    let alone = host.actors[0].ran;
    for _ in 0..20 {
        host.add(None, 100, Habit::Computes);
    }
    host.run(10 * S);
    assert!(host.actors[0].longest_wait < 9 * S, "{} ms", host.actors[0].longest_wait / MS);
    assert!(host.actors[0].ran > alone);
}

#[test]
fn a_rescue_is_no_longer_than_a_turn() {
    let rescue = |need, slice| {
        let limits = Limits { slice, ..LIMITS };
        // SAFETY: reads its arguments only.
        unsafe { guard_rescue_ns(need, &limits) }
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
    let late = |mean, tick| unsafe { guard_late(mean, tick, &LIMITS) };
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
    assert_eq!(unsafe { guard_late(4 * MS, 4 * MS, &fixed) }, LIMITS.late);
    let held = Limits { max_hold: 5 * MS, ..LIMITS };
    // SAFETY: as above.
    assert_eq!(unsafe { guard_late(MS, 4 * MS, &held) }, held.max_hold);
    // Also for any tick.
    let huge = u64::MAX / 8;
    for (mean, tick) in
        [(u64::MAX, S / 50), (1, huge), (u64::MAX, 1), (3, 3), (26 * MS, 16 * MS), (huge, huge)]
    {
        // SAFETY: as above.
        let now = unsafe { guard_late(mean, tick, &LIMITS) };
        assert!((LIMITS.late..=LIMITS.late_most).contains(&now), "{mean} {tick}: {now}");
    }
}

#[test]
fn the_mean_follows_the_last_grace_periods() {
    // SAFETY: reads its arguments only.
    let next = |mean, ns| unsafe { guard_grace_mean(mean, ns) };
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

/// As `struct policy_ticks`.
#[repr(C)]
#[derive(Default)]
struct Ticks {
    at: u64,
    seen: u64,
    sure: u64,
    rival: u64,
    rivals: u64,
}

impl Ticks {
    fn expires(&mut self, tick: u64, now: u64) {
        self.expires_late(tick, now, now);
    }

    fn expires_late(&mut self, tick: u64, due: u64, now: u64) {
        // SAFETY: writes its argument only.
        unsafe { guard_ticked(self, tick, due, now) };
    }

    fn next(&self, tick: u64, now: u64) -> Option<u64> {
        // SAFETY: reads its argument only.
        Some(unsafe { guard_tick_in(self, tick, now) }).filter(|&ns| ns > 0)
    }

    fn due(&self, tick: u64, left: u64, now: u64) -> bool {
        // SAFETY: reads its argument only.
        unsafe { guard_tick_due(self, tick, left, now) != 0 }
    }
}

#[test]
fn ticks_are_told_from_other_timers() {
    let mut random = Random(7);
    for (tick, others) in [1, 4, 10].into_iter().flat_map(|n| [0, 1, 3, 6].map(|o| (n * MS, o))) {
        let mut ticks = Ticks::default();
        assert_eq!(ticks.next(tick, S), None, "none was seen");
        // Ticks a little late, and up to six other timers between two of them.
        for n in 0..400 {
            let at = S + n * tick;
            let late = random.below(tick / 200);
            let mut all: Vec<_> = (0..others).map(|_| random.below(tick)).collect();
            all.push(late);
            all.sort();
            all.iter().for_each(|other| ticks.expires(tick, at + other));
        }
        let now = S + 400 * tick + tick / 4;
        let next = ticks.next(tick, now).expect("400 ticks");
        assert!(next.abs_diff(tick * 3 / 4) <= tick / 50, "{next} of {tick} with {others}");
        assert_eq!(ticks.next(tick, now + 66 * tick), None, "clocks drift");
        // They go on elsewhere.
        for n in 0..80 {
            ticks.expires(tick, now + n * tick);
        }
        assert_eq!(ticks.next(tick, now + 80 * tick - MS / 2), Some(MS / 2));
        ticks.expires(tick, now + 200 * tick);
        assert_eq!(ticks.next(tick, now + 201 * tick), None, "one after a pause");
        // No ticks at all.
        let (mut ticks, mut now, mut sure) = (Ticks::default(), S, 0);
        for _ in 0..20_000 {
            now += random.below(tick);
            ticks.expires(tick, now);
            assert!(ticks.sure <= 64, "{}", ticks.sure);
            sure += u32::from(ticks.next(tick, now).is_some());
        }
        assert!(sure < 2_000, "sure of ticks that are none, {sure} times of 20,000");
    }
    // A guest says how long its ticks are.
    for tick in [0, 1, u64::MAX, u64::MAX / 2] {
        let mut ticks = Ticks::default();
        for now in [S, S, S + 1, 0, u64::MAX, S + 4 * MS, S + 8 * MS] {
            ticks.expires(tick, now);
            let next = ticks.next(tick, now).unwrap_or(0);
            assert!(next <= tick, "{next} of {tick}");
        }
    }
}

#[test]
fn a_timer_every_few_ticks_is_not_taken_for_them() {
    let tick = 4 * MS;
    for every in 3..=7 {
        let mut ticks = Ticks::default();
        // It was there before the ticks.
        for n in 0..200 {
            ticks.expires(tick, S + n * every * tick);
        }
        let start = S + 200 * every * tick;
        for n in 0..200 {
            if n % every == 0 {
                ticks.expires(tick, start + n * tick);
            }
            ticks.expires(tick, start + n * tick + MS);
        }
        let now = start + 200 * tick;
        assert_eq!(ticks.next(tick, now), Some(MS), "with another timer every {every} ticks");
    }
}

#[test]
fn a_tick_is_due_once_its_time_has_passed() {
    let tick = 4 * MS;
    let mut ticks = Ticks::default();
    for n in 0..10 {
        ticks.expires(tick, S + n * tick);
    }
    let last = S + 9 * tick;
    for off in (1..3 * tick).step_by(999) {
        let left = last + off;
        let next = last + off.next_multiple_of(tick);
        assert!(!ticks.due(tick, left, left), "it runs");
        if next > left {
            assert!(!ticks.due(tick, left, next - 1), "{off}");
            assert!(ticks.due(tick, left, next), "{off}");
        }
        assert!(ticks.due(tick, left, left + tick), "{off}");
    }
    // Another timer expires meanwhile, and the guest sets none before it runs.
    let left = last + MS;
    ticks.expires(tick, left + MS);
    assert!(!ticks.due(tick, left, left + 2 * MS));
    assert!(ticks.due(tick, left, left + 3 * MS));
    // The tick itself expires.
    ticks.expires(tick, last + tick);
    assert!(ticks.due(tick, left, last + tick + 1));
    // KVM is late with the next one, and the vCPU leaves before it knows.
    let next = last + 2 * tick;
    ticks.expires_late(tick, next, next + 8_000);
    assert!(ticks.due(tick, next + 5_000, next + 9_000));
    assert_eq!(ticks.next(tick, next + 9_000), Some(tick - 9_000));
    for tick in [0, 1, u64::MAX] {
        ticks.due(tick, 0, u64::MAX);
        ticks.due(tick, u64::MAX, 0);
    }
}

#[test]
fn the_kthread_runs_for_what_it_can_do() {
    let limits = |max_hold| Limits { max_hold, ..LIMITS };
    let asked = |awaited: bool, wanted: bool, age, limits| {
        // SAFETY: reads its arguments only.
        unsafe { guard_kthread_helps(awaited.into(), wanted.into(), age, &limits) != 0 }
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
fn two_ticks_come_in_one_rescue() {
    // SAFETY: no pointers.
    let two = |until| unsafe { guard_two_ticks(until) != 0 };
    // SAFETY: as above.
    let done = |until, tick, ran| unsafe { guard_noticed_only(until, tick, ran) != 0 };
    for (tick, slice) in [(MS, 3 * MS), (10 * MS / 3, MS), (4 * MS, MS / 2), (10 * MS, MS / 10)] {
        let limits = Limits { slice, ..LIMITS };
        // SAFETY: reads its arguments only.
        let long = |need, until| unsafe { guard_rescue_to_tick(need, until, tick, &limits) };
        let most = long(2, 0);
        for until in (1..=tick).step_by(997) {
            // SAFETY: no pointers.
            let wait = unsafe { guard_two_ticks_in(until, tick) };
            let then = if wait < until { until - wait } else { until + tick - wait };
            assert!(two(until) || two(then), "{until}: {wait} leads to {then}");
            for need in 0..3 {
                assert!((long(need, 0)..=most).contains(&long(need, until)));
            }
            if !two(until) {
                continue;
            }
            assert!(!done(until, tick, 50_000), "the second tick is near");
            // It came, and its softirq has to run.
            let after = tick - 100_000;
            assert!(!done(after, tick, until + 100_000), "{until}");
            assert!(most < MS / 2 || long(1, after) > until + 100_000, "{until}: cut short");
            assert!(tick < 2 * MS || done(tick - 300_000, tick, until + 300_000), "{until}");
        }
        assert!(done(tick - 50_000, tick, 40_000), "the only tick came before the rescue");
        assert!(done(0, tick, 50_000), "nobody knows");
    }
}

#[test]
fn debt_is_bounded() {
    let mut random = Random(1);
    for _ in 0..100_000 {
        let (now, vtime) = (100 * S, 50 * S);
        // Run time is known to a hundred nanoseconds.
        let ahead = random.below(4 * MS) * 100;
        let thread = Thread { vtime: vtime + ahead, weight: 100, ..Thread::default() };
        let queue = Queue { vtime, first: vtime };
        let (age, off) = (random.below(2 * S), random.below(10 * MS));
        let need = random.below(3) as u32;
        // SAFETY: all point to values of their types; no group.
        let answer = unsafe {
            let (none, left) = (std::ptr::null(), now - off);
            guard_rescue(&thread, none, &queue, 100, age, left, need, now, &LIMITS)
        };
        let (late, off) = (age >= LIMITS.late, off >= GAPS[need as usize]);
        // SAFETY: as above.
        let after = ahead + unsafe { guard_rescue_ns(WORK, &LIMITS) };
        match answer {
            YES => assert!(after <= 2 * LIMITS.max_hold && late && off),
            IN_DEBT => assert!(after > LIMITS.slice && late && off),
            _ => assert!(!late || !off),
        }
        if answer == IN_DEBT && age >= LIMITS.max_hold {
            assert!(after > 2 * LIMITS.max_hold, "refused {ahead}");
        }
        // SAFETY: as above.
        let yields =
            |load| unsafe { guard_yield(&thread, std::ptr::null(), &queue, load, &LIMITS) == YES };
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
        let verdict = unsafe { guard_extend(&mut extension, &mut budget, section, now, &LIMITS) };
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
            let verdict = unsafe { guard_extend(extension, &mut budget, 1, now, &LIMITS) };
            if verdict == EXPIRED {
                granted += now - began;
            }
        }
    }
    let most = (now - begun) / 4 + 16 * LIMITS.max_extend;
    assert!(granted <= most * 11 / 10, "{granted} of {most}");
    assert!(granted >= most / 2, "{granted} of {most}");
}

#[test]
fn a_sleeper_preempts_and_a_hog_does_not() {
    let even = Queue { vtime: 10 * S, first: 10 * S };
    let running = Thread { vtime: 10 * S, weight: 100, began: S, ..Thread::default() };
    let weighs_and_preempts_in = |weight: u64, queue: &Queue, vtime: u64, after: u64| {
        let mut woken = Thread { vtime, weight, ..Thread::default() };
        let none = std::ptr::null();
        // SAFETY: all point to values of their types; no group.
        unsafe {
            guard_place(&mut woken, none, queue, 0, 0, 100, 1, 0, &LIMITS);
            guard_preempts_in(&woken, &running, none, S + after, &LIMITS)
        }
    };
    let preempts_in =
        |queue: &Queue, vtime: u64, after: u64| weighs_and_preempts_in(100, queue, vtime, after);
    let preempts = |queue: &Queue, vtime: u64, after: u64| preempts_in(queue, vtime, after) == 0;
    assert!(preempts(&even, 0, 100 * US), "it slept for long");
    assert_eq!(weighs_and_preempts_in(5000, &even, 0, 100 * US), 0, "it weighs a lot");
    assert!(!preempts(&even, 10 * S + 5 * MS, MS), "it had its share");
    assert!(preempts(&even, 10 * S, 2 * MS), "the other has run for longer");
    let passed_over = Queue { vtime: 10 * S + 9 * MS, first: 10 * S };
    assert!(preempts(&passed_over, 0, 100 * US), "it is placed before the first of the queue");
    for (vtime, after) in [(10 * S, 0), (10 * S + MS, MS), (10 * S + 5 * MS, MS)] {
        let left = preempts_in(&even, vtime, after);
        assert!(left > MS / 2 && left < 10 * MS, "{left}");
        assert!(preempts(&even, vtime, after + left), "that is when it preempts");
        assert!(!preempts(&even, vtime, after + left - US), "and not earlier");
    }
}

#[test]
fn both_kinds_of_threads_have_their_part_of_a_cpu() {
    let mut kinds = Kinds::default();
    let mut ran = [0u64; 2];
    for _ in 0..10_000 {
        // SAFETY: points to a value of its type.
        let kind = unsafe { guard_kind(&kinds) };
        ran[kind as usize] += MS;
        let count = if kind == 0 { 300 } else { 100 };
        // SAFETY: all point to values of their types.
        unsafe { guard_served(&mut kinds, kind, MS, count, &LIMITS) };
    }
    assert_share(ran[0], 7_500 * MS, 0.02, "three threads of four");
    // Only one kind has something to run for a while: the other gains a slice, no more.
    for _ in 0..10_000 {
        // SAFETY: all point to values of their types.
        unsafe { guard_served(&mut kinds, 0, MS, 100, &LIMITS) };
    }
    assert!(kinds.served[0] - kinds.served[1] <= LIMITS.slice);
    // So it runs at once when it comes, and not the other way round.
    let preempts_in = |kind, ran, turn| {
        // SAFETY: as above.
        unsafe { guard_kind_preempts_in(&kinds, kind, ran, turn, &LIMITS) }
    };
    assert_eq!([0, 1].map(|kind| preempts_in(kind, 0, 2 * MS)), [u64::MAX, 0]);
    assert_eq!(preempts_in(0, 2 * LIMITS.slice, 0), 0, "the other has run for long since");
    assert_eq!(preempts_in(0, LIMITS.slice, MS), LIMITS.slice / 2 - MS, "half a slice is left");
}
