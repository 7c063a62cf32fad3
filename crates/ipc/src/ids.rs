// SPDX-License-Identifier: MIT OR Apache-2.0
//! From ids to objects: the structure of Arcangeli, Cao, McKenney and Sarma, "Using
//! Read-Copy-Update Techniques for System V IPC in the Linux 2.5 Kernel" (FREENIX 2003).
//!
//! An array of ids, grown by copy: the new one is published with one store, the old one freed
//! after a grace period. A lookup runs in a read-side section, takes the object's own lock, then
//! looks whether the object still has that id and is not deleted. Removal marks the object, sends
//! its waiters away, unlinks it and frees it after a grace period.
//!
//! An id is the slot's number and, above it, the slot's sequence number, so that stale ids name
//! nothing. What a death interrupts: until it is committed a new object is marked deleted, and its
//! lock is held. A reader may have found it all the same, so it is in limbo before it is linked, as
//! a new array is: there it is again if the link is rolled back. A removal that got as far as the
//! mark is completed by whoever next holds the lock of the ids.

use crate::error::{CORRUPT, Errno, Result};
use crate::heap;
use crate::lock::Held;
use crate::object::{ALIVE, DEAD, Is, Object};
use crate::peers::{Local, Remembered};
use crate::permission;
use crate::space::layout::*;
use crate::sys;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::fence;

const SEQUENCES: u64 = 1 << 16;
const FIRST_LENGTH: u64 = 126;

const INVALID: Errno = Errno(libc::EINVAL);

/// Under which a thread remembers an object.
#[inline]
fn name_of<T: Is>(id: i32) -> u64 {
    (T::KIND as u64 + 1) << 32 | u64::from(id as u32)
}

impl Local {
    pub fn ids(&self, kind: Kind) -> &'static Ids {
        &self.space.header().ids[kind as usize]
    }

    /// The entries of a kind. In a section.
    #[inline]
    pub fn entries(&self, kind: Kind) -> Result<&'static [Entry]> {
        let at = self.ids(kind).array.load(Acquire);
        if at == 0 {
            return Ok(&[]);
        }
        let length = self.space.view::<Array>(at)?.length.load(Relaxed);
        self.space.slice(at + size_of::<Array>() as u64, length.min(SLOTS))
    }

    /// The object of an id, and where it is. In a section; to be locked, then asked [`Object::is`].
    #[inline]
    pub fn find<T: Is + 'static>(&self, id: i32) -> Result<(&'static T, u64)> {
        if id < 0 {
            return Err(INVALID);
        }
        let entries = self.entries(T::KIND)?;
        let entry = entries.get((id as u64 % SLOTS) as usize).ok_or(INVALID)?;
        let offset = entry.object.load(Acquire);
        if offset == 0 {
            return Err(INVALID);
        }
        let found: &T = self.space.view(offset)?;
        if found.object().id.load(Relaxed) != id as u64 {
            Err(INVALID)
        } else {
            Ok((found, offset))
        }
    }

    /// [`Local::find`], locked.
    #[inline(always)]
    pub fn find_locked<T: Is + 'static>(&self, id: i32) -> Result<(&'static T, u64, Held<'_>)> {
        match self.remembered_locked(id) {
            Some(found) => Ok(found),
            None => self.search_locked(id),
        }
    }

    #[inline]
    fn remembered(&self, id: i32) -> &Remembered {
        &self.objects[id as usize % self.objects.len()]
    }

    /// [`Local::find_locked`] of what this thread remembers. As long as no grace period has begun
    /// since it was found, it is not freed while this section lasts.
    #[inline(always)]
    pub fn remembered_locked<T: Is + 'static>(
        &self,
        id: i32,
    ) -> Option<(&'static T, u64, Held<'_>)> {
        let remembered = self.remembered(id);
        let reclaims = self.space.header().reclaims.load(Acquire);
        if remembered.name.get() != name_of::<T>(id) || remembered.reclaims.get() != reclaims {
            return None;
        }
        let offset = remembered.offset.get();
        let found: &T = self.space.view(offset).ok()?;
        let held = self.lock(&found.object().lock).ok()?;
        found.object().is(id).then_some((found, offset, held))
    }

    #[cold]
    fn search_locked<T: Is + 'static>(&self, id: i32) -> Result<(&'static T, u64, Held<'_>)> {
        // From before the search.
        let reclaims = self.space.header().reclaims.load(Acquire);
        let (found, offset) = self.find::<T>(id)?;
        let held = self.lock(&found.object().lock)?;
        if !found.object().is(id) {
            return Err(INVALID);
        }
        let remembered = self.remembered(id);
        remembered.name.set(name_of::<T>(id));
        remembered.offset.set(offset);
        remembered.reclaims.set(reclaims);
        // Another set may have had this id here before: ids come again.
        self.forget_undo(offset);
        Ok((found, offset, held))
    }

    /// The object in a slot, whatever its id; of an id, in its slot. For the `_STAT` commands.
    pub fn find_slot<T: Is + 'static>(&self, slot: i32) -> Result<(&'static T, u64, Held<'_>)> {
        let entries = self.entries(T::KIND)?;
        let slot = u64::try_from(slot).map_err(|_| INVALID)? % SLOTS;
        let entry = entries.get(slot as usize).ok_or(INVALID)?;
        let offset = entry.object.load(Acquire);
        let found: &T = self.space.view(if offset == 0 { return Err(INVALID) } else { offset })?;
        let held = self.lock(&found.object().lock)?;
        if found.object().state.load(Relaxed) != ALIVE {
            return Err(INVALID);
        }
        Ok((found, offset, held))
    }
}

