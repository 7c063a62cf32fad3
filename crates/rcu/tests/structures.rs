// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structures, one promise per test.

#[path = "common/policy.rs"]
mod policy;

use reprieve::structures::{Cell, List, Map};
use reprieve::{Cap, Domain, Engine};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::thread;
use std::time::Duration;

/// Counts its drops.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Every key has the same hash.
#[derive(Default)]
struct Same;

impl Hasher for Same {
    fn finish(&self) -> u64 {
        7
    }

    fn write(&mut self, _: &[u8]) {}
}

/// Waits for a grace period when it is dropped: not inside a section.
struct Waits(Arc<Domain>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.synchronize();
    }
}

fn domain() -> Domain {
    Domain::builder().build().unwrap()
}

mod cell {
    use super::*;

    #[test]
    fn copies_of_every_size() {
        macro_rules! copies {
            ($($value:expr),*) => { $( assert_eq!(Cell::new($value).get(), $value); )* };
        }
        copies!(
            (),
            1u8,
            'x',
            7u16,
            -1i64,
            (3u8, 4u64),
            [1u64; 3],
            [2u32; 8],
            [5u64; 5],
            [9u8; 31],
            i128::MIN
        );
        assert_eq!(Cell::new([6u8; 300]).get(), [6; 300]);
    }

    #[test]
    fn what_is_held_stays_and_what_is_not_goes() {
        for engine in [Engine::Restart, Engine::Poll] {
            let domain = Domain::builder().engine(engine).build().unwrap();
            let drops = Arc::new(AtomicUsize::new(0));
            let cell = Cell::new_in(Counted(drops.clone()), &domain);
            let held = cell.protect();
            cell.store(Counted(drops.clone()));
            cell.store(Counted(drops.clone()));
            domain.synchronize();
            thread::sleep(Duration::from_millis(5));
            assert!(drops.load(SeqCst) <= 1, "the first is held");
            drop(held);
            domain.barrier().unwrap();
            assert_eq!(drops.load(SeqCst), 2);
            drop(cell);
            assert_eq!(drops.load(SeqCst), 3);
        }
    }

    #[test]
    fn swap_and_compare_and_swap() {
        let cell = Cell::new("a".to_string());
        let guard = reprieve::read_lock();
        let old = cell.swap("b".to_string(), &guard);
        assert_eq!(old, "a");
        // The old one is not there any more; an equal one is not the same.
        let equal = "b".to_string();
        for other in [old, &equal] {
            let changed = cell.compare_and_swap(other, "c".to_string(), &guard).unwrap_err();
            assert_eq!((changed.current.as_str(), changed.new.as_str()), ("b", "c"));
        }
        let current = cell.load(&guard);
        assert_eq!(cell.compare_and_swap(current, "c".to_string(), &guard).unwrap(), "c");
        assert_eq!((current.as_str(), cell.load(&guard).as_str()), ("b", "c"));
    }

    #[test]
    fn no_update_is_lost() {
        let cell = Arc::new(Cell::new(0u64));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let cell = cell.clone();
                thread::spawn(move || (0..5000).for_each(|_| cell.update(|n| n + 1)))
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(cell.get(), 20_000);
    }

    /// Another writer comes first: what was to replace the value is dropped outside the section.
    #[test]
    fn an_update_in_vain_drops_its_value_outside_the_section() {
        let domain = Arc::new(domain());
        let value = || Waits(domain.clone());
        let cell = Cell::new_in(value(), &*domain);
        let mut runs = 0;
        cell.update(|_| {
            runs += 1;
            if runs == 1 {
                cell.store(value());
            }
            value()
        });
        assert_eq!(runs, 2);
        drop(cell);
        domain.barrier().unwrap();
    }

    #[test]
    #[should_panic(expected = "another domain")]
    fn a_guard_of_another_domain_is_refused() {
        let (a, b) = (domain(), domain());
        let cell = Cell::new_in(1, &a);
        let guard = b.read_lock();
        cell.load(&guard);
    }

