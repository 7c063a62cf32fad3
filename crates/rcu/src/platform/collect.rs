// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collections that are given up where there is no memory: a thread of the runtime tries again
//! later, and the thread that registers a callback must not end the process.

/// All items, or `None` for want of memory.
pub(crate) fn try_collect<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let mut collected = Vec::new();
    for item in items {
        collected.try_reserve(1).ok()?;
        collected.push(item);
    }
    Some(collected)
}
