// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists: readers against each change a writer can make.

use super::tools::{Node, World, check};
use crate::grace::engine::GraceEngine;
use crate::grace::engine::poll::Poll;
use crate::platform::barrier::{Kind, light};
use crate::structures::list::links::{
    ListHead, init_list_head, list_add_rcu, list_add_rcu_tail, list_del_rcu, list_replace_rcu,
};
use loom::sync::Arc;
use loom::thread;

#[repr(C)]
struct Entry {
    links: ListHead,
    node: *mut Node,
}

impl Entry {
    fn make(value: u64) -> *mut Entry {
        Box::into_raw(Box::new(Entry { links: ListHead::new(), node: Node::make(value) }))
    }

    fn links(entry: *mut Entry) -> *mut ListHead {
        entry.cast()
    }

    fn free(entry: *mut Entry) {
        // SAFETY: entries of the model are never given back.
        Node::free(unsafe { (*entry).node });
    }
}

struct Shared {
    world: Arc<World>,
    head: ListHead,
    first: *mut Entry,
}

// SAFETY: the entry is used as the list's rules say, which loom checks.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The list holds 1, 2.
    fn new() -> Arc<Shared> {
        let (first, second) = (Entry::make(1), Entry::make(2));
        let shared = Arc::new(Shared { world: World::new(), head: ListHead::new(), first });
        // SAFETY: one thread, fresh entries.
        unsafe {
            init_list_head(shared.head());
            list_add_rcu(Entry::links(first), shared.head());
            list_add_rcu_tail(Entry::links(second), shared.head());
        }
        shared
    }

    fn head(&self) -> *mut ListHead {
        std::ptr::from_ref(&self.head).cast_mut()
    }

    fn reclaim(&self, entry: *mut Entry) {
        assert!(Poll.grace_period(&self.world.attempt(Kind::Membarrier)));
        Entry::free(entry);
    }

    /// The values that a walk in a section sees.
    fn walk(&self) -> Vec<u64> {
        let record = self.world.registry.claim(1).unwrap();
        record.enter();
        light();
        let mut seen = vec![];
        // SAFETY: in a section; entries are never given back.
        unsafe {
            let mut at = self.head.next();
            while at != self.head() {
                seen.push(Node::read((*at.cast::<Entry>()).node));
                at = (*at).next();
            }
        }
        record.leave();
        record.release();
        seen
    }
}

fn run(expect: &'static [&'static [u64]], writer: fn(&Shared)) {
    check(3, move || {
        let shared = Shared::new();
        let reader = shared.clone();
        let reader = thread::spawn(move || {
            let seen = reader.walk();
            assert!(expect.contains(&&*seen), "assertion: a reader saw {seen:?}");
        });
        writer(&shared);
        reader.join().unwrap();
    });
}

#[test]
fn removal() {
    run(&[&[1, 2], &[2]], |shared| {
        // SAFETY: the only writer.
        unsafe { list_del_rcu(Entry::links(shared.first)) };
        shared.reclaim(shared.first);
    });
}

#[test]
fn addition_at_both_ends() {
    run(&[&[1, 2], &[0, 1, 2], &[1, 2, 3], &[0, 1, 2, 3]], |shared| {
        // SAFETY: the only writer.
        unsafe {
            list_add_rcu(Entry::links(Entry::make(0)), shared.head());
            list_add_rcu_tail(Entry::links(Entry::make(3)), shared.head());
        }
    });
}

#[test]
fn replacement() {
    run(&[&[1, 2], &[7, 2]], |shared| {
        // SAFETY: the only writer.
        unsafe { list_replace_rcu(Entry::links(shared.first), Entry::links(Entry::make(7))) };
        shared.reclaim(shared.first);
    });
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_free_without_a_grace_period_is_caught() {
    run(&[&[1, 2], &[2]], |shared| {
        // SAFETY: the only writer.
        unsafe { list_del_rcu(Entry::links(shared.first)) };
        Entry::free(shared.first);
    });
}

/// An entry that moves to the end at once: a reader on it misses, or sees again, what lies between.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_reuse_without_a_grace_period_is_caught() {
    run(&[&[1, 2], &[2, 1], &[1, 2, 1], &[2]], |shared| {
        // SAFETY: not sound: that is the test.
        unsafe {
            list_del_rcu(Entry::links(shared.first));
            list_add_rcu_tail(Entry::links(shared.first), shared.head());
        }
    });
}