    #[test]
    fn garbage_is_announced_and_stays_below_the_cap() {
        let cap = Cap { bytes: 64 << 10, callbacks: u64::MAX };
        let domain = Domain::builder().cap(cap).build().unwrap();
        let cell = Cell::new_in([0u8; 4096], &domain);
        let guard = domain.read_lock();
        cell.store([1; 4096]);
        // A look while the worker takes it out of the stash may not find it.
        while domain.stats().waiting_bytes < 4096 {
            thread::yield_now();
        }
        drop(guard);
        // Waits for room since there was some: each lets 32 more pass when it ends without.
        let mut waits = 0;
        for _ in 0..2000 {
            cell.update(|old| *old);
            let stats = domain.stats();
            if stats.waiting_bytes < cap.bytes {
                waits = stats.over_cap;
            }
            let allowed = 4 * cap.bytes + 32 * 4352 * (stats.over_cap - waits);
            assert!(stats.waiting_bytes < allowed, "more than {allowed}: {stats:?}");
        }
    }

    #[test]
    fn an_owned_domain_goes_with_its_last_structure() {
        let domain = Arc::new(domain());
        let cell = Cell::new_in(vec![1], domain.clone());
        drop(domain);
        cell.store(vec![2]);
        assert_eq!(*cell.protect(), [2]);
    }

    #[test]
    fn a_quiescent_thread_reads() {
        let domain = domain();
        let cell = Cell::new_in(1, &domain);
        let mut this = domain.qsbr();
        assert_eq!(*cell.load(&this.read_lock()), 1);
        cell.store(2);
        this.quiescent_state();
        assert_eq!(*cell.load(&this.read_lock()), 2);
    }
}

mod map {
    use super::*;

