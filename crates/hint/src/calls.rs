// SPDX-License-Identifier: MIT OR Apache-2.0
//! The six calls of the eCS paper, for threads: two pairs that announce critical sections, as
//! guards, and two questions.

use crate::platform::clock::now;
use crate::region;
use crate::thread::{self, Kind, Line, me};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

pub use crate::thread::slice::Lack as NoTimeSliceExtensions;

/// A critical section of the calling thread, which ends when this is dropped.
#[must_use = "the section ends when this is dropped"]
pub struct Section {
    kind: Kind,
    /// Belongs to its thread.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        me().leave(self.kind);
    }
}

#[inline(always)]
fn section(kind: Kind) -> Section {
    me().enter(kind);
    Section { kind, _not_send: PhantomData }
}

/// Begins a section for which other threads *spin*: the scheduler had better not take the CPU away.
/// (`activate_non_preemptable_ecs`, and its counterpart when the guard is dropped.) Sections nest.
#[inline(always)]
pub fn non_preemptable() -> Section {
    section(Kind::NonPreemptable)
}

/// Begins a section for which other threads *sleep*: the scheduler may take the CPU away, and had
/// better give it back soon. (`activate_preemptable_ecs`.)
#[inline(always)]
pub fn preemptable() -> Section {
    section(Kind::Preemptable)
}

/// A thread of this process that has given a hint or taken a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId {
    index: u32,
    generation: u32,
}

impl ThreadId {
    /// For C.
    #[doc(hidden)]
    pub fn to_number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// For C.
    #[doc(hidden)]
    pub fn from_number(number: u64) -> ThreadId {
        ThreadId { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// The calling thread.
pub fn current_thread() -> ThreadId {
    let line = me();
    ThreadId { index: line.index(), generation: line.generation.load(Relaxed) }
}

/// The thread's line, unless another thread has it now.
fn line_of(thread: ThreadId) -> Option<&'static Line> {
    if thread.index as usize >= thread::LINES {
        return None;
    }
    let line = thread::line(thread.index);
    (line.generation.load(Relaxed) == thread.generation).then_some(line)
}

/// Whether the calling thread's non-preemptable sections ask the kernel for a longer time slice.
/// They do so by themselves where the kernel and the C library have it.
pub fn time_slice_extensions() -> Result<(), NoTimeSliceExtensions> {
    me().enable_slices()
}

/// Inside a guest: whether the vCPU is off its CPU, although it would run, where a thread of this
/// process gave its last hint. `None`: unknown, as in [`is_vcpu_preempted`], or the thread has
/// ended.
pub fn is_preempted(thread: ThreadId) -> Option<bool> {
    is_vcpu_preempted(line_of(thread)?.cpu.load(Relaxed))
}

/// Inside a guest: whether the vCPU with that number is off its CPU, although it would run, as far
/// as the host said a moment ago. `None`: unknown, for the host offers no region, or nobody serves
/// it.
pub fn is_vcpu_preempted(vcpu: u32) -> Option<bool> {
    region::is_preempted(vcpu, now())
}

/// Inside a guest: whether another vCPU runs or waits on the host's CPU where that vCPU is or was
/// last. `None`: unknown.
pub fn is_overloaded(cpu: u32) -> Option<bool> {
    region::runnable(cpu, now()).map(|runnable| runnable > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a kernel without them, everything is as before.
    #[test]
    fn sections_with_and_without_time_slice_extensions() {
        let there = time_slice_extensions();
        assert_eq!(there.is_ok(), me().slice.load(std::sync::atomic::Ordering::Relaxed) != 0);
        for _ in 0..3 {
            let outer = non_preemptable();
            let inner = non_preemptable();
            assert_eq!(me().nesting(Kind::NonPreemptable), 2);
            drop((inner, preemptable(), outer));
        }
        assert_eq!(me().nesting(Kind::NonPreemptable), 0);
        assert_eq!(time_slice_extensions(), there);
    }
}
