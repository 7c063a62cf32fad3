// SPDX-License-Identifier: MIT OR Apache-2.0
//! Searches that hold no grace period up.
//!
//! A search goes from item to item in hops. Each hop is one restartable section, which follows one
//! link of a protected item and protects the next. Keys are compared between two hops: that is the
//! program's own code, which runs in no section. `thread/checkpoints.rs` has the argument why a hop
//! from an item without a mark finds one that is alive.
//!
//! Three slots are in turn: of the item before the place that is looked for, of the one behind it,
//! and the spare one, which the next hop fills. So the item behind stays protected, and its address
//! its own, until the search meets it again on the level below, where it need not be compared.
//!
//! A hop that finds a mark sends the search back to the head. Its item has been taken out since the
//! search found it, so some writer has made progress.

use super::links::{Item, Levels, Link, MARK};
use crate::read::protected::Protected;
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use crate::read::restart::traversal::{FOUND, Handed, LOST, Pace, Part, blind};
use crate::structures::handle::{self, Handle};
use crate::structures::held::Held;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A slot of the calling thread, which is in use for as long as this lives.
pub(super) struct Slot(&'static AtomicUsize);

impl Slot {
    pub(super) fn reserve(domain: &impl Handle) -> Slot {
        Slot(handle::slots(domain).reserve())
    }

    /// The item in the slot, which is the guard's from here on.
    ///
    /// # Safety
    /// A hop has filled the slot with it.
    pub(super) unsafe fn hold<'m, K, V>(self, item: *const Item<K, V>) -> Held<'m, K, V> {
        let slot = ManuallyDrop::new(self).0;
        // SAFETY: the caller's promise.
        Item::hold(unsafe { Protected::new(NonNull::new_unchecked(item.cast_mut()), slot) })
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Release: as where a guard lets its node go.
        self.0.store(0, Ordering::Release);
    }
}

/// Follows a link. Fills the slot that is so far `beyond` as well.
struct Hop<K, V> {
    link: *const Link<K, V>,
    beyond: usize,
}

// SAFETY: a load through the section, and comparisons of integers, in line.
unsafe impl<K, V> Lookup for Hop<K, V> {
    type Output = Handed<Item<K, V>>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Handed<Item<K, V>> {
        // SAFETY: the link is alive, in an item that is in a slot, or in the head.
        let next = unsafe { section.read(self.link as *const *mut Item<K, V>) } as usize;
        if next & MARK != 0 && !blind() {
            return Handed::other(Part::lost());
        }
        if next & !MARK == 0 {
            return Handed::other(Part::end());
        }
        Handed::found((next & !MARK) as *const Item<K, V>, self.beyond)
    }
}

/// Where a hop leads.
pub(super) enum Hopped<K, V> {
    /// To that item. It is in the slot, and in the other one.
    Item(*const Item<K, V>),
    /// The item from which it starts was taken out.
    Lost,
    End,
}

/// Hops along a link of the head, or of an item in a slot. Fills `slot`, and `other`, if there is
/// one.
///
/// # Safety
/// The list's items are retired through this domain. The item that has the link is in another slot.
pub(super) unsafe fn hop<K, V>(
    domain: &impl Handle,
    link: *const Link<K, V>,
    slot: &Slot,
    other: Option<&Slot>,
) -> Hopped<K, V> {
    let beyond = other.map_or(0, |other| other.address().wrapping_sub(slot.address()));
    // SAFETY: the slots are this thread's; the caller's promise.
    let part = unsafe {
        handle::protect_part(domain, &Pace::new(), slot.0, |_| Hop { link, beyond }).part()
    };
    match part.word {
        FOUND => Hopped::Item(part.node),
        LOST => Hopped::Lost,
        _ => Hopped::End,
    }
}

/// The items on both sides of a place, in their slots.
pub(super) struct Search<K, V> {
    before: (*const Item<K, V>, Slot),
    after: (*const Item<K, V>, Slot),
}

impl<K, V> Search<K, V> {
    /// The last item for which `below` holds, and the first for which it does not. It holds for all
    /// items up to some place. The second is in the other slot as well.
    ///
    /// # Safety
    /// The list's items are retired through this domain.
    pub(super) unsafe fn run(
        levels: &Levels<K, V>,
        domain: &impl Handle,
        mut below: impl FnMut(&K) -> bool,
        other: Option<&Slot>,
    ) -> Search<K, V> {
        let [first, second, mut spare] = std::array::from_fn(|_| Slot::reserve(domain));
        let mut found = Search { before: (null(), first), after: (null(), second) };
        let mut level = levels.top();
        loop {
            let link = levels.link(found.before.0, level);
            // SAFETY: the caller's promise.
            match unsafe { hop(domain, link, &spare, other) } {
                Hopped::Lost => {
                    (found.before.0, found.after.0) = (null(), null());
                    level = levels.top();
                    continue;
                }
                Hopped::Item(item) if item == found.after.0 => (),
                Hopped::Item(item) => {
                    // SAFETY: it is in the slot.
                    let forward = below(unsafe { &(*item).pair.key });
                    let side = if forward { &mut found.before } else { &mut found.after };
                    side.0 = item;
                    std::mem::swap(&mut side.1, &mut spare);
                    if forward {
                        continue;
                    }
                }
                Hopped::End => found.after.0 = null(),
            }
            if level == 0 {
                return found;
            }
            level -= 1;
        }
    }

    pub(super) fn before<'m>(self) -> Option<Held<'m, K, V>> {
        let (item, slot) = self.before;
        // SAFETY: a hop has filled the slot.
        (!item.is_null()).then(|| unsafe { slot.hold(item) })
    }

    pub(super) fn after<'m>(self) -> Option<Held<'m, K, V>> {
        let (item, slot) = self.after;
        // SAFETY: as above.
        (!item.is_null()).then(|| unsafe { slot.hold(item) })
    }

    pub(super) fn into_after(self) -> (*const Item<K, V>, Slot) {
        self.after
    }
}