    #[test]
    fn keys_and_values_that_own_memory() {
        let map = Map::new();
        for i in 0..500 {
            map.insert(i.to_string(), vec![i; 10]);
        }
        let held = map.protect("123").unwrap();
        (0..500).for_each(|i| assert!(map.remove(&*i.to_string()).is_some()));
        reprieve::synchronize_rcu();
        assert_eq!((held.key().as_str(), held.as_slice()), ("123", [123; 10].as_slice()));
        assert!(map.is_empty() && map.protect("123").is_none());
        map.insert("b".into(), vec![3]);
        assert_eq!(format!("{map:?}"), r#"{"b": [3]}"#);
    }

    #[test]
    fn copies_too_large_for_the_section() {
        let map = Map::new();
        map.insert([1u64; 4], [2u8; 100]);
        assert_eq!(map.copied(&[1; 4]), Some([2; 100]));
        assert_eq!(map.copied(&[2; 4]), None);
    }

    #[test]
    fn equal_hashes_are_not_equal_keys() {
        let map =
            Map::builder().hasher(BuildHasherDefault::<Same>::default()).load(usize::MAX).build();
        (0..10u32).for_each(|k| assert!(map.insert(k, k + 100).is_none()));
        let guard = reprieve::read_lock();
        for k in 0..10 {
            assert_eq!(map.get(&k, &guard), Some(&(k + 100)));
            assert_eq!(map.copied(&k), Some(k + 100));
            assert_eq!(map.protect(&k).map(|h| *h), Some(k + 100));
        }
        assert!(map.copied(&10).is_none() && map.protect(&10).is_none());
        assert!(map.remove(&3).is_some() && map.copied(&3).is_none() && map.copied(&4).is_some());
    }

    #[test]
    fn it_grows_one_grace_period_at_a_time() {
        let domain = domain();
        let map = Map::builder().domain(&domain).build();
        let guard = domain.read_lock();
        (0..10_000u64).for_each(|k| assert!(map.insert(k, k).is_none()));
        let once = map.chains();
        assert!(once < 10_000, "the second growth waits for this section");
        assert!((0..10_000).all(|k| map.copied(&k) == Some(k)));
        drop(guard);
        domain.synchronize();
        map.insert(10_000, 10_000);
        // How many there are is guessed from a sixteenth of the keys, whose number hashing decides.
        assert!(map.chains() >= 10_000 / 4, "{} after {once}", map.chains());
        assert!((0..=10_000).all(|k| map.copied(&k) == Some(k)));
        assert_eq!(map.iter_in(&domain.read_lock()).count(), 10_001);
    }

    #[test]
    fn an_iteration_sees_each_key_once_while_the_map_grows() {
        let domain = domain();
        let map = Map::builder().domain(&domain).build();
        (0..16u64).for_each(|k| assert!(map.insert(k, k).is_none()));
        domain.synchronize();
        let guard = domain.read_lock();
        let mut iter = map.iter_in(&guard);
        let mut seen: Vec<u64> = iter.by_ref().take(5).map(|(k, _)| *k).collect();
        let chains = map.chains();
        (100..1000).for_each(|k| assert!(map.insert(k, k).is_none()));
        assert!(map.chains() > chains);
        // Removed after the growth, alive in this section.
        (0..16).for_each(|k| assert!(map.remove(&k).is_some()));
        seen.extend(iter.map(|(k, _)| *k).filter(|k| *k < 16));
        seen.sort_unstable();
        assert_eq!(seen, (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn a_scan_sees_each_key_once_while_the_map_grows() {
        let domain = domain();
        let map = Map::builder().domain(&domain).build();
        (0..16u64).for_each(|k| assert!(map.insert(k, k).is_none()));
        let chains = map.chains();
        let mut seen = vec![];
        for (n, item) in map.iter().enumerate() {
            seen.push(*item.key());
            // Growth in steps, replacements, and removals of what is not looked for.
            let new = 100 + 1000 * n as u64;
            (new..new + 100).for_each(|k| assert!(map.insert(k, k).is_none()));
            (0..16).for_each(|k| assert!(map.insert(k, k).is_some()));
            (new..new + 50).for_each(|k| assert!(map.remove(&k).is_some()));
            domain.synchronize();
            if n == 200 {
                break;
            }
        }
        assert!(map.chains() > 8 * chains);
        // The rest, without growth.
        let mut scan: Vec<u64> = map.iter().map(|item| *item.key()).collect();
        assert_eq!(scan.len(), map.len());
        scan.sort_unstable();
        scan.dedup();
        assert_eq!(scan.len(), map.len());
        let length = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), length, "one was seen twice");
    }

    #[test]
    fn a_scan_sees_all_items_of_a_place_and_may_remove_them() {
        for load in [1, usize::MAX] {
            let map =
                Map::builder().hasher(BuildHasherDefault::<Same>::default()).load(load).build();
            (0..40u32).for_each(|k| assert!(map.insert(k, k).is_none()));
            let mut keys: Vec<u32> = map.iter().map(|item| *item.key()).collect();
            keys.sort_unstable();
            assert!(keys.into_iter().eq(0..40));
            let even = |item: &reprieve::structures::map::Held<'_, u32, u32>| item.key() % 2 == 0;
            map.iter().filter(even).for_each(|item| assert!(map.remove(item.key()).is_some()));
            assert_eq!(map.iter().count(), 20);
        }
        let map = Map::new();
        assert!(map.iter().next().is_none());
        (0..1000u32).for_each(|k| assert!(map.insert(k, k).is_none()));
        map.iter().for_each(|item| assert!(map.remove(item.key()).is_some()));
        assert!(map.is_empty() && map.iter().next().is_none());
    }

    #[test]
    fn a_scan_holds_no_free() {
        let domain = domain();
        let map = Map::builder().domain(&domain).build();
        let list = List::new_in(&domain);
        for n in 0..100u32 {
            map.insert(n, n);
            list.push_back(n);
        }
        let (mut items, mut values) = (map.iter(), list.iter());
        for _ in 0..50 {
            let _ = (items.next().unwrap(), values.next().unwrap());
        }
        domain.barrier().unwrap();
        for n in 0..100 {
            assert!(map.remove(&n).is_some());
        }
        list.retain(|_| false);
        domain.barrier().unwrap();
        let stats = domain.stats();
        assert!(stats.waiting == stats.held && (1..=2).contains(&stats.held), "{stats:?}");
        assert!(items.next().is_none() && values.next().is_none());
        drop((items, values));
        domain.barrier().unwrap();
    }

    #[test]
    fn a_drop_drops_everything_once() {
        let drops = Arc::new(AtomicUsize::new(0));
        let domain = domain();
        let map = Map::builder().domain(&domain).build();
        (0..1000).for_each(|k| assert!(map.insert(k, Counted(drops.clone())).is_none()));
        (0..100).for_each(|k| assert!(map.remove(&k).is_some()));
        (100..200).for_each(|k| assert!(map.insert(k, Counted(drops.clone())).is_some()));
        drop(map);
        domain.barrier().unwrap();
        assert_eq!(drops.load(SeqCst), 1100);
    }

    /// As in a cell.
    #[test]
    fn an_update_in_vain_drops_its_value_outside_the_section() {
        let domain = Arc::new(domain());
        let value = || Waits(domain.clone());
        let map = Map::builder().domain(&*domain).build();
        map.insert(1, value());
        let mut runs = 0;
        let old = map.update(&1, |_| {
            runs += 1;
            if runs == 1 {
                map.insert(1, value());
            }
            value()
        });
        assert!(old.is_some());
        drop(old);
        assert_eq!(runs, 2);
        drop(map);
        domain.barrier().unwrap();
    }

    #[test]
    fn a_panic_in_a_key_leaves_the_map_usable() {
        #[derive(Debug)]
        struct Touchy {
            number: u32,
            _counted: Counted,
        }
        impl PartialEq for Touchy {
            fn eq(&self, other: &Touchy) -> bool {
                assert!(self.number != 13 && other.number != 13, "thirteen");
                self.number == other.number
            }
        }
        impl Eq for Touchy {}
        impl std::hash::Hash for Touchy {
            fn hash<H: Hasher>(&self, _: &mut H) {}
        }
        let drops = Arc::new(AtomicUsize::new(0));
        let key = |number| Touchy { number, _counted: Counted(drops.clone()) };
        let map = Map::builder().hasher(BuildHasherDefault::<Same>::default()).build();
        map.insert(key(1), Counted(drops.clone()));
        let insert = || map.insert(key(13), Counted(drops.clone()));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(insert));
        assert!(result.is_err());
        assert_eq!(drops.load(SeqCst), 2, "the new key and its value");
        assert!(map.insert(key(2), Counted(drops.clone())).is_none() && map.len() == 2);
    }

    #[test]
    #[should_panic(expected = "another domain")]
    fn a_guard_of_another_domain_is_refused() {
        let domain = domain();
        let map = Map::builder().domain(&domain).build::<u32, u32>();
        map.get(&1, &reprieve::read_lock());
    }
}

mod list {
    use super::*;