/// The request of `semget` and its like.
pub(crate) struct Request {
    pub key: i32,
    pub flags: i32,
    /// The size of the object itself.
    pub bytes: u64,
    /// The object's weight in the kind's total, and the limits of total and number.
    pub weight: u64,
    pub most_weight: u64,
    pub most: u64,
}

/// The object of a key, or a new one: `ipcget`. `fits`: an object that is there will do. `make`
/// fills in a new one, which is all zeros; blocks that it takes are linked by [`Local::set`].
pub(crate) fn get<T: Is + 'static>(
    local: &Local,
    request: &Request,
    fits: impl Fn(&T) -> Result<()>,
    make: impl FnOnce(&Local, &heap::Locked<'_>, &T, i32) -> Result<()>,
) -> Result<i32> {
    let ids = local.ids(T::KIND);
    let _ids_held = local.lock(&ids.lock)?;
    complete_removals::<T>(local)?;
    let has = |flag| request.flags & flag != 0;
    if request.key != libc::IPC_PRIVATE {
        let entries = local.entries(T::KIND)?;
        let of_key = entries.iter().find(|entry| {
            entry.object.load(Relaxed) != 0
                && entry.key_sequence.load(Relaxed) as u32 == request.key as u32
        });
        if let Some(entry) = of_key {
            let found: &T = local.space.view(entry.object.load(Relaxed))?;
            let _held = local.lock(&found.object().lock)?;
            if has(libc::IPC_CREAT) && has(libc::IPC_EXCL) {
                return Err(Errno(libc::EEXIST));
            }
            fits(found)?;
            found.object().permits(request.flags as u32)?;
            return Ok(found.object().id.load(Relaxed) as i32);
        }
        if !has(libc::IPC_CREAT) {
            return Err(Errno(libc::ENOENT));
        }
    }
    let total = ids.total.load(Relaxed);
    if ids.used.load(Relaxed) >= request.most.min(SLOTS)
        || request.weight > request.most_weight.saturating_sub(total)
    {
        return Err(Errno(libc::ENOSPC));
    }
    create(local, ids, request, make)
}

/// The same of objects that have a size, which the program is told: one that is there will do if it
/// is large enough.
pub(crate) fn get_sized<T: Is + 'static>(
    local: &Local,
    request: &Request,
    size: u64,
    size_of: impl Fn(&T) -> u64,
    make: impl FnOnce(&Local, &heap::Locked<'_>, &T, i32) -> Result<()>,
) -> Result<i32> {
    let there = Cell::new(None);
    let fits = |found: &T| {
        there.set(Some(size_of(found)));
        if size > size_of(found) { Err(INVALID) } else { Ok(()) }
    };
    let id = get(local, request, fits, make)?;
    let told = &local.space.told;
    match there.get() {
        Some(found) => told.check(T::KIND, id, found)?,
        None => told.tell(T::KIND, id, size),
    }
    Ok(id)
}

