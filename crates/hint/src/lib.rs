// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the scheduler about critical sections, and waits by what the scheduler does.
//!
//! A scheduler does not know what a thread is in the middle of, and a waiting thread does not know
//! what the scheduler did to the one it waits for. This crate carries both across, for threads of
//! user-space programs, without privileges:
//!
//! - **Hints** ([`non_preemptable`], [`preemptable`]): a thread writes into a cache line of its own
//!   how deep it is nested in critical sections (`hint_abi.h`). Two loads, an addition and a store;
//!   nothing else happens if nobody listens. Inside a guest, hints reach the host through a
//!   *region*, a device of the guest's ([`connect_host`]).
//! - **Answers** ([`is_preempted`], [`is_vcpu_preempted`]): through the region, the host says which
//!   vCPUs run. Without one they say `None`.
//! - **Locks** ([`Mutex`], [`SpinLock`], [`RwLock`], [`RwSemaphore`]) that mark their
//!   sections, and wait by *scheduling-aware spinning*: they spin while the holder runs and nobody
//!   wants this CPU, and sleep when the holder has lost its CPU. They find that out themselves
//!   (`wait`).
//!
//! The six calls are those of Kashyap, Min and Kim, "Scaling Guest Operating System Critical
//! Sections with eCS", USENIX ATC 2018. `docs/hint.md` tells when to use what.

#![cfg_attr(
    loom,
    allow(dead_code, reason = "a model uses the protocols, not what is built on them")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("this crate needs Linux: futexes, rseq and membarrier are its interface");

mod lock;
mod platform;
mod thread;

#[cfg(not(loom))]
mod calls;
#[cfg(not(loom))]
mod region;
mod wait;

#[cfg(loom)]
mod model;

#[cfg(not(loom))]
pub use calls::{
    NoTimeSliceExtensions, Section, ThreadId, current_thread, is_overloaded, is_preempted,
    is_vcpu_preempted, non_preemptable, preemptable, time_slice_extensions,
};
#[cfg(not(loom))]
pub use lock::api::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, RwSemaphore,
    RwSemaphoreReadGuard, RwSemaphoreWriteGuard, SpinLock, SpinLockGuard,
};
#[cfg(not(loom))]
pub use lock::{Mark, Sleeps, Spins, mutex::RawMutex, rw::RawRwLock};
#[cfg(not(loom))]
pub use lock_api;
#[cfg(not(loom))]
pub use region::{Missing, connect_host};
pub use thread::Kind;

/// For the C interface. Not for other users, and not stable.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod abi {
    pub use crate::lock::condition::Condition;
    pub use crate::lock::posix::{End, Mutex, Prefer, ReadWrite};

    /// The region that a guest's programs share with its host (`hint_region.h`).
    pub mod region {
        pub use crate::region::file::{create, is_region, publish, read};
        pub use crate::region::layout::{BYTES, MAGIC, Region, VCPUS, VERSION, Vcpu};
        pub use crate::region::view::{ThreadView, VcpuView, View};
        pub use crate::thread::{PROBES, SLOTS, Slot};
    }

    /// This crate is preloaded into a program that does not know it: from here on locks make no
    /// system call but futex, and read the clock by `clock`, unless that is null.
    ///
    /// # Safety
    /// `clock` is the kernel's `clock_gettime`, or null.
    pub unsafe fn preloaded(clock: *mut std::ffi::c_void) {
        // SAFETY: the caller's promise.
        unsafe { crate::platform::clock::set(clock) };
        crate::wait::ONLY_FUTEX.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// The time in ns by the kernel's clock of that number: the time of day, or monotonic.
    pub fn now(clock: libc::clockid_t) -> u64 {
        use crate::platform::clock::{now, time_of_day};
        if clock == libc::CLOCK_REALTIME { time_of_day() } else { now() }
    }

    /// Copies the counts of a thread's line to the host (`hint.h`).
    ///
    /// # Safety
    /// The calling thread's line, as `line` returned it.
    pub unsafe fn tell_host(line: *const std::ffi::c_void) {
        // SAFETY: as above; lines are static.
        unsafe { &*line.cast::<crate::thread::Line>() }.tell_host();
    }

    /// Asks for a longer time slice.
    ///
    /// # Safety
    /// `slice` is that of the calling thread's line, and not 0.
    pub unsafe fn slice_request(slice: u64) {
        // SAFETY: the caller's promise.
        unsafe { crate::thread::slice::request(slice) };
    }

    /// Gives back what was granted.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn slice_release(slice: u64) {
        // SAFETY: the caller's promise.
        unsafe { crate::thread::slice::release(slice) };
    }

    /// The calling thread's line.
    pub fn line() -> *const std::ffi::c_void {
        std::ptr::from_ref(crate::thread::me()).cast()
    }
}

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/hint.md")]
mod guide {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
