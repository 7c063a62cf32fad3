// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traversals in parts: a reader that starts each part at a checkpoint, beside a writer that takes
//! out the checkpoint and the node behind. Parts have one step, the shortest there are.

use super::protect::{Aborted, arm, disarm, grace_period, instruction, scan};
use super::tools::{Node, World, check};
use crate::platform::sync::{AtomicUsize, Ordering};
use crate::structures::list::links::{ListHead, init_list_head, list_add_rcu_tail, list_del_rcu};
use crate::thread::checkpoints::Checkpoints;
use crate::thread::record::Record;
use crate::thread::slots::RESERVED;
use loom::sync::Arc;
use loom::thread;

/// The links come first: an entry's address is that of its links.
#[repr(C)]
struct Entry {
    links: ListHead,
    node: *mut Node,
}

impl Entry {
    fn read(links: *const ListHead) -> u64 {
        // SAFETY: an entry, which is never given back.
        let value = Node::read(unsafe { (*links.cast::<Entry>()).node });
        assert_ne!(value, u64::MAX);
        value
    }
}

struct Shared {
    world: Arc<World>,
    head: Box<ListHead>,
    entries: Vec<*mut ListHead>,
}

// SAFETY: the pointers lead to entries that are never given back, and that the protocol shares.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// A list of 0, 1, ...
    fn new(length: u64) -> Arc<Shared> {
        let head = Box::new(ListHead::new());
        let list = std::ptr::from_ref(&*head).cast_mut();
        // SAFETY: not shared yet.
        let entries = unsafe {
            init_list_head(list);
            let add = |value| {
                let entry = Entry { links: ListHead::new(), node: Node::make(value) };
                let links = Box::into_raw(Box::new(entry)).cast::<ListHead>();
                list_add_rcu_tail(links, list);
                links
            };
            (0..length).map(add).collect()
        };
        Arc::new(Shared { world: World::new(), head, entries })
    }

    /// Frees what is not in a slot.
    fn scan(&self, entries: &[usize]) {
        let protected = scan(&self.world);
        for &entry in entries {
            let links = self.entries[entry];
            if !protected.contains(links as usize) {
                // SAFETY: never given back.
                Node::free(unsafe { (*links.cast::<Entry>()).node });
            }
        }
    }

    fn take_out(&self, entry: usize) {
        // SAFETY: the only writer; in the list.
        unsafe { list_del_rcu(self.entries[entry]) };
    }

    fn remove(&self, entries: &[usize]) {
        entries.iter().for_each(|&entry| self.take_out(entry));
        grace_period(&self.world);
        self.scan(entries);
    }
}

enum Part {
    Reached(usize),
    Lost,
    End,
}

/// When a reader looks for the mark.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Inside,
    Outside,
    Never,
}

/// An attempt at a part.
fn attempt(
    shared: &Shared,
    record: &Record,
    look: Look,
    from: usize,
    slot: &AtomicUsize,
) -> Result<Part, Aborted> {
    let head: *const ListHead = &*shared.head;
    let at = if from == 0 { head } else { from as *const ListHead };
    // SAFETY: entries are never given back, and loom sees accesses to those that were freed.
    let marked = || from != 0 && unsafe { (*at).prev() }.is_null();
    let seen = look == Look::Outside && marked();
    arm(record);
    if from != 0 {
        instruction(record, || Entry::read(at))?;
    }
    if seen || look == Look::Inside && instruction(record, marked)? {
        instruction(record, || slot.store(RESERVED, Ordering::Release))?;
        disarm(record)?;
        return Ok(Part::Lost);
    }
    // SAFETY: as above.
    let next: *const ListHead = instruction(record, || unsafe { (*at).next() })?;
    if next == head {
        instruction(record, || slot.store(RESERVED, Ordering::Release))?;
        disarm(record)?;
        return Ok(Part::End);
    }
    instruction(record, || Entry::read(next))?;
    instruction(record, || slot.store(next as usize, Ordering::Release))?;
    disarm(record)?;
    Ok(Part::Reached(next as usize))
}

