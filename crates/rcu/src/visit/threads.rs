// SPDX-License-Identifier: MIT OR Apache-2.0
//! The visitors: threads that sleep until a round begins, one set for all domains of the process.
//!
//! They start with the first round and end when there has been none for [`IDLE`]. Nobody waits for their end. One goes to each CPU that the process might use when
//! it started: not to those that it was kept from. One that was waited for in vain is unbound, so that it can leave a CPU which a real-time thread never gives up,
//! and ends; that CPU is interrupted for a while.

use super::judge::{self, Judge};
use super::{Reached, Rounds};
use crate::sync::Lock;
use crate::{barrier, sys};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long visits are waited for: longer than a time slice of a hypervisor and one of a guest.
const LONGEST: Duration = Duration::from_millis(100);
/// With more CPUs than this there are no visits.
const MOST: usize = 64;
/// They call the kernel and nothing else.
const STACK: usize = 256 << 10;
/// Visitors that have had nothing to do for so long end.
const IDLE: Duration = Duration::from_secs(10);
/// How long a CPU is interrupted that could not be visited.
const REFUSED: Duration = Duration::from_secs(10);

/// Held during a round, and by a visitor that gives its place up: so a thread id in the table is that of a visitor.
static LOCK: Lock = Lock::new();
static SET: AtomicPtr<Set> = AtomicPtr::new(null_mut());
/// The kernel takes the command for one CPU.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

struct Set {
    rounds: Rounds,
    visitors: Box<[Visitor]>,
}

struct Visitor {
    state: AtomicU32,
    /// Its thread's id, once it runs.
    thread: AtomicU32,
    /// No visitor goes there until then, in nanoseconds of the monotonic clock.
    refused: AtomicU64,
}

/// States: there is none; it is on its way or sleeps there; it ends.
const NONE: u32 = 0;
const LIVE: u32 = 1;
const LEAVING: u32 = 2;

/// At start-up: `one_cpu` if the membarrier has a form for one CPU.
pub(crate) fn init(one_cpu: bool) {
    POSSIBLE.store(one_cpu, Ordering::Relaxed);
}

/// Whether to visit, if there are not too many CPUs.
pub(crate) fn preferred(judge: &Judge) -> bool {
    POSSIBLE.load(Ordering::Relaxed) && judge.visits(judge::now())
}

/// The heavy barrier that restarts sections, in the cheaper way.
pub(crate) fn heavy(judge: &Judge, deadline: Option<Instant>) -> Reached {
    if preferred(judge) {
        if let Some(set) = Set::get() {
            let start = Instant::now();
            let end = deadline.map_or(start + LONGEST, |d| d.min(start + LONGEST));
            if LOCK.lock_for(Some(end.saturating_duration_since(start))) {
                let reached = set.visit_all(end, deadline);
                LOCK.unlock();
                judge.visited(start.elapsed());
                return reached;
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Reached::Expired;
            }
        }
    }
    judge.watch(barrier::restart_all);
    Reached::Interrupted
}

/// In the child of a fork: there are no visitors, and nobody has the lock.
pub(crate) fn after_fork() {
    LOCK.reset();
    // SAFETY: never freed.
    if let Some(set) = unsafe { SET.load(Ordering::Relaxed).as_ref() } {
        for visitor in &set.visitors {
            visitor.thread.store(0, Ordering::Relaxed);
            visitor.state.store(NONE, Ordering::Relaxed);
        }
    }
}

