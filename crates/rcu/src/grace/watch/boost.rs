// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boost: a grace period that waits for preempted plain readers has them scheduled.
//!
//! A reader that was preempted in a plain section needs a microsecond of CPU time, and waits until
//! the scheduler gives it a CPU: tens of milliseconds on a busy machine. The leader, once it has
//! looked for longer than a running section takes, makes itself `SCHED_FIFO` of priority 2 and all
//! laggards `SCHED_FIFO` of priority 1, [`AT_ONCE`] at a time, and gives each its old policy back
//! as soon as it sees it out of its section. Its priority is higher than theirs, so it can preempt
//! a laggard on its own CPU, too. Unlocking costs readers nothing.
//!
//! # What it takes
//! `CAP_SYS_NICE`, or `RLIMIT_RTPRIO` of 2 or more; and where the kernel accounts real-time CPU
//! time per cgroup (v1), a budget. Hence off by default.
//!
//! # What it cannot do to others
//! A boosted reader may displace other programs. It does so for [`EACH`] at most times the laggards
//! that are boosted at a time, once per wait: then these have their policy back, section over or
//! not (a reader that blocks, or computes for long, is not waiting for a CPU), and the next are
//! boosted. The kernel's limit on real-time threads (`sched_rt_runtime_us`) applies. A policy that
//! the program itself changes meanwhile is left alone. What a thread creates while it is raised is
//! not raised (`SCHED_FLAG_RESET_ON_FORK`). Only `CAP_SYS_NICE` may take that flag away again:
//! without it a thread that was raised once keeps the flag, which tells on children of threads with
//! a real-time policy or a negative nice value only.
//!
//! Threads are named by id. A reader that exits while it is raised needs nothing restored. The
//! leader would give a wrong policy only to a thread that gets the same id within that time (the
//! kernel would have to go through all ids in 13 ms at most) and that has chosen the same policy,
//! priority and flag for itself.
//!
//! # What does not help
//! Tried, and measured with 16 and 64 spinning readers on 2 CPUs; `docs/runtime.md` has the
//! figures. A priority-inheriting futex whose owner is the laggard gives it the leader's *own*
//! priority, so the leader cannot take the CPU back, and gives nothing at all unless the leader is
//! real-time. A better nice value or a shorter slice changes a laggard's share, not its turn.
//! Moving laggards to the leader's CPU moves the queue.

use crate::platform::Instant;
use crate::platform::sys;
use crate::thread::record::Record;
use crate::thread::registry::Registry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a reader may be at real-time priority, on average.
const EACH: Duration = Duration::from_micros(200);
/// Laggards that are boosted at a time.
const AT_ONCE: usize = 64;
/// Looks between two naps. A laggard on the leader's own CPU runs when the leader naps.
const LOOKS: u32 = 20;
const NAP: Duration = Duration::from_micros(5);

const READERS: u32 = 1;
const LEADER: u32 = 2;

#[derive(Default)]
pub(crate) struct Boost {
    on: AtomicBool,
    /// Readers boosted.
    pub(crate) count: AtomicU64,
}

impl Boost {
    pub(super) fn new(on: bool) -> Boost {
        Boost { on: AtomicBool::new(on), count: AtomicU64::new(0) }
    }

    /// Turns it on or off. False if the system does not allow it.
    pub(crate) fn set(&self, on: bool) -> bool {
        let possible = !on || Raised::this_thread().is_some();
        self.on.store(on && possible, Ordering::Relaxed);
        possible
    }

    /// A leader has waited longer than a section takes. It does not wait beyond `deadline`.
    pub(super) fn help(&self, registry: &Registry, deadline: Option<Instant>) {
        if self.on.load(Ordering::Relaxed) && !self.help_all(registry, deadline) {
            // Not allowed, or not any more: do not try again.
            self.on.store(false, Ordering::Relaxed);
        }
    }

    /// False if the system does not allow it.
    fn help_all(&self, registry: &Registry, deadline: Option<Instant>) -> bool {
        let Some(_leader) = Raised::this_thread() else {
            // An ordinary leader may be allowed what is refused to another one.
            return Attributes::of(0).is_some_and(|own| !own.is_ordinary());
        };
        let waited = |r: &&Record| r.awaited() && !r.passed() && r.left_behind().is_none();
        // Each record comes once, so that one who stays in its section is not boosted again.
        let mut laggards = registry.records().filter(waited);
        let mut allowed = true;
        while allowed && deadline.is_none_or(|d| Instant::now() < d) {
            let Some(first) = laggards.next() else { break };
            let group = std::iter::once(first).chain(laggards.by_ref().take(AT_ONCE - 1));
            allowed = self.help_some(group, deadline);
        }
        allowed
    }

