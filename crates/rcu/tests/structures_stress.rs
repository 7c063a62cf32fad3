// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of every kind against writers, on more threads than CPUs, with an allocator that poisons
//! what is freed (`common/stress.rs`).
//!
//! `REPRIEVE_STRESS=SECONDS` is the length of each test, default 1.

use reprieve::Domain;
use reprieve::structures::map::{Change, Held};
use reprieve::structures::{Cell, List, Map};
use std::cell::Cell as Local;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};
use stress::{Marked, Owner, dawdle, each_engine, random, run, seconds};

#[path = "common/stress.rs"]
mod stress;

#[test]
fn cell() {
    each_engine(|domain, time, plain| {
        let cell = Cell::new_in(Marked::new(1, 0), domain);
        let owner = Cell::new_in(Owner(Box::new(Marked::new(2, 0))), domain);
        run(
            time,
            2,
            &[
                &|| {
                    let first = cell.get().check(1);
                    assert!(first <= cell.get().check(1), "time goes backwards");
                },
                &|| {
                    if !plain {
                        return thread::yield_now();
                    }
                    let guard = domain.read_lock();
                    let (value, owned) = (cell.load(&guard), owner.load(&guard));
                    dawdle();
                    value.check(1);
                    owned.0.check(2);
                },
                &|| {
                    let (value, owned) = (cell.protect(), owner.protect());
                    dawdle();
                    value.check(1);
                    owned.0.check(2);
                },
                &|| {
                    if plain {
                        cell.update(|old| Marked::new(1, old.check(1) + 1));
                    } else {
                        cell.store(Marked::new(1, 0));
                    }
                },
                &|| {
                    owner.store(Owner(Box::new(Marked::new(2, random(9)))));
                    if plain {
                        let guard = domain.read_lock();
                        let old = owner.swap(Owner(Box::new(Marked::new(2, 9))), &guard);
                        old.0.check(2);
                    }
                },
            ],
        );
    });
}

#[test]
fn map() {
    const ALWAYS: u64 = 64;
    const KEYS: u64 = 512;
    each_engine(|domain, time, plain| {
        // Again and again from its smallest size.
        let end = Instant::now() + time;
        while Instant::now() < end {
            let map = Map::builder().domain(domain).build();
            let owners = Map::builder().domain(domain).build();
            for key in 0..ALWAYS {
                map.insert(key, (key, Marked::new(key, 0).mark));
                owners.insert(key, Owner(Box::new(Marked::new(key, 0))));
            }
            let good =
                |key: u64, value: (u64, u64)| assert_eq!(value, (key, Marked::new(key, 0).mark));
            let next = AtomicU64::new(KEYS);
            let work: [&(dyn Fn() + Sync); 6] = [
                &|| {
                    let key = random(KEYS);
                    match map.copied(&key) {
                        Some(value) => good(key, value),
                        None => assert!(key >= ALWAYS, "{key} is always there"),
                    }
                },
                &|| {
                    if !plain {
                        return thread::yield_now();
                    }
                    let key = random(KEYS);
                    let guard = domain.read_lock();
                    let (value, owned) = (map.get(&key, &guard), owners.get(&key, &guard));
                    dawdle();
                    assert!(key >= ALWAYS || value.is_some() && owned.is_some());
                    value.into_iter().for_each(|v| good(key, *v));
                    owned.into_iter().for_each(|v| assert!(v.0.check(key) < u64::MAX));
                },
                &|| {
                    let key = random(KEYS);
                    let (value, owned) = (map.protect(&key), owners.protect(&key));
                    dawdle();
                    assert!(key >= ALWAYS || value.is_some() && owned.is_some());
                    value.into_iter().for_each(|v| good(*v.key(), *v));
                    owned.into_iter().for_each(|v| assert!(v.0.check(key) < u64::MAX));
                },
                &|| {
                    if random(20) != 0 {
                        return;
                    }
                    let mut seen = [0; ALWAYS as usize];
                    let mut see = |key: u64, value| {
                        good(key, value);
                        seen.get_mut(key as usize).into_iter().for_each(|n| *n += 1);
                    };
                    if plain && random(2) == 0 {
                        let guard = domain.read_lock();
                        map.iter_in(&guard).for_each(|(key, value)| see(*key, *value));
                    } else {
                        for item in map.iter() {
                            dawdle();
                            see(*item.key(), *item);
                        }
                        owners.iter().for_each(|item| _ = item.0.check(*item.key()));
                    }
                    assert_eq!(seen, [1; ALWAYS as usize]);
                },
                &|| {
                    let key = random(KEYS);
                    let value = (key, Marked::new(key, 0).mark);
                    match random(3) {
                        0 if key >= ALWAYS => _ = map.remove(&key),
                        1 if plain => _ = map.update(&key, |old| *old),
                        _ => _ = map.insert(key, value),
                    }
                    // New ones, so that it grows.
                    let key = next.fetch_add(1, Relaxed);
                    map.insert(key, (key, Marked::new(key, 0).mark));
                },
                &|| {
                    let key = random(KEYS);
                    match random(3) {
                        0 if key >= ALWAYS => _ = owners.remove(&key),
                        1 if plain => {
                            _ = owners.update(&key, |old| {
                                Owner(Box::new(Marked::new(key, old.0.check(key) + 1)))
                            })
                        }
                        _ => _ = owners.insert(key, Owner(Box::new(Marked::new(key, 0)))),
                    }
                },
            ];
            run(time.min(Duration::from_millis(100)), 1, &work);
            let guard = domain.read_lock();
            assert_eq!(map.len(), map.iter_in(&guard).count());
        }
    });
}

