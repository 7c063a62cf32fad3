// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that a hash map and an ordered map have in common: one text for both.
//!
//! > **Invariant.** No code of the program runs under a lock, except a key's `==` or `Ord`.
//!
//! A call that takes a function protects the key's item, asks the function, and then replaces or
//! removes *that item*. If the map no longer has it, the call begins again. An item that is
//! protected is not freed, and no other has its address: equal addresses are the same item. So
//! functions may use the map, block, and wait for grace periods.
//!
//! An old item is protected before it is retired, a new one before it is published. Either comes
//! before any look into the slots that could let the item be freed.
//!
//! # What a map brings along
//! | name | does |
//! |---|---|
//! | `sized(n)` | an empty map of the default domain, for so many items |
//! | `place(&key)`, `place_of(&held)` | where a search for the key begins: computed once per call |
//! | `protect_at(&key, place)` | `protect`, from there |
//! | `item(place, key, value)` | an item that is in no map, which `key()` and `into_pair()` look into |
//! | `set(new)` | puts it in the place of its key's item, which it returns protected, or inserts it |
//! | `publish(new)` | inserts and protects it, unless its key is there |
//! | `replace_item(&held, new)` | puts it in the place of that item, if that is still there |
//! | `remove_item(&held)` | takes that item out, if it is still there |
//! | `take(&key, place)` | takes the key's item out, and protects it |

/// What `compute` does with a key of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<V> {
    /// Nothing.
    Keep,
    /// Sets the value.
    Set(V),
    /// Removes the key.
    Remove,
}

