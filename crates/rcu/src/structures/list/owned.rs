// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`List`]: the intrusive list with its entries, its lock and its domain, as a safe type.

use super::links::{
    ListHead, init_list_head, list_add_rcu, list_add_rcu_tail, list_del_rcu, list_replace_rcu,
};
use super::scan::Iter;
use crate::read::guard::ReadSide;
use crate::read::protected::Protected;
use crate::structures::handle::{self, Global, Handle};
use crate::structures::lock::Lock;
use crate::structures::node;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The address of an item is that of its value and of its node.
#[repr(C)]
pub(super) struct Item<T> {
    value: T,
    pub(super) links: ListHead,
    /// Grows from each item of a list to the next. Not written to once the item is in the list.
    pub(super) position: i64,
}

/// # Safety
/// The links lie in an item of this type.
unsafe fn item<T>(links: *mut ListHead) -> *mut Item<T> {
    // SAFETY: the caller's promise.
    unsafe { links.byte_sub(offset_of!(Item<T>, links)).cast() }
}

/// A list whose readers take no lock. Writers take the list's own.
///
/// ```
/// use reprieve::structures::List;
///
/// let list = List::new();
/// list.push_back(2);
/// list.push_back(3);
/// list.push_front(1);
/// list.replace_first(|n| *n == 2, |n| n * 10);
/// assert!(list.remove_first(|n| *n == 3));
///
/// // A scan hands out one protected value after another, and no grace period waits for it.
/// assert_eq!(list.iter().map(|value| *value).collect::<Vec<_>>(), [1, 20]);
/// // In a plain section, as references.
/// assert!(list.iter_in(&reprieve::read_lock()).eq(&[1, 20]));
///
/// let held = list.protect(|n| *n > 1).unwrap();
/// list.retain(|_| false);
/// assert!(list.is_empty() && *held == 20);
/// ```
///
/// ```compile_fail,E0505
/// let list = reprieve::structures::List::new();
/// list.push_back(1);
/// let guard = reprieve::read_lock();
/// let first = list.iter_in(&guard).next();
/// drop(guard);
/// println!("{first:?}");
/// ```
/// ```compile_fail,E0505
/// let list = reprieve::structures::List::new();
/// list.push_back(1);
/// let held = list.protect(|_| true);
/// drop(list);
/// drop(held);
/// ```
pub struct List<T, D = Global> {
    pub(super) head: *mut ListHead,
    lock: Lock,
    len: AtomicUsize,
    pub(super) domain: D,
    items: PhantomData<T>,
}

// SAFETY: the head is the list's own; values are shared and sent.
unsafe impl<T: Send + Sync, D: Send> Send for List<T, D> {}
// SAFETY: as above; writers exclude each other by the lock.
unsafe impl<T: Send + Sync, D: Sync> Sync for List<T, D> {}

struct Locked<'a>(&'a Lock);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl<T: Send + Sync + 'static> List<T> {
    /// An empty list of the default domain.
    pub fn new() -> List<T> {
        List::new_in(Global)
    }
}

impl<T: Send + Sync + 'static> Default for List<T> {
    fn default() -> List<T> {
        List::new()
    }
}

