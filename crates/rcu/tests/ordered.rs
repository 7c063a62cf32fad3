// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ordered map: what its scans see and hold, beside writers on the same thread and on others.

use reprieve::structures::OrderedMap;
use reprieve::{Cap, Domain};
use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::thread;

fn domain() -> Domain {
    Domain::builder().build().unwrap()
}

#[test]
fn a_scan_holds_no_free() {
    let domain = domain();
    let map = OrderedMap::new_in(&domain);
    (0..100).for_each(|n| _ = map.insert(n, n));
    let mut items = map.range(10..);
    (10..50).for_each(|n| assert_eq!(*items.next().unwrap(), n));
    domain.barrier().unwrap();
    (0..100).for_each(|n| assert!(map.remove(&n).is_some()));
    domain.barrier().unwrap();
    let stats = domain.stats();
    assert!(stats.waiting == stats.held && (1..=2).contains(&stats.held), "{stats:?}");
    assert!(items.next().is_none() && items.next().is_none());
    drop(items);
    domain.barrier().unwrap();
    assert_eq!(domain.stats().held, 0);
}

#[test]
fn a_scan_goes_on_where_its_item_was() {
    let domain = domain();
    let map = OrderedMap::new_in(&domain);
    (0..100).for_each(|n| _ = map.insert(n, n));
    let mut seen = vec![];
    for item in map.range(..90) {
        let key = *item.key();
        seen.push(key);
        match key % 4 {
            // The item handed out, and the one behind.
            0 => (key..key + 2).for_each(|n| assert!(map.remove(&n).is_some())),
            // The item handed out comes again, before the scan; and one behind it.
            2 => {
                assert!(map.insert(key, -key).is_some());
                assert!(map.insert(key + 1, -1).is_some());
            }
            _ => assert_eq!(*item, -1),
        }
        domain.synchronize();
    }
    assert!(seen.iter().eq((0..90).filter(|n| n % 4 != 1).collect::<Vec<_>>().iter()));
}

#[test]
fn a_scan_may_end_early_and_hold_what_it_found() {
    let domain = domain();
    let map = OrderedMap::new_in(&domain);
    (0..20).for_each(|n| _ = map.insert(n, n.to_string()));
    let held: Vec<_> = map.range(5..15).take(8).collect();
    map.clear();
    domain.barrier().unwrap();
    assert!(held.iter().zip(5..).all(|(item, n)| *item.key() == n && **item == n.to_string()));
    assert!(map.is_empty() && map.last().is_none() && map.pop_first().is_none());
    let other = held.into_iter().next().unwrap().detach();
    thread::scope(|scope| _ = scope.spawn(move || assert_eq!(*other.into_value(), "5")));
}

fn bounds() -> impl Iterator<Item = (Bound<u32>, Bound<u32>)> {
    let all = || (0..7).flat_map(|n| [Included(n), Excluded(n)]).chain([Unbounded]);
    all().flat_map(move |start| all().map(move |end| (start, end)))
}

#[test]
fn ranges_are_those_of_a_btree_map() {
    let domain = domain();
    let map = OrderedMap::new_in(&domain);
    let mut model = BTreeMap::new();
    for n in [1, 3, 5] {
        map.insert(n, n);
        model.insert(n, n);
    }
    for range in bounds() {
        let expected: Vec<u32> = match range {
            // std panics.
            (Included(a) | Excluded(a), Included(b) | Excluded(b)) if a >= b => match range {
                (Included(a), Included(b)) if a == b => {
                    model.get(&a).into_iter().copied().collect()
                }
                _ => vec![],
            },
            _ => model.range(range).map(|(key, _)| *key).collect(),
        };
        assert!(map.range(range).map(|item| *item.key()).eq(expected.iter().copied()), "{range:?}");
        let guard = domain.read_lock();
        assert!(map.range_in(range, &guard).map(|(key, _)| *key).eq(expected), "{range:?}");
    }
}

#[test]
fn a_drop_drops_everything_once() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = || Counted(drops.clone());
    let domain = domain();
    let map = OrderedMap::new_in(&domain);
    (0..1000).for_each(|k| assert!(map.insert(k, counted()).is_none()));
    (0..100).for_each(|k| assert!(map.remove(&k).is_some()));
    (100..200).for_each(|k| assert!(map.insert(k, counted()).is_some()));
    (100..150).for_each(|k| assert!(map.insert_new(k, counted()).is_err()));
    drop(map);
    domain.barrier().unwrap();
    assert_eq!(drops.load(SeqCst), 1150);
}

#[test]
fn a_panic_in_a_key_leaves_the_map_usable() {
    #[derive(PartialEq, Eq, Debug)]
    struct Touchy(u32);
    impl PartialOrd for Touchy {
        fn partial_cmp(&self, other: &Touchy) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Ord for Touchy {
        fn cmp(&self, other: &Touchy) -> std::cmp::Ordering {
            assert!(self.0 != 13 && other.0 != 13, "touched");
            self.0.cmp(&other.0)
        }
    }
    let domain = domain();
    let map = OrderedMap::new_in(&domain);
    (0..10).for_each(|n| _ = map.insert(Touchy(n), n));
    let fails =
        |f: &dyn Fn()| assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err());
    fails(&|| _ = map.insert(Touchy(13), 13));
    fails(&|| _ = map.remove(&Touchy(13)));
    fails(&|| _ = map.lower_bound(Included(&Touchy(13))));
    fails(&|| _ = map.get_or_insert_with(Touchy(14), || panic!("no value")));
    assert!(map.insert(Touchy(10), 10).is_none());
    assert_eq!((map.len(), map.iter().count()), (11, 11));
    map.clear();
    domain.barrier().unwrap();
    assert_eq!(domain.stats().held, 0, "a slot was left filled");
}

/// The garbage of updates beside scans, which are longer than any grace period.
#[test]
fn scans_beside_writers_leave_garbage_bounded() {
    const KEYS: u64 = 20_000;
    let domain =
        Domain::builder().cap(Cap { bytes: u64::MAX, callbacks: u64::MAX }).build().unwrap();
    let map = OrderedMap::new_in(&domain);
    (0..KEYS).for_each(|n| _ = map.insert(n, n));
    let (stop, updates, most) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for odd in 0..2 {
            let (map, domain, stop, updates, most) = (&map, &domain, &stop, &updates, &most);
            scope.spawn(move || {
                let mut key = 0;
                while !stop.load(Relaxed) {
                    key = (key + 7919) % KEYS;
                    map.insert(key, key);
                    if key % 2 == odd {
                        map.remove(&key);
                        map.insert(key, key);
                    }
                    if updates.fetch_add(1, Relaxed) % 256 == 0 {
                        // What waits for guards only is not what a grace period holds.
                        domain.synchronize();
                        let stats = domain.stats();
                        most.fetch_max(stats.held, Relaxed);
                    }
                }
            });
        }
        for _ in 0..3 {
            let mut last = None;
            for item in map.iter() {
                assert!(last < Some(*item.key()) && *item == *item.key());
                last = Some(*item.key());
            }
        }
        // One that sleeps: grace periods end meanwhile.
        let mut items = map.iter();
        items.next().unwrap();
        let seen = domain.stats().grace_periods.count;
        while domain.stats().grace_periods.count < seen + 10 {
            thread::yield_now();
        }
        assert!(items.next().is_some());
        stop.store(true, Relaxed);
    });
    domain.barrier().unwrap();
    // Two items of the scan, and the old ones that each writer has in hand.
    assert!(most.load(Relaxed) <= 8, "{} items were held", most.load(Relaxed));
}
