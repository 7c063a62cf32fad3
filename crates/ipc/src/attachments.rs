// SPDX-License-Identifier: MIT OR Apache-2.0
//! The segments that this process has attached.
//!
//! The list says which ones, not where they are: the program may unmap, move or cut what it has
//! attached, and the library is not told. Where that matters, `/proc` is asked.

use crate::maps::{Mappings, Maps};
use crate::namespace::Namespace;
use crate::signals::Call;
use crate::{bytes, file};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// A segment that was attached, as often as it was.
#[derive(Clone, Copy)]
pub(crate) struct Attachment {
    pub namespace: Namespace,
    pub id: i32,
    /// The number of its file.
    pub inode: u64,
    /// Where it was attached, and with which length.
    pub address: usize,
    pub length: usize,
}

impl Attachment {
    pub fn is_of_same_segment(&self, other: &Attachment) -> bool {
        std::ptr::eq(self.namespace.space, other.namespace.space) && self.id == other.id
    }
}

struct List {
    locked: AtomicBool,
    list: UnsafeCell<Vec<Attachment>>,
}

// SAFETY: the list is touched under the lock only.
unsafe impl Sync for List {}

static LIST: List = List { locked: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

fn try_lock() -> bool {
    let free = !LIST.locked.swap(true, Acquire);
    if !free {
        crate::sys::pause(Duration::from_micros(20));
    }
    free
}

/// Locks the list, for [`unlock`] by the same thread or, after a fork, its child's.
pub(crate) fn lock() {
    while !try_lock() {}
}

/// The same, unless it takes long: a thread that was not forked may have held the lock.
pub(crate) fn lock_soon() -> bool {
    (0..1000).any(|_| try_lock())
}

/// # Safety
/// This thread holds the lock.
pub(crate) unsafe fn list() -> &'static mut Vec<Attachment> {
    // SAFETY: the caller's promise.
    unsafe { &mut *LIST.list.get() }
}

pub(crate) fn unlock() {
    LIST.locked.store(false, Release);
}

/// Runs `f` on the list, alone. In a call: a handler of this thread would wait for it.
pub(crate) fn with<R>(_call: &Call, f: impl FnOnce(&mut Vec<Attachment>) -> R) -> R {
    lock();
    // SAFETY: locked.
    let result = f(unsafe { list() });
    unlock();
    result
}

/// Takes off the list what a new mapping has taken the place of, unless it is somewhere else.
pub(crate) fn take_replaced(list: &mut Vec<Attachment>, new: Range<usize>) -> Vec<Attachment> {
    let covers = |a: &Attachment| new.start <= a.address && a.address + a.length <= new.end;
    let old: Vec<_> = list.iter().copied().filter(covers).collect();
    let maps = (!old.is_empty()).then(Maps::own).flatten();
    let is_mapped =
        |a: &Attachment| maps.as_ref().is_some_and(|maps| !mappings(maps, a).is_empty());
    let gone: Vec<_> = old.into_iter().filter(|a| !is_mapped(a)).collect();
    list.retain(|a| !gone.iter().any(|g| g.address == a.address && g.is_of_same_segment(a)));
    gone
}

pub(crate) fn file_name(id: i32) -> String {
    format!("/{}", bytes::name(id))
}

fn mappings(maps: &Maps, a: &Attachment) -> Mappings {
    maps.of(&file_name(a.id), a.inode)
}

/// Unmaps the segment that is, or would be, at `address` as a whole: what of it is where it belongs
/// then. Its attachment, and whether that is its last one.
///
/// # Safety
/// Nothing in it is used any more.
pub(crate) unsafe fn unmap(
    list: &mut Vec<Attachment>,
    address: usize,
) -> Option<(Attachment, bool)> {
    let unmap = |part: &Range<usize>| {
        // SAFETY: the caller's promise; it is a part of a segment.
        unsafe { file::unmap(part.start, part.len()) };
    };
    let Some(maps) = Maps::own() else {
        let attachment = list.swap_remove(list.iter().rposition(|a| a.address == address)?);
        unmap(&(address..address + attachment.length));
        return Some((attachment, true));
    };
    let first = |a: &Attachment| {
        let mut here = mappings(&maps, a).into_iter().filter(|(_, base)| *base == address);
        here.next().map(|(part, _)| part.start)
    };
    let (attachment, _) =
        list.iter().filter_map(|a| Some((*a, first(a)?))).min_by_key(|(_, first)| *first)?;
    let (here, left): (Mappings, Mappings) =
        mappings(&maps, &attachment).into_iter().partition(|(_, base)| *base == address);
    here.iter().for_each(|(part, _)| unmap(part));
    let is = |a: &Attachment| a.is_of_same_segment(&attachment);
    let at =
        list.iter().position(|a| is(a) && a.address == address).or(list.iter().position(is))?;
    let last = left.is_empty() || list.iter().filter(|a| is(a)).count() > 1;
    match left.first() {
        // Doubled (`mremap`).
        Some(&(_, base)) if !last => list[at].address = base,
        _ => drop(list.swap_remove(at)),
    }
    Some((attachment, last))
}
