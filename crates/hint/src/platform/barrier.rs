// SPDX-License-Identifier: MIT OR Apache-2.0
//! The asymmetric fence between a releaser and a waiter that is about to sleep.
//!
//! > **Guarantee.** If a thread stores, executes [`light`] and loads, and another stores, executes
//! > [`heavy`] and loads, then at least one of the loads finds the other's store.
//!
//! With membarrier (Linux 4.14) the light half costs nothing but the compiler's order: the heavy
//! half makes every running thread of the process execute a fence, and one that does not run has
//! executed one when it was switched. Without membarrier both are fences. In a model both are.
//! Which of the two is decided once, at load time: until then [`light`] is a fence.
//!
//! membarrier may fail later, by a seccomp filter that the program sets up. From then on both
//! halves are fences, but a thread may be in a light half that began before and was none. So
//! [`heavy`] says that the guarantee does not hold, and a waiter looks again after a while instead
//! of sleeping until it is woken.

#[cfg(loom)]
pub(crate) fn light() {
    super::sync::fence(super::sync::Ordering::SeqCst);
}

#[cfg(loom)]
pub(crate) fn heavy() -> bool {
    super::sync::fence(super::sync::Ordering::SeqCst);
    true
}

#[cfg(not(loom))]
pub(crate) use real::{heavy, light};

#[cfg(not(loom))]
mod real {
    use crate::platform::sys;
    use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

    const UNKNOWN: u32 = 0;
    const MEMBARRIER: u32 = 1;
    const FENCE: u32 = 2;
    /// membarrier worked, and failed later.
    const FAILED: u32 = 3;
    static MODE: AtomicU32 = AtomicU32::new(UNKNOWN);

    /// The releaser's half. The mode is found out before the first thread has a line (`thread`), so
    /// it is never [`UNKNOWN`] here in a thread that holds a lock.
    #[inline(always)]
    pub(crate) fn light() {
        if MODE.load(Ordering::Relaxed) == MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The waiter's half: 1 to 5 us, where sleeping costs as much again. False: no guarantee.
    pub(crate) fn heavy() -> bool {
        if MODE.load(Ordering::Relaxed) == MEMBARRIER {
            if sys::membarrier(sys::MEMBARRIER_PRIVATE_EXPEDITED) == 0 {
                return true;
            }
            MODE.store(FAILED, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        MODE.load(Ordering::Relaxed) != FAILED
    }

    /// Whether membarrier is in use.
    #[cfg(test)]
    pub(crate) fn uses_membarrier() -> bool {
        MODE.load(Ordering::Relaxed) == MEMBARRIER
    }

    /// Finds the mode out. The child of a fork inherits it, and the registration.
    pub(crate) fn find_out() {
        let works = sys::membarrier(sys::MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) == 0
            && sys::membarrier(sys::MEMBARRIER_PRIVATE_EXPEDITED) == 0;
        let mode = if works { MEMBARRIER } else { FENCE };
        let _ = MODE.compare_exchange(UNKNOWN, mode, Ordering::Relaxed, Ordering::Relaxed);
    }
}
#[cfg(not(loom))]
pub(crate) use real::find_out;
#[cfg(all(test, not(loom)))]
pub(crate) use real::uses_membarrier;
