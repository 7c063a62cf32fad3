// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures that are read without locks: [`Cell`], [`Map`], [`OrderedMap`], [`PrefixTable`],
//! [`List`].
//!
//! The structures stand on domains and read sides, as a program's own structures would; readers
//! touch nodes inside sections only, writers under the structure's locks.
//!
//! | structure | plain section (a guard) | copy by restartable lookup | protected reference |
//! |---|---|---|---|
//! | [`Cell<T>`](Cell): a value replaced as a whole | `load` | `get` | `protect` |
//! | [`Map<K, V>`](Map): a hash map that grows under its readers | `get`, `iter_in` | `copied` | `protect`, `iter` |
//! | [`OrderedMap<K, V>`](OrderedMap): a map in the order of its keys | `get`, `range_in` | | `protect`, `range` |
//! | [`PrefixTable<A, V>`](PrefixTable): longest prefix match, for routes | | `copied` | `lookup`, `iter` |
//! | [`List<T>`](List) | `iter_in` | | `protect`, `iter` |
//!
//! A grace period waits for the calls of the first column, and for none of the others.
//!
//! # What holds for all
//! - **References** borrow the guard and the structure: they outlive neither, and the structure can
//!   be dropped or moved only when there are none. So its drop frees at once what is in it.
//! - **Domains**: a structure belongs to one ([`Handle`]), through which it frees. A guard of
//!   another domain is refused with a panic (one comparison, which the compiler decides for the
//!   default domain).
//! - **Frees** go through the domain's callbacks and count towards its [`Cap`](crate::Cap) with the
//!   bytes of the node (not of what the value owns). The head of the callback lies in the node:
//!   taking something out allocates nothing. Values without a destructor may be freed by any
//!   thread that registers; others are dropped on a worker thread, hence `Send` and `'static`. A
//!   destructor that panics there ends the process.
//! - **Guards** that protect an item stay on their thread unless they are
//!   [detached](crate::Protected::detach). An [`OwnedProtected`](crate::OwnedProtected) holds the
//!   structure, too.
//! - **Writers** never wait for a grace period (except, at most 20 ms, over the cap and outside
//!   sections), so all calls are allowed inside sections. They take locks, and are not for signal
//!   handlers; reads are. After a fork the child may find a lock taken by a thread it does not
//!   have.
//!
//! # From a reader-writer lock to RCU
//! Table 1 of the FREENIX 2003 paper ("Using Read-Copy-Update Techniques for System V IPC in the
//! Linux 2.5 Kernel"): each call on the left becomes the one on the right. Readers need no lock any
//! more; writers still exclude each other.
//!
//! | reader-writer lock | RCU | here |
//! |---|---|---|
//! | `rwlock_t` | `spinlock_t` | `RwLock` becomes `Mutex`, or the lock inside [`List`] and [`Map`] |
//! | `read_lock()` | `rcu_read_lock()` | [`read_lock`](crate::read_lock) |
//! | `read_unlock()` | `rcu_read_unlock()` | the guard's drop |
//! | `write_lock()`, `write_unlock()` | `spin_lock()`, `spin_unlock()` | `Mutex::lock` |
//! | `list_add()`, `list_add_tail()` | `list_add_rcu()`, `list_add_rcu_tail()` | `push_front`, `push_back` |
//! | `list_del()` | `list_del_rcu()` | `remove_first`, `retain` |
//! | `list_for_each()` | `list_for_each_rcu()` | `iter_in` |
//! | `kfree()` | `call_rcu()`, or `synchronize_kernel()` first | [`Domain::retire_box`](crate::Domain::retire_box); done by `List` and `Map` |
//!
//! Table 2, search and deletion. With a reader-writer lock:
//!
//! ```
//! use std::sync::RwLock;
//!
//! struct Entry { key: u32, data: u32 }
//! let list: RwLock<Vec<Entry>> = RwLock::new(vec![Entry { key: 1, data: 10 }, Entry { key: 2, data: 20 }]);
//!
//! let search = |key| list.read().unwrap().iter().find(|e| e.key == key).map(|e| e.data);
//! let delete = |key| {
//!     let mut list = list.write().unwrap();
//!     let found = list.iter().position(|e| e.key == key);
//!     found.map(|i| list.remove(i)).is_some()
//! };
//! assert_eq!(search(2), Some(20));
//! assert!(delete(2));
//! assert_eq!(search(2), None);
//! ```
//!
//! With RCU: the search takes no lock, the deletion defers the free.
//!
//! ```
//! use reprieve::{read_lock, structures::List};
//!
//! struct Entry { key: u32, data: u32 }
//! let list = List::new();
//! list.push_back(Entry { key: 1, data: 10 });
//! list.push_back(Entry { key: 2, data: 20 });
//!
//! let search = |key| list.iter_in(&read_lock()).find(|e| e.key == key).map(|e| e.data);
//! let delete = |key| list.remove_first(|e| e.key == key);
//! assert_eq!(search(2), Some(20));
//! assert!(delete(2));
//! assert_eq!(search(2), None);
//! ```
//!
//! Readers see a change: two may see different versions at the same time, and a reader may see an
//! entry that was removed a moment ago. Where that matters, give each entry a lock and a `deleted`
//! flag: removal sets the flag under that lock, and a reader looks at it under the lock.

pub(crate) mod array;
mod lock;
pub(crate) mod node;
pub(crate) mod pointer;

#[cfg(not(loom))]
mod calls;
#[cfg(not(loom))]
mod cell;
#[cfg(not(loom))]
mod copy;
#[cfg(not(loom))]
mod handle;
#[cfg(not(loom))]
mod held;
pub mod list;
pub mod map;
pub mod ordered;
pub mod prefix;
#[cfg(all(feature = "serde", not(loom)))]
mod serialize;

#[cfg(not(loom))]
pub use cell::{Cell, Changed};
#[cfg(not(loom))]
pub use handle::{Global, Handle};
#[cfg(not(loom))]
pub use list::List;
#[cfg(not(loom))]
pub use map::Map;
#[cfg(not(loom))]
pub use ordered::OrderedMap;
#[cfg(not(loom))]
pub use prefix::PrefixTable;
