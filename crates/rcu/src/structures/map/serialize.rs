// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map as a map of serde's.

use super::hash_map::Map;
use crate::structures::handle::{Global, Handle};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

/// A scan, as [`Map::iter`]: no grace period waits for it.
///
/// ```
/// use reprieve::structures::Map;
/// let map: Map<String, u32> = serde_json::from_str(r#"{"a": 1}"#)?;
/// assert_eq!(serde_json::to_string(&map)?, r#"{"a":1}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
impl<K, V, D, S> Serialize for Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static + Serialize,
    V: Send + Sync + 'static + Serialize,
    D: Handle,
    S: BuildHasher,
{
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        // Others may write meanwhile, so the length is not known.
        let mut map = serializer.serialize_map(None)?;
        for item in self {
            map.serialize_entry(item.key(), &*item)?;
        }
        map.end()
    }
}

impl<'de, K, V, S> Deserialize<'de> for Map<K, V, Global, S>
where
    K: Hash + Eq + Send + Sync + 'static + Deserialize<'de>,
    V: Send + Sync + 'static + Deserialize<'de>,
    S: BuildHasher + Default,
{
    fn deserialize<T: Deserializer<'de>>(deserializer: T) -> Result<Self, T::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<M>(PhantomData<M>);

impl<'de, K, V, S> Visitor<'de> for Entries<Map<K, V, Global, S>>
where
    K: Hash + Eq + Send + Sync + 'static + Deserialize<'de>,
    V: Send + Sync + 'static + Deserialize<'de>,
    S: BuildHasher + Default,
{
    type Value = Map<K, V, Global, S>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let map = Map::builder().hasher(S::default()).build();
        while let Some((key, value)) = entries.next_entry()? {
            map.insert(key, value);
        }
        Ok(map)
    }
}
