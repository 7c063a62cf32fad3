// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mutex, which the spin lock is as well: whoever comes may take a free lock, few spin, the
//! others sleep, and nobody is overtaken for long.
//!
//! # State
//! `owner` names the holder, so that waiters can ask what it does. It is set by a compare-and-swap
//! and cleared by a plain store: releasing a lock that nobody sleeps for takes no atomic
//! read-modify-write. A thread that finds it taken looks again for a moment, and tells nobody
//! ([`wait::quick`]). Then at most [`wait::spinners`] threads spin; further ones sleep at once. A
//! release wakes one sleeper, unless a thread is spinning or on its way already: then nobody has to
//! be woken, and the threads that use the lock are no more than there are CPUs. Once per [`FAIR`] a
//! sleeper is woken in any case. It asks to be the *heir*: the next release gives the lock to it,
//! not to whoever comes, provided that it runs.
//!
//! # Nobody sleeps for ever
//! > **Invariant.** When the lock is free and a thread sleeps for it, then some thread is awake
//! > that will try to take the lock: it is counted in `active`, or it was woken and `waking` says
//! > so, or it has not yet returned from a release.
//!
//! - A thread that goes to sleep counts itself in `parked`, executes the heavy half of the fence,
//!   and tries once more. A releaser clears `owner`, executes the light half, and reads `parked`.
//!   So the thread finds the lock free, or the releaser finds the thread (`platform/barrier.rs`).
//!   Where the heavy half fails, the thread sleeps a short time only, and looks again.
//! - A releaser that finds `active` not 0 wakes nobody. A thread that stops spinning without the
//!   lock leaves `active`, executes the heavy half and tries once more: it finds the lock free, or
//!   the releaser finds it gone.
//! - A releaser that wakes a thread sets `waking` first. The woken thread counts itself in `active`
//!   before it clears `waking`. If nobody slept yet, the releaser clears it: a thread that was
//!   about to sleep finds `turn` changed, unless it came later. Then the lock was held, and its
//!   release found `waking` set. It has said so (`MISSED`), and the first releaser begins again.
//! - A fork leaves the child no threads but one. What the others had written of themselves
//!   (`parked`, `heir`, `active`, `waking`) is stamped, and reads as 0 there (`stamped`). The lock
//!   itself is its holder's: the forking thread's, or lost.
//! - The heir's place is taken and given back by compare-and-swap, and a releaser that finds an
//!   heir empties the place by compare-and-swap before it stores the heir as owner. An heir that
//!   fails to empty the place itself has been given the lock.

use super::stamped::Stamped;
use crate::platform::barrier;
use crate::platform::end::End;
use crate::platform::sync::{AtomicU32, AtomicU64, Futex, Ordering, broken, const_unless_loom};
use crate::wait::{self, Advice, FAIR, Waiter, is_over, left};
use std::time::Duration;

const FREE: u32 = 0;
const NO_HEIR: u32 = 0;

/// How long a sleeper waits before it looks again, where the asymmetric fence fails.
const AGAIN: Duration = Duration::from_millis(5);

/// No thread is woken, or on its way after it was.
const NOBODY: u32 = 0;
const WAKING: u32 = 1;
/// The same, and another release relied on it since.
const MISSED: u32 = 2;

/// The lock itself.
#[repr(C)]
pub(crate) struct Core {
    owner: AtomicU32,
    turn: Futex,
    parked: Stamped,
    heir: Stamped,
    active: Stamped,
    waking: Stamped,
    /// When a sleeper was last woken.
    woken: AtomicU64,
}

impl Core {
    const_unless_loom! {
        pub(crate) fn new() -> Core {
            Core {
                owner: AtomicU32::new(FREE),
                turn: Futex::new(0),
                parked: Stamped::new(),
                heir: Stamped::new(),
                active: Stamped::new(),
                waking: Stamped::new(),
                woken: AtomicU64::new(0)
            }
        }
    }

    /// As a fork leaves it to the child: held by `owner`, with what threads of the parent wrote.
    #[cfg(all(loom, test))]
    pub(crate) fn left(owner: u32, parked: u32, heir: u32, active: u32, waking: u32) -> Core {
        Core {
            owner: AtomicU32::new(owner),
            turn: Futex::new(parked),
            parked: Stamped::left(parked),
            heir: Stamped::left(heir),
            active: Stamped::left(active),
            waking: Stamped::left(waking),
            woken: AtomicU64::new(0),
        }
    }

    /// Takes the lock if it is free. `me` is from [`wait::me`].
    #[inline(always)]
    pub(crate) fn try_lock(&self, me: u32) -> bool {
        self.owner.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != FREE
    }

