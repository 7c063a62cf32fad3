// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the part of the scheduler's policy that is about woken threads: one CPU, whose threads
//! may run elsewhere as well (kind 0, the queue of a domain) or there only (kind 1, its own queue).

use super::policy_tests::{
    Kinds, LIMITS, Limits, MS, NORMAL, Queue, Random, S, Thread, US, guard_begin, guard_charge,
    guard_kind, guard_kind_preempts_in, guard_left, guard_may_lead, guard_place, guard_preempts_in,
    guard_served, guard_settles, guard_start, guard_turn,
};
use std::ptr::null_mut;

/// What a thread does.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    Computes,
    /// It runs for 20 us, wakes this thread and sleeps.
    Wakes(usize),
    /// It runs for 50 us and sleeps for 1 to 10 ms.
    Naps,
    /// It is bound to this CPU, computes for so many turns, and is bound elsewhere for 0.1 s.
    Hops(u64),
}

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Waits,
    Runs,
    Sleeps(u64),
}

struct Actor {
    thread: Thread,
    kind: usize,
    /// The virtual time of its queue when it came or left.
    came_at: u64,
    habit: Habit,
    doing: Doing,
    waits_since: u64,
    sleeps_at: u64,
    ran: u64,
    turns: u64,
    waited: u64,
    longest_wait: u64,
    /// Of more than half a slice.
    long_waits: u64,
}

const STEP: u64 = 10 * US;

struct Cpu {
    now: u64,
    queues: [Queue; 2],
    kinds: Kinds,
    actors: Vec<Actor>,
    runs: Option<usize>,
    turn: u64,
    slice: u64,
    woken: Option<usize>,
    random: Random,
}

impl Cpu {
    fn new(threads: &[(usize, Habit)]) -> Cpu {
        let now = 1000 * S;
        let actors = threads.iter().map(|&(kind, habit)| Actor {
            thread: Thread { weight: 100, ..Thread::default() },
            kind,
            came_at: 0,
            habit,
            doing: Doing::Sleeps(now),
            waits_since: now,
            sleeps_at: u64::MAX,
            ran: 0,
            turns: 0,
            waited: 0,
            longest_wait: 0,
            long_waits: 0,
        });
        Cpu {
            now,
            queues: Default::default(),
            kinds: Kinds::default(),
            actors: actors.collect(),
            runs: None,
            turn: now,
            slice: LIMITS.slice,
            woken: None,
            random: Random(7),
        }
    }

    /// Who waits in the queue of that kind, in order.
    fn waiting(&self, kind: usize) -> Vec<usize> {
        let waits = |&actor: &usize| {
            self.actors[actor].doing == Doing::Waits && self.actors[actor].kind == kind
        };
        let mut queue: Vec<usize> = (0..self.actors.len()).filter(waits).collect();
        queue.sort_by_key(|&actor| self.actors[actor].thread.vtime as i64);
        queue
    }

    fn enqueue(&mut self, actor: usize) {
        let alone = self.waiting(1).is_empty();
        let one = &mut self.actors[actor];
        let mut woken = i32::from(matches!(one.doing, Doing::Sleeps(_)));
        if matches!(one.habit, Habit::Hops(_)) {
            // Its first turn is one of the domain's queue. It keeps its distance from the virtual
            // time of what it comes from, and a change of CPUs gives no credit.
            let kind = usize::from(woken == 0);
            let ahead = one.thread.vtime.wrapping_sub(one.came_at);
            one.thread.vtime = self.queues[kind].vtime.wrapping_add(ahead);
            one.came_at = self.queues[kind].vtime;
            let moves = one.kind == 0 && kind == 1;
            (one.kind, woken) = (kind, 0);
            if moves && alone {
                // SAFETY: as below.
                unsafe { guard_settles(&mut self.kinds, 1) };
            }
        }
        let queue = &self.queues[one.kind];
        // SAFETY: all point to values of their types; no group.
        unsafe { guard_place(&mut one.thread, null_mut(), queue, 0, 0, 400, woken, 0, &LIMITS) };
        one.doing = Doing::Waits;
        one.waits_since = self.now;
        if woken != 0 {
            self.preempt(actor);
        }
    }

