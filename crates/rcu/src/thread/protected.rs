// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nodes in slots, as a reclaimer finds them.

use super::pool::Pool;
use super::slots::Slots;
use crate::platform::collect::try_collect;
use crate::platform::sync::{AtomicUsize, Ordering};

/// The nodes that a scan found in slots. `None`: there was no memory for them, so any node may be
/// in one.
pub(crate) struct ProtectedNodes(Option<Vec<usize>>);

impl ProtectedNodes {
    /// Looks into every slot, the pool's last (`pool.rs`). The grace period of the nodes asked
    /// about is over.
    pub(crate) fn scan<'a>(
        threads: impl Iterator<Item = &'a Slots>,
        pool: &'a Pool,
    ) -> ProtectedNodes {
        // The pool's blocks, too, are looked up when the threads' slots have been looked into.
        let pool = std::iter::once(pool).flat_map(Pool::all);
        Self::look(threads.flat_map(|slots| slots.all()).chain(pool))
    }

    /// Looks into these slots, in this order.
    pub(crate) fn look<'a>(slots: impl Iterator<Item = &'a AtomicUsize>) -> ProtectedNodes {
        // Acquire pairs with the release store that empties a slot: what the guard's owner did with
        // the node comes before the free.
        let nodes = slots.map(|s| s.load(Ordering::Acquire));
        let mut nodes = try_collect(nodes.filter(|&n| n != 0));
        nodes.iter_mut().for_each(|nodes| nodes.sort_unstable());
        ProtectedNodes(nodes)
    }

    #[cfg(not(loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }

    pub(crate) fn contains(&self, node: usize) -> bool {
        self.0.as_ref().is_none_or(|nodes| !nodes.is_empty() && nodes.binary_search(&node).is_ok())
    }
}