    /// Waits at most until `end`, if there is one. Whether the lock was taken.
    #[inline(always)]
    pub(crate) fn lock(&self, me: u32, end: Option<End>) -> bool {
        self.try_lock(me) || self.lock_slow(me, end)
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, me: u32, end: Option<End>) -> bool {
        // Where nobody sleeps, nobody has to know that this thread spins.
        if !self.parked.is_set() && wait::quick(|| !self.is_locked() && self.try_lock(me)) {
            return true;
        }
        let first = self.active.add().0 < wait::spinners();
        if first && self.spin(me, false, end) {
            self.active.sub();
            return true;
        }
        self.active.sub();
        loop {
            let Some(left) = left(end) else { return self.give_up(me) };
            if self.sleep(me, left) {
                return true;
            }
            // Awake and in `active` now. Threads without a line share a number, so none is an heir.
            let taken = self.spin(me, me != wait::HELD, end);
            self.active.sub();
            if taken {
                return true;
            }
        }
    }

    /// Tries while that is better than to sleep. By a thread that is counted in `active`. `heir`:
    /// it has slept, and wants to be the next.
    fn spin(&self, me: u32, heir: bool, end: Option<End>) -> bool {
        let mut waiter = Waiter::new();
        let mut named = false;
        loop {
            let owner = self.owner.load(Ordering::Relaxed);
            if owner == FREE && self.try_lock(me) {
                if named {
                    self.withdraw(me);
                }
                return true;
            }
            if owner == me && named {
                break;
            }
            if heir && !named {
                named = self.heir.change(NO_HEIR, me);
            }
            if waiter.look(|| owner) == Advice::Sleep || is_over(end) {
                break;
            }
        }
        if named && !self.withdraw(me) {
            // A releaser has given the lock to us, or will with its next store.
            while self.owner.load(Ordering::Acquire) != me {
                wait::pass();
            }
            return true;
        }
        false
    }

    /// Whether the heir's place was still ours.
    fn withdraw(&self, me: u32) -> bool {
        self.heir.change(me, NO_HEIR)
    }

    /// Sleeps until a release wakes us, unless the lock is free: then it is taken, and true. When
    /// it returns false, the thread is counted in `active`.
    fn sleep(&self, me: u32, time: Option<Duration>) -> bool {
        self.parked.add();
        let fenced = broken!(SleepsWithoutFence, true, barrier::heavy());
        let turn = self.turn.load(Ordering::SeqCst);
        let taken = broken!(SleepsWithoutTrying, false, self.try_lock(me));
        let turn = broken!(TurnReadLate, self.turn.load(Ordering::SeqCst), turn);
        if !taken {
            // A releaser may not have seen us: then nobody wakes us.
            let time = if fenced { time } else { Some(time.map_or(AGAIN, |t| t.min(AGAIN))) };
            self.turn.wait(turn, time);
            self.active.add();
            self.clear_waking();
        }
        self.parked.sub();
        taken
    }

    /// The time is over. The thread has left `active`, where a releaser may have counted on it.
    fn give_up(&self, me: u32) -> bool {
        let fenced = barrier::heavy();
        if self.parked.get() != 0 && self.try_lock(me) {
            // Whoever releases wakes the next; and it is ours after all.
            return true;
        }
        if !fenced {
            // The lock may be free without our seeing it. A sleeper looks in our place.
            self.turn.fetch_add(1, Ordering::SeqCst);
            self.turn.wake(1);
        }
        false
    }

    /// Releases the lock. By its holder.
    #[inline(always)]
    pub(crate) fn unlock(&self) {
        if self.heir.is_set() && self.hand_over() {
            return;
        }
        self.owner.store(FREE, Ordering::Release);
        barrier::light();
        if self.parked.is_set() {
            self.wake();
        }
    }

    /// Gives the lock to the heir, if it runs.
    #[cold]
    #[inline(never)]
    fn hand_over(&self) -> bool {
        if self.heir.is_clear() {
            return false;
        }
        let heir = self.heir.get();
        if heir == NO_HEIR || !wait::runs(heir, wait::now()) {
            return false;
        }
        if !broken!(HeirNotTakenOut, true, self.withdraw(heir)) {
            return false;
        }
        self.owner.store(heir, Ordering::Release);
        true
    }

