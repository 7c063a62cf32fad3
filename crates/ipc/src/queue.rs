// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that wait for an object to change.
//!
//! A waiter puts its own place into the object's queue, with what it wants, and sleeps. Who changes
//! the object *pokes* those whose wish may come true, first come first; each wakes up, takes the
//! object's lock and tries again. A poke is a hint: one that went to a thread that died costs
//! another waiter time, not its turn, because all waiters look for themselves now and then.
//!
//! Before it sleeps a waiter spins a little if it has reason to think that whoever will poke it
//! runs on another CPU, as the last one that did; the less the more often that was in vain.

use crate::error::{CORRUPT, Errno, Result};
use crate::peers::{Local, thread_dead};
use crate::signals::{handled, put_off};
use crate::space::layout::*;
use crate::sys;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// In a waiter's status.
pub(crate) const WAITING: u32 = 1;
const SPINNING: u32 = 2;
const POKED: u32 = 3;
pub(crate) const REMOVED: u32 = 4;

/// Waiters look for themselves at first after this time, then ever less often.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_millis(500);
/// As long as somebody may die whose death changes the object.
const LAST_LOOK_AT_THE_DEAD: Duration = Duration::from_millis(40);

/// Loads of a status, with a pause each, before sleeping: about ten microseconds.
const SPINS: u32 = 640;
/// Waits without spinning after one that span in vain: at first one, twice as many each time. On a
/// busy CPU spinning costs the time slice that a sleeper would have left.
const MOST_SKIPPED: u32 = 1023;

#[repr(C)]
pub(crate) struct Queue {
    pub first: AtomicU64,
    pub last: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Queue {}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// It is worth another try.
    Again,
    TimedOut,
    Signal,
}

/// What a wait has gone through so far.
pub(crate) struct Wait {
    deadline: Option<Duration>,
    pub began: Option<Duration>,
    look: Duration,
    /// Signal handlers that had run when the call began.
    handled: u32,
    /// Sleeps that ended with a poke.
    pub pokes: u32,
}

impl Wait {
    pub fn until(deadline: Option<Duration>) -> Wait {
        Wait { deadline, began: None, look: FIRST_LOOK, handled: handled(), pokes: 0 }
    }
}

impl Local {
    /// Puts this thread at the end of a queue. Not committed.
    pub fn enqueue(&self, queue: &Queue, object: u64, want: [u64; 2]) -> Result<()> {
        let (thread, last) = (self.thread, queue.last.load(Relaxed));
        thread.want[0].store(want[0], Relaxed);
        thread.want[1].store(want[1], Relaxed);
        self.set(&thread.next, 0)?;
        self.set(&thread.previous, last)?;
        self.set(&thread.queue, self.space.offset_of(queue))?;
        match last {
            0 => self.set(&queue.first, self.number.into())?,
            _ => self.set(&self.space.thread(last)?.next, self.number.into())?,
        }
        self.set(&queue.last, self.number.into())?;
        self.set(&thread.waits_on, object)
    }

    /// Takes a thread out of the queue that it is in. Not committed.
    pub fn dequeue(&self, queue: &Queue, number: u64) -> Result<()> {
        let thread = self.space.thread(number)?;
        let (next, previous) = (thread.next.load(Relaxed), thread.previous.load(Relaxed));
        match previous {
            0 => self.set(&queue.first, next)?,
            _ => self.set(&self.space.thread(previous)?.next, next)?,
        }
        match next {
            0 => self.set(&queue.last, previous)?,
            _ => self.set(&self.space.thread(next)?.previous, previous)?,
        }
        self.set(&thread.waits_on, 0)
    }

    /// Whether this thread is in a queue of that object.
    pub fn waits_on(&self, object: u64) -> bool {
        self.thread.waits_on.load(Relaxed) == object
    }