    #[test]
    fn the_safe_list() {
        let drops = Arc::new(AtomicUsize::new(0));
        let domain = domain();
        let list = List::new_in(&domain);
        let value = |n: u32| (n, Counted(drops.clone()));
        [2, 3, 4].into_iter().for_each(|n| list.push_back(value(n)));
        list.push_front(value(1));
        let numbers = || list.iter_in(&domain.read_lock()).map(|v| v.0).collect::<Vec<_>>();
        assert_eq!((numbers(), list.len()), (vec![1, 2, 3, 4], 4));
        let held = list.protect(|v| v.0 == 3).unwrap();
        assert!(list.replace_first(|v| v.0 == 3, |v| value(v.0 * 10)));
        assert!(list.remove_first(|v| v.0 == 2) && !list.remove_first(|v| v.0 == 2));
        assert!(!list.replace_first(|v| v.0 == 2, |_| value(0)));
        assert_eq!(numbers(), [1, 30, 4]);
        list.retain(|v| v.0 % 2 == 0);
        assert_eq!(numbers(), [30, 4]);
        domain.synchronize();
        thread::sleep(Duration::from_millis(5));
        assert!(drops.load(SeqCst) <= 2 && held.0 == 3, "it is held");
        drop(held);
        domain.barrier().unwrap();
        assert_eq!(drops.load(SeqCst), 3);
        drop(list);
        assert_eq!(drops.load(SeqCst), 5);
    }

    #[test]
    fn a_walk_goes_on_from_an_entry_that_is_taken_out() {
        let list = List::new();
        (0..5).for_each(|n| list.push_back(n));
        let guard = reprieve::read_lock();
        let mut walk = list.iter_in(&guard);
        assert_eq!((walk.next(), walk.next()), (Some(&0), Some(&1)));
        assert!(list.remove_first(|n| *n == 1) && list.remove_first(|n| *n == 3));
        list.push_back(5);
        assert!(walk.eq(&[2, 4, 5]));
        assert!(list.iter_in(&guard).eq(&[0, 2, 4, 5]));
    }

    /// A node protected between two steps of a scan, or after its end, is not let go with it.
    #[test]
    fn a_scan_keeps_its_slots_apart() {
        let domain = domain();
        let list = List::new_in(&domain);
        (0..3).for_each(|n| list.push_back(n));
        let mut scan = list.iter();
        let mut held = vec![];
        while scan.next().is_some() {
            held.extend(list.protect(|n| *n == 1));
        }
        assert!(scan.next().is_none() && list.remove_first(|n| *n == 2));
        held.extend(list.protect(|n| *n == 1));
        assert!(scan.next().is_none());
        held.extend(list.protect(|n| *n == 1));
        drop(scan);
        list.retain(|_| false);
        assert_eq!(held.len(), 5);
        for held in held {
            domain.barrier().unwrap();
            assert_eq!((*held, domain.stats().held), (1, 1));
        }
        domain.barrier().unwrap();
        assert_eq!(domain.stats().held, 0);
    }

