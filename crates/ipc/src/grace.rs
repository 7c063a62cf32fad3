// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods across processes, and freeing after them.
//!
//! A reader stores an odd number into its own place and then reads ([`Local::enter`]); who has
//! unlinked an object executes a barrier on all CPUs that run readers
//! (`MEMBARRIER_CMD_GLOBAL_EXPEDITED`) and then looks at all places. So either it finds the reader
//! inside, or the reader finds the object gone. A process that the kernel did not register for that
//! barrier executes a fence in each section instead and says so in its place; and a process that
//! cannot call membarrier frees only while all others fence. Until then garbage waits.
//!
//! A reader that died inside is recognised and not waited for. One that is stopped inside
//! (SIGSTOP) delays freeing, never a call: who frees gives up after a while, and the next tries
//! again.

use crate::error::{Errno, Result};
use crate::ids::free_children;
use crate::peers::{self, Local, thread_dead};
use crate::space::Space;
use crate::space::layout::*;
use crate::sys;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::fence;
use std::time::Duration;

/// Unlinked objects that are worth a grace period.
const ENOUGH: u64 = 32;

/// Looks at a reader before the caller has better things to do: some 20 ms.
const LOOKS: u32 = 100;

/// Whether a full grace period has passed; `false`: a reader takes long.
fn synchronize(space: &Space) -> bool {
    // Nobody who enters a section from here on relies on what was found before (`ids.rs`).
    space.header().reclaims.fetch_add(1, SeqCst);
    fence(SeqCst);
    if space.unfenced.load(Relaxed) {
        if !sys::membarrier(sys::MEMBARRIER_GLOBAL_EXPEDITED) {
            return false;
        }
    } else if anybody_unfenced(space) {
        return false;
    }
    let Ok(threads) = space.threads() else { return false };
    for (_, thread) in threads {
        let seen = thread.reader.load(SeqCst);
        let mut looks = 0;
        while seen & 1 != 0 && thread.reader.load(SeqCst) == seen {
            if thread.process.load(Acquire) == 0 || thread_dead(space, thread) {
                break;
            }
            looks += 1;
            if looks == LOOKS {
                return false;
            }
            sys::pause(Duration::from_micros(if looks < 10 { 20 } else { 200 }));
        }
    }
    fence(SeqCst);
    true
}

fn anybody_unfenced(space: &Space) -> bool {
    let used = space.header().processes.load(SeqCst).min(MAX_PROCESSES.into());
    (0..used).any(|index| {
        space.process_at(index).is_ok_and(|process| {
            let word = process.generation_state.load(SeqCst);
            word & 0xffff_ffff == LIVE
                && process.unfenced.load(SeqCst) != 0
                && peers::process_alive(space, peers::name(index, word >> 32))
        })
    })
}

/// Frees unlinked objects if there are enough of them. Outside of sections, without locks.
pub(crate) fn reclaim(local: &Local) {
    if local.limbo_count() >= ENOUGH {
        let _ = reclaim_all(local);
    }
}

pub(crate) fn reclaim_all(local: &Local) -> Result<()> {
    let section = local.enter();
    let batch = local.heap()?.begin_batch()?;
    drop(section);
    let Some(ticket) = batch else { return Ok(()) };
    if !synchronize(local.space) {
        local.mark_the_unmarked();
        return Ok(());
    }
    let _section = local.enter();
    loop {
        let heap = local.heap()?;
        let freed = match heap.next_of_batch(ticket) {
            Ok(None) => return Ok(()),
            Ok(Some(object)) => {
                local.roll_back();
                // The children one by one, each a transaction; then the object itself.
                free_children(local, &heap, object).and_then(|()| {
                    heap.next_of_batch(ticket)?;
                    heap.free(object)
                })
            }
            Err(error) => Err(error),
        };
        match freed {
            Ok(()) => local.commit(),
            // The next one frees it.
            Err(Errno(libc::ENOMEM)) => {
                local.roll_back();
                return Ok(());
            }
            Err(_) => heap.drop_batch(),
        }
    }
}
