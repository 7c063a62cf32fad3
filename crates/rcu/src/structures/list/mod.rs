// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linked lists: the FREENIX 2003 paper's calls on links that lie in the entries (its figure 5, and
//! the entry and hlist forms that Linux grew), and [`List`], which is safe.
//!
//! The caller of the unsafe ones owns the entries, keeps writers apart with a lock, and frees after
//! a grace period:
//!
//! ```
//! use reprieve::structures::list::*;
//! use reprieve::{list_entry, list_for_each_entry_rcu};
//!
//! struct Entry { links: ListHead, key: u32 }
//! let new = |key| Box::into_raw(Box::new(Entry { links: ListHead::new(), key }));
//! let mut head = Box::new(ListHead::new());
//!
//! // SAFETY: one thread; the entries stay where they are, and are freed a grace period after their removal.
//! unsafe {
//!     let list: *mut ListHead = &mut *head;
//!     init_list_head(list);
//!     for key in 1..=3 {
//!         list_add_rcu_tail(&raw mut (*new(key)).links, list);
//!     }
//!
//!     let guard = reprieve::read_lock();
//!     let keys: Vec<u32> = list_for_each_entry_rcu!(&*list, Entry, links, &guard).map(|e| e.key).collect();
//!     assert_eq!(keys, [1, 2, 3]);
//!     drop(guard);
//!
//!     // Out of the list, out of readers' reach, out of memory.
//!     let mut removed = vec![];
//!     let guard = reprieve::read_lock();
//!     for links in list_for_each_safe_rcu(&*list, &guard) {
//!         list_del_rcu(links);
//!         removed.push(list_entry!(links, Entry, links));
//!     }
//!     drop(guard);
//!     assert!((*list).is_empty());
//!     reprieve::synchronize_kernel();
//!     removed.into_iter().for_each(|entry| drop(Box::from_raw(entry)));
//! }
//! ```

pub(crate) mod links;
#[cfg(not(loom))]
mod owned;
#[cfg(not(loom))]
mod scan;
#[cfg(not(loom))]
mod walk;

pub use links::{
    HlistHead, HlistNode, ListHead, hlist_add_behind_rcu, hlist_add_head_rcu, hlist_del_rcu,
    init_list_head, list_add_rcu, list_add_rcu_tail, list_del_rcu, list_replace_rcu,
};
#[cfg(not(loom))]
pub use owned::List;
#[cfg(not(loom))]
pub use scan::Iter;
#[cfg(not(loom))]
pub use walk::{
    HlistLinks, Links, SafeLinks, entries, hlist_entries, hlist_for_each_rcu, list_for_each_rcu,
    list_for_each_safe_rcu,
};
