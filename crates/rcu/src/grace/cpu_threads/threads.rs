// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that visit CPUs: one per CPU, one set for all domains of the process. Each sleeps
//! until a round begins.
//!
//! The threads start with the first round and end when there has been none for [`IDLE`]. Nobody
//! waits for their end. There is one for each CPU that the process might use when it started. A
//! thread that did not visit its CPU in time is unbound, so that it can leave a CPU which a
//! real-time thread never gives up, and ends; that CPU is interrupted for a while.

use super::spin_detector::{DETECTOR, now};
use super::{Reached, Rounds};
use crate::platform::Instant;
use crate::platform::fork::{self, Handlers, Part};
use crate::platform::lock::Lock;
use crate::platform::{barrier, facts, sys};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long visits are waited for: longer than a time slice of a hypervisor and one of a guest.
const LONGEST: Duration = Duration::from_millis(100);
/// With more CPUs than a `cpu_set_t` has there are no visits.
const MOST: usize = 1024;
/// The threads call the kernel and nothing else.
const STACK: sys::Stack = sys::Stack::Bytes(256 << 10);
/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);
/// How long a CPU that could not be visited is interrupted instead.
const REFUSED: Duration = Duration::from_secs(10);

/// Held during a round, and by a thread that ends: so a thread id in the set is that of one of
/// ours.
static LOCK: Lock = Lock::new();
static SET: AtomicPtr<Set> = AtomicPtr::new(null_mut());

struct Set {
    rounds: Rounds,
    threads: Box<[CpuThread]>,
}

struct CpuThread {
    state: AtomicU32,
    /// Its id, once it runs.
    id: AtomicU32,
    /// Until when the CPU is not visited, in nanoseconds of the monotonic clock.
    refused: AtomicU64,
}

/// States: there is no thread; it starts, visits or sleeps; it ends.
const NONE: u32 = 0;
const LIVE: u32 = 1;
const LEAVING: u32 = 2;

/// Whether visits are cheaper now, if there are not too many CPUs.
pub(crate) fn cheaper() -> bool {
    facts::one_cpu() && DETECTOR.visits(facts::by_threads(), now())
}

/// The heavy barrier that sends restartable sections back to their start, in the cheaper way.
/// `deadline` ends visits only.
pub(crate) fn restart_sections(deadline: Option<Instant>) -> Reached {
    fork::enter(Part::CpuThreads, const { &Handlers::in_child(after_fork) });
    if cheaper() {
        if let Some(set) = Set::get() {
            let start = Instant::now();
            let end = deadline.map_or(start + LONGEST, |d| d.min(start + LONGEST));
            if LOCK.lock_for(Some(end.saturating_duration_since(start))) {
                let reached = set.visit_all(end, deadline);
                LOCK.unlock();
                DETECTOR.note_round(start.elapsed());
                return reached;
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Reached::Expired;
            }
        }
    }
    DETECTOR.measure(barrier::restart_all);
    Reached::ByInterrupts
}

/// In the child of a fork: there are no such threads, and nobody has the lock.
fn after_fork() {
    DETECTOR.after_fork();
    LOCK.reset();
    // SAFETY: never freed.
    if let Some(set) = unsafe { SET.load(Ordering::Relaxed).as_ref() } {
        set.rounds.after_fork();
        for thread in &set.threads {
            thread.id.store(0, Ordering::Relaxed);
            thread.state.store(NONE, Ordering::Relaxed);
        }
    }
}

