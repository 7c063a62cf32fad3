// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ordered map and the prefix table: readers of every kind against writers, on more threads
//! than CPUs, with an allocator that poisons what is freed (`common/stress.rs`).
//!
//! `REPRIEVE_STRESS=SECONDS` is the length of each test, default 1.

use reprieve::structures::OrderedMap;
use reprieve::structures::ordered::Held;
use reprieve::structures::prefix::{Prefix, PrefixTable};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering::*};
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

/// Addresses of 8 bits: the highest of an IPv4 address.
#[test]
fn prefix_table() {
    each_engine(|domain, time, _| {
        let copies = PrefixTable::<u32, (u64, u64), _>::new_in(domain);
        let owners = PrefixTable::<u32, Owner, _>::new_in(domain);
        let address = |byte: u64| (byte as u32) << 24;
        // What tells prefixes apart, and what values are made of.
        let id =
            |prefix: &Prefix<u32>| u64::from(prefix.address()) << 8 | u64::from(prefix.length());
        let matches =
            |prefix: &Prefix<u32>, to: u32| Prefix::new(to, prefix.length()) == Some(*prefix);
        let any = || Prefix::new(address(random(256)), random(9) as u8).unwrap();
        // These are always there.
        let always = [(0, 0), (0x40, 2), (0x50, 4), (0x51, 8), (0xc0, 3)]
            .map(|(byte, length)| Prefix::new(address(byte), length).unwrap());
        let longest = |to| always.iter().rfind(|prefix| matches(prefix, to)).unwrap().length();
        let put = |prefix: Prefix<u32>| {
            let id = id(&prefix);
            copies.insert(prefix, (id, Marked::new(id, 0).mark));
            let old = owners.insert(prefix, Owner(Box::new(Marked::new(id, random(9)))));
            old.iter().for_each(|old| _ = old.0.check(id));
        };
        always.into_iter().for_each(put);
        let versions = AtomicU64::new(0);
        let work: [&(dyn Fn() + Sync); 5] = [
            &|| {
                let to = address(random(256));
                let (id, mark) = copies.copied(to).unwrap();
                assert_eq!(mark, Marked::new(id, 0).mark);
                let length = id as u8;
                assert!(
                    length >= longest(to)
                        && id >> 8 == u64::from(Prefix::<u32>::new(to, length).unwrap().address())
                );
            },
            &|| {
                let to = address(random(256));
                let route = owners.lookup(to).unwrap();
                dawdle();
                assert!(matches(route.key(), to) && route.key().length() >= longest(to));
                versions.fetch_add(route.0.check(id(route.key())), Relaxed);
            },
            &|| {
                let prefix = any();
                match owners.protect(&prefix) {
                    Some(route) => {
                        assert!(*route.key() == prefix && route.0.check(id(&prefix)) < 9)
                    }
                    None => assert!(!always.contains(&prefix)),
                }
            },
            &|| {
                let (mut last, mut seen) = (None, 0);
                for route in owners.iter() {
                    dawdle();
                    route.0.check(id(route.key()));
                    assert!(last < Some(*route.key()));
                    last = Some(*route.key());
                    seen += usize::from(always.contains(route.key()));
                }
                assert_eq!(seen, always.len());
            },
            &|| {
                let prefix = any();
                if random(2) == 0 {
                    put(prefix);
                } else if !always.contains(&prefix) {
                    copies.remove(&prefix);
                    let old = owners.remove(&prefix);
                    old.iter().for_each(|old| _ = old.0.check(id(&prefix)));
                }
                thread::yield_now();
            },
        ];
        run(time, 1, &work);
        assert_eq!(owners.len(), owners.iter().count());
    });
}