    /// The living threads in a queue, first come first; the dead are taken out.
    pub fn waiters(
        &self,
        queue: &Queue,
        object: u64,
        mut each: impl FnMut(u64, &'static Thread) -> bool,
    ) -> Result<()> {
        let mut number = queue.first.load(Relaxed);
        for _ in 0..=MAX_THREADS {
            if number == 0 {
                return Ok(());
            }
            let thread = self.space.thread(number)?;
            if thread.waits_on.load(Relaxed) != object {
                break;
            }
            let next = thread.next.load(Relaxed);
            if u64::from(self.number) != number && thread_dead(self.space, thread) {
                let uncommitted = self.thread.changes.load(Relaxed);
                self.dequeue(queue, number)?;
                if uncommitted == 0 {
                    self.commit();
                }
            } else if !each(number, thread) {
                return Ok(());
            }
            number = next;
        }
        if number == 0 { Ok(()) } else { Err(CORRUPT) }
    }

    /// Pokes a waiter; the return value is for [`wake`]. Under the object's lock.
    pub fn poke(&self, thread: &Thread) -> bool {
        thread.poker.store(sys::current_cpu() + 1, Relaxed);
        thread.status.swap(POKED, AcqRel) == WAITING
    }

    /// Whether a waiter was poked and has not looked yet.
    pub fn is_poked(&self, thread: &Thread) -> bool {
        thread.status.load(Relaxed) == POKED
    }

    /// Tells all waiters that the object is gone. Each is a transaction.
    pub fn expel(&self, queue: &Queue, object: u64) -> Result<()> {
        for _ in 0..=MAX_THREADS {
            let number = queue.first.load(Relaxed);
            if number == 0 {
                return Ok(());
            }
            let thread = self.space.thread(number)?;
            if thread.waits_on.load(Relaxed) != object {
                return Err(CORRUPT);
            }
            self.dequeue(queue, number)?;
            self.commit();
            if thread.status.swap(REMOVED, AcqRel) == WAITING {
                wake(thread);
            }
        }
        Err(CORRUPT)
    }

    /// Before the object's lock is released for a wait: pokes count from here on.
    pub fn prepare(&self) {
        let poker = self.thread.poker.load(Relaxed);
        let elsewhere = poker != 0 && poker != sys::current_cpu() + 1;
        let skip = self.skip.get();
        self.skip.set(skip.saturating_sub(1));
        let spins = elsewhere && skip == 0 && self.spins;
        self.thread.status.store(if spins { SPINNING } else { WAITING }, Release);
    }

    /// Waits for a poke. Outside of sections, without locks. `dying`: somebody's death might change
    /// the object.
    pub fn wait(&self, wait: &mut Wait, dying: bool) -> Woken {
        let status = &self.thread.status;
        let began = wait.handled;
        if status.load(Relaxed) == SPINNING {
            for _ in 0..SPINS {
                if status.load(Acquire) != SPINNING {
                    // It paid.
                    self.skipped.set(self.skipped.get() / 2);
                    wait.pokes += 1;
                    return Woken::Again;
                }
                std::hint::spin_loop();
            }
            self.skipped.set((self.skipped.get() * 2 + 1).min(MOST_SKIPPED));
            self.skip.set(self.skipped.get());
            if status.compare_exchange(SPINNING, WAITING, AcqRel, Acquire).is_err() {
                wait.pokes += 1;
                return Woken::Again;
            }
        }
        let now = sys::monotonic();
        wait.began.get_or_insert(now);
        let left = wait.deadline.map(|deadline| deadline.saturating_sub(now));
        if left.is_some_and(|left| left.is_zero()) {
            return Woken::TimedOut;
        }
        let look = if dying { wait.look.min(LAST_LOOK_AT_THE_DEAD) } else { wait.look };
        let time = left.map_or(look, |left| left.min(look));
        // One that came earlier in the call is blocked until the call ends.
        let came = || handled() != began || put_off();
        let error = if came() { 0 } else { sys::futex_wait(status, WAITING, time) };
        let signal = error == libc::EINTR || came();
        match status.load(Acquire) {
            POKED | REMOVED => {
                wait.pokes += 1;
                Woken::Again
            }
            _ if signal => Woken::Signal,
            _ => {
                if error == libc::ETIMEDOUT {
                    wait.look = (wait.look * 2).min(LAST_LOOK);
                }
                Woken::Again
            }
        }
    }
}

/// Wakes a waiter that sleeps. After the object's lock has been released.
pub(crate) fn wake(thread: &Thread) {
    sys::futex_wake(&thread.status, 1);
}

/// Waiters to be woken once the lock has been released: so many at a time.
pub(crate) struct Wakes<'l> {
    threads: [Option<&'l Thread>; 16],
    count: usize,
}

impl<'l> Wakes<'l> {
    pub fn new() -> Wakes<'l> {
        Wakes { threads: [None; 16], count: 0 }
    }

    pub fn push(&mut self, thread: &'l Thread) {
        if self.count == self.threads.len() {
            // Early, which only costs the waiter a moment at the lock.
            return wake(thread);
        }
        self.threads[self.count] = Some(thread);
        self.count += 1;
    }

    pub fn wake(&mut self) {
        self.threads[..self.count].iter_mut().filter_map(Option::take).for_each(wake);
        self.count = 0;
    }
}

/// What ends a wait without success.
pub(crate) fn failure(woken: Woken) -> Option<Errno> {
    match woken {
        Woken::Again => None,
        Woken::TimedOut => Some(Errno(libc::EAGAIN)),
        Woken::Signal => Some(Errno(libc::EINTR)),
    }
}