/// `map_calls!(Map<K, V, D>: "Map", Eq)`: the calls of a map of that name, whose keys have that
/// trait. After `D`, the map may have a hasher.
macro_rules! map_calls {
    ($map:ident<K, V, D $(, $s:ident)?>: $name:literal, $($key:ident)+) => {
        impl<K, V, D $(, $s)?> $map<K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static,
            V: Send + Sync + 'static,
            D: Handle,
            $($s: BuildHasher,)?
        {
            /// Sets the value of `key`, and returns the item that was there, protected.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// assert!(map.insert("a", 1).is_none());
            /// assert_eq!(*map.insert("a", 2).unwrap(), 1);
            /// ```
            pub fn insert(&self, key: K, value: V) -> Option<Held<'_, K, V>> {
                self.set(self.item(self.place(&key), key, value))
            }

            /// Inserts `key` unless it is there.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// assert_eq!(map.insert_new("a", 1), Ok(()));
            /// assert_eq!(map.insert_new("a", 2), Err(("a", 2)));
            /// ```
            ///
            /// # Errors
            /// The arguments, if it is.
            pub fn insert_new(&self, key: K, value: V) -> Result<(), (K, V)> {
                let new = self.item(self.place(&key), key, value);
                self.publish(new).map(drop).map_err(|new| {
                    let Pair { key, value } = new.into_pair();
                    (key, value)
                })
            }

            /// The item of `key`, protected; inserts what `value` returns if there is none. If
            /// another writer inserts one first, that is the result.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// assert_eq!(*map.get_or_insert_with("a", || 1), 1);
            /// assert_eq!(*map.get_or_insert_with("a", || unreachable!()), 1);
            /// ```
            pub fn get_or_insert_with(&self, key: K, value: impl FnOnce() -> V) -> Held<'_, K, V> {
                let place = self.place(&key);
                if let Some(held) = self.protect_at(&key, place) {
                    return held;
                }
                let mut new = self.item(place, key, value());
                loop {
                    match self.publish(new) {
                        Ok(held) => return held,
                        Err(back) => new = back,
                    }
                    if let Some(held) = self.protect_at(new.key(), place) {
                        return held;
                    }
                }
            }

            /// The key's entry. It holds no lock: each of its calls looks the key up, and other
            /// writers may come in between.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// for word in ["a", "b", "a"] {
            ///     map.entry(word).and_modify(|count| count + 1).or_insert(1);
            /// }
            /// assert_eq!((*map.protect("a").unwrap(), *map.protect("b").unwrap()), (2, 1));
            /// assert_eq!(*map.entry("c").or_default(), 0);
            /// assert_eq!(*map.entry("d").or_insert_with(|| 7), 7);
            /// ```
            pub fn entry(&self, key: K) -> Entry<'_, K, V, D $(, $s)?> {
                Entry { map: self, key }
            }

            /// Read, copy, update: replaces the value of `key` by `f(&value)`; returns the item
            /// that was there, protected. If another writer comes first, `f` runs again.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// map.insert("a", 1);
            /// assert_eq!(*map.update("a", |value| value + 1).unwrap(), 1);
            /// assert_eq!(*map.protect("a").unwrap(), 2);
            /// assert!(map.update("b", |value| value + 1).is_none());
            /// ```
            pub fn update<Q>(&self, key: &Q, mut f: impl FnMut(&V) -> V) -> Option<Held<'_, K, V>>
            where
                K: Borrow<Q> + Clone,
                Q: $($key +)+ ?Sized,
            {
                let place = self.place(key);
                loop {
                    let old = self.protect_at(key, place)?;
                    let new = self.item(place, old.key().clone(), f(&old));
                    if self.replace_item(&old, new).is_ok() {
                        return Some(old);
                    }
                }
            }

            /// Sets, removes or keeps `key`, as `f` says of its value. Returns the item that `f`
            /// saw last, protected. If another writer comes first, `f` runs again.
            ///
            /// ```
            /// use reprieve::structures::map::Change;
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// let count_down = |key| {
            ///     map.compute(key, |value| match value {
            ///         None => Change::Set(2),
            ///         Some(1) => Change::Remove,
            ///         Some(n) => Change::Set(n - 1),
            ///     })
            ///     .map(|old| *old)
            /// };
            /// assert_eq!([(); 4].map(|_| count_down("a")), [None, Some(2), Some(1), None]);
            /// ```
            pub fn compute(
                &self,
                mut key: K,
                mut f: impl FnMut(Option<&V>) -> Change<V>,
            ) -> Option<Held<'_, K, V>> {
                let place = self.place(&key);
                loop {
                    let old = self.protect_at(&key, place);
                    match (f(old.as_deref()), &old) {
                        (Change::Keep, _) | (Change::Remove, None) => return old,
                        (Change::Remove, Some(item)) => {
                            if self.remove_item(item) {
                                return old;
                            }
                        }
                        (Change::Set(value), _) => {
                            let new = self.item(place, key, value);
                            let set = match &old {
                                Some(old) => self.replace_item(old, new),
                                None => self.publish(new).map(drop),
                            };
                            match set {
                                Ok(()) => return old,
                                Err(new) => key = new.into_pair().key,
                            }
                        }
                    }
                }
            }

            /// Replaces the value of the item that the caller holds, if it is still in the map.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// map.insert("a", 1);
            /// let first = map.protect("a").unwrap();
            /// assert_eq!(map.replace(&first, 2), Ok(()));
            /// assert_eq!(map.replace(&first, 3), Err(3));
            /// assert_eq!((*first, *map.protect("a").unwrap()), (1, 2));
            /// ```
            ///
            /// # Errors
            /// The value, if it is not.
            pub fn replace(&self, held: &Held<'_, K, V>, value: V) -> Result<(), V>
            where
                K: Clone,
            {
                let new = self.item(Self::place_of(held), held.key().clone(), value);
                self.replace_item(held, new).map_err(|new| new.into_pair().value)
            }

            /// Takes `key` out, and returns its item, protected.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// map.insert("a".to_string(), 1);
            /// assert_eq!(*map.remove("a").unwrap(), 1);
            /// assert!(map.remove("a").is_none());
            /// ```
            pub fn remove<Q>(&self, key: &Q) -> Option<Held<'_, K, V>>
            where
                K: Borrow<Q>,
                Q: $($key +)+ ?Sized,
            {
                self.take(key, self.place(key))
            }

            /// Takes `key` out if `f` says so of its value. If another writer comes first, `f` runs
            /// again.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// map.insert("a", 1);
            /// assert!(map.remove_if("a", |value| *value > 1).is_none());
            /// assert_eq!(*map.remove_if("a", |value| *value == 1).unwrap(), 1);
            /// ```
            pub fn remove_if<Q>(
                &self,
                key: &Q,
                mut f: impl FnMut(&V) -> bool,
            ) -> Option<Held<'_, K, V>>
            where
                K: Borrow<Q>,
                Q: $($key +)+ ?Sized,
            {
                let place = self.place(key);
                loop {
                    let held = self.protect_at(key, place)?;
                    if !f(&held) {
                        return None;
                    }
                    if self.remove_item(&held) {
                        return Some(held);
                    }
                }
            }

            /// Removes the items for which `keep` does not hold: a scan, as
            #[doc = concat!("[`iter`](", $name, "::iter), for which no grace period waits.")]
            /// An item that replaces one meanwhile may stay unseen.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// (&map).extend((0..9).map(|n| (n, n * n)));
            /// map.retain(|key, value| *key > 1 && *value < 10);
            /// assert_eq!(map.len(), 2);
            /// ```
            pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) {
                for held in self.iter() {
                    if !keep(held.key(), &held) {
                        self.remove_item(&held);
                    }
                }
            }

            /// Removes all keys, one by one. What is inserted meanwhile may stay.
            ///
            /// ```
            #[doc = concat!("let map = reprieve::structures::", $name, "::new();")]
            /// (&map).extend((0..9).map(|n| (n, n)));
            /// map.clear();
            /// assert!(map.is_empty());
            /// ```
            pub fn clear(&self) {
                self.retain(|_, _| false);
            }
        }

        /// A key of a map, in the map or not. See
        #[doc = concat!("[`", $name, "::entry`].")]
        pub struct Entry<'m, K, V, D $(, $s)?> {
            map: &'m $map<K, V, D $(, $s)?>,
            key: K,
        }

        impl<'m, K, V, D $(, $s)?> Entry<'m, K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static,
            V: Send + Sync + 'static,
            D: Handle,
            $($s: BuildHasher,)?
        {
            /// The key.
            pub fn key(&self) -> &K {
                &self.key
            }

            /// Replaces the value, if there is one, as
            #[doc = concat!("[`", $name, "::update`] does.")]
            #[must_use = "to insert a value if there is none"]
            pub fn and_modify(self, f: impl FnMut(&V) -> V) -> Self
            where
                K: Clone,
            {
                self.map.update(&self.key, f);
                self
            }

            /// The item, protected; inserts this value if there is none.
            pub fn or_insert(self, value: V) -> Held<'m, K, V> {
                self.or_insert_with(|| value)
            }

            /// The item, protected; inserts the result of `value` if there is none, as
            #[doc = concat!("[`", $name, "::get_or_insert_with`] does.")]
            pub fn or_insert_with(self, value: impl FnOnce() -> V) -> Held<'m, K, V> {
                self.map.get_or_insert_with(self.key, value)
            }

            /// The item, protected; inserts the default value if there is none.
            pub fn or_default(self) -> Held<'m, K, V>
            where
                V: Default,
            {
                self.or_insert_with(V::default)
            }
        }

        /// ```
        #[doc = concat!("use reprieve::structures::", $name, ";")]
        #[doc = concat!("let mut map: ", $name, "<_, _> = [(1, \"a\"), (1, \"b\")].into_iter().collect();")]
        /// map.extend([(2, "c")]);
        /// (&map).extend([(3, "d")]); // shared, too
        /// let mut keys: Vec<_> = (&map).into_iter().map(|item| (*item.key(), *item)).collect();
        /// keys.sort();
        /// assert_eq!(keys, [(1, "b"), (2, "c"), (3, "d")]);
        /// ```
        impl<K, V $(, $s)?> FromIterator<(K, V)> for $map<K, V, Global $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static,
            V: Send + Sync + 'static,
            $($s: BuildHasher + Default,)?
        {
            fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
                let items = items.into_iter();
                let map = Self::sized(items.size_hint().0);
                (&map).extend(items);
                map
            }
        }

        impl<K, V, D $(, $s)?> Extend<(K, V)> for &$map<K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static,
            V: Send + Sync + 'static,
            D: Handle,
            $($s: BuildHasher,)?
        {
            fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
                items.into_iter().for_each(|(key, value)| _ = self.insert(key, value));
            }
        }

        impl<K, V, D $(, $s)?> Extend<(K, V)> for $map<K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static,
            V: Send + Sync + 'static,
            D: Handle,
            $($s: BuildHasher,)?
        {
            fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
                (&*self).extend(items);
            }
        }

        impl<'m, K, V, D $(, $s)?> IntoIterator for &'m $map<K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static,
            V: Send + Sync + 'static,
            D: Handle,
            $($s: BuildHasher,)?
        {
            type Item = Held<'m, K, V>;
            type IntoIter = Iter<'m, K, V, D>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl<K, V, D $(, $s)?> std::fmt::Debug for $map<K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static + std::fmt::Debug,
            V: Send + Sync + 'static + std::fmt::Debug,
            D: Handle,
            $($s: BuildHasher,)?
        {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut map = f.debug_map();
                self.iter().for_each(|item| _ = map.entry(item.key(), &*item));
                map.finish()
            }
        }

        /// A scan, as
        #[doc = concat!("[`", $name, "::iter`]: no grace period waits for it.")]
        ///
        /// ```
        #[doc = concat!("use reprieve::structures::", $name, ";")]
        #[doc = concat!("let map: ", $name, "<String, u32> = serde_json::from_str(r#\"{\"a\": 1}\"#)?;")]
        /// assert_eq!(serde_json::to_string(&map)?, r#"{"a":1}"#);
        /// # Ok::<(), serde_json::Error>(())
        /// ```
        #[cfg(feature = "serde")]
        impl<K, V, D $(, $s)?> serde::Serialize for $map<K, V, D $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static + serde::Serialize,
            V: Send + Sync + 'static + serde::Serialize,
            D: Handle,
            $($s: BuildHasher,)?
        {
            fn serialize<T: serde::Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
                $crate::structures::serialize::serialize(self.iter(), serializer)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de, K, V $(, $s)?> serde::Deserialize<'de> for $map<K, V, Global $(, $s)?>
        where
            K: $($key +)+ Send + Sync + 'static + serde::Deserialize<'de>,
            V: Send + Sync + 'static + serde::Deserialize<'de>,
            $($s: BuildHasher + Default,)?
        {
            fn deserialize<T: serde::Deserializer<'de>>(deserializer: T) -> Result<Self, T::Error> {
                $crate::structures::serialize::deserialize(deserializer)
            }
        }
    };
}
pub(crate) use map_calls;
