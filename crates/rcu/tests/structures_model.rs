// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structures beside those of std: the same random calls on one thread, and the same results.
//!
//! `REPRIEVE_SEED` repeats a run that failed.

use random::Random;
use reprieve::Domain;
use reprieve::structures::OrderedMap;
use reprieve::structures::map::{Change, Held, Map};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

#[path = "common/random.rs"]
mod random;

/// Few hashes for many keys.
#[derive(Default)]
struct Poor(u64);

impl Hasher for Poor {
    fn finish(&self) -> u64 {
        self.0 % 7 + ((self.0 % 5) << 60)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.wrapping_mul(31) + u64::from(*byte));
    }
}

const CALLS: usize = 20_000;
const KEYS: usize = 60;

type Value = Box<usize>;

fn value(held: Option<Held<'_, String, Value>>) -> Option<(String, Value)> {
    held.map(|held| (held.key().clone(), held.clone()))
}

fn sorted(items: impl Iterator<Item = (String, Value)>) -> Vec<(String, Value)> {
    let mut items: Vec<_> = items.collect();
    items.sort_unstable();
    items
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// The calls that a map has in common with its model, whatever its order: `$call` of [`SHARED`].
macro_rules! shared_call {
    ($call:expr, $n:ident, $key:ident, $map:ident, $model:ident, $domain:ident) => {{
        let (k, v) = ($key.as_str(), Box::new($n));
        let pair = |value: Option<Value>| value.map(|value| ($key.clone(), value));
        let even = |value: &Value| **value % 2 == 0;
        match $call {
            0 | 1 => {
                let old = $model.insert($key.clone(), v.clone());
                assert_eq!(value($map.insert($key.clone(), v)), pair(old));
            }
            2 => {
                let new = $map.insert_new($key.clone(), v.clone());
                assert_eq!(new.is_ok(), !$model.contains_key(k));
                $model.entry($key).or_insert(v);
            }
            3 => {
                let held = $map.get_or_insert_with($key.clone(), || v.clone());
                assert_eq!(*held, *$model.entry($key).or_insert(v));
            }
            4 => {
                let old = $map.update(k, |old| Box::new(**old / 3 + 1));
                assert_eq!(value(old), pair($model.get(k).cloned()));
                $model.entry($key).and_modify(|old| **old = **old / 3 + 1);
            }
            5 => {
                if let Some(held) = $map.protect(k) {
                    assert_eq!($map.replace(&held, v.clone()), Ok(()));
                    assert_eq!($map.replace(&held, v.clone()), Err(v.clone()));
                    $model.insert($key, v);
                }
            }
            6 | 7 => assert_eq!(value($map.remove(k)), $model.remove_entry(k)),
            8 => {
                let removed = $model.get(k).is_some_and(even).then(|| $model.remove_entry(k));
                assert_eq!(value($map.remove_if(k, even)), removed.flatten());
            }
            9 if $n % 8 == 0 => {
                $map.retain(|key, value| key.len() == 2 || even(value));
                $model.retain(|key, value| key.len() == 2 || even(value));
            }
            10 if $n % 64 == 0 => {
                $map.clear();
                $model.clear();
            }
            11 => assert_eq!(
                ($map.contains_key(k), $map.protect(k).map(|held| held.clone())),
                ($model.contains_key(k), $model.get(k).cloned())
            ),
            12 => assert_eq!($map.get(k, &$domain.read_lock()), $model.get(k)),
            13 => {
                let entry = $map.entry($key.clone()).and_modify(|old| Box::new(**old + 1));
                let even = $n % 2 == 0;
                let held = if even { entry.or_insert(v.clone()) } else { entry.or_default() };
                let new = if even { v } else { Value::default() };
                assert_eq!(*held, *$model.entry($key).and_modify(|old| **old += 1).or_insert(new));
            }
            14 | 15 => {
                let change = [Change::Keep, Change::Set(v), Change::Remove][$n % 3].clone();
                let old = $map.compute($key.clone(), |old| {
                    assert_eq!(old, $model.get(k));
                    change.clone()
                });
                assert_eq!(value(old), $model.get_key_value(k).map(owned));
                match change {
                    Change::Keep => (),
                    Change::Set(v) => _ = $model.insert($key, v),
                    Change::Remove => _ = $model.remove(k),
                }
            }
            16 if $n % 8 == 0 => {
                let more: Vec<_> = (0..400).map(|i| (format!("+{i}"), Box::new(i))).collect();
                (&$map).extend(more.clone());
                $model.extend(more);
            }
            _ => (),
        }
    }};
}

const SHARED: usize = 17;

/// Keys are owned, and looked up as `&str`.
fn map_like_hash_map<S: BuildHasher>(hasher: S) {
    let mut random = Random::new();
    let domain = Domain::builder().build().unwrap();
    let map = Map::builder().domain(&domain).hasher(hasher).build::<String, Value>();
    let mut model: HashMap<String, Value> = HashMap::new();
    for n in 0..CALLS {
        let key = random.below(KEYS).to_string();
        match random.below(SHARED + 2) {
            call @ 0..SHARED => shared_call!(call, n, key, map, model, domain),
            SHARED => {
                map.shrink_to_fit();
                domain.synchronize();
            }
            _ if n % 16 == 0 => {
                let expected = sorted(model.clone().into_iter());
                let held = map.iter().map(|held| (held.key().clone(), held.clone()));
                assert_eq!(sorted(held), expected);
                let guard = domain.read_lock();
                assert_eq!(
                    sorted(map.iter_in(&guard).map(|(k, v)| (k.clone(), v.clone()))),
                    expected
                );
            }
            _ => (),
        }
        assert_eq!(map.len(), model.len());
    }
    let collected: Map<String, Value> = model.clone().into_iter().collect();
    let items = |held: Held<'_, String, Value>| (held.key().clone(), held.clone());
    assert_eq!(sorted((&collected).into_iter().map(items)), sorted(model.into_iter()));
}

#[test]
fn a_map_is_like_a_hash_map() {
    map_like_hash_map(RandomState::new());
}

#[test]
fn a_map_whose_keys_share_hashes_is_like_a_hash_map() {
    map_like_hash_map(BuildHasherDefault::<Poor>::default());
}

#[test]
fn an_ordered_map_is_like_a_btree_map() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let mut random = Random::new();
    let domain = Domain::builder().build().unwrap();
    let map: OrderedMap<String, Value, _> = OrderedMap::new_in(&domain);
    let mut model: BTreeMap<String, Value> = BTreeMap::new();
    for n in 0..CALLS {
        let key = random.below(KEYS).to_string();
        let k = key.as_str();
        match random.below(SHARED + 6) {
            call @ 0..SHARED => shared_call!(call, n, key, map, model, domain),
            SHARED => assert_eq!(value(map.pop_first()), model.pop_first()),
            18 => assert_eq!(value(map.pop_last()), model.pop_last()),
            19 => {
                assert_eq!(value(map.first()), model.first_key_value().map(owned));
                assert_eq!(value(map.last()), model.last_key_value().map(owned));
                let bound = if n % 2 == 0 { Included(k) } else { Excluded(k) };
                let above = model.range::<str, _>((bound, Unbounded)).next();
                assert_eq!(value(map.lower_bound(bound)), above.map(owned));
                let below = model.range::<str, _>((Unbounded, bound)).next_back();
                assert_eq!(value(map.upper_bound(bound)), below.map(owned));
            }
            _ => {
                let from = random.below(KEYS).to_string();
                let (from, to) = (k.min(&from), k.max(&from));
                let range = (Included(from), Included(to));
                let expected: Vec<_> = model.range::<str, _>(range).collect();
                let held = map.range::<str, _>(range);
                assert!(
                    held.map(|held| value(Some(held)).unwrap())
                        .eq(expected.iter().map(|(k, v)| ((*k).clone(), (*v).clone())))
                );
                let guard = domain.read_lock();
                assert!(map.range_in::<str, _, _>(range, &guard).eq(expected));
            }
        }
        assert_eq!(map.len(), model.len());
    }
    let collected: OrderedMap<String, Value> = model.clone().into_iter().collect();
    let items = (&collected).into_iter().map(|held| value(Some(held)).unwrap());
    assert!(items.eq(model));
}

