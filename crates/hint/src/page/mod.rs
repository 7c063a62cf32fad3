// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's answer: a page that `reprieve hint serve` publishes and this process maps
//! read-only. Which of the process's threads run, and how many threads each CPU has to run.
//!
//! Everything here answers `None` ("unknown") where there is no page, or where its writer has not
//! written for a while. An answer is true of a moment that is over: it helps to wait well, and
//! nothing may depend on it.
//!
//! Inside a guest the host may offer a page of its own (`region`), of what it does to vCPUs.

mod connect;
pub(crate) mod layout;
pub(crate) mod region;

pub use region::Missing;

pub use connect::{Error, connect, connect_host};
pub(crate) use connect::{hello, set_reader};

use crate::platform::cpu;
use crate::thread::{self, LINES};
use layout::Page;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The state of a thread, as its scheduler saw it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The thread is on a CPU.
    Running,
    /// The thread would run, but its CPU was given to another thread.
    Preempted,
    /// The thread waits for something else than a CPU.
    Blocked,
}

/// The page that is mapped. A page is never unmapped: another thread may be reading it.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());
/// What the page has at this process's place, and where that was last.
static KEY: AtomicU64 = AtomicU64::new(0);
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// The page, if it is alive at `now`.
fn page(now: u64) -> Option<&'static Page> {
    // SAFETY: mapped for good, or null.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() }?;
    let beat = page.beat.load(Ordering::Relaxed);
    (now.saturating_sub(beat) < layout::STALE_NS).then_some(page)
}

/// This process's place in the page. The server may give it, and take it away, at any time: no
/// system call tells, so none is made behind a filter that the program has set since.
fn place(page: &Page) -> Option<usize> {
    let key = KEY.load(Ordering::Relaxed);
    let is = |place: &usize| page.keys[*place].load(Ordering::Relaxed) == key;
    let last = PLACE.load(Ordering::Relaxed);
    let found = std::iter::once(last).chain(0..layout::PROCESSES).find(is)?;
    if found != last {
        PLACE.store(found, Ordering::Relaxed);
    }
    Some(found)
}

/// Whether there is a page at all: a single load.
#[inline]
pub(crate) fn mapped() -> bool {
    !PAGE.load(Ordering::Relaxed).is_null()
}

/// The state of the thread with that line. In a guest without a page only [`State::Preempted`] is
/// known: a vCPU that runs may run another thread.
pub(crate) fn state(index: u32, now: u64) -> Option<State> {
    // C may name any number as a thread.
    if index == thread::NOBODY || index as usize >= LINES {
        return None;
    }
    let Some(page) = page(now) else {
        let vcpu = thread::line(index).cpu.load(Ordering::Relaxed);
        return region::vcpu(vcpu, now).filter(|&state| state == State::Preempted);
    };
    let word = page.threads[place(page)? * LINES + index as usize].state.load(Ordering::Relaxed);
    if word >> layout::STATE_BITS != thread::line(index).generation.load(Ordering::Relaxed) {
        return Some(State::Running);
    }
    layout::state(word)
}

/// Threads that CPU `cpu` has to run, the running one and those that any CPU may take among them.
pub(crate) fn runnable(cpu: u32, now: u64) -> Option<u32> {
    let page = page(now)?;
    let runnable = page.cpus.get(cpu as usize)?.runnable.load(Ordering::Relaxed);
    (runnable != 0).then(|| runnable.saturating_add(page.waiting.load(Ordering::Relaxed)))
}

/// Whether another thread waits for the caller's CPU.
pub(crate) fn wanted(now: u64) -> Option<bool> {
    runnable(cpu::current(), now).map(|runnable| runnable > 1)
}