impl Set {
    /// `None` if there are too many CPUs.
    fn get() -> Option<&'static Set> {
        let known = SET.load(Ordering::Acquire);
        // SAFETY: never freed.
        if let Some(set) = unsafe { known.as_ref() } {
            return (!set.visitors.is_empty()).then_some(set);
        }
        let cpus = sys::cpu_numbers().filter(|&n| n <= MOST).unwrap_or(0);
        let visitor = || Visitor {
            state: AtomicU32::new(NONE),
            thread: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        };
        let set = Box::into_raw(Box::new(Set {
            rounds: Rounds::new(cpus),
            visitors: std::iter::repeat_with(visitor).take(cpus).collect(),
        }));
        if SET.compare_exchange(null_mut(), set, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: nobody else knows it.
            drop(unsafe { Box::from_raw(set) });
        }
        Set::get()
    }

    /// Under the lock. At least one of `end` and `deadline` is the earlier.
    fn visit_all(&'static self, end: Instant, deadline: Option<Instant>) -> Reached {
        self.start();
        let round = self.rounds.begin();
        let live = |v: &Visitor| v.state.load(Ordering::SeqCst) == LIVE;
        // One that was there long ago, in a round of the same number, is not.
        let visited = |cpu: usize| live(&self.visitors[cpu]) && self.rounds.visited(cpu, round);
        let due = |cpu: usize| live(&self.visitors[cpu]) && !self.rounds.visited(cpu, round);
        let all = 0..self.visitors.len();
        let came = self
            .rounds
            .wait(|| !all.clone().any(due), || Some(end.saturating_duration_since(Instant::now())));
        if !came && deadline.is_some_and(|d| Instant::now() >= d) {
            return Reached::Expired;
        }
        let late: Vec<usize> = all.clone().filter(|&cpu| due(cpu)).collect();
        late.iter().for_each(|&cpu| self.visitors[cpu].refuse());
        if late.len() > 1 {
            barrier::restart_all();
            return Reached::Interrupted;
        }
        // What is left, a visitor that left just now included.
        let left: Vec<usize> = all.clone().filter(|&cpu| !visited(cpu)).collect();
        left.iter().for_each(|&cpu| barrier::restart_one(cpu));
        let visits = late.is_empty() && left.len() < all.len();
        if visits { Reached::Visited } else { Reached::Interrupted }
    }

    /// Starts visitors where there are none.
    fn start(&'static self) {
        let now = judge::now();
        let wanted = |cpu: usize| {
            let visitor = &self.visitors[cpu];
            visitor.state.load(Ordering::Relaxed) == NONE
                && visitor.refused.load(Ordering::Relaxed) <= now
                && sys::usable_at_start(cpu)
        };
        for cpu in (0..self.visitors.len()).filter(|&cpu| wanted(cpu)) {
            let visitor = &self.visitors[cpu];
            visitor.state.store(LIVE, Ordering::SeqCst);
            let name = format!("reprieve-v/{cpu}");
            match sys::Thread::start(name, STACK, move || self.serve(cpu)) {
                Some(thread) => thread.detach(),
                None => {
                    visitor.refuse();
                    visitor.state.store(NONE, Ordering::SeqCst);
                }
            }
        }
    }

    fn serve(&self, cpu: usize) {
        let visitor = &self.visitors[cpu];
        visitor.thread.store(sys::thread_id(), Ordering::SeqCst);
        // As the leader that started it may not be: it would wait behind all readers, or before them.
        sys::schedule_normally();
        let place = place(cpu);
        let mut done = None;
        let mut last = Instant::now();
        loop {
            let round = self.rounds.current();
            if visitor.refused.load(Ordering::SeqCst) > judge::now() {
                break;
            }
            if done == Some(round) {
                let idle = last.elapsed();
                if idle >= IDLE {
                    break;
                }
                self.rounds.sleep(round, IDLE - idle);
                continue;
            }
            let here = || sys::current_cpu() == Some(place);
            // After the round was read. A CPU that was switched off, or a new cpuset, may have sent this thread elsewhere.
            if !(here() || sys::bind(place) && here()) {
                visitor.refused.store(judge::now() + REFUSED.as_nanos() as u64, Ordering::SeqCst);
                break;
            }
            self.rounds.answer(cpu, round);
            (done, last) = (Some(round), Instant::now());
        }
        visitor.state.store(LEAVING, Ordering::SeqCst);
        // Nobody waits for this visit.
        self.rounds.nudge();
        LOCK.lock();
        visitor.thread.store(0, Ordering::SeqCst);
        visitor.state.store(NONE, Ordering::SeqCst);
        LOCK.unlock();
    }
}

impl Visitor {
    /// Under the lock: it has not come in time. It is not waited for again, and ends as soon as it gets any CPU.
    fn refuse(&self) {
        self.state.store(LEAVING, Ordering::SeqCst);
        self.refused.store(judge::now() + REFUSED.as_nanos() as u64, Ordering::SeqCst);
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            sys::unbind(thread);
        }
    }
}

/// Where a visitor of that CPU goes: there, faults excepted.
fn place(cpu: usize) -> usize {
    #[cfg(reprieve_fault)]
    if crate::fault::is(crate::fault::Fault::StayAway) {
        return 0;
    }
    cpu
}
