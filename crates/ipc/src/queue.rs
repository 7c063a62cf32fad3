// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that wait for an object to change.
//!
//! A waiter puts its own place into the object's queue, with what it wants, and sleeps. Who changes
//! the object *pokes* those whose wish may come true, first come first; each wakes up, takes the
//! object's lock and tries again. A poke is a hint: one that went to a thread that died costs
//! another waiter time, not its turn, because all waiters look for themselves now and then. Who was
//! poked and lives pokes others for whom something is left, before it waits again or leaves: a
//! newcomer may have been quicker, or it has taken something else.
//!
//! Before it queues up a waiter looks at the object for a while, without its lock: so whoever
//! changes it has nobody to wake. What it does between the looks depends on the CPU that the last
//! poke came from:
//!
//! - another one: it spins, about as long as its last wait took, but not longer than sleeping and
//!   waking up may take. The looks become rare, so as not to hold up who works on the object.
//! - its own: it yields, which is one switch to who will help it, without a sleep and a wake-up. If
//!   that takes long, somebody else wants this CPU: no more yields then for so long that what they
//!   cost is a hundredth at most.
//!
//! The more often that was in vain, the less often it is tried.
//!
//! **Idle waiters do not look.** A waiter looks for itself in its first second only. Then it sleeps
//! on its own status and on the robust mutexes of others (`futex_waitv`): at first of those whose
//! death changes the object, then of as many threads of the namespace as the kernel takes. The
//! kernel wakes one sleeper when such a thread dies. If the dead was in a call, in a queue or has
//! adjustments, this sleeper wakes all waiters of the namespace, and each looks once. If it dies as
//! well, it was in a queue, and another one does the same. Deaths that nobody sees so (of threads
//! that registered later, of a thread that the kernel does not mark) are found once a minute.

use crate::error::{CORRUPT, Errno, Result};
use crate::ids::complete_removals;
use crate::object::Is;
use crate::peers::{FUTEX_WAITERS, Local, place, thread_dead};
use crate::signals::{Sleeping, WAITING, handled, put_off};
use crate::space::layout::*;
use crate::sys;
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// In a waiter's status, with those of `signals`.
const POKED: u32 = 3;
const REMOVED: u32 = 4;

/// Waiters look for themselves at first after this time, then ever less often.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_millis(500);
/// Idle waiters look at the same times, so that they wake a machine once.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// As long as somebody may die whose death changes the object.
const LAST_LOOK_AT_THE_DEAD: Duration = Duration::from_millis(40);

/// How long to spin, unless the last wait says more.
const SHORT: Duration = Duration::from_micros(10);
/// And at most. To wake a CPU that idles in a virtual machine takes some 50 us.
const LONG: Duration = Duration::from_micros(200);
/// Yields in a row, and what tells that the CPU went to somebody else.
const YIELDS: u32 = 2;
const JUMP: Duration = Duration::from_micros(100);
/// Pauses between two looks at the object, at most.
const PAUSES: u32 = 4;
/// Waits without that after one where it was in vain: at first one, twice as many each time. On a
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
    /// Another try is worth it.
    Again,
    TimedOut,
    Signal,
}

/// The history of a wait so far.
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
    /// Whether it has looked often enough for itself.
    pub fn is_idle(&self) -> bool {
        self.look >= LAST_LOOK && crate::signals::are_seen()
    }

    pub fn until(deadline: Option<Duration>) -> Wait {
        Wait { deadline, began: None, look: first_look(), handled: handled(), pokes: 0 }
    }
}

#[cfg(not(test))]
fn first_look() -> Duration {
    FIRST_LOOK
}

#[cfg(test)]
use tests::first_look;

impl Local {
    /// Puts this thread at the end of a queue. Not committed.
    pub fn enqueue(&self, queue: &Queue, object: u64, want: [u64; 2]) -> Result<()> {
        let (thread, last) = (self.thread, queue.last.load(Relaxed));
        thread.want[0].store(want[0], Relaxed);
        thread.want[1].store(want[1], Relaxed);
        let link = if last == 0 { &queue.first } else { &self.space.thread(last)?.next };
        self.set_all([
            (&thread.next, 0),
            (&thread.previous, last),
            (&thread.queue, self.space.offset_of(queue)),
            (link, self.number.into()),
            (&queue.last, self.number.into()),
            (&thread.waits_on, object),
        ])
    }