impl<T: Send + Sync + 'static, D: Handle> List<T, D> {
    /// An empty list of that domain.
    pub fn new_in(domain: D) -> List<T, D> {
        let head = Box::into_raw(Box::new(ListHead::new()));
        // SAFETY: fresh; freed when the list is dropped.
        unsafe { init_list_head(head) };
        List { head, lock: Lock::new(), len: AtomicUsize::new(0), domain, items: PhantomData }
    }

    fn lock(&self) -> Locked<'_> {
        self.lock.lock();
        Locked(&self.lock)
    }

    /// Adds to `len`, under the lock.
    fn count(&self, more: isize) {
        self.len
            .store(self.len.load(Ordering::Relaxed).wrapping_add_signed(more), Ordering::Relaxed);
    }

    fn allocate(value: T, position: i64) -> *mut Item<T> {
        node::allocate(Item { value, links: ListHead::new(), position })
    }

    /// The position of an item in the list, 0 of the list itself. Under the lock.
    fn position(&self, links: *mut ListHead) -> i64 {
        // SAFETY: in the list, which does not change.
        if links == self.head { 0 } else { unsafe { (*item::<T>(links)).position } }
    }

    /// Adds a value at the front.
    pub fn push_front(&self, value: T) {
        let item = Self::allocate(value, 0);
        let _locked = self.lock();
        // SAFETY: under the lock; the item is fresh, and retired after its removal.
        unsafe {
            (*item).position = self.position((*self.head).next()) - 1;
            list_add_rcu(&raw mut (*item).links, self.head);
        }
        self.count(1);
    }

    /// Adds a value at the end.
    pub fn push_back(&self, value: T) {
        let item = Self::allocate(value, 0);
        let _locked = self.lock();
        // SAFETY: as above.
        unsafe {
            (*item).position = self.position((*self.head).prev()) + 1;
            list_add_rcu_tail(&raw mut (*item).links, self.head);
        }
        self.count(1);
    }

    /// All values in order, each protected. A value that is in the list all the time is seen once;
    /// one that is added or removed meanwhile may be. No grace period waits for the scan: it keeps
    /// two items alive, and those that the caller keeps.
    pub fn iter(&self) -> Iter<'_, T, D> {
        Iter::new(self)
    }

    /// The same as references, for as long as the guard lives: faster, but a grace period waits for
    /// the guard, and the list's frees with it.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn iter_in<'g, G: ReadSide>(&'g self, guard: &'g G) -> impl Iterator<Item = &'g T> {
        handle::check(&self.domain, guard);
        let mut links = self.head;
        let next = move || {
            // SAFETY: the head is valid while the list is borrowed; the items are retired through
            // this domain, so they stay valid in the section.
            unsafe {
                links = (*links).next();
                (links != self.head).then(|| &(*item::<T>(links)).value)
            }
        };
        std::iter::from_fn(next).fuse()
    }

    /// The first value for which `found` holds, protected: for any time, and no grace period waits
    /// for it, nor for the search.
    pub fn protect(&self, mut found: impl FnMut(&T) -> bool) -> Option<Protected<'_, T>> {
        self.iter().find(|value| found(value))
    }

    /// The first item for which `is` holds. Under the lock.
    fn find(&self, mut is: impl FnMut(&T) -> bool) -> Option<*mut Item<T>> {
        // SAFETY: under the lock nothing is removed.
        unsafe {
            let mut links = (*self.head).next();
            while links != self.head {
                let item = item::<T>(links);
                if is(&(*item).value) {
                    return Some(item);
                }
                links = (*links).next();
            }
        }
        None
    }

    /// Removes the first value for which `is` holds, and tells whether there was one. Holds the
    /// list's lock while it looks.
    pub fn remove_first(&self, is: impl FnMut(&T) -> bool) -> bool {
        let locked = self.lock();
        let Some(item) = self.find(is) else {
            return false;
        };
        // SAFETY: in the list, under the lock; and unlinked then, by us alone.
        unsafe {
            list_del_rcu(&raw mut (*item).links);
            self.count(-1);
            drop(locked);
            node::retire(self.domain.domain(), item);
        }
        true
    }

    /// Replaces the first value for which `is` holds by `new` of it, and tells whether there was
    /// one. Readers find the old one or the new one. Holds the list's lock while it looks, and
    /// while `new` runs.
    pub fn replace_first(&self, is: impl FnMut(&T) -> bool, new: impl FnOnce(&T) -> T) -> bool {
        let locked = self.lock();
        let Some(old) = self.find(is) else {
            return false;
        };
        // SAFETY: as above.
        unsafe {
            let new = Self::allocate(new(&(*old).value), (*old).position);
            list_replace_rcu(&raw mut (*old).links, &raw mut (*new).links);
            drop(locked);
            node::retire(self.domain.domain(), old);
        }
        true
    }

    /// Removes all values for which `keep` does not hold. Holds the list's lock meanwhile.
    pub fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        // Dropped after the lock, and when `keep` panics, too.
        let mut removed = node::Unlinked::new(self.domain.domain());
        let _locked = self.lock();
        // SAFETY: under the lock; each removed item is unlinked by us alone, and its successor is
        // looked up first.
        unsafe {
            let mut links = (*self.head).next();
            while links != self.head {
                let item = item::<T>(links);
                links = (*links).next();
                if !keep(&(*item).value) {
                    list_del_rcu(&raw mut (*item).links);
                    self.count(-1);
                    removed.add(item);
                }
            }
        }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T, D> Drop for List<T, D> {
    fn drop(&mut self) {
        // SAFETY: whatever refers to the list or its values borrows it.
        unsafe {
            let mut links = (*self.head).next();
            while links != self.head {
                let item = item::<T>(links);
                links = (*links).next();
                node::free(item);
            }
            drop(Box::from_raw(self.head));
        }
    }
}

impl<T: Send + Sync + 'static + std::fmt::Debug, D: Handle> std::fmt::Debug for List<T, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = f.debug_list();
        self.iter().for_each(|value| _ = list.entry(&*value));
        list.finish()
    }
}
