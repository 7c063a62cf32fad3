// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traversals of any length, in parts of a bounded number of steps: what a grace period sends back,
//! or waits for, is one part. `thread/checkpoints.rs` has the argument.
//!
//! # How long a part is
//! A long part loses more when it is sent back, short ones cost more entries. Both together cost
//! least where the length of a part is proportional to the square root of the time between two
//! aborts. Adding steps after each part and halving them after each abort settles there, as TCP's
//! window does on a lossy line.

use super::argument::Argument;
use super::section::Section;
use super::{Lookup, LookupDomain, Names, armed, protect_otherwise, ready};
use crate::thread;
use crate::thread::checkpoints::Checkpoints;
use crate::thread::slots::RESERVED;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

/// The outcome of a part. See [`Traversal::part`].
#[repr(C)]
pub struct Part<T> {
    pub(crate) node: *const T,
    pub(crate) word: usize,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Part<T> {
        *self
    }
}

impl<T> Copy for Part<T> {}

impl<T> Names for Part<T> {
    #[inline(always)]
    fn node(&self) -> usize {
        self.node as usize
    }
}

pub(crate) const FOUND: usize = 0;
pub(crate) const REACHED: usize = 1;
pub(crate) const LOST: usize = 2;
pub(crate) const END: usize = 3;

/// Outcomes without a node leave the slot reserved.
impl<T> Part<T> {
    /// The traversal is over: this is the node.
    #[inline(always)]
    pub fn found(node: *const T) -> Part<T> {
        Part { node, word: FOUND }
    }

    /// The steps are used up: the next part starts at this node.
    #[inline(always)]
    pub fn reached(node: *const T) -> Part<T> {
        Part { node, word: REACHED }
    }

    /// The node at which the part should start was unlinked.
    #[inline(always)]
    pub fn lost() -> Part<T> {
        Part { node: RESERVED as *const T, word: LOST }
    }

    /// The traversal is over, and has found nothing.
    #[inline(always)]
    pub fn end() -> Part<T> {
        Part { node: RESERVED as *const T, word: END }
    }
}

/// A part that fills two slots with what it has found: the traversal's, and one for the caller.
pub(crate) struct Handed<T>(Part<T>);

impl<T> Clone for Handed<T> {
    fn clone(&self) -> Handed<T> {
        *self
    }
}

impl<T> Copy for Handed<T> {}

impl<T> Handed<T> {
    const KINDS: usize = 3;

    /// The second slot is `beyond` bytes behind the first: a multiple of the size of a slot, which
    /// leaves room for the kind of part.
    #[inline(always)]
    pub(crate) fn found(node: *const T, beyond: usize) -> Handed<T> {
        const { assert!(FOUND == 0) };
        Handed(Part { node, word: beyond })
    }

    /// Anything but found.
    #[inline(always)]
    pub(crate) fn other(part: Part<T>) -> Handed<T> {
        Handed(part)
    }

    pub(crate) fn part(self) -> Part<T> {
        Part { word: self.0.word & Self::KINDS, ..self.0 }
    }
}

impl<T> Names for Handed<T> {
    const TWICE: bool = true;

    #[inline(always)]
    fn node(&self) -> usize {
        self.0.node as usize
    }

    #[inline(always)]
    fn beyond(&self) -> usize {
        self.0.word & !Self::KINDS
    }
}

/// A traversal of any length, in parts.
///
/// No grace period waits for it, and it keeps up to three nodes from being freed. If nodes are
/// removed under it, it may start again at the entry; it ends when a search of the structure as it
/// was at some moment would.
///
/// # Safety
/// The implementor promises, of [`part`](Traversal::part), what [`Lookup`] asks of
/// [`run`](Lookup::run); and
/// - writers mark a node as unlinked, for good, before they retire a node to which its links lead;
/// - a part that starts at a node looks for the mark before it follows a link of the node, and is
///   [lost](Part::lost) if it finds the mark;
/// - a node that a part has found or reached was in the structure, by what the part read.
pub unsafe trait Traversal {
    /// The type of the nodes.
    type Node;

    /// As [`Lookup::UNOPTIMIZED`].
    const UNOPTIMIZED: bool = false;

