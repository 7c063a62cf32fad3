// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of Debian package versions, as Debian Policy section 5.6.12 defines it.

use std::cmp::Ordering;

/// Compares two versions `[epoch:]upstream[-revision]`.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (ea, ua, ra) = split(a);
    let (eb, ub, rb) = split(b);
    ea.cmp(&eb).then_with(|| part(ua, ub)).then_with(|| part(ra, rb))
}

/// Whether `version` is `prefix` or continues it with a new component: `6.1` is a prefix of
/// `6.1.0-50`, not of `6.12`.
pub fn has_prefix(version: &str, prefix: &str) -> bool {
    version
        .strip_prefix(prefix)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

fn split(version: &str) -> (u64, &str, &str) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, "0"));
    (epoch.parse().unwrap_or(0), upstream, revision)
}

/// Text and numbers alternate; text first.
fn part(mut a: &str, mut b: &str) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        let (ta, tb) = (take(&mut a, false), take(&mut b, false));
        let longest = ta.len().max(tb.len());
        for i in 0..=longest {
            let order = weight(ta.as_bytes().get(i)).cmp(&weight(tb.as_bytes().get(i)));
            if order.is_ne() {
                return order;
            }
        }
        let (na, nb) = (take(&mut a, true), take(&mut b, true));
        let (na, nb) = (na.trim_start_matches('0'), nb.trim_start_matches('0'));
        let order = na.len().cmp(&nb.len()).then_with(|| na.cmp(nb));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

fn take<'a>(rest: &mut &'a str, digits: bool) -> &'a str {
    let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
    let (head, tail) = rest.split_at(end);
    *rest = tail;
    head
}

/// `~` sorts before the end, the end before letters, letters before everything else.
fn weight(c: Option<&u8>) -> i32 {
    match c {
        Some(b'~') => -1,
        None => 0,
        Some(c) if c.is_ascii_alphabetic() => i32::from(*c),
        Some(c) => i32::from(*c) + 256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_dpkg_sorts_them() {
        // Ascending, according to `dpkg --compare-versions`.
        let sorted = [
            "6.1.170-3",
            "6.1.176-1",
            "6.12.9-1",
            "6.12.95-1~bpo12+1",
            "6.12.95-1",
            "6.12.107-1",
            "6.12.107-1+b1",
            "7.2.12-1~bpo13+1",
            "7.3~rc1-1",
            "7.3-1",
            "7.3.4-1~bpo13+1",
            "1:1.0-1",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a} {b}");
            }
        }
        assert_eq!(compare("1.0", "1.00"), Ordering::Equal);
    }

    #[test]
    fn prefixes_end_where_a_component_ends() {
        assert!(has_prefix("6.1.0-50-cloud-amd64", "6.1"));
        assert!(has_prefix("6.12.95+deb12-cloud-amd64", "6.12.95"));
        assert!(has_prefix("7.3.4", "7.3.4"));
        for other in ["6.12.95", "6.16.3", "16.1"] {
            assert!(!has_prefix(other, "6.1"), "{other}");
        }
    }
}
