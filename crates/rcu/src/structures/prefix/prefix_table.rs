// SPDX-License-Identifier: MIT OR Apache-2.0
//! The prefix table as programs use it.

use super::lookup::{Copied, Exact, Longest, Next};
use super::trie::{Bits, Key, Node, Removed, Route, Trie};
use crate::read::protected::Protected;
use crate::structures::copy::fits;
use crate::structures::handle::{self, Global, Handle};
use crate::structures::held::Held;
use crate::structures::node::{self, Pair};
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {
        fn to_bits(self) -> super::Bits;
        fn from_bits(bits: super::Bits) -> Self;
    }
}

/// An address: `u32` (IPv4) or `u128` (IPv6). The first bit of a prefix is the highest.
pub trait Address: sealed::Sealed + Copy + Send + Sync + 'static {
    /// How many bits it has.
    const BITS: u32;
}

impl Address for u32 {
    const BITS: u32 = 32;
}

impl sealed::Sealed for u32 {
    fn to_bits(self) -> Bits {
        [u64::from(self) << 32, 0]
    }

    fn from_bits([high, _]: Bits) -> u32 {
        (high >> 32) as u32
    }
}

impl Address for u128 {
    const BITS: u32 = 128;
}

impl sealed::Sealed for u128 {
    fn to_bits(self) -> Bits {
        [(self >> 64) as u64, self as u64]
    }

    fn from_bits([high, low]: Bits) -> u128 {
        u128::from(high) << 64 | u128::from(low)
    }
}

/// The first bits of an address. All other bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix<A> {
    address: A,
    length: u8,
}

impl<A: Address> Prefix<A> {
    /// The first `length` bits of an address: none if it has fewer.
    ///
    /// ```
    /// use reprieve::structures::prefix::Prefix;
    /// use std::net::Ipv4Addr;
    /// let net = Prefix::<u32>::new(Ipv4Addr::new(10, 1, 2, 3), 8).unwrap();
    /// assert_eq!((Ipv4Addr::from(net.address()), net.length()), (Ipv4Addr::new(10, 0, 0, 0), 8));
    /// assert_eq!(Prefix::<u32>::new(0u32, 33), None);
    /// ```
    pub fn new(address: impl Into<A>, length: u8) -> Option<Prefix<A>> {
        let key = Key::new(address.into().to_bits(), u32::from(length));
        (u32::from(length) <= A::BITS).then(|| Prefix { address: A::from_bits(key.bits), length })
    }

    /// The lowest address.
    pub fn address(&self) -> A {
        self.address
    }

    /// How many bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    fn key(&self) -> Key {
        Key::new(self.address.to_bits(), u32::from(self.length))
    }
}

/// Values of prefixes. An address has the value of the longest prefix that it begins with.
///
/// ```
/// use reprieve::structures::prefix::{Prefix, PrefixTable};
/// use std::net::Ipv4Addr;
///
/// let routes = PrefixTable::<u32, &str>::new();
/// let net = |a, b, length| Prefix::new(Ipv4Addr::new(a, b, 0, 0), length).unwrap();
/// routes.insert(net(0, 0, 0), "default");
/// routes.insert(net(10, 0, 8), "office");
/// routes.insert(net(10, 9, 16), "lab");
///
/// // A copy, by a restartable lookup.
/// assert_eq!(routes.copied(Ipv4Addr::new(10, 9, 1, 1)), Some("lab"));
/// assert_eq!(routes.copied(Ipv4Addr::new(10, 8, 1, 1)), Some("office"));
///
/// // Protected: held for any time, even after the route is gone.
/// let route = routes.lookup(Ipv4Addr::new(10, 9, 1, 1)).unwrap();
/// assert_eq!(*routes.remove(&net(10, 9, 16)).unwrap(), "lab");
/// assert_eq!((route.key().length(), *route), (16, "lab"));
/// assert_eq!(routes.copied(Ipv4Addr::new(10, 9, 1, 1)), Some("office"));
///
/// // A scan in the order of addresses. No grace period waits for it.
/// assert!(routes.iter().map(|route| *route).eq(["default", "office"]));
/// ```
pub struct PrefixTable<A, V, D = Global> {
    trie: Trie<Pair<Prefix<A>, V>>,
    domain: D,
    routes: PhantomData<(A, V)>,
}

impl<A, V> PrefixTable<A, V> {
    /// An empty table of the default domain.
    pub fn new() -> PrefixTable<A, V> {
        PrefixTable::new_in(Global)
    }
}

impl<A, V> Default for PrefixTable<A, V> {
    fn default() -> PrefixTable<A, V> {
        PrefixTable::new()
    }
}