    /// Goes on behind `from`, or begins if that is null. After `steps` nodes, at the latest, the
    /// part has [reached](Part::reached) the last of them, which is never `from` itself.
    ///
    /// # Safety
    /// Called inside a section of the domain through which everything it can reach is reclaimed;
    /// `from` is null, or was returned by an earlier part, and is not freed.
    unsafe fn part(
        &self,
        section: &Section,
        from: *const Self::Node,
        steps: usize,
    ) -> Part<Self::Node>;
}

/// In builds that are broken on purpose: whether parts do not look for the mark.
#[inline(always)]
pub(crate) fn blind() -> bool {
    #[cfg(reprieve_fault)]
    return crate::platform::fault::is(crate::platform::fault::Fault::NoLook);
    #[cfg(not(reprieve_fault))]
    false
}

/// How many steps the next part has.
pub(crate) struct Pace(Cell<usize>);

impl Pace {
    const LEAST: usize = 16;
    const FIRST: usize = 256;
    const MOST: usize = 4096;
    const MORE: usize = 4;

    pub(crate) const fn new() -> Pace {
        Pace(Cell::new(Pace::FIRST))
    }

    fn completed(&self) {
        self.0.set((self.0.get() + Pace::MORE).min(Pace::MOST));
    }

    fn aborted(&self) {
        self.0.set((self.0.get() / 2).max(Pace::LEAST));
    }
}

/// Runs one part, made for a number of steps, which fills `slot` as its last act. After
/// [`RESTARTS`](super::RESTARTS) aborts, which leave few steps, in a plain section.
///
/// # Safety
/// As for [`super::protect`]; `slot`, and the second, if one is filled, are the calling thread's,
/// in that domain, and nobody else's until this returns.
pub(crate) unsafe fn protect_part<L: Lookup<Output: Names>, P: LookupDomain>(
    domain: P,
    pace: &Pace,
    slot: &AtomicUsize,
    part: impl Fn(usize) -> L,
) -> L::Output {
    let attempt = |thread, cs| {
        let lookup = part(pace.0.get());
        // SAFETY: the address and the slot are this thread's own; the caller's promise.
        let found =
            unsafe { armed::attempt_protect::<L>(thread, cs, Argument::new(&lookup).words, slot) };
        if found.is_some() {
            pace.completed()
        } else {
            pace.aborted()
        }
        found
    };
    let first = ready::<L, P>(&domain);
    if let Some(found) = first.and_then(|(thread, cs)| attempt(thread, cs)) {
        return found;
    }
    // SAFETY: inside a plain section of the domain.
    let plain = || unsafe { part(pace.0.get()).run(&Section::new()) };
    // SAFETY: the caller's promise.
    unsafe { protect_otherwise::<L>(domain, slot, first.is_some(), attempt, plain) }
}

/// A part of a traversal.
struct Of<'a, T: Traversal> {
    traversal: &'a T,
    from: *const T::Node,
    steps: usize,
}

// SAFETY: the promise of `Traversal`.
unsafe impl<T: Traversal> Lookup for Of<'_, T> {
    type Output = Part<T::Node>;
    const UNOPTIMIZED: bool = T::UNOPTIMIZED;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Part<T::Node> {
        // SAFETY: the caller's promise.
        unsafe { self.traversal.part(section, self.from, self.steps) }
    }
}

/// Runs the traversal to its end. The node that it finds is in the slot.
///
/// # Safety
/// As for [`super::protect`], for each node at which the traversal stops.
pub(crate) unsafe fn traverse<T: Traversal>(
    domain: impl LookupDomain + Copy,
    traversal: &T,
) -> Option<(NonNull<T::Node>, &'static AtomicUsize)> {
    let mut checkpoints = Checkpoints::reserve(&thread::record(domain.index()).slots);
    let pace = Pace::new();
    loop {
        let (from, slot) = checkpoints.next();
        let from = from as *const T::Node;
        // SAFETY: the slot is ours; the caller's promise.
        let part =
            unsafe { protect_part(domain, &pace, slot, |steps| Of { traversal, from, steps }) };
        match (part.word, NonNull::new(part.node.cast_mut())) {
            (FOUND, Some(node)) => return Some((node, checkpoints.keep())),
            (REACHED, Some(_)) => checkpoints.reached(part.node()),
            (LOST, _) => checkpoints.lost(),
            _ => return None,
        }
    }
}
