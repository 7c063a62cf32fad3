// SPDX-License-Identifier: MIT OR Apache-2.0
//! The region of memory that a program inside a guest shares with the guest's host
//! (`include/reprieve/hint_region.h`). Its threads' hints go to the host's scheduler, and the
//! host's answers about vCPUs come back.
//!
//! The host writes answers every few milliseconds, so they are late, and an answer is true of a
//! moment that is over. Every other process of the guest that may use the region can write all of
//! it: an answer helps to wait well, and nothing may depend on it.

mod device;
pub(crate) mod file;
pub(crate) mod layout;
mod load;
pub(crate) mod view;

pub use device::Missing;
pub use load::connect_host;

use crate::thread::{self, LINES};
use layout::{PREEMPTED, Region, STALE_NS};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The region that is mapped. Never unmapped: another thread may be using it.
static REGION: AtomicPtr<Region> = AtomicPtr::new(std::ptr::null_mut());
/// The beat when it was mapped, which may be that of a host that has long stopped.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// The last beat that was seen, and when it was new.
static SEEN: AtomicU64 = AtomicU64::new(0);
static SEEN_AT: AtomicU64 = AtomicU64::new(0);

fn mapped() -> Option<&'static Region> {
    // SAFETY: mapped for good, or null.
    unsafe { REGION.load(Ordering::Acquire).as_ref() }
}

/// Maps the region, unless it is mapped, and gives a slot to each thread that has a line.
fn map(named: Option<&Path>) -> Result<(), Missing> {
    if mapped().is_some() {
        return Ok(());
    }
    let region = device::map(named)?;
    FIRST.store(region.beat.load(Ordering::Relaxed), Ordering::Relaxed);
    REGION.store(std::ptr::from_ref(region).cast_mut(), Ordering::Release);
    thread::offer(&region.slots);
    Ok(())
}

/// The region, if its host serves it.
fn served(now: u64) -> Option<&'static Region> {
    let region = mapped()?;
    let beat = region.beat.load(Ordering::Relaxed);
    if beat != SEEN.load(Ordering::Relaxed) {
        SEEN_AT.store(now, Ordering::Relaxed);
        SEEN.store(beat, Ordering::Relaxed);
    }
    let age = now.saturating_sub(SEEN_AT.load(Ordering::Relaxed));
    (beat != FIRST.load(Ordering::Relaxed) && age < STALE_NS).then_some(region)
}

/// Whether vCPU number `vcpu` is off its CPU, although it would run.
pub(crate) fn is_preempted(vcpu: u32, now: u64) -> Option<bool> {
    let word = served(now)?.vcpus.get(vcpu as usize)?.state.load(Ordering::Relaxed);
    matches!(word, 1..=3).then_some(word == PREEMPTED)
}

/// Whether the vCPU is known to be off its CPU on which the thread with that line took a lock last.
/// A vCPU that runs may run another thread.
pub(crate) fn lost_cpu(index: u32, now: u64) -> bool {
    let known = index != thread::NOBODY && (index as usize) < LINES;
    known && is_preempted(thread::line(index).cpu.load(Ordering::Relaxed), now) == Some(true)
}

/// That vCPU, and others that run or wait on the host's CPU where it is or was last.
pub(crate) fn runnable(vcpu: u32, now: u64) -> Option<u32> {
    let runnable = served(now)?.vcpus.get(vcpu as usize)?.runnable.load(Ordering::Relaxed);
    (runnable != 0).then_some(runnable)
}
