// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of a structure's writers: the spin lock of `reprieve_hint`. Its sections are marked for
//! schedulers that listen; its waiters spin while the holder runs, and sleep when it does not. (The
//! models, and builds without the feature `hint`, have the runtime's own lock in its place.)
//!
//! The runtime's own lock of four bytes stays where grace periods and callbacks lock: a leader is
//! waited for as long as a grace period takes, and the child of a fork makes these locks free.

#[cfg(any(loom, not(feature = "hint"), not(target_os = "linux")))]
pub(crate) use crate::platform::lock::Lock;

#[cfg(all(feature = "hint", target_os = "linux", not(loom)))]
pub(crate) use real::Lock;

#[cfg(all(feature = "hint", target_os = "linux", not(loom)))]
mod real {
    use crate::platform::annotate;
    use reprieve_hint::lock_api::RawMutex as _;
    use reprieve_hint::{RawMutex, Spins};

    pub(crate) struct Lock(RawMutex<Spins>);

    impl Lock {
        pub(crate) fn new() -> Lock {
            Lock(RawMutex::INIT)
        }

        #[inline]
        pub(crate) fn lock(&self) {
            self.0.lock();
            annotate::acquire(self.address());
        }

        /// By the thread that holds it.
        #[inline]
        pub(crate) fn unlock(&self) {
            annotate::release(self.address());
            // SAFETY: guards of this crate call it, which no other thread gets.
            unsafe { self.0.unlock() };
        }

        fn address(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
    }
}