    /// Takes a thread out of the queue that it is in. Not committed.
    pub fn dequeue(&self, queue: &Queue, number: u64) -> Result<()> {
        let thread = self.space.thread(number)?;
        let (next, previous) = (thread.next.load(Relaxed), thread.previous.load(Relaxed));
        let neighbour = |number| self.space.thread(number);
        let before = if previous == 0 { &queue.first } else { &neighbour(previous)?.next };
        let after = if next == 0 { &queue.last } else { &neighbour(next)?.previous };
        self.set_all([(before, next), (after, previous), (&thread.waits_on, 0)])
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
            // Before the commit: after it the place may be another thread's. Who is told and still
            // in the queue, because we die here, completes the removal ([`Local::was_removed`]).
            let told = thread.status.swap(REMOVED, AcqRel);
            self.commit();
            if told != POKED {
                wake(thread);
            }
        }
        Err(CORRUPT)
    }

    /// After a wait for an object, in a new section: whether it was removed. If not, it is there as
    /// long as the section lasts. If so, this thread is in no queue of it any more.
    pub fn was_removed<T: Is + 'static>(&self, object: u64) -> Result<bool> {
        let told = self.thread.status.load(Acquire) == REMOVED;
        if !told && self.waits_on(object) {
            return Ok(false);
        }
        // The remover is taking this thread out of the queue, has done so, or died meanwhile. The
        // object's memory may be somebody else's by now, so its lock cannot be asked.
        let _ids_held = self.lock(&self.ids(T::KIND).lock)?;
        complete_removals::<T>(self)?;
        Ok(true)
    }

    /// Before the object's lock is released for a wait: pokes count from here on.
    pub fn prepare(&self) {
        self.thread.status.store(WAITING, Release);
    }

    /// Whether this wait had better begin with [`Local::linger`].
    pub fn lingers(&self) -> bool {
        let skip = self.skip.get();
        self.skip.set(skip.saturating_sub(1));
        skip == 0 && self.thread.poker.load(Relaxed) != 0
    }

    /// Waits until `came` says that it is worth another try, not for long. Without locks. `came`
    /// may wait for more than it needs, unless it is told that the waiting ends.
    pub fn linger(&self, came: impl Fn(bool) -> bool) {
        let paid = if self.poked_from_elsewhere() { self.spin(came) } else { self.yields(came) };
        let skipped = self.skipped.get();
        if paid {
            self.skipped.set(skipped / 2);
        } else {
            self.skipped.set((skipped * 2 + 1).min(MOST_SKIPPED));
            self.skip.set(self.skipped.get());
        }
    }

    fn yields(&self, came: impl Fn(bool) -> bool) -> bool {
        let mut before = sys::monotonic();
        if before < self.yields_from.get() {
            return false;
        }
        for _ in 0..YIELDS {
            sys::yield_cpu();
            let now = sys::monotonic();
            let took = now.saturating_sub(before);
            if took > JUMP {
                self.yields_from.set(now + took * 100);
            }
            if came(true) {
                return true;
            }
            before = now;
        }
        false
    }

    fn spin(&self, came: impl Fn(bool) -> bool) -> bool {
        let (began, handled) = (sys::monotonic(), handled());
        let expected = self.waited.get() * 2;
        let limit = if expected <= LONG { expected.max(SHORT) } else { SHORT };
        let mut pauses = 1;
        loop {
            (0..pauses).for_each(|_| std::hint::spin_loop());
            let time = sys::monotonic().saturating_sub(began);
            let over = time > limit || handled != crate::signals::handled();
            if came(over) {
                self.waited.set(time);
                return true;
            }
            if over {
                return false;
            }
            pauses = (pauses * 2).min(PAUSES);
        }
    }

    /// At the end of a wait: how long it took, where the next one might spin.
    pub fn waited(&self, wait: &Wait) {
        if let Some(began) = wait.began.filter(|_| self.poked_from_elsewhere()) {
            self.waited.set(sys::monotonic().saturating_sub(began));
        }
    }

    /// Waits for a poke. Outside of sections, without locks. `dying`: somebody's death might change
    /// the object. `holders`: if it is idle, the processes whose death does.
    pub fn wait(&self, wait: &mut Wait, dying: bool, holders: &[u64]) -> Woken {
        let status = &self.thread.status;
        let began = wait.handled;
        // A waiter on the CPU of who pokes it is in a hurry: it has no use for the time.
        if wait.began.is_none() && (wait.pokes > 0 || self.poked_from_elsewhere()) {
            wait.began = Some(sys::monotonic());
        }
        let left = wait.deadline.map(|deadline| deadline.saturating_sub(sys::monotonic()));
        if left.is_some_and(|left| left.is_zero()) {
            // The call may be tried again and again, without a wait.
            self.mark_the_unmarked();
            return Woken::TimedOut;
        }
        if wait.is_idle() {
            if let Some(woken) = self.wait_idly(wait, holders) {
                return woken;
            }
        }
        let look = if dying { wait.look.min(LAST_LOOK_AT_THE_DEAD) } else { wait.look };
        let time = left.map_or(look, |left| left.min(look));
        // A signal that came earlier in the call is blocked until the call ends.
        let came = || handled() != began || put_off();
        let _sleeping = Sleeping::on(status);
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
                    self.mark_the_unmarked();
                    wait.look = (wait.look * 2).min(LAST_LOOK);
                }
                Woken::Again
            }
        }
    }
}