    /// As `preempt` of the scheduler's glue.
    fn preempt(&mut self, woken: usize) {
        let Some(runs) = self.runs else { return };
        let (one, running) = (&self.actors[woken], &self.actors[runs]);
        let ran = self.now - self.turn;
        let left = if ran >= self.slice {
            0
        } else if one.kind == running.kind {
            let none = null_mut();
            // SAFETY: as in `enqueue`.
            unsafe { guard_preempts_in(&one.thread, &running.thread, none, self.now, &LIMITS) }
        } else {
            let scaled = ran * 100 / self.count(running.kind);
            let kind = one.kind as u32;
            // SAFETY: as in `enqueue`.
            unsafe { guard_kind_preempts_in(&self.kinds, kind, scaled, ran, &LIMITS) }
        };
        if left != u64::MAX {
            self.woken = Some(woken);
            self.slice = self.slice.min(ran + left);
        }
    }

    /// How many of the kind that runs this CPU has, in hundredths.
    fn count(&self, kind: usize) -> u64 {
        100 * (1 + self.waiting(kind).len() as u64)
    }

    /// The thread that runs leaves the CPU.
    fn stop(&mut self) -> usize {
        let actor = self.runs.take().unwrap();
        let kind = self.actors[actor].kind;
        let one = &mut self.actors[actor];
        // SAFETY: as in `enqueue`.
        let ran = unsafe { guard_charge(&mut one.thread, null_mut(), NORMAL, self.now) };
        one.ran += ran;
        let count = self.count(kind);
        // SAFETY: as in `enqueue`.
        unsafe { guard_served(&mut self.kinds, kind as u32, ran, count, &LIMITS) };
        actor
    }

    /// As `pick` of the scheduler's glue.
    fn pick(&mut self) {
        let queues = [self.waiting(0), self.waiting(1)];
        let woken = self.woken.take().filter(|&actor| self.actors[actor].doing == Doing::Waits);
        let leads = woken.filter(|&actor| {
            let one = &self.actors[actor];
            let first = &self.actors[queues[one.kind][0]].thread;
            let other = i32::from(!queues[1 - one.kind].is_empty());
            let kind = one.kind as u32;
            // SAFETY: as in `enqueue`.
            unsafe { guard_may_lead(&one.thread, first, &self.kinds, kind, other, &LIMITS) != 0 }
        });
        // SAFETY: as in `enqueue`.
        let kind = unsafe { guard_kind(&self.kinds) } as usize;
        let in_turn = || queues[kind].first().or(queues[1 - kind].first()).copied();
        let Some(next) = leads.or_else(in_turn) else { return };
        let one = &mut self.actors[next];
        let early = i32::from(queues[one.kind][0] != next);
        // SAFETY: as in `enqueue`.
        unsafe {
            guard_start(&mut self.queues[one.kind], &one.thread, early);
            guard_begin(&mut one.thread, null_mut(), self.now);
        }
        one.doing = Doing::Runs;
        let waited = self.now - one.waits_since;
        one.turns += 1;
        one.waited += waited;
        one.longest_wait = one.longest_wait.max(waited);
        one.long_waits += u64::from(waited > LIMITS.slice / 2 + 2 * STEP);
        one.sleeps_at = match one.habit {
            Habit::Computes | Habit::Hops(_) => u64::MAX,
            Habit::Wakes(_) => self.now + 20 * US,
            Habit::Naps => self.now + 50 * US,
        };
        (self.runs, self.turn, self.slice) = (Some(next), self.now, LIMITS.slice);
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            for actor in 0..self.actors.len() {
                if matches!(self.actors[actor].doing, Doing::Sleeps(until) if until <= self.now) {
                    self.enqueue(actor);
                }
            }
            if let Some(actor) = self.runs {
                if self.actors[actor].sleeps_at <= self.now {
                    if let Habit::Wakes(other) = self.actors[actor].habit {
                        if matches!(self.actors[other].doing, Doing::Sleeps(_)) {
                            self.enqueue(other);
                        }
                    }
                    let until = match self.actors[actor].habit {
                        Habit::Naps => self.now + MS + self.random.below(9 * MS),
                        Habit::Computes | Habit::Wakes(_) | Habit::Hops(_) => u64::MAX,
                    };
                    self.stop();
                    self.actors[actor].doing = Doing::Sleeps(until);
                } else if self.now - self.turn >= self.slice {
                    self.stop();
                    let one = &mut self.actors[actor];
                    one.came_at = self.queues[one.kind].vtime;
                    match one.habit {
                        Habit::Hops(turns) if one.turns % turns == 0 => {
                            one.doing =
                                Doing::Sleeps(self.now + 50 * MS + self.random.below(100 * MS));
                        }
                        _ => self.enqueue(actor),
                    }
                }
            }
            if self.runs.is_none() {
                self.pick();
            }
        }
    }

    /// What threads that always compute had, and for how long one of them waited at most.
    fn computed(&self) -> (u64, u64) {
        let all = self.actors.iter().filter(|actor| actor.habit == Habit::Computes);
        let waits = all.clone().map(|actor| actor.longest_wait);
        (all.map(|actor| actor.ran).sum(), waits.max().unwrap_or(0))
    }
}