/// Every update of a map against every other, whose functions see whole values, and whose results
/// stay whole while they are held, here or on another thread. Counts of what came and went agree at
/// the end.
#[test]
fn updates() {
    const ALWAYS: u64 = 16;
    const KEYS: u64 = 64;
    each_engine(|domain, time, _| {
        let map = Map::builder().domain(domain).build::<u64, Owner>();
        let owner = |key, version| Owner(Box::new(Marked::new(key, version)));
        (0..ALWAYS).for_each(|key| _ = map.insert(key, owner(key, 0)));
        let versions = AtomicU64::new(0);
        let there = AtomicI64::new(ALWAYS as i64);
        let count = |more: bool, by: i64| _ = there.fetch_add(if more { by } else { 0 }, Relaxed);
        let (sender, receiver) = std::sync::mpsc::sync_channel(64);
        let receiver = Mutex::new(receiver);
        let look = |held: &Held<'_, u64, Owner>| {
            dawdle();
            held.0.check(*held.key())
        };
        let any = || ALWAYS + random(KEYS - ALWAYS);
        let work: [&(dyn Fn() + Sync); 6] = [
            &|| {
                let key = any();
                let held = map.get_or_insert_with(key, || {
                    dawdle();
                    owner(key, 1 << 40)
                });
                look(&held);
                let _ = sender.try_send(held.detach());
            },
            &|| {
                let (key, old) = (any(), Local::new(None));
                let seen = map.compute(key, |value| {
                    old.set(value.map(|value| value.0.check(key)));
                    match random(3) {
                        0 => Change::Keep,
                        1 => Change::Set(owner(key, random(9))),
                        _ => Change::Remove,
                    }
                });
                assert_eq!(seen.as_ref().map(look), old.get());
            },
            &|| {
                let key = any();
                map.remove_if(&key, |value| value.0.check(key) % 2 == 0).iter().for_each(|held| {
                    assert_eq!(look(held) % 2, 0);
                });
                if random(50) == 0 {
                    let others = |key: &u64| !(ALWAYS..KEYS).contains(key);
                    map.retain(|key, value| value.0.check(*key) % 3 != 0 || others(key));
                }
            },
            &|| {
                let key = any();
                if random(2) == 0 {
                    map.insert(key, owner(key, random(9))).iter().for_each(|held| _ = look(held));
                } else {
                    map.remove(&key).iter().for_each(|held| _ = look(held));
                }
                if let Some(held) = map.protect(&key) {
                    let _ = map.replace(&held, owner(key, look(&held) + 1));
                }
                map.shrink_to_fit();
            },
            // No update of these is lost.
            &|| {
                let key = random(ALWAYS);
                let add = |value: &Owner| owner(key, value.0.check(key) + 1);
                let old = match random(3) {
                    0 => map.update(&key, add),
                    1 => map.compute(key, |value| Change::Set(add(value.unwrap()))),
                    _ => loop {
                        let held = map.protect(&key).unwrap();
                        if map.replace(&held, add(&held)).is_ok() {
                            break Some(held);
                        }
                    },
                };
                look(&old.unwrap());
                versions.fetch_add(1, Relaxed);
                // A key of this thread's own, that comes and goes.
                let key = KEYS + random(1 << 40);
                let mine = map.insert_new(key, owner(key, 0)).is_ok();
                count(mine, 1);
                count(mine && map.remove_if(&key, |_| true).is_some(), -1);
            },
            &|| {
                let received = receiver.lock().unwrap().try_recv();
                received.into_iter().for_each(|held| _ = held.0.check(*held.key()));
                thread::yield_now();
            },
        ];
        run(time, 1, &work);
        drop(receiver);
        let all: u64 = (0..ALWAYS).map(|key| look(&map.protect(&key).unwrap())).sum();
        assert_eq!(all, versions.load(Relaxed));
        map.retain(|key, _| *key < ALWAYS || *key >= KEYS);
        assert_eq!(map.len() as i64, there.load(Relaxed));
        assert_eq!(map.len(), map.iter().count());
    });
}