/// Attempts until one is not aborted.
fn part(shared: &Shared, record: &Record, look: Look, from: usize, slot: &AtomicUsize) -> Part {
    loop {
        match attempt(shared, record, look, from, slot) {
            Ok(part) => return part,
            Err(Aborted) => thread::yield_now(),
        }
    }
}

/// From the first entry to the end.
fn traverse(shared: &Shared, look: Look) {
    let record = shared.world.registry.claim(1).unwrap();
    let mut checkpoints = Checkpoints::reserve(&record.slots);
    loop {
        let (from, slot) = checkpoints.next();
        match part(shared, record, look, from, slot) {
            Part::Reached(entry) => {
                checkpoints.reached(entry);
                // Between two parts the slot alone keeps it.
                Entry::read(entry as *const ListHead);
            }
            Part::Lost => {
                checkpoints.lost();
                thread::yield_now();
            }
            Part::End => break,
        }
    }
    drop(checkpoints);
    record.release();
}

fn run(length: u64, reader: fn(&Shared), writer: fn(&Shared)) {
    check(3, move || {
        let shared = Shared::new(length);
        let other = shared.clone();
        let thread = thread::spawn(move || reader(&other));
        writer(&shared);
        thread.join().unwrap();
    });
}

#[test]
fn the_checkpoint_and_the_entry_behind_are_taken_out() {
    run(2, |shared| traverse(shared, Look::Inside), |shared| shared.remove(&[0, 1]));
}

#[test]
fn the_entry_behind_is_taken_out_first() {
    run(2, |shared| traverse(shared, Look::Inside), |shared| shared.remove(&[1, 0]));
}

#[test]
fn a_traversal_goes_on_from_its_base() {
    run(3, |shared| traverse(shared, Look::Inside), |shared| shared.remove(&[1, 2]));
}

/// Two grace periods: what a slot kept in the first is freed after the second.
#[test]
fn a_lost_checkpoint_is_freed_later() {
    run(
        2,
        |shared| traverse(shared, Look::Inside),
        |shared| {
            shared.take_out(0);
            grace_period(&shared.world);
            while scan(&shared.world).contains(shared.entries[0] as usize) {
                thread::yield_now();
            }
            shared.scan(&[0]);
        },
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_no_look_for_the_mark_is_caught() {
    run(2, |shared| traverse(shared, Look::Never), |shared| shared.remove(&[0, 1]));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_look_outside_is_caught() {
    run(2, |shared| traverse(shared, Look::Outside), |shared| shared.remove(&[0, 1]));
}

/// The second entry is freed before the writer marks the first.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_late_mark_is_caught() {
    run(
        2,
        |shared| traverse(shared, Look::Inside),
        |shared| {
            let list = std::ptr::from_ref(&*shared.head).cast_mut();
            // Takes both out, and leaves them unmarked.
            shared.head.next.store(list, Ordering::Release);
            grace_period(&shared.world);
            shared.scan(&[1]);
        },
    );
}

/// Parts overwrite the checkpoint that they start from.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_single_slot_is_caught() {
    run(
        2,
        |shared| {
            let record = shared.world.registry.claim(1).unwrap();
            let (slot, mut from) = (record.slots.reserve(), 0);
            while let Part::Reached(entry) = part(shared, record, Look::Inside, from, slot) {
                from = entry;
            }
            record.release();
        },
        |shared| shared.remove(&[0]),
    );
}

/// The checkpoint moves to another slot outside of sections.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_copy_between_slots_is_caught() {
    run(
        1,
        |shared| {
            let record = shared.world.registry.claim(1).unwrap();
            let (to, slot) = (record.slots.reserve(), record.slots.reserve());
            if let Part::Reached(entry) = part(shared, record, Look::Inside, 0, slot) {
                to.store(entry, Ordering::SeqCst);
                slot.store(RESERVED, Ordering::SeqCst);
                Entry::read(entry as *const ListHead);
            }
            record.release();
        },
        |shared| shared.remove(&[0]),
    );
}
