// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callbacks: work to do after a grace period, in most cases a free.
//!
//! Stands on `grace`, `thread` and `platform`. [`reclaimer`] holds what the callbacks of a domain
//! share. A thread touches its own buffer, anybody pushes to a CPU's lists, and only the holder of
//! a queue's lock touches the queue's batch.
//!
//! # The way of a callback
//! A registration links an intrusive [`Head`](crate::thread::head::Head) into the thread's own
//! buffer ([`buffer`](crate::thread::buffer)). When the buffer is full, or its owner has not used
//! it for a while, it is emptied onto the lists of the CPU on which it was opened
//! ([`per_cpu_lists`]). The number of waiting callbacks is the difference of two sums
//! ([`pending_count`]). Each CPU with callbacks has one worker, started when first needed and bound
//! to that CPU. It takes a batch from the lists, waits for one grace period (shared with all other
//! workers and callers), looks into the protection slots, and runs the batch ([`worker_wait`],
//! [`worker`], [`queue`]): callbacks run on the CPU where they were registered, in no particular
//! order. A worker that is missing (in the child of a fork, or because the system refused a thread)
//! is started by the next registration on any CPU ([`unserved`]).
//!
//! # Memory stays bounded
//! A domain has two caps on the bytes and the number of callbacks waiting ([`limits`]). Below the
//! soft one a registration waits for nothing, no membarrier either. Near it, it helps with
//! callbacks that are mere frees, as long as a grace period is a matter of microseconds. Above the
//! hard one it waits until there is room, a bounded time. Inside a section or in a callback it does
//! neither. It never runs a callback that may take a lock, since the caller may hold that lock.
//!
//! The cap thus bounds garbage that waits for a thread to lead grace periods or run callbacks, and
//! garbage that waits for plain readers that are merely slow. It cannot bound garbage that waits
//! for a plain section that does not end: then each registering thread still registers 32 callbacks
//! per 20 ms or so, and a thread inside a section (every online `Qsbr` thread is) any number.

pub(crate) mod pending_count;
pub(crate) mod per_cpu_lists;
pub(crate) mod unserved;
pub(crate) mod worker_wait;

#[cfg(not(loom))]
pub(crate) mod limits;
#[cfg(not(loom))]
pub(crate) mod queue;
#[cfg(not(loom))]
pub(crate) mod reclaimer;
#[cfg(not(loom))]
pub(crate) mod recount;
#[cfg(not(loom))]
pub(crate) mod register;
#[cfg(not(loom))]
pub(crate) mod worker;