/// Restartable lookups only, long enough that many are preempted in the middle: without the restart
/// they would go on along freed items.
#[test]
fn long_chains() {
    const KEYS: u64 = 1 << 12;
    let domain = Domain::builder().build().unwrap();
    let map = Map::builder().domain(&domain).load(usize::MAX).build();
    let value = |key| Marked::new(key, 0).mark;
    (0..KEYS).for_each(|key| assert!(map.insert(key, value(key)).is_none()));
    run(
        Duration::from_secs_f64(seconds()),
        4,
        &[
            &|| {
                let key = random(KEYS);
                assert_eq!(map.copied(&key), Some(value(key)));
            },
            &|| {
                let key = random(KEYS);
                let held = map.protect(&key).unwrap();
                dawdle();
                assert_eq!((*held.key(), *held), (key, value(key)));
            },
            &|| {
                let key = random(KEYS);
                map.insert(key, value(key));
            },
        ],
    );
    println!(
        "{} grace periods, {} restarts",
        domain.stats().grace_periods.count,
        domain.stats().restarts
    );
}

#[test]
fn list() {
    const ALWAYS: u64 = 8;
    each_engine(|domain, time, plain| {
        let list = List::new_in(domain);
        (0..ALWAYS).for_each(|id| list.push_back(Owner(Box::new(Marked::new(id, 0)))));
        run(
            time,
            1,
            &[
                &|| {
                    // Values that are always there are seen once, and in order.
                    let mut always = 0;
                    let mut see = |value: &Owner| {
                        let id = value.0.id;
                        value.0.check(id);
                        if id < ALWAYS {
                            assert_eq!(id, always);
                            always += 1;
                        }
                    };
                    if random(2) == 0 {
                        list.iter_in(&domain.read_lock()).for_each(&mut see);
                    } else {
                        for value in list.iter() {
                            dawdle();
                            see(&value);
                        }
                    }
                    assert_eq!(always, ALWAYS);
                    if !plain {
                        thread::yield_now();
                    }
                },
                &|| {
                    let id = random(2 * ALWAYS);
                    if let Some(held) = list.protect(|value| value.0.id == id) {
                        dawdle();
                        held.0.check(id);
                    }
                },
                &|| {
                    let id = ALWAYS + random(ALWAYS);
                    let value = Owner(Box::new(Marked::new(id, 0)));
                    if random(2) == 0 {
                        list.push_front(value)
                    } else {
                        list.push_back(value)
                    }
                    let id = random(ALWAYS);
                    list.replace_first(
                        |v| v.0.id == id,
                        |v| Owner(Box::new(Marked::new(id, v.0.check(id) + 1))),
                    );
                },
                &|| {
                    let id = ALWAYS + random(ALWAYS);
                    list.remove_first(|v| v.0.id == id);
                    list.retain(|v| v.0.id < 3 * ALWAYS / 2);
                },
            ],
        );
        assert_eq!(list.len(), list.iter_in(&domain.read_lock()).count());
    });
}
