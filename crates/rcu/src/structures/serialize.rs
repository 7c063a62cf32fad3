// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map as a map of serde's.

use super::held::Held;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::marker::PhantomData;

pub(super) fn serialize<'m, K: Serialize + 'm, V: Serialize + 'm, T: Serializer>(
    items: impl Iterator<Item = Held<'m, K, V>>,
    serializer: T,
) -> Result<T::Ok, T::Error> {
    // Others may write meanwhile, so the length is not known.
    let mut map = serializer.serialize_map(None)?;
    for item in items {
        map.serialize_entry(item.key(), &*item)?;
    }
    map.end()
}

pub(super) fn deserialize<'de, K, V, M, T>(deserializer: T) -> Result<M, T::Error>
where
    K: Deserialize<'de>,
    V: Deserialize<'de>,
    M: FromIterator<(K, V)>,
    T: Deserializer<'de>,
{
    deserializer.deserialize_map(Entries(PhantomData))
}

struct Entries<K, V, M>(PhantomData<(K, V, M)>);

impl<'de, K, V, M> Visitor<'de> for Entries<K, V, M>
where
    K: Deserialize<'de>,
    V: Deserialize<'de>,
    M: FromIterator<(K, V)>,
{
    type Value = M;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<M, A::Error> {
        std::iter::from_fn(|| entries.next_entry().transpose()).collect()
    }
}