/// Each runs next whenever the other sleeps, if nobody asks what they had.
#[test]
fn threads_that_wake_each_other_leave_others_their_share() {
    for (pair, others) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut cpu = Cpu::new(&[
            (pair, Habit::Wakes(1)),
            (pair, Habit::Wakes(0)),
            (others, Habit::Computes),
            (others, Habit::Computes),
        ]);
        cpu.run(30 * S);
        let (ran, waited) = cpu.computed();
        let all = format!("pair of kind {pair}, others of kind {others}: {ran} ns, {waited} ns");
        // The pair runs one at a time, so it counts as one thread or as two.
        assert!((45..=70).contains(&(ran * 100 / (30 * S))), "{all}");
        assert!(waited <= 20 * LIMITS.slice, "{all}");
    }
}

/// Else it would have nearly a whole CPU of a host of many, each of which gives credit to threads
/// that are bound to it.
#[test]
fn who_is_bound_to_one_cpu_after_another_has_no_more_than_its_share() {
    for (turns, shared, own) in [(1, 4, 0), (2, 4, 0), (3, 4, 0), (1, 4, 2), (2, 4, 2)] {
        let hogs = std::iter::repeat_n((0, Habit::Computes), shared)
            .chain(std::iter::repeat_n((1, Habit::Computes), own));
        let threads: Vec<_> = std::iter::once((0, Habit::Hops(turns))).chain(hogs).collect();
        let mut cpu = Cpu::new(&threads);
        cpu.run(30 * S);
        let Actor { ran, waited, turns: had, .. } = cpu.actors[0];
        let share = 100 * ran / (ran + waited);
        let due = 100 / (1 + shared + own) as u64;
        let what = format!("{turns} turns beside {shared} and {own}: {share} %, {due} % are due");
        // Where it comes between two rounds of those that wait, it gains half a round.
        assert!(had > 100 && (due / 2..=due * 2).contains(&share), "{what}");
    }
}

/// A round takes as long as with four threads, until turns are so short that each is hardly worth
/// its switch.
#[test]
fn turns_are_shorter_where_many_compete() {
    let turn = |threads: u64, slice| {
        let limits = Limits { slice, ..LIMITS };
        // SAFETY: `limits` is valid for the call.
        unsafe { guard_turn(threads * 100, &limits) }
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
    // One that is chosen shorter than that stays.
    assert_eq!([1, 1000].map(|threads| turn(threads, MS / 2)), [MS / 2; 2]);
    // Half a thread: one that may run elsewhere, too.
    // SAFETY: `LIMITS` is valid for the call.
    assert!(unsafe { guard_turn(450, &LIMITS) } < LIMITS.slice);
}

/// Whoever changes its CPUs or its niceness all the time has one turn for that.
#[test]
fn what_is_left_of_a_turn_ends() {
    let grace = 100 * US;
    let mut used = 0;
    while used < LIMITS.slice + grace {
        // SAFETY: no pointers.
        let left = unsafe { guard_left(LIMITS.slice, used, grace) };
        assert!(left > 0 && left <= LIMITS.slice + grace - used, "{left} of {used}");
        used += left.min(7 * US);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { guard_left(LIMITS.slice, used + S, grace) }, 1);
}

#[test]
fn who_naps_hardly_ever_waits_for_more_than_half_a_slice() {
    for (napper, shared, own) in [(0, 3, 2), (1, 3, 2), (0, 1, 1), (0, 4, 0), (1, 0, 4)] {
        let hogs = std::iter::repeat_n((0, Habit::Computes), shared)
            .chain(std::iter::repeat_n((1, Habit::Computes), own));
        let threads: Vec<_> = std::iter::once((napper, Habit::Naps)).chain(hogs).collect();
        let mut cpu = Cpu::new(&threads);
        cpu.run(30 * S);
        let Actor { turns, longest_wait, long_waits, .. } = cpu.actors[0];
        let what = format!(
            "napper of kind {napper} beside {shared} and {own}: {long_waits} of {turns}, \
             {longest_wait} ns"
        );
        // Now and then its kind has had more than the other.
        assert!(turns > 1000 && long_waits <= turns / 100, "{what}");
        assert!(longest_wait <= 2 * LIMITS.slice, "{what}");
        let (ran, _) = cpu.computed();
        assert!(ran >= 30 * S * 98 / 100, "{what}, others ran {ran} ns");
    }
}
