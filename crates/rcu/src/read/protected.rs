// SPDX-License-Identifier: MIT OR Apache-2.0
//! References to one node, for any time: [`Protected`], on its thread or detached from it, and
//! [`OwnedProtected`], which keeps the structure as well.

use crate::thread::pool::POOL;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A [`Protected`] that stays on its thread: it costs two stores.
pub struct ThisThread(PhantomData<*mut ()>);

/// A [`Protected`] that may move to other threads: see [`Protected::detach`].
pub struct AnyThread(());

/// A reference to one node that a restartable lookup found. Keeps this node alive, and nothing
/// else; may be held for any time, across blocking calls. No grace period waits for it. One that is
/// leaked keeps the node alive until the domain is dropped.
///
/// References taken from it cannot outlive it, and it cannot leave its thread unless it is
/// [detached](Protected::detach):
///
/// ```compile_fail,E0505
/// fn keep(node: reprieve::Protected<'_, u64>) -> u64 {
///     let value: &u64 = &node;
///     drop(node);
///     *value
/// }
/// ```
/// ```compile_fail,E0277
/// fn send(node: reprieve::Protected<'static, u64>) {
///     std::thread::spawn(move || drop(node));
/// }
/// ```
#[must_use = "the node is let go when this is dropped"]
pub struct Protected<'d, T, A = ThisThread> {
    value: InSlot<T>,
    domain: PhantomData<(&'d (), &'d T, A)>,
}

/// Lives as long as the node is protected.
struct InSlot<T> {
    // Not a reference: the node may be freed while `drop` returns.
    value: NonNull<T>,
    /// Holds the node, of which the value is a part.
    slot: &'static AtomicUsize,
}

// SAFETY: a shared reference, and a slot of the pool, which any thread may empty.
unsafe impl<T: Sync> Send for Protected<'_, T, AnyThread> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Protected<'_, T, AnyThread> {}

impl<'d, T> Protected<'d, T> {
    /// # Safety
    /// `node` is alive and in `slot`, which is this thread's own; it stays alive while it is there.
    #[inline(always)]
    pub(crate) unsafe fn new(node: NonNull<T>, slot: &'static AtomicUsize) -> Protected<'d, T> {
        Protected { value: InSlot { value: node, slot }, domain: PhantomData }
    }

    /// The slot, which the caller empties.
    pub(crate) fn into_slot(self) -> &'static AtomicUsize {
        ManuallyDrop::new(self.value).slot
    }

    /// Lets the guard move to other threads, at the cost of two atomic operations: across an
    /// `.await` on a runtime of many threads, in a value that is sent. In the child of a fork the
    /// guards of threads that do not exist there keep their nodes.
    ///
    /// ```
    /// let cell = reprieve::structures::Cell::new(1);
    /// let held = cell.protect().detach();
    /// cell.store(2);
    /// std::thread::scope(|scope| _ = scope.spawn(move || assert_eq!(*held, 1)));
    /// ```
    pub fn detach(self) -> Protected<'d, T, AnyThread> {
        // The slot is emptied below.
        let InSlot { value, slot } = *ManuallyDrop::new(self.value);
        Protected { value: InSlot { value, slot: POOL.take_over(slot) }, domain: PhantomData }
    }
}

impl<'d, T, A> Protected<'d, T, A> {
    /// A part of the value. The guard keeps the whole node.
    ///
    /// ```
    /// use reprieve::{Protected, structures::Cell};
    /// let cell = Cell::new((1, "one"));
    /// let name = Protected::map(cell.protect(), |pair| &pair.1);
    /// cell.store((2, "two"));
    /// assert_eq!(*name, "one");
    /// ```
    pub fn map<U>(this: Self, part: impl FnOnce(&T) -> &U) -> Protected<'d, U, A> {
        let part = NonNull::from(part(&this));
        // SAFETY: a part of the value.
        unsafe { this.part(|_| part) }
    }

    /// # Safety
    /// The result is alive for as long as the node is.
    pub(crate) unsafe fn part<U>(
        self,
        part: impl FnOnce(NonNull<T>) -> NonNull<U>,
    ) -> Protected<'d, U, A> {
        let InSlot { value, slot } = *ManuallyDrop::new(self.value);
        Protected { value: InSlot { value: part(value), slot }, domain: PhantomData }
    }

    pub(crate) fn as_ptr(&self) -> *const T {
        self.value.value.as_ptr()
    }
}

impl<T, A> Deref for Protected<'_, T, A> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: alive while the slot is filled.
        unsafe { self.value.value.as_ref() }
    }
}

impl<T: std::fmt::Debug, A> std::fmt::Debug for Protected<'_, T, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Protected").field(&**self).finish()
    }
}

impl<T> Drop for InSlot<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the scan. Uses of the node come before the free.
        self.slot.store(0, Ordering::Release);
    }
}

/// A [`Protected`] and the structure that it came from, in one value without a lifetime: for a
/// field of a struct, or the result of a function. It may move to other threads.
///
/// ```
/// use reprieve::{OwnedProtected, structures::Map};
/// use std::sync::Arc;
///
/// struct Session { user: OwnedProtected<Map<u32, String>, String> }
///
/// fn open(users: &Arc<Map<u32, String>>, id: u32) -> Option<Session> {
///     let user = OwnedProtected::new(users.clone(), |users| Some(users.protect(&id)?.into_value()))?;
///     Some(Session { user })
/// }
///
/// let users = Arc::new(Map::new());
/// users.insert(1, "alpha".to_string());
/// let session = open(&users, 1).unwrap();
/// users.remove(&1);
/// drop(users);
/// std::thread::spawn(move || assert_eq!(*session.user, "alpha")).join().unwrap();
/// ```
///
/// What is protected belongs to the owner, and to nobody who may go before:
///
/// ```compile_fail,E0521
/// use reprieve::{OwnedProtected, structures::Cell};
/// let (owner, other) = (std::sync::Arc::new(()), Cell::new(1));
/// OwnedProtected::new(owner, |_| Some(other.protect()));
/// ```
#[must_use = "the node is let go when this is dropped"]
pub struct OwnedProtected<O, T> {
    // Before the owner, which is dropped after it.
    value: InSlot<T>,
    owner: Arc<O>,
}

// SAFETY: a shared reference, a slot of the pool, and an owner that may be sent.
unsafe impl<O: Send + Sync, T: Sync> Send for OwnedProtected<O, T> {}
// SAFETY: as above.
unsafe impl<O: Send + Sync, T: Sync> Sync for OwnedProtected<O, T> {}

impl<O, T> OwnedProtected<O, T> {
    /// What `find` protects in the owner, for which it holds whatever the owner's lifetime is.
    pub fn new<F>(owner: Arc<O>, find: F) -> Option<OwnedProtected<O, T>>
    where
        F: for<'o> FnOnce(&'o O) -> Option<Protected<'o, T>>,
    {
        // The guard borrows the owner, for which the Arc stands in from here on.
        let value = find(&owner)?.detach().value;
        Some(OwnedProtected { value, owner })
    }

    /// The owner.
    pub fn owner(this: &Self) -> &Arc<O> {
        &this.owner
    }
}

impl<O, T> Deref for OwnedProtected<O, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: alive while the slot is filled, and while the owner is, which may free the node
        // at its end.
        unsafe { self.value.value.as_ref() }
    }
}

impl<O, T: std::fmt::Debug> std::fmt::Debug for OwnedProtected<O, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OwnedProtected").field(&**self).finish()
    }
}
