// SPDX-License-Identifier: MIT OR Apache-2.0
//! The prefix table beside a list of prefixes that is searched from end to end: the same random
//! calls, and the same results.
//!
//! `REPRIEVE_SEED` repeats a run that failed.

use random::Random;
use reprieve::Domain;
use reprieve::structures::prefix::{Address, Held, Prefix, PrefixTable};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{Ipv4Addr, Ipv6Addr};

#[path = "common/random.rs"]
mod random;

fn longest<A: Address + Ord, V: Clone>(model: &BTreeMap<Prefix<A>, V>, address: A) -> Option<V> {
    let matches = |prefix: &&Prefix<A>| Prefix::new(address, prefix.length()) == Some(**prefix);
    let prefix = model.keys().filter(matches).max_by_key(|prefix| prefix.length())?;
    Some(model[prefix].clone())
}

/// `address` makes few of them, which differ in all their parts.
fn like_a_list<A: Address + Ord + Debug>(address: impl Fn(&mut Random) -> A) {
    let mut random = Random::new();
    let domain = Domain::builder().build().unwrap();
    let (owned, copies) = (PrefixTable::new_in(&domain), PrefixTable::new_in(&domain));
    let mut model = BTreeMap::new();
    let value = |held: Option<Held<'_, Prefix<A>, Box<u64>>>| held.map(|held| held.clone());
    for n in 0..20_000u64 {
        // Removals prevail for a while.
        let grow = n / 500 % 2 == 0;
        let length = random.below(A::BITS as usize + 1) as u8;
        let at = address(&mut random);
        let prefix = Prefix::new(at, length).unwrap();
        match random.below(8) {
            0..3 if grow => {
                assert_eq!(
                    value(owned.insert(prefix, Box::new(n))),
                    model.insert(prefix, Box::new(n))
                );
                copies.insert(prefix, n);
            }
            0..3 => {
                let pick = random.below(model.len() + 1);
                let prefix = model.keys().nth(pick).copied().unwrap_or(prefix);
                assert_eq!(value(owned.remove(&prefix)), model.remove(&prefix));
                copies.remove(&prefix);
            }
            3..6 => {
                let held = owned.lookup(at);
                let expected = longest(&model, at);
                assert!(
                    held.iter()
                        .all(|held| Prefix::new(at, held.key().length()) == Some(*held.key()))
                );
                assert_eq!(copies.copied(at), expected.as_deref().copied());
                assert_eq!(value(held), expected);
            }
            6 => assert_eq!(value(owned.protect(&prefix)), model.get(&prefix).cloned()),
            _ if n % 8 == 0 => {
                let held = owned.iter().map(|held| (*held.key(), held.clone()));
                assert!(held.eq(model.clone()));
            }
            _ => (),
        }
        assert_eq!((owned.len(), copies.len()), (model.len(), model.len()));
    }
    model.keys().for_each(|prefix| assert!(owned.remove(prefix).is_some()));
    assert!(owned.is_empty() && owned.iter().next().is_none());
    drop(copies);
    domain.barrier().unwrap();
}

#[test]
fn a_table_of_ipv4_is_like_a_list() {
    like_a_list(|random| {
        let [a, b] = [random.below(4) as u32, random.below(8) as u32];
        a << 30 | b << 14 | b.rotate_right(2) >> 3 | a
    });
}

#[test]
fn a_table_of_ipv6_is_like_a_list() {
    like_a_list(|random| {
        let [a, b] = [random.below(4) as u128, random.below(8) as u128];
        a << 126 | b << 62 | a << 63 | b
    });
}

#[test]
fn prefixes_are_those_of_networks() {
    let table = PrefixTable::<u128, &str>::new();
    let net = |text: &str, length| Prefix::new(text.parse::<Ipv6Addr>().unwrap(), length).unwrap();
    table.insert(net("2001:db8::", 32), "documentation");
    table.insert(net("2001:db8::1", 128), "host");
    table.insert(net("::", 0), "default");
    let at = |text: &str| table.copied(text.parse::<Ipv6Addr>().unwrap());
    assert_eq!(at("2001:db8::1"), Some("host"));
    assert_eq!(at("2001:db8::2"), Some("documentation"));
    assert_eq!(at("2001:db9::1"), Some("default"));
    let prefix = net("2001:db8:ffff::", 33);
    assert_eq!((prefix.address(), prefix.length()), (0x2001_0db8_8000 << 80, 33));
    assert_eq!(Prefix::<u128>::new(0u128, 129), None);
    assert_eq!(Prefix::<u32>::new(Ipv4Addr::LOCALHOST, 33), None);
}

#[test]
fn a_value_too_long_for_a_lookup_is_copied_from_a_protected_route() {
    let table = PrefixTable::<u32, [u64; 9]>::new();
    table.insert(Prefix::new(0u32, 0).unwrap(), [7; 9]);
    assert_eq!(table.copied(1u32), Some([7; 9]));
}

#[test]
fn a_scan_holds_no_free_and_goes_on_where_its_route_was() {
    let domain = Domain::builder().build().unwrap();
    let table = PrefixTable::<u32, u32, _>::new_in(&domain);
    let net = |n: u32| Prefix::new(n << 24, 8).unwrap();
    (0..100).for_each(|n| _ = table.insert(net(n), n));
    let mut seen = vec![];
    for route in table.iter() {
        seen.push(*route);
        (*route..*route + 2).for_each(|n| _ = table.remove(&net(n)));
        domain.synchronize();
    }
    assert!(seen.into_iter().eq((0..100).step_by(2)));
    domain.barrier().unwrap();
    assert_eq!(domain.stats().held, 0);
}