impl Set {
    /// `None` if there are too many CPUs.
    fn get() -> Option<&'static Set> {
        let known = SET.load(Ordering::Acquire);
        // SAFETY: never freed.
        if let Some(set) = unsafe { known.as_ref() } {
            return (!set.threads.is_empty()).then_some(set);
        }
        let cpus = sys::cpu_numbers().filter(|&n| n <= MOST).unwrap_or(0);
        let thread = || CpuThread {
            state: AtomicU32::new(NONE),
            id: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        };
        let set = Box::into_raw(Box::new(Set {
            rounds: Rounds::new(cpus),
            threads: std::iter::repeat_with(thread).take(cpus).collect(),
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
        let live = |t: &CpuThread| t.state.load(Ordering::SeqCst) == LIVE;
        // A visit long ago, in a round of the same number, does not count.
        let visited = |cpu: usize| live(&self.threads[cpu]) && self.rounds.visited(cpu, round);
        let due = |cpu: usize| live(&self.threads[cpu]) && !self.rounds.visited(cpu, round);
        let all = 0..self.threads.len();
        let came = self
            .rounds
            .wait(|| !all.clone().any(due), || Some(end.saturating_duration_since(Instant::now())));
        if !came && deadline.is_some_and(|d| Instant::now() >= d) {
            return Reached::Expired;
        }
        let late = all.clone().filter(|&cpu| due(cpu));
        let late = late.map(|cpu| self.threads[cpu].refuse()).count();
        if late > 1 {
            barrier::restart_all();
            return Reached::ByInterrupts;
        }
        // The CPUs that are left. A thread may have ended just now.
        let left = all.clone().filter(|&cpu| !visited(cpu));
        let left = left.map(barrier::restart_one).count();
        let by_threads = late == 0 && left < all.len();
        if by_threads { Reached::ByThreads } else { Reached::ByInterrupts }
    }

    /// Starts threads where there are none.
    fn start(&'static self) {
        let time = now();
        let missing = |cpu: usize| {
            let thread = &self.threads[cpu];
            thread.state.load(Ordering::Relaxed) == NONE
                && thread.refused.load(Ordering::Relaxed) <= time
                && sys::usable_at_start(cpu)
        };
        for cpu in (0..self.threads.len()).filter(|&cpu| missing(cpu)) {
            let cpu_thread = &self.threads[cpu];
            cpu_thread.state.store(LIVE, Ordering::SeqCst);
            match sys::Thread::start(format_args!("reprieve-v/{cpu}"), STACK, move || {
                self.serve(cpu)
            }) {
                Some(thread) => thread.detach(),
                None => {
                    cpu_thread.refuse();
                    cpu_thread.state.store(NONE, Ordering::SeqCst);
                }
            }
        }
    }

    fn serve(&self, cpu: usize) {
        let thread = &self.threads[cpu];
        thread.id.store(sys::thread_id(), Ordering::SeqCst);
        // The leader that started it may have another policy: with that it would run after all
        // readers, or before them.
        sys::schedule_like_main();
        let target = target(cpu);
        let mut done = None;
        let mut last = Instant::now();
        loop {
            let round = self.rounds.current();
            // The state as well: it may have been refused so long ago that its CPU is visited
            // again, by another thread as soon as this one has ended.
            if thread.state.load(Ordering::SeqCst) != LIVE
                || thread.refused.load(Ordering::SeqCst) > now()
            {
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
            let here = || sys::current_cpu() == Some(target);
            // After the round was read. When its CPU is switched off, or the cpuset changes, the
            // kernel moves this thread.
            if !(here() || sys::bind(target) && here()) {
                thread.refused.store(now() + REFUSED.as_nanos() as u64, Ordering::SeqCst);
                break;
            }
            self.rounds.answer(cpu, round);
            (done, last) = (Some(round), Instant::now());
        }
        thread.state.store(LEAVING, Ordering::SeqCst);
        // Nobody waits for this visit.
        self.rounds.nudge();
        LOCK.lock();
        thread.id.store(0, Ordering::SeqCst);
        thread.state.store(NONE, Ordering::SeqCst);
        LOCK.unlock();
    }
}

impl CpuThread {
    /// Under the lock: it has not visited its CPU in time. Nobody waits for it again, and it ends
    /// as soon as it gets any CPU.
    fn refuse(&self) {
        self.state.store(LEAVING, Ordering::SeqCst);
        self.refused.store(now() + REFUSED.as_nanos() as u64, Ordering::SeqCst);
        let thread = self.id.load(Ordering::SeqCst);
        if thread != 0 {
            sys::unbind(thread);
        }
    }
}

/// Where the thread of a CPU goes: there, faults excepted.
fn target(cpu: usize) -> usize {
    #[cfg(reprieve_fault)]
    if crate::platform::fault::is(crate::platform::fault::Fault::StayAway) {
        return 0;
    }
    cpu
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that was refused gets its first CPU time when its CPU is no longer refused. It ends
    /// without a visit: nobody waits for one, and no other thread is started while it is there.
    #[test]
    fn a_refused_thread_that_comes_late_ends() {
        let thread = CpuThread {
            state: AtomicU32::new(LEAVING),
            id: AtomicU32::new(0),
            refused: AtomicU64::new(1),
        };
        let set = Set { rounds: Rounds::new(1), threads: [thread].into() };
        let round = set.rounds.begin();
        std::thread::scope(|scope| scope.spawn(|| set.serve(0)).join().unwrap());
        assert!(!set.rounds.visited(0, round));
        assert_eq!(set.threads[0].state.load(Ordering::SeqCst), NONE);
    }
}