fn create<T: Is + 'static>(
    local: &Local,
    ids: &'static Ids,
    request: &Request,
    make: impl FnOnce(&Local, &heap::Locked<'_>, &T, i32) -> Result<()>,
) -> Result<i32> {
    let entries = local.entries(T::KIND)?;
    let free = entries.iter().position(|entry| entry.object.load(Relaxed) == 0);
    let slot = free.unwrap_or(entries.len()) as u64;
    if slot >= SLOTS {
        return Err(Errno(libc::ENOSPC));
    }
    let heap = local.heap()?;
    let entries = if free.is_some() { entries } else { grow(local, ids, &heap, entries)? };
    let offset = heap.take(request.bytes)?;
    zero(local, offset, request.bytes)?;
    let new: &T = local.space.view(offset)?;
    let object = new.object();
    object.state.store(DEAD, Relaxed);
    let _held = local.lock(&object.lock)?;
    let entry = entries.get(slot as usize).ok_or(CORRUPT)?;
    let sequence = entry.key_sequence.load(Relaxed) >> 32 & (SEQUENCES - 1);
    let id = sequence * SLOTS + slot;
    let key = u64::from(request.key as u32);
    object.id.store(id, Relaxed);
    object.key.store(key, Relaxed);
    let creator = permission::creator();
    object.owner.store(creator, Relaxed);
    object.creator.store(creator, Relaxed);
    object.mode.store(request.flags as u64 & 0o777, Relaxed);
    object.ctime.store(sys::now(), Relaxed);
    object.weight.store(request.weight, Relaxed);
    make(local, &heap, new, id as i32)?;
    heap.free_later(offset)?;
    local.commit();
    // From here on readers may see it.
    heap.take_back(offset)?;
    local.set(&ids.used, ids.used.load(Relaxed) + 1)?;
    local.set(&ids.total, ids.total.load(Relaxed).wrapping_add(request.weight))?;
    local.set(&ids.high, ids.high.load(Relaxed).max(slot + 1))?;
    local.set(&entry.key_sequence, sequence << 32 | key)?;
    local.set(&object.state, ALIVE)?;
    // Readers load the entry with acquire.
    fence(Release);
    local.set(&entry.object, offset)?;
    local.commit();
    Ok(id as i32)
}

/// `grow_ary` of the paper. Committed: readers may look at the new array from here on, so it is not
/// to be taken back if the object cannot be made. If this thread dies before that, it is in limbo.
fn grow(
    local: &Local,
    ids: &'static Ids,
    heap: &heap::Locked<'_>,
    entries: &[Entry],
) -> Result<&'static [Entry]> {
    let (length, before) =
        ((entries.len() as u64 * 2 + 2).clamp(FIRST_LENGTH, SLOTS), size_of::<Array>());
    let bytes = before as u64 + length * size_of::<Entry>() as u64;
    let at = heap.take(bytes)?;
    zero(local, at, bytes)?;
    local.space.view::<Array>(at)?.length.store(length, Relaxed);
    let new: &[Entry] = local.space.slice(at + before as u64, length)?;
    for (new, old) in new.iter().zip(entries) {
        new.object.store(old.object.load(Relaxed), Relaxed);
        new.key_sequence.store(old.key_sequence.load(Relaxed), Relaxed);
    }
    heap.free_later(at)?;
    local.commit();
    heap.take_back(at)?;
    let old = ids.array.load(Relaxed);
    if old != 0 {
        heap.free_later(old)?;
    }
    fence(Release);
    local.set(&ids.array, at)?;
    local.commit();
    Ok(new)
}

pub(crate) fn zero(local: &Local, offset: u64, bytes: u64) -> Result<()> {
    let words = local.space.slice::<AtomicU64>(offset, bytes.div_ceil(8))?;
    words.iter().for_each(|word| word.store(0, Relaxed));
    Ok(())
}

/// Removes the object of an id, if `may` allows it.
pub(crate) fn remove<T: Is + 'static>(
    local: &Local,
    id: i32,
    may: impl FnOnce(&T) -> Result<()>,
) -> Result<()> {
    let ids = local.ids(T::KIND);
    let _ids_held = local.lock(&ids.lock)?;
    let (found, _) = local.find::<T>(id)?;
    let held = local.lock(&found.object().lock)?;
    if !found.object().is(id) {
        return Err(INVALID);
    }
    may(found)?;
    local.set(&found.object().state, DEAD)?;
    local.set(&ids.removing, ids.removing.load(Relaxed) + 1)?;
    local.commit();
    unlink(local, ids, found, (id as u64 % SLOTS) as usize, held)
}