/// The lives of threads that a waiter sleeps on.
struct Lives<'s> {
    threads: Vec<&'s Thread>,
    words: Vec<sys::Expected>,
}

impl<'s> Lives<'s> {
    /// Adds a thread. Whether the kernel will tell of its death.
    fn add(&mut self, thread: &'s Thread) -> bool {
        let (life, number) = (&thread.life[0], thread.tid.load(Relaxed) as u32);
        let known = life.compare_exchange(number, number | FUTEX_WAITERS, AcqRel, Acquire);
        let lives = thread.robust.load(Relaxed) == 1
            && number != 0
            && known.map_or_else(|other| other == number | FUTEX_WAITERS, |_| true);
        if lives && self.words.len() < sys::Expected::MOST {
            self.words.push(sys::Expected::new(life, number | FUTEX_WAITERS));
            self.threads.push(thread);
        }
        lives
    }
}

impl Local {
    /// [`Local::wait`] of a waiter that looks for itself no more. `None`: it has to.
    #[cold]
    fn wait_idly(&self, wait: &mut Wait, holders: &[u64]) -> Option<Woken> {
        let status = &self.thread.status;
        let mut lives = Lives { threads: Vec::new(), words: Vec::new() };
        lives.words.push(sys::Expected::new(status, WAITING));
        if self.space.threads().is_err() {
            return None;
        }
        let threads = || self.space.threads().into_iter().flatten().map(|(_, thread)| thread);
        for &holder in holders {
            let mut of_holder = threads().filter(|t| t.process.load(Acquire) == holder);
            if !of_holder.any(|thread| lives.add(thread)) {
                // The holder may be dead by now, or its threads are unknown.
                return None;
            }
        }
        let others = threads().filter(|t| ![0, self.process].contains(&t.process.load(Acquire)));
        others.take(sys::Expected::MOST).for_each(|thread| _ = lives.add(thread));
        let now = sys::monotonic();
        let next = IDLE_LOOK.as_secs() * (now.as_secs() / IDLE_LOOK.as_secs() + 1);
        let until = wait.deadline.unwrap_or(Duration::MAX).min(Duration::from_secs(next));
        let began = wait.handled;
        let came = || handled() != began || put_off();
        let _sleeping = Sleeping::on(status);
        let slept = match came() {
            true => Err(Errno(libc::EINTR)),
            false => sys::futex_wait_any(&lives.words, until),
        };
        let signal = slept == Err(Errno(libc::EINTR)) || came();
        match (status.load(Acquire), slept) {
            (POKED | REMOVED, _) => {
                wait.pokes += 1;
                Some(Woken::Again)
            }
            _ if signal => Some(Woken::Signal),
            // Linux before 5.16, or a sandbox.
            (_, Err(Errno(libc::ENOSYS | libc::EPERM | libc::EINVAL))) => None,
            (_, Err(Errno(libc::ETIMEDOUT))) => {
                self.mark_the_unmarked();
                Some(Woken::Again)
            }
            // A thread that has died, woken or found so.
            _ => {
                let mut dead =
                    lives.threads.iter().filter(|thread| thread_dead(self.space, thread));
                if dead.any(|thread| self.left_something(thread)) {
                    self.wake_all();
                }
                Some(Woken::Again)
            }
        }
    }

    /// Whether others may have to do what a dead thread has not.
    fn left_something(&self, dead: &Thread) -> bool {
        let process = place(self.space, dead.process.load(Acquire));
        dead.held.iter().any(|held| held.load(Relaxed) != 0)
            || dead.pokes.load(Relaxed) != 0
            || dead.waits_on.load(Relaxed) != 0
            || process.is_none_or(|process| process.undoes.load(Relaxed) != 0)
    }

    /// Has all waiters look for themselves.
    fn wake_all(&self) {
        let threads = self.space.threads().into_iter().flatten().map(|(_, thread)| thread);
        threads.filter(|thread| thread.waits_on.load(Relaxed) != 0).for_each(wake);
    }
}