    /// The same for some of the laggards.
    fn help_some<'a>(
        &self,
        laggards: impl Iterator<Item = &'a Record>,
        deadline: Option<Instant>,
    ) -> bool {
        let start = Instant::now();
        let mut refused = false;
        let mut boosted: Vec<(&Record, Raised)> = Vec::new();
        for record in laggards {
            match Raised::reader(record.owner()) {
                Ok(raised) => boosted.extend(raised.map(|raised| (record, raised))),
                Err(NotAllowed) => refused = true,
            }
        }
        self.count.fetch_add(boosted.len() as u64, Ordering::Relaxed);
        let end = start + EACH * boosted.len() as u32;
        let end = deadline.map_or(end, |deadline| end.min(deadline));
        let mut looks = 0;
        while !boosted.is_empty() && Instant::now() < end {
            boosted.retain(|(record, _)| !record.passed());
            looks += 1;
            if looks > LOOKS {
                sys::sleep(NAP);
            }
        }
        !refused
    }
}

struct NotAllowed;

/// A thread at real-time priority; when dropped it has its old policy again.
struct Raised {
    thread: u32,
    /// `None`: it had such a priority before.
    old: Option<Attributes>,
    priority: u32,
}

impl Raised {
    /// The leader. `None` if it is not allowed.
    fn this_thread() -> Option<Raised> {
        let old = Attributes::of(0)?;
        if old.is_fair() {
            let priority = LEADER;
            let raised = Attributes::fifo(priority).set(0);
            return raised.then_some(Raised { thread: 0, old: Some(old), priority });
        }
        (old.policy == DEADLINE || old.priority >= LEADER).then_some(Raised {
            thread: 0,
            old: None,
            priority: 0,
        })
    }

    /// A laggard. `Ok(None)`: it has exited, or has a real-time policy of its own, or it is
    /// `SCHED_IDLE`, which a thread may not leave without `CAP_SYS_NICE` or `RLIMIT_NICE`.
    fn reader(thread: u32) -> Result<Option<Raised>, NotAllowed> {
        // An exiting reader has no id any more, and 0 would be this thread.
        let Some(old) = (thread != 0).then(|| Attributes::of(thread)).flatten() else {
            return Ok(None);
        };
        if !old.is_fair() {
            return Ok(None);
        }
        if Attributes::fifo(READERS).set(thread) {
            return Ok(Some(Raised { thread, old: Some(old), priority: READERS }));
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ESRCH) => Ok(None),
            _ if !old.is_ordinary() => Ok(None),
            _ => Err(NotAllowed),
        }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let Some(old) = &self.old else {
            return;
        };
        // Only if the policy is still the one that we set.
        let (now, ours) = (Attributes::of(self.thread), Attributes::fifo(self.priority));
        let same = |a: Attributes| {
            (a.policy, a.priority, a.flags & RESET_ON_FORK)
                == (ours.policy, ours.priority, ours.flags)
        };
        if now.is_some_and(same) && !old.set(self.thread) {
            // Without the capability: it keeps the flag, and loses the priority.
            Attributes { flags: old.flags | RESET_ON_FORK, ..*old }.set(self.thread);
        }
    }
}

const OTHER: u32 = libc::SCHED_OTHER as u32;
const FIFO: u32 = libc::SCHED_FIFO as u32;
const BATCH: u32 = libc::SCHED_BATCH as u32;
const IDLE: u32 = libc::SCHED_IDLE as u32;
const DEADLINE: u32 = libc::SCHED_DEADLINE as u32;
/// Children begin with an ordinary policy.
const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;

/// The kernel's `struct sched_attr`, first version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;

impl Attributes {
    fn fifo(priority: u32) -> Attributes {
        let flags = RESET_ON_FORK;
        Attributes { size: SIZE, policy: FIFO, flags, priority, ..Attributes::default() }
    }

    fn of(thread: u32) -> Option<Attributes> {
        let mut attributes = Attributes::default();
        // SAFETY: the kernel writes SIZE bytes at most.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, SIZE, 0) };
        attributes.size = SIZE;
        (result == 0).then_some(attributes)
    }

    fn set(&self, thread: u32) -> bool {
        // SAFETY: reads `size` bytes.
        unsafe { libc::syscall(libc::SYS_sched_setattr, thread, self as *const Attributes, 0) == 0 }
    }

    fn is_fair(&self) -> bool {
        self.is_ordinary() || self.policy == IDLE
    }

