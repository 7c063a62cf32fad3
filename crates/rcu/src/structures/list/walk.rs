// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walking along lists, in sections: as links, or as the entries they lie in.

use super::links::{HlistHead, HlistNode, ListHead};
use crate::read::guard::ReadSide;
use std::marker::PhantomData;

/// All links of a list, in order.
///
/// An entry that is in the list all the time is yielded once; one that is added or removed
/// meanwhile may be.
///
/// # Safety
/// Entries are removed with [`list_del_rcu`](super::list_del_rcu) and stay valid for a grace period
/// of the guard's domain after it.
pub unsafe fn list_for_each_rcu<'g, G: ReadSide>(head: &'g ListHead, _guard: &'g G) -> Links<'g> {
    Links { at: head, head, section: PhantomData }
}

/// Like [`list_for_each_rcu`], but the next entry is looked up before one is handed out: the loop's
/// body may take that one out, and a writer that knows it to be out of readers' reach may use it at
/// once.
///
/// # Safety
/// As for [`list_for_each_rcu`]; the body may use the entry it is given again, and takes out no
/// other of this list.
pub unsafe fn list_for_each_safe_rcu<'g, G: ReadSide>(
    head: &'g ListHead,
    _guard: &'g G,
) -> SafeLinks<'g> {
    SafeLinks { next: head.next(), head, section: PhantomData }
}

/// See [`list_for_each_rcu`].
pub struct Links<'g> {
    /// Null at the end.
    at: *const ListHead,
    head: &'g ListHead,
    section: PhantomData<*mut ()>,
}

impl Iterator for Links<'_> {
    type Item = *mut ListHead;

    #[inline]
    fn next(&mut self) -> Option<*mut ListHead> {
        // SAFETY: null, or the head, or found in this section, in which entries stay valid.
        let next = unsafe { self.at.as_ref() }?.next();
        let end = std::ptr::eq(next, self.head);
        self.at = if end { std::ptr::null() } else { next };
        (!end).then_some(next)
    }
}

/// See [`list_for_each_safe_rcu`].
pub struct SafeLinks<'g> {
    next: *mut ListHead,
    head: &'g ListHead,
    section: PhantomData<*mut ()>,
}

impl Iterator for SafeLinks<'_> {
    type Item = *mut ListHead;

    #[inline]
    fn next(&mut self) -> Option<*mut ListHead> {
        let this = self.next;
        if std::ptr::eq(this, self.head) {
            return None;
        }
        // SAFETY: as in `Links`.
        self.next = unsafe { (*this).next() };
        Some(this)
    }
}

/// All links of a list with a small head.
///
/// # Safety
/// As for [`list_for_each_rcu`].
pub unsafe fn hlist_for_each_rcu<'g, G: ReadSide>(
    head: &'g HlistHead,
    _guard: &'g G,
) -> HlistLinks<'g> {
    HlistLinks { next: head.first(), section: PhantomData }
}

/// See [`hlist_for_each_rcu`].
pub struct HlistLinks<'g> {
    next: *mut HlistNode,
    section: PhantomData<(&'g HlistHead, *mut ())>,
}

impl Iterator for HlistLinks<'_> {
    type Item = *mut HlistNode;

    #[inline]
    fn next(&mut self) -> Option<*mut HlistNode> {
        let this = self.next;
        // SAFETY: found in this section, in which entries stay valid.
        self.next = unsafe { this.as_ref() }?.next();
        Some(this)
    }
}

/// The entry of a type in which links lie as that field (`container_of`): `list_entry!(links, Type,
/// field)`, a `*mut Type`.
///
/// For use in `unsafe`: the links must lie in such an entry.
#[macro_export]
macro_rules! list_entry {
    ($links:expr, $type:ty, $field:ident) => {
        $links.byte_sub(::core::mem::offset_of!($type, $field)).cast::<$type>()
    };
}

/// All entries of a list as references for as long as the guard lives:
/// `list_for_each_entry_rcu!(&head, Type, field, &guard)`.
///
/// For use in `unsafe`: see [`list_for_each_rcu`]; the
/// list's entries are of that type, and are not written to while readers may be on them.
#[macro_export]
macro_rules! list_for_each_entry_rcu {
    ($head:expr, $type:ty, $field:ident, $guard:expr) => {
        $crate::structures::list::entries($head, $guard, |links| {
            $crate::list_entry!(links, $type, $field)
        })
    };
}

/// The same for a list with a small head: `hlist_for_each_entry_rcu!(&head, Type, field, &guard)`.
#[macro_export]
macro_rules! hlist_for_each_entry_rcu {
    ($head:expr, $type:ty, $field:ident, $guard:expr) => {
        $crate::structures::list::hlist_entries($head, $guard, |links| {
            $crate::list_entry!(links, $type, $field)
        })
    };
}

/// For the macros: fixes the entries' lifetime.
#[doc(hidden)]
pub unsafe fn entries<'g, T: 'g, G: ReadSide>(
    head: &'g ListHead,
    guard: &'g G,
    entry: impl Fn(*mut ListHead) -> *mut T + 'g,
) -> impl Iterator<Item = &'g T> {
    // SAFETY: the caller's promise.
    unsafe { list_for_each_rcu(head, guard).map(move |links| &*entry(links)) }
}

/// For the macros.
#[doc(hidden)]
pub unsafe fn hlist_entries<'g, T: 'g, G: ReadSide>(
    head: &'g HlistHead,
    guard: &'g G,
    entry: impl Fn(*mut HlistNode) -> *mut T + 'g,
) -> impl Iterator<Item = &'g T> {
    // SAFETY: the caller's promise.
    unsafe { hlist_for_each_rcu(head, guard).map(move |links| &*entry(links)) }
}