fn hold<A, V>(route: Protected<'_, Route<Pair<Prefix<A>, V>>>) -> Held<'_, Prefix<A>, V> {
    // SAFETY: makes an address.
    Held::new(route, |route| unsafe { &raw const (*route).value })
}

impl<A, V, D> PrefixTable<A, V, D> {
    /// An empty table of that domain.
    pub fn new_in(domain: D) -> PrefixTable<A, V, D> {
        PrefixTable { trie: Trie::new(), domain, routes: PhantomData }
    }

    /// How many prefixes have a value; while others write, how many had at about this time.
    pub fn len(&self) -> usize {
        self.trie.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Address, V: Send + Sync + 'static, D: Handle> PrefixTable<A, V, D> {
    /// The route of an address, protected: for any time, and no grace period waits for it.
    pub fn lookup(&self, address: impl Into<A>) -> Option<Held<'_, Prefix<A>, V>> {
        // SAFETY: nodes are retired through this domain, routes with the address that the lookup
        // returns.
        unsafe { self.domain.protect(&self.longest(address.into())) }.map(hold)
    }

    fn longest(&self, address: A) -> Longest<'_, Pair<Prefix<A>, V>> {
        Longest { root: &self.trie.root, address: address.to_bits(), values: PhantomData }
    }

    /// A copy of the value of an address, by a restartable lookup. (If it exceeds 24 bytes: from a
    /// protected route.)
    #[inline]
    pub fn copied(&self, address: impl Into<A>) -> Option<V>
    where
        V: Copy,
    {
        if !const { fits::<V, 3>() } {
            return self.lookup(address).map(|held| *held);
        }
        // SAFETY: nodes are retired through this domain; the size was looked at; a route that was
        // found has been copied.
        unsafe {
            let found = self.domain.lookup(&Copied(self.longest(address.into())));
            (!found.route.is_null()).then(|| found.value.value())
        }
    }

    /// The route of that very prefix, protected.
    ///
    /// ```
    /// use reprieve::structures::prefix::{Prefix, PrefixTable};
    /// let table = PrefixTable::<u32, _>::new();
    /// let (short, long) = (Prefix::new(0u32, 8).unwrap(), Prefix::new(0u32, 9).unwrap());
    /// table.insert(short, 1);
    /// assert_eq!(*table.protect(&short).unwrap(), 1);
    /// assert!(table.protect(&long).is_none());
    /// ```
    pub fn protect(&self, prefix: &Prefix<A>) -> Option<Held<'_, Prefix<A>, V>> {
        let exact = Exact { root: &self.trie.root, key: prefix.key(), values: PhantomData };
        // SAFETY: as in `lookup`.
        unsafe { self.domain.protect(&exact) }.map(hold)
    }

    /// Sets the value of a prefix, and returns the route that was there, protected.
    ///
    /// ```
    /// use reprieve::structures::prefix::{Prefix, PrefixTable};
    /// let table = PrefixTable::<u32, _>::new();
    /// let prefix = Prefix::new(0u32, 8).unwrap();
    /// assert!(table.insert(prefix, "a").is_none());
    /// assert_eq!(*table.insert(prefix, "b").unwrap(), "a");
    /// ```
    pub fn insert(&self, prefix: Prefix<A>, value: V) -> Option<Held<'_, Prefix<A>, V>> {
        let route = Route::allocate(prefix.key(), Pair { key: prefix, value });
        // SAFETY: fresh.
        self.retire(unsafe { self.trie.insert(route) })
    }

    /// Takes the value of a prefix out, and returns its route, protected.
    pub fn remove(&self, prefix: &Prefix<A>) -> Option<Held<'_, Prefix<A>, V>> {
        self.retire(self.trie.remove(&prefix.key()))
    }

    /// All prefixes and their values, each protected, in the order of their addresses; at one
    /// address the shorter prefix comes first. A route that is in the table all the while is seen
    /// once; one that is inserted, replaced or removed meanwhile may be. No grace period waits for
    /// the scan, and only the routes that the caller keeps are kept.
    pub fn iter(&self) -> Iter<'_, A, V, D> {
        Iter { table: self, last: Some(Key::BEFORE_ALL) }
    }

    /// Retires what was unlinked, by us alone.
    fn retire(&self, removed: Removed<Pair<Prefix<A>, V>>) -> Option<Held<'_, Prefix<A>, V>> {
        let domain = self.domain.domain();
        // SAFETY: not retired yet; then, unlinked.
        unsafe {
            if !removed.fork.is_null() {
                node::retire::<Node>(domain, removed.fork);
            }
            if removed.route.is_null() {
                return None;
            }
            let held = hold(handle::protect_own(&self.domain, removed.route));
            node::retire(domain, removed.route);
            Some(held)
        }
    }
}

/// Prefixes and values, protected. See [`PrefixTable::iter`].
pub struct Iter<'t, A, V, D> {
    table: &'t PrefixTable<A, V, D>,
    /// The prefix that was handed out last. `None`: the scan is over.
    last: Option<Key>,
}

impl<'t, A: Address, V: Send + Sync + 'static, D: Handle> Iterator for Iter<'t, A, V, D> {
    type Item = Held<'t, Prefix<A>, V>;

    fn next(&mut self) -> Option<Held<'t, Prefix<A>, V>> {
        let PrefixTable { trie, domain, .. } = self.table;
        let next = Next { root: &trie.root, last: self.last?, values: PhantomData };
        // SAFETY: as in `lookup`.
        let held = unsafe { domain.protect(&next) }.map(hold::<A, V>);
        self.last = held.as_ref().map(|held| held.key().key());
        held
    }
}

impl<A, V, D> std::fmt::Debug for PrefixTable<A, V, D>
where
    A: Address + std::fmt::Debug,
    V: Send + Sync + 'static + std::fmt::Debug,
    D: Handle,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        self.iter().for_each(|route| _ = map.entry(route.key(), &*route));
        map.finish()
    }
}