    fn is_ordinary(&self) -> bool {
        matches!(self.policy, OTHER | BATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_thread_gets_its_policy_back() {
        std::thread::spawn(|| {
            let before = Attributes::of(0).unwrap();
            let nicer = Attributes { policy: BATCH, nice: before.nice.max(3), ..before };
            assert!(nicer.set(0));
            let Some(raised) = Raised::this_thread() else {
                println!("no real-time priority allowed here: skipped");
                return;
            };
            let during = Attributes::of(0).unwrap();
            assert_eq!((during.policy, during.priority), (FIFO, LEADER));
            drop(raised);
            let after = Attributes::of(0).unwrap();
            assert_eq!((after.policy, after.nice, after.priority), (BATCH, nicer.nice, 0));
            // Changed by somebody else meanwhile: stays so.
            let raised = Raised::this_thread();
            assert!(Attributes { policy: IDLE, ..before }.set(0));
            drop(raised);
            assert_eq!(Attributes::of(0).unwrap().policy, IDLE);
        })
        .join()
        .unwrap();
    }

    /// Children of a raised thread do not keep the priority, if the program does not want it so.
    #[test]
    fn children_of_a_raised_thread_are_ordinary() {
        for flags in [0, RESET_ON_FORK] {
            std::thread::spawn(move || {
                let before = Attributes { flags, ..Attributes::of(0).unwrap() };
                assert!(before.set(0));
                let child = || {
                    let attributes = std::thread::spawn(|| Attributes::of(0).unwrap());
                    attributes.join().unwrap()
                };
                let Some(raised) = Raised::this_thread() else {
                    println!("no real-time priority allowed here: skipped");
                    return;
                };
                let (own, thread) = (Attributes::of(0).unwrap(), child());
                assert_eq!((own.policy, own.priority), (FIFO, LEADER));
                assert_eq!((thread.policy, thread.priority, thread.flags), (OTHER, 0, 0));
                drop(raised);
                let after = Attributes::of(0).unwrap();
                assert_eq!((after.policy, after.flags & RESET_ON_FORK), (OTHER, flags));
                assert_eq!(child().policy, OTHER);
            })
            .join()
            .unwrap();
        }
    }

    /// More laggards than are boosted at a time, all of whom stay in their sections: each has its
    /// turn, and its policy back. Those of a leader without time have none.
    #[test]
    fn all_laggards_are_boosted_once() {
        const LAGGARDS: usize = 2 * AT_ONCE + 1;
        let (boost, registry) = (Boost::new(true), Registry::new());
        if !boost.set(true) {
            return println!("no real-time priority allowed here: skipped");
        }
        let there = std::sync::Barrier::new(LAGGARDS + 1);
        let counts = std::thread::scope(|scope| {
            for _ in 0..LAGGARDS {
                scope.spawn(|| {
                    let record = registry.claim(sys::thread_id()).unwrap();
                    record.enter();
                    let before = Attributes::of(0).unwrap();
                    there.wait();
                    there.wait();
                    record.leave();
                    assert_eq!(Attributes::of(0).unwrap().policy, before.policy);
                    record.release();
                });
            }
            there.wait();
            let waited = registry.records().filter(|r| r.look()).count() as u64;
            let help = |deadline| {
                boost.help(&registry, deadline);
                boost.count.load(Ordering::Relaxed)
            };
            let counts = [waited, help(Some(Instant::now())), help(None)];
            there.wait();
            counts
        });
        assert_eq!(counts, [LAGGARDS as u64, 0, LAGGARDS as u64]);
    }

    /// Takes `CAP_SYS_NICE` from this thread. False if it cannot.
    fn lose_the_capability() -> bool {
        let (mut header, mut sets) = ([0x2008_0522u32, 0], [[0u32; 3]; 2]);
        const SYS_NICE: u32 = 23;
        // SAFETY: plain data as the calls take it: a capability set of this thread, version 3.
        unsafe {
            let header = header.as_mut_ptr();
            let got = libc::syscall(libc::SYS_capget, header, sets.as_mut_ptr()) == 0;
            sets[0][0] &= !(1 << SYS_NICE);
            got && libc::syscall(libc::SYS_capset, header, sets.as_ptr()) == 0
        }
    }

    /// Nobody may take it out of `SCHED_IDLE` here. Others may still be helped.
    #[test]
    fn an_idle_reader_or_leader_does_not_turn_boost_off() {
        std::thread::spawn(|| {
            assert!(lose_the_capability());
            let (boost, registry) = (Boost::new(true), Registry::new());
            assert!(Attributes { policy: IDLE, ..Attributes::of(0).unwrap() }.set(0));
            assert!(Raised::reader(sys::thread_id()).is_ok());
            boost.help(&registry, None);
            assert!(boost.on.load(Ordering::Relaxed));
        })
        .join()
        .unwrap();
    }

    /// With no more than `RLIMIT_RTPRIO` it may be raised, and keeps the flag afterwards, since it
    /// may not lose it.
    #[test]
    fn without_the_capability_the_flag_stays_and_the_priority_goes() {
        std::thread::spawn(|| {
            let limit = libc::rlimit { rlim_cur: 10, rlim_max: 10 };
            // SAFETY: reads the limit. It is the process's, and allows what the tests want.
            let raised = unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &limit) == 0 };
            if !raised || !lose_the_capability() {
                println!("no real-time priority allowed here: skipped");
                return;
            }
            let raised = Raised::this_thread().expect("the limit allows it");
            assert_eq!(Attributes::of(0).unwrap().policy, FIFO);
            drop(raised);
            let after = Attributes::of(0).unwrap();
            assert_eq!((after.policy, after.priority, after.flags), (OTHER, 0, RESET_ON_FORK));
        })
        .join()
        .unwrap();
    }
}
