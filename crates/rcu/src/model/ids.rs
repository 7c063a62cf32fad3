// SPDX-License-Identifier: MIT OR Apache-2.0
//! The array of ids: growth by copy, removal, and the flag that late readers find.

use super::tools::{Node, World, check};
use crate::grace::engine::GraceEngine;
use crate::grace::engine::poll::Poll;
use crate::platform::barrier::{Kind, light};
use crate::platform::sync::Ordering;
use crate::structures::array::Array;
use crate::structures::ids::table::Table;
use loom::sync::Arc;
use loom::thread;

struct Shared {
    world: Arc<World>,
    table: Table<Node>,
}

impl Shared {
    /// A table of one place, with 5 in it.
    fn new() -> Arc<Shared> {
        let shared = Shared { world: World::new(), table: Table::new(1) };
        // SAFETY: the only thread.
        unsafe { shared.table.set(0, Node::make(5)) };
        Arc::new(shared)
    }

    fn grace_period(&self) {
        assert!(Poll.grace_period(&self.world.attempt(Kind::Membarrier)));
    }

    fn read<const N: usize>(&self, indices: [usize; N]) -> [Option<u64>; N] {
        let record = self.world.registry.claim(1).unwrap();
        record.enter();
        light();
        let seen = indices.map(|index| {
            // SAFETY: in a section; arrays are never given back.
            let found = unsafe { self.table.get(index) };
            (!found.is_null()).then(|| Node::read(found))
        });
        record.leave();
        record.release();
        seen
    }
}

fn run(writer: fn(&Shared), allowed: fn([Option<u64>; 2]) -> bool) {
    check(3, move || {
        let shared = Shared::new();
        let reader = shared.clone();
        let reader = thread::spawn(move || {
            let seen = reader.read([1, 0]);
            assert!(allowed(seen), "assertion: a reader saw {seen:?}");
        });
        writer(&shared);
        reader.join().unwrap();
    });
}

#[test]
fn growth_loses_nothing() {
    run(
        |shared| {
            // SAFETY: the only writer.
            unsafe {
                shared.table.grow(2);
                shared.table.set(1, Node::make(6));
            }
        },
        |[new, old]| old == Some(5) && matches!(new, None | Some(6)),
    );
}

/// A reader on the old array finds what was taken out of the new one; it is not freed under it.
#[test]
fn removal_after_growth() {
    run(
        |shared| {
            // SAFETY: the only writer.
            unsafe {
                let entry = shared.table.get(0);
                shared.table.grow(2);
                shared.table.set(0, std::ptr::null_mut());
                shared.grace_period();
                Node::free(entry);
            }
        },
        |[new, old]| new.is_none() && matches!(old, None | Some(5)),
    );
}

/// The size before the array: a reader looks beyond the end of the old one. (In the model the old
/// one is long enough to hold a mark there.)
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_size_before_array_is_caught() {
    check(3, || {
        let shared = Arc::new(Shared { world: World::new(), table: Table::new(2) });
        // The array is one of size 1; the mark stands for what lies behind it.
        shared.table.size.store(1, Ordering::SeqCst);
        // SAFETY: the only thread.
        unsafe { shared.table.set(1, Node::make(u64::MAX)) };
        let reader = shared.clone();
        let reader = thread::spawn(move || assert_ne!(reader.read([1]), [Some(u64::MAX)]));
        let new = Array::allocate(2, 0);
        shared.table.size.store(2, Ordering::Release);
        shared.table.array.store(new, Ordering::Release);
        reader.join().unwrap();
    });
}

/// The same mark, grown in the right order.
#[test]
fn no_reader_looks_beyond_the_end() {
    check(3, || {
        let shared = Arc::new(Shared { world: World::new(), table: Table::new(2) });
        shared.table.size.store(1, Ordering::SeqCst);
        // SAFETY: the only thread.
        unsafe { shared.table.set(1, Node::make(u64::MAX)) };
        let reader = shared.clone();
        let reader = thread::spawn(move || assert_ne!(reader.read([1]), [Some(u64::MAX)]));
        // SAFETY: the only writer. The mark is not copied.
        unsafe {
            (*shared.table.array.load(Ordering::Relaxed)).len = 1;
            shared.table.grow(2);
        }
        reader.join().unwrap();
    });
}