    /// The item that was handed out last, the one before, both, all, or the next one.
    #[test]
    fn a_scan_goes_on_behind_items_that_are_taken_out() {
        let keys = |list: &List<i32>| list.iter().map(|n| *n).collect::<Vec<_>>();
        for out in 0..7 {
            let list = List::new();
            (0..300).for_each(|n| list.push_back(n));
            let mut seen = vec![];
            for n in list.iter() {
                let n = *n;
                seen.push(n);
                let gone = |m: &i32| match out {
                    0 => *m == n,
                    1 => *m == n - 1,
                    2 => *m == n || *m == n - 1,
                    3 => *m <= n,
                    4 => *m == n + 1,
                    5 => (*m - n).abs() <= 3 && *m % 3 != 0,
                    _ => *m == n && n % 2 == 0,
                };
                list.retain(|m| !gone(m));
                list.push_front(-1 - n);
                list.replace_first(|m| *m == 299, |m| *m);
            }
            let stays = |n: &i32| match out {
                4 => n % 2 == 0,
                5 => n % 3 == 0,
                _ => true,
            };
            let stayed = |n: &&i32| stays(n);
            assert!(
                seen.iter().filter(stayed).eq((0..300).filter(stays).collect::<Vec<_>>().iter())
            );
            let mut once = seen.clone();
            once.dedup();
            assert_eq!(seen, once);
            assert_eq!(keys(&list).len(), list.len());
        }
    }

    #[test]
    #[should_panic(expected = "another domain")]
    fn a_guard_of_another_domain_is_refused() {
        let domain = domain();
        let list: List<u32, _> = List::new_in(&domain);
        let _ = list.iter_in(&reprieve::read_lock());
    }
}

/// Keys that come while no growth is possible (a grace period of the last one is not over) leave
/// long chains; the next write shortens them, whether or not its key is new.
#[test]
fn a_map_that_could_not_grow_in_time_grows_at_the_next_write() {
    let domain = Domain::builder().build().unwrap();
    let map = Map::builder().domain(&domain).build::<u64, u64>();
    let guard = domain.read_lock();
    for key in 0..4096 {
        map.insert(key, key);
    }
    drop(guard);
    assert!(map.chains() < 1024, "{}: the section held no growth up", map.chains());
    domain.synchronize();
    map.insert(1, 2);
    assert!(map.chains() >= 4096, "{}", map.chains());

    let guard = domain.read_lock();
    for key in 4096..65_536 {
        map.insert(key, key);
    }
    drop(guard);
    domain.synchronize();
    domain.synchronize();
    assert!(map.update(&1, |value| value + 1).is_some());
    assert!(map.chains() >= 65_536, "{}", map.chains());
    assert_eq!((map.copied(&1), map.copied(&65_535)), (Some(3), Some(65_535)));
}

/// The thread that runs grace periods does not run while keys come, for they come on its CPU, from
/// a real-time thread.
#[test]
fn a_burst_of_keys_does_not_leave_long_chains() {
    const KEYS: u64 = 20_000;
    let alone = |engine: Engine| {
        // SAFETY: plain data of the size given.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
        }
        if !policy::set_policy(libc::SCHED_FIFO, 1) {
            return println!("no real-time priority allowed here: skipped");
        }
        let domain = Domain::builder().engine(engine).build().unwrap();
        let map = Map::builder().domain(&domain).build();
        (0..KEYS).for_each(|key| _ = map.insert(key, key));
        let chains = map.chains();
        let found = domain.stats().grace_periods;
        println!("{engine:?}: {chains} chains for {KEYS} keys, {:?}", found.mean());
        // When some take longer than that, the rest is left to the thread that runs them.
        const QUICK: Duration = Duration::from_micros(250);
        let some = 1.0 - 3.0 / found.count.max(3) as f64;
        if (chains as u64) < KEYS / 8 && found.quantile(some) > QUICK {
            println!("SKIPPED: grace periods take long here, so writers do not make their own");
            return;
        }
        assert!(chains as u64 >= KEYS / 8, "{chains} chains for {KEYS} keys");
        assert!((0..KEYS).all(|key| map.copied(&key) == Some(key)));
    };
    for engine in [Engine::Restart, Engine::Poll] {
        thread::spawn(move || alone(engine)).join().unwrap();
    }
}