/// Wakes a waiter that sleeps. After the object's lock has been released.
pub(crate) fn wake(thread: &Thread) {
    sys::futex_wake(&thread.status, 1);
}

/// Waiters to be woken once the lock has been released: so many at a time. Declared before the
/// section and the lock, it is dropped after them, and wakes the waiters then.
pub(crate) struct Wakes<'l> {
    threads: [MaybeUninit<&'l Thread>; 16],
    /// Where this thread says that it has poked somebody.
    pokes: Option<&'l AtomicU64>,
    /// The number of waiters in `threads`.
    count: usize,
}

impl<'l> Wakes<'l> {
    pub fn new() -> Wakes<'l> {
        Wakes { threads: [MaybeUninit::uninit(); 16], pokes: None, count: 0 }
    }

    /// Pokes a waiter, unless it was poked and has not looked yet. Under the lock of the object.
    pub fn poke(&mut self, local: &Local, thread: &'l Thread) {
        if local.is_poked(thread) {
            return;
        }
        thread.poker.store(sys::current_cpu() + 1, Relaxed);
        if thread.status.swap(POKED, AcqRel) != WAITING {
            return;
        }
        local.thread.pokes.store(1, Relaxed);
        self.pokes = Some(&local.thread.pokes);
        if self.count == self.threads.len() {
            // Early, which only costs the waiter a moment at the lock.
            return wake(thread);
        }
        self.threads[self.count].write(thread);
        self.count += 1;
    }

    #[inline]
    pub fn wake(&mut self) {
        for thread in &self.threads[..std::mem::take(&mut self.count)] {
            // SAFETY: written by `poke`, which counts.
            wake(unsafe { thread.assume_init() });
        }
        if let Some(pokes) = self.pokes.take() {
            pokes.store(0, Release);
        }
    }
}

impl Drop for Wakes<'_> {
    #[inline]
    fn drop(&mut self) {
        self.wake();
    }
}

/// The error that ends a wait without success.
pub(crate) fn failure(woken: Woken) -> Option<Errno> {
    match woken {
        Woken::Again => None,
        Woken::TimedOut => Some(Errno(libc::EAGAIN)),
        Woken::Signal => Some(Errno(libc::EINTR)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::namespace::Namespace;
    use crate::signals::INTERRUPTED;

    thread_local! {
        static LOOKS: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
    }

    /// Has this thread wait for pokes only: a lost one hangs the test.
    pub fn only_pokes() {
        LOOKS.set(false);
    }

    pub(super) fn first_look() -> Duration {
        if LOOKS.get() { FIRST_LOOK } else { Duration::from_secs(1 << 30) }
    }

    /// Has a thread find that its object was removed.
    pub fn tell(thread: &Thread) {
        thread.status.store(REMOVED, Relaxed);
        wake(thread);
    }

    /// The thread has looked whether a signal came, and not gone to sleep yet.
    #[test]
    fn a_signal_keeps_who_is_about_to_sleep_from_it() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let (_call, local) = n.begin().unwrap();
        let status = &local.thread.status;
        for (before, after) in [(WAITING, INTERRUPTED), (POKED, POKED), (REMOVED, REMOVED)] {
            let sleeping = Sleeping::on(status);
            status.store(before, SeqCst);
            assert!(crate::signals::arrived());
            assert_eq!(status.load(SeqCst), after);
            drop(sleeping);
        }
        local.prepare();
        assert!(crate::signals::arrived());
        assert_eq!(status.load(SeqCst), WAITING);
    }

    /// Whether the threads in a queue are poked, first come first.
    pub fn poked(local: &Local, queue: &Queue, object: u64) -> Vec<bool> {
        let mut poked = Vec::new();
        let each = |_, thread: &_| {
            poked.push(local.is_poked(thread));
            true
        };
        local.waiters(queue, object, each).unwrap();
        poked
    }

    /// Runs `f` on an object, locked, once that many threads are in a queue of it.
    pub fn with_waiters<T: Is + 'static>(
        n: &Namespace,
        id: i32,
        queue: impl Fn(&'static T) -> &'static Queue,
        count: usize,
        f: impl FnOnce(&Local, &'static T, u64),
    ) {
        let (_call, local) = n.begin().unwrap();
        loop {
            let _section = local.enter();
            let (found, offset, _held) = local.find_locked::<T>(id).unwrap();
            if poked(local, queue(found), offset).len() == count {
                return f(local, found, offset);
            }
        }
    }
}
