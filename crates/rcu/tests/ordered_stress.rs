// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ordered map: readers of every kind against writers, on more threads than CPUs, with an
//! allocator that poisons what is freed (`common/stress.rs`).
//!
//! `REPRIEVE_STRESS=SECONDS` is the length of each test, default 1.

use reprieve::structures::OrderedMap;
use reprieve::structures::ordered::Held;
use std::ops::Bound;
use std::thread;
use stress::{Marked, Owner, dawdle, each_engine, random, run};

#[path = "common/stress.rs"]
mod stress;

#[test]
fn ordered_map() {
    const ALWAYS: u64 = 64;
    const KEYS: u64 = 4 * ALWAYS;
    each_engine(|domain, time, plain| {
        let map = OrderedMap::new_in(domain);
        let owner = |key, version| Owner(Box::new(Marked::new(key, version)));
        // Every fourth key is always there.
        let always = |key: u64| key % 4 == 0;
        let any = || random(KEYS);
        let coming = || any() | 1;
        (0..KEYS).filter(|key| always(*key)).for_each(|key| _ = map.insert(key, owner(key, 0)));
        let look = |held: &Held<'_, u64, Owner>| {
            dawdle();
            held.0.check(*held.key())
        };
        let work: [&(dyn Fn() + Sync); 7] = [
            &|| {
                let key = any();
                match map.protect(&key) {
                    Some(held) => assert!(*held.key() == key && look(&held) < u64::MAX),
                    None => assert!(!always(key), "{key} is always there"),
                }
            },
            &|| {
                let key = any();
                let (above, below) = (
                    map.lower_bound(Bound::Excluded(&key)),
                    map.upper_bound(Bound::Excluded(&key)),
                );
                above.iter().chain(&below).for_each(|held| _ = look(held));
                let (above, below) = (above.map(|held| *held.key()), below.map(|held| *held.key()));
                assert!(above.map_or(key + 4 >= KEYS, |above| above > key && above <= key + 4));
                assert!(below.map_or(key == 0, |below| below < key && below + 4 >= key));
                assert_eq!(*map.first().unwrap().key(), 0);
            },
            // Keys in order, and those that are always there once.
            &|| {
                let (from, to) = (any(), any());
                let (mut last, mut seen) = (None, 0);
                let mut see = |key: u64| {
                    assert!(last < Some(key) && (from..=to).contains(&key));
                    (last, seen) = (Some(key), seen + u64::from(always(key)));
                };
                if plain && random(2) == 0 {
                    let guard = domain.read_lock();
                    map.range_in(from..=to, &guard).for_each(|(key, value)| {
                        value.0.check(*key);
                        see(*key);
                    });
                } else {
                    for held in map.range(from..=to) {
                        look(&held);
                        see(*held.key());
                    }
                }
                assert_eq!(seen, (from..=to).filter(|key| always(*key)).count() as u64);
            },
            &|| {
                if !plain {
                    return thread::yield_now();
                }
                let key = any();
                let guard = domain.read_lock();
                let value = map.get(&key, &guard);
                dawdle();
                assert!(value.is_some() || !always(key));
                value.into_iter().for_each(|value| _ = value.0.check(key));
            },
            &|| {
                let key = coming();
                match random(4) {
                    0 => _ = look(&map.get_or_insert_with(key, || owner(key, random(9)))),
                    1 => map.remove(&key).iter().for_each(|held| _ = look(held)),
                    2 => {
                        let even = |value: &Owner| value.0.check(key) % 2 == 0;
                        map.remove_if(&key, even).iter().for_each(|held| _ = look(held));
                    }
                    _ => map.insert(key, owner(key, 1)).iter().for_each(|held| _ = look(held)),
                }
            },
            &|| {
                let key = any();
                let add = |value: &Owner| owner(key, value.0.check(key) + 1);
                map.update(&key, add).iter().for_each(|held| _ = look(held));
            },
            &|| {
                let from = random(KEYS);
                for held in map.range(from..from + 8).filter(|held| !always(*held.key())) {
                    if map.remove_if(held.key(), |_| true).is_some() {
                        look(&held);
                    }
                }
            },
        ];
        run(time, 1, &work);
        assert_eq!(map.len(), map.iter().count());
        map.clear();
        assert!(map.is_empty());
    });
}