    /// The lock was made free, and threads sleep for it.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        if self.parked.is_clear() {
            return;
        }
        loop {
            match self.waking.get() {
                NOBODY => {}
                // Whoever wakes a thread has to look again if it finds none.
                now if self.waking.change(now, MISSED) => return,
                _ => continue,
            }
            let now = wait::now();
            if self.active.get() != 0
                && now.saturating_sub(self.woken.load(Ordering::Relaxed)) < FAIR
            {
                return;
            }
            if !self.waking.change(NOBODY, WAKING) {
                continue;
            }
            self.woken.store(now, Ordering::Relaxed);
            self.turn.fetch_add(broken!(TurnKept, 0, 1), Ordering::SeqCst);
            if self.turn.wake(1) || broken!(WakingNobody, true, false) {
                return;
            }
            if self.waking.change(WAKING, NOBODY) {
                return;
            }
            self.clear_waking();
        }
    }

    /// An exchange, not a store: so it is ordered with every compare-and-swap of others.
    fn clear_waking(&self) {
        self.waking.swap(NOBODY);
    }
}

#[cfg(not(loom))]
pub use raw::RawMutex;

#[cfg(not(loom))]
mod raw {
    use super::Core;
    use crate::lock::mark::{self, Mark};
    use crate::platform::end::End;
    use crate::thread;
    use crate::wait::HELD;
    use std::marker::PhantomData;
    use std::time::{Duration, Instant};

    /// The mutex and the spin lock, for `lock_api`.
    #[repr(transparent)]
    pub struct RawMutex<M>(pub(crate) Core, PhantomData<M>);

    // SAFETY: as `M` is never made.
    unsafe impl<M> Send for RawMutex<M> {}
    // SAFETY: as above.
    unsafe impl<M> Sync for RawMutex<M> {}

    // SAFETY: `Core` lets one thread in at a time: the one whose compare-and-swap found the lock
    // free, or whom the last holder named.
    unsafe impl<M: Mark> lock_api::RawMutex for RawMutex<M> {
        #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
        const INIT: RawMutex<M> = RawMutex(Core::new(), PhantomData);
        /// The thread's line says that it holds the lock.
        type GuardMarker = lock_api::GuardNoSend;

        #[inline]
        fn lock(&self) {
            let line = thread::me();
            mark::begun::<M>(line, self.0.lock(line.index() | HELD, None));
        }

        #[inline]
        fn try_lock(&self) -> bool {
            let line = thread::me();
            mark::begun::<M>(line, self.0.try_lock(line.index() | HELD))
        }

        #[inline]
        unsafe fn unlock(&self) {
            self.0.unlock();
            mark::leave::<M>();
        }

        fn is_locked(&self) -> bool {
            self.0.is_locked()
        }
    }

    // SAFETY: as above.
    unsafe impl<M: Mark> lock_api::RawMutexTimed for RawMutex<M> {
        type Duration = Duration;
        type Instant = Instant;

        fn try_lock_for(&self, timeout: Duration) -> bool {
            let line = thread::me();
            mark::begun::<M>(line, self.0.lock(line.index() | HELD, Some(End::after(timeout))))
        }

        fn try_lock_until(&self, timeout: Instant) -> bool {
            self.try_lock_for(timeout.saturating_duration_since(Instant::now()))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::sys;
    use crate::thread;

    /// From here on the kernel refuses membarrier to this thread and those that it starts.
    fn refuse_membarrier() {
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            // BPF_LD | BPF_W | BPF_ABS: the number of the call.
            step(0x20, 0, 0, 0),
            // BPF_JMP | BPF_JEQ | BPF_K.
            step(0x15, 0, 1, libc::SYS_membarrier as u32),
            // BPF_RET | BPF_K.
            step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the filter outlives the call, which copies it.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter), 0);
        }
    }

    fn asleep(thread: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" S"))
    }

    /// A release that has not seen the sleeper, since its light half was no fence.
    fn lose_a_release() {
        let me = || thread::me().index() | wait::HELD;
        let core = Core::new();
        core.lock(me(), None);
        if !barrier::uses_membarrier() {
            return;
        }
        refuse_membarrier();
        let sleeper = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleeper.store(sys::thread_id(), Ordering::SeqCst);
                core.lock(me(), None);
            });
            while core.parked.get() == 0 || !asleep(sleeper.load(Ordering::SeqCst)) {
                std::thread::yield_now();
            }
            core.owner.store(FREE, Ordering::Release);
        });
    }

    /// membarrier fails after the first locks. If nobody looks again, the test hangs. In a process
    /// of its own: the filter stays.
    #[test]
    fn without_the_heavy_half_sleepers_look_again() {
        thread::me();
        // SAFETY: the child ends, without running what the parent would on its way out.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let done = std::panic::catch_unwind(lose_a_release);
                libc::_exit(i32::from(done.is_err()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