/// Ends the removal of an object that is marked.
fn unlink<T: Is + 'static>(
    local: &Local,
    ids: &Ids,
    found: &T,
    slot: usize,
    _held: Held<'_>,
) -> Result<()> {
    let (object, entries) = (found.object(), local.entries(T::KIND)?);
    let entry = entries.get(slot).ok_or(CORRUPT)?;
    let offset = entry.object.load(Relaxed);
    let expelled = found.expel(local, offset);
    local.roll_back();
    found.discard(local, object.id.load(Relaxed) as i32);
    let sequence = (entry.key_sequence.load(Relaxed) >> 32).wrapping_add(1) & (SEQUENCES - 1);
    local.set(&entry.object, 0)?;
    local.set(&entry.key_sequence, sequence << 32)?;
    local.set(&ids.used, ids.used.load(Relaxed).saturating_sub(1))?;
    local.set(&ids.removing, ids.removing.load(Relaxed).saturating_sub(1))?;
    let total = ids.total.load(Relaxed).saturating_sub(object.weight.load(Relaxed));
    local.set(&ids.total, total)?;
    let last = entries.iter().rposition(|entry| entry.object.load(Relaxed) != 0);
    local.set(&ids.high, last.map_or(0, |last| last as u64 + 1))?;
    let heap = local.heap()?;
    heap.free_later(offset)?;
    local.commit();
    expelled
}

/// Ends removals that a death interrupted: nobody is to count what is neither there nor gone.
pub(crate) fn complete<T: Is + 'static>(local: &Local) -> Result<()> {
    let ids = local.ids(T::KIND);
    if ids.removing.load(Relaxed) == 0 {
        return Ok(());
    }
    let _section = local.enter();
    let _ids_held = local.lock(&ids.lock)?;
    complete_removals::<T>(local)
}

/// [`complete`], under the lock of the ids.
pub(crate) fn complete_removals<T: Is + 'static>(local: &Local) -> Result<()> {
    let ids = local.ids(T::KIND);
    if ids.removing.load(Relaxed) == 0 {
        return Ok(());
    }
    for (slot, entry) in local.entries(T::KIND)?.iter().enumerate() {
        let offset = entry.object.load(Relaxed);
        if offset == 0 {
            continue;
        }
        let found: &T = local.space.view(offset)?;
        if found.object().state.load(Relaxed) == DEAD {
            let held = local.lock(&found.object().lock)?;
            if found.object().state.load(Relaxed) == DEAD {
                let _ = unlink(local, ids, found, slot, held);
            }
        }
    }
    Ok(())
}

/// Frees what a removed object owns. Each block is a transaction.
pub(crate) fn free_children(local: &Local, heap: &heap::Locked<'_>, offset: u64) -> Result<()> {
    let object = match local.space.view::<Object>(offset) {
        Err(CORRUPT) => return Ok(()),
        found => found?,
    };
    // Old arrays come this way, too.
    if object.state.load(Relaxed) != DEAD || object.id.load(Relaxed) >= SLOTS * SEQUENCES {
        return Ok(());
    }
    let block = object.block.load(Relaxed);
    if block != 0 {
        local.set(&object.block, 0)?;
        heap.free(block)?;
        local.commit();
    }
    for chain in &object.chains {
        loop {
            let first = chain.load(Relaxed);
            if first == 0 {
                break;
            }
            local.set(chain, local.space.view::<AtomicU64>(first)?.load(Relaxed))?;
            heap.free(first)?;
            local.commit();
        }
    }
    Ok(())
}

/// An object that keeps its id, and no longer its key. Not committed; under the lock of the ids.
pub(crate) fn forget_key(local: &Local, kind: Kind, id: i32) -> Result<()> {
    let entry = local.entries(kind)?.get((id as u64 % SLOTS) as usize).ok_or(CORRUPT)?;
    local.set(&entry.key_sequence, entry.key_sequence.load(Relaxed) & !0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Namespace;
    use crate::sem::Set;

    #[test]
    fn an_array_that_readers_may_have_found_is_not_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        for _ in 0..FIRST_LENGTH {
            n.semget(libc::IPC_PRIVATE, 1, 0o600).unwrap();
        }
        let (_call, local) = n.begin().unwrap();
        let _section = local.enter();
        let request = Request {
            key: libc::IPC_PRIVATE,
            flags: 0o600,
            bytes: 256,
            weight: 1,
            most_weight: u64::MAX,
            most: SLOTS,
        };
        let array = &local.ids(Kind::Sem).array;
        let mut seen = array.load(Relaxed);
        let made = get::<Set>(
            local,
            &request,
            |_| Ok(()),
            |_, _, _, _| {
                seen = array.load(Relaxed);
                Err(Errno(libc::ENOMEM))
            },
        );
        assert_eq!(made, Err(Errno(libc::ENOMEM)));
        assert_eq!(seen, array.load(Relaxed));
    }
}