#[test]
fn a_map_goes_down_to_the_size_that_it_began_with() {
    let map = Map::builder().chains(64).build();
    (0..5000).for_each(|n| _ = map.insert(n, n));
    assert!(map.chains() > 64);
    map.retain(|n, _| *n < 40);
    // A grace period of the last growth may have to end first.
    while map.chains() > 64 {
        reprieve::synchronize_rcu();
        map.shrink_to_fit();
    }
    assert_eq!(map.chains(), 64);
    assert!((0..40).all(|n| map.copied(&n) == Some(n)) && map.iter().count() == 40);
}

/// What serde makes of a map of std's, and that of the map of ours.
#[cfg(feature = "serde")]
#[test]
fn maps_are_maps_of_serdes() {
    fn both_ways<M, N>(model: &M)
    where
        M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
        N: serde::Serialize + serde::de::DeserializeOwned,
    {
        let ours: N = serde_json::from_str(&serde_json::to_string(model).unwrap()).unwrap();
        let text = serde_json::to_string(&ours).unwrap();
        assert_eq!(serde_json::from_str::<M>(&text).unwrap(), *model);
        assert!(serde_json::from_str::<N>(r#"{"a": [1], "b": 2}"#).is_err());
    }
    let items = || (0..40u8).map(|n| (n.to_string(), vec![n, n + 1]));
    both_ways::<_, Map<String, Vec<u8>>>(&items().collect::<HashMap<_, _>>());
    both_ways::<_, OrderedMap<String, Vec<u8>>>(&items().collect::<BTreeMap<_, _>>());
}
