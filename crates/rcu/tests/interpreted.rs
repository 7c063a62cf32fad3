// SPDX-License-Identifier: MIT OR Apache-2.0
//! Few operations, for `make test-miri`: Miri looks for uses of freed memory, data races and
//! references that alias.

use reprieve::Domain;
use reprieve::structures::prefix::{Prefix, PrefixTable};
use reprieve::structures::{Cell, List, Map, OrderedMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

fn text(n: u32) -> String {
    n.to_string()
}

fn number(text: &str) -> u32 {
    text.parse().unwrap()
}

/// Reads three times beside the writes. Whatever was taken out is freed then.
fn beside(domain: &Domain, read: impl Fn() + Sync, write: impl FnOnce()) {
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|_| read()));
        write();
    });
    read();
    domain.barrier().unwrap();
    assert_eq!(domain.stats().waiting, 0);
}

#[test]
fn cell_beside_a_writer() {
    let domain = Domain::builder().build().unwrap();
    let (cell, copies) = (Cell::new_in(text(0), &domain), Cell::new_in(0, &domain));
    let read = || {
        assert!(number(cell.load(&domain.read_lock())) < 4);
        assert_eq!(cell.protect().detach().len(), 1);
        assert!(copies.get() < 3);
    };
    let write = || {
        for n in 1..3 {
            cell.store(text(n));
            copies.update(|old| old + 1);
        }
        let guard = domain.read_lock();
        cell.compare_and_swap(cell.load(&guard), text(3), &guard).unwrap();
    };
    beside(&domain, read, write);
}

/// Two keys have the same hash.
#[derive(Default)]
struct Pairs(u64);

impl Hasher for Pairs {
    fn finish(&self) -> u64 {
        self.0 & !1
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = u64::from(bytes[0]);
    }
}

#[test]
fn map_beside_a_writer() {
    let domain = Domain::builder().build().unwrap();
    let builder = Map::builder().domain(&domain);
    let twins = builder.clone().hasher(BuildHasherDefault::<Pairs>::default()).build();
    let copies = builder.build();
    copies.insert(0, 0);
    twins.insert(0, text(0));
    let read = || {
        for n in [0, 1, 20] {
            assert!(copies.copied(&n).is_none_or(|value| value == n));
            assert!(twins.protect(&n).is_none_or(|held| number(&held) % 100 == n));
            assert!(twins.get(&n, &domain.read_lock()).is_none_or(|held| number(held) % 100 == n));
        }
        assert!(copies.iter().any(|held| *held == 0));
        assert!(twins.iter().all(|held| number(&held) % 100 == *held.key()));
        assert!(twins.iter_in(&domain.read_lock()).any(|(&key, _)| key == 0));
    };
    let write = || {
        for n in 1..20 {
            copies.insert(n, n);
            twins.insert(n, text(n));
        }
        twins.update(&0, |_| text(100));
        assert_eq!(*twins.remove(&1).unwrap().detach(), "1");
        twins.retain(|key, _| key % 4 < 2);
    };
    beside(&domain, read, write);
    assert!(twins.chains() > 16);
}

#[test]
fn ordered_map_beside_a_writer() {
    let domain = Domain::builder().build().unwrap();
    let map = OrderedMap::new_in(&domain);
    map.insert(10, text(10));
    let read = || {
        assert_eq!(number(&map.protect(&10).unwrap()) % 100, 10);
        assert!(map.get(&3, &domain.read_lock()).is_none_or(|value| value == "3"));
        assert!(map.iter().map(|held| *held.key()).is_sorted());
        assert!(map.range(5..15).all(|held| number(&held) % 100 == *held.key()));
        assert!(map.range_in(5.., &domain.read_lock()).any(|(&key, _)| key == 10));
        assert!(*map.last().unwrap().key() >= 10);
    };
    let write = || {
        (0..20).for_each(|n| _ = map.insert_new(n, text(n)));
        map.insert(10, text(110));
        assert_eq!(*map.remove(&3).unwrap().detach(), "3");
        map.retain(|key, _| key % 5 == 0);
        assert_eq!(*map.pop_first().unwrap(), "0");
    };
    beside(&domain, read, write);
}

#[test]
fn prefix_table_beside_a_writer() {
    let domain = Domain::builder().build().unwrap();
    let owned = PrefixTable::<u32, _, _>::new_in(&domain);
    let copies = PrefixTable::<u32, _, _>::new_in(&domain);
    let prefix = |length| Prefix::new(u32::MAX << 4, length).unwrap();
    owned.insert(prefix(8), text(8));
    copies.insert(prefix(8), 8);
    let read = || {
        let held = owned.lookup(u32::MAX << 4).unwrap();
        assert_eq!(number(&held), held.key().length().into());
        assert!(copies.copied(u32::MAX << 4).is_some_and(|length| (8..29).contains(&length)));
        assert_eq!(copies.copied(1u32), None);
        assert_eq!(*owned.protect(&prefix(8)).unwrap(), "8");
        assert!(owned.iter().all(|held| number(&held) == held.key().length().into()));
    };
    let write = || {
        for length in [12, 28, 20, 4] {
            owned.insert(prefix(length), text(length.into()));
            copies.insert(prefix(length), length.into());
        }
        owned.insert(Prefix::new(u32::MAX << 8, 28).unwrap(), text(28));
        assert_eq!(*owned.remove(&prefix(28)).unwrap().detach(), "28");
        owned.remove(&prefix(12));
    };
    beside(&domain, read, write);
}

#[test]
fn list_beside_a_writer() {
    let domain = Domain::builder().build().unwrap();
    let list = List::new_in(&domain);
    list.push_back(text(10));
    let read = || {
        assert_eq!(number(&list.protect(|value| number(value) % 100 == 10).unwrap()) % 100, 10);
        assert!(list.iter().map(|value| number(&value) % 100).is_sorted());
        assert!(list.iter_in(&domain.read_lock()).any(|value| number(value) % 100 == 10));
    };
    let write = || {
        (11..20).for_each(|n| list.push_back(text(n)));
        (0..10).rev().for_each(|n| list.push_front(text(n)));
        assert!(list.replace_first(|value| value == "10", |_| text(110)));
        assert!(list.remove_first(|value| value == "3"));
        list.retain(|value| number(value) % 5 == 0);
    };
    beside(&domain, read, write);
}

#[test]
fn callbacks_and_cookies() {
    let domain = Domain::builder().build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    domain.defer(move || _ = count.fetch_add(1, Relaxed));
    let cookie = domain.cookie();
    // SAFETY: nobody else has found the value.
    unsafe { domain.retire_box(Box::new(text(1))) };
    domain.cond_synchronize(cookie);
    assert!(domain.poll(cookie));
    domain.barrier().unwrap();
    assert_eq!(ran.load(Relaxed), 1);
}
