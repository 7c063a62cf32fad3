// SPDX-License-Identifier: MIT OR Apache-2.0
//! The subjects of a benchmark: Reprieve's read sides and structures, and their peers.

use crate::error::{Error, Result};
use serde::Serialize;

/// liburcu's flavors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    Memb,
    Mb,
    Qsbr,
}

/// How one of this project's structures is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A copy, by a restartable lookup.
    Copied,
    /// A protected reference.
    Protected,
    /// A reference in a plain section.
    Plain,
    /// A reference of a thread that announces quiescent states.
    Qsbr,
}

/// A way to read and to reclaim, with the benchmark's own nodes or, from `Map` on, a structure of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Restart,
    /// Eight lookups in one section: in `read` only.
    ByEights,
    Protect,
    Plain,
    Qsbr,
    /// The first four through the headers for C.
    C(Side),
    Urcu(Flavor),
    Crossbeam,
    Sdd,
    Seize,
    /// seize with batches that end only when they are flushed: `peer/seize.rs`.
    SeizeFlushed,
    Haphazard,
    ArcSwap,
    StdRwLock,
    Floor,
    FloorC,
    /// Traversals in parts: in `long` only, as is the next.
    Traverse,
    Brcu,
    Map(Side),
    Papaya,
    Scc,
    DashMap,
    Lfht(Flavor),
    Ordered(Side),
    SkipMap,
}

/// The part of a subject when ratios are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A subject of this project.
    Reprieve,
    /// A peer: ratios are to the best of these.
    Peer,
    /// Another project's, but not of the same kind (a lock where grace periods are compared): its
    /// figures are shown, and no ratio is to them.
    Other,
    /// No protection: shows what the loop costs.
    Floor,
}

impl Kind {
    /// All, in the order of the tables.
    pub const ALL: [Kind; 15] = [
        Kind::Restart,
        Kind::Protect,
        Kind::Plain,
        Kind::Qsbr,
        Kind::Urcu(Flavor::Memb),
        Kind::Urcu(Flavor::Mb),
        Kind::Urcu(Flavor::Qsbr),
        Kind::Crossbeam,
        Kind::Sdd,
        Kind::Seize,
        Kind::Haphazard,
        Kind::ArcSwap,
        Kind::StdRwLock,
        Kind::Floor,
        Kind::FloorC,
    ];

    /// This project's subjects of [`Kind::ALL`], each followed by the same through the C headers.
    pub const OURS: [Kind; 9] = [
        Kind::Restart,
        Kind::C(Side::Copied),
        Kind::ByEights,
        Kind::Protect,
        Kind::C(Side::Protected),
        Kind::Plain,
        Kind::C(Side::Plain),
        Kind::Qsbr,
        Kind::C(Side::Qsbr),
    ];

    /// Hash maps.
    pub const MAPS: [Kind; 10] = [
        Kind::Map(Side::Copied),
        Kind::Map(Side::Protected),
        Kind::Map(Side::Plain),
        Kind::Map(Side::Qsbr),
        Kind::Lfht(Flavor::Memb),
        Kind::Lfht(Flavor::Mb),
        Kind::Lfht(Flavor::Qsbr),
        Kind::Papaya,
        Kind::Scc,
        Kind::DashMap,
    ];

    /// Maps in the order of their keys.
    pub const ORDERED: [Kind; 4] = [
        Kind::Ordered(Side::Protected),
        Kind::Ordered(Side::Plain),
        Kind::Ordered(Side::Qsbr),
        Kind::SkipMap,
    ];

    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Restart => "restartable",
            Kind::ByEights => "restartable, by eights",
            Kind::Protect => "protected",
            Kind::Plain => "plain",
            Kind::Qsbr => "plain, QSBR",
            Kind::C(Side::Copied) => "restartable, C",
            Kind::C(Side::Protected) => "protected, C",
            Kind::C(Side::Plain) => "plain, C",
            Kind::C(Side::Qsbr) => "plain, QSBR, C",
            Kind::Urcu(Flavor::Memb) => "urcu memb",
            Kind::Urcu(Flavor::Mb) => "urcu mb",
            Kind::Urcu(Flavor::Qsbr) => "urcu qsbr",
            Kind::Crossbeam => "crossbeam",
            Kind::Sdd => "sdd",
            Kind::Seize | Kind::SeizeFlushed => "seize",
            Kind::Haphazard => "haphazard",
            Kind::ArcSwap => "arc-swap",
            Kind::StdRwLock => "rwlock (std)",
            Kind::Floor => "no protection (Rust)",
            Kind::FloorC => "no protection (C)",
            Kind::Traverse => "traversal",
            Kind::Brcu => "HP-BRCU",
            Kind::Map(Side::Copied) => "Map, copied",
            Kind::Map(Side::Protected) => "Map, protected",
            Kind::Map(Side::Plain) => "Map, plain",
            Kind::Map(Side::Qsbr) => "Map, QSBR",
            Kind::Papaya => "papaya",
            Kind::Scc => "scc",
            Kind::DashMap => "dashmap",
            Kind::Lfht(Flavor::Memb) => "urcu memb, rculfhash",
            Kind::Lfht(Flavor::Mb) => "urcu mb, rculfhash",
            Kind::Lfht(Flavor::Qsbr) => "urcu qsbr, rculfhash",
            Kind::Ordered(Side::Protected) => "OrderedMap, protected",
            Kind::Ordered(Side::Qsbr) => "OrderedMap, QSBR",
            Kind::Ordered(_) => "OrderedMap, plain",
            Kind::SkipMap => "crossbeam-skiplist",
        }
    }

    /// See [`Class`].
    pub fn class(self) -> Class {
        match self {
            Kind::Floor | Kind::FloorC => Class::Floor,
            _ if self.family().is_none() => Class::Reprieve,
            _ => Class::Peer,
        }
    }

    /// Its family in `--against`; `None` for subjects that always run.
    fn family(self) -> Option<&'static str> {
        match self {
            Kind::Brcu => Some("hp-brcu"),
            Kind::Urcu(_) | Kind::Lfht(_) => Some("urcu"),
            Kind::Papaya => Some("papaya"),
            Kind::Scc => Some("scc"),
            Kind::DashMap => Some("dashmap"),
            Kind::Crossbeam | Kind::SkipMap => Some("crossbeam"),
            Kind::Sdd => Some("sdd"),
            Kind::Seize | Kind::SeizeFlushed => Some("seize"),
            Kind::Haphazard => Some("haphazard"),
            Kind::ArcSwap => Some("arc-swap"),
            Kind::StdRwLock => Some("rwlock"),
            _ => None,
        }
    }
}

/// The families of peers that `--against` takes.
pub const FAMILIES: [&str; 11] = [
    "urcu",
    "crossbeam",
    "sdd",
    "seize",
    "haphazard",
    "hp-brcu",
    "arc-swap",
    "papaya",
    "scc",
    "dashmap",
    "rwlock",
];

/// Whether this was compiled with liburcu.
pub const URCU: bool = cfg!(urcu);

/// The message for a user whose command lacks liburcu.
pub const NO_URCU: &str = "liburcu is left out: its header files and static libraries were not there when this command was built (Debian: apt install liburcu-dev, then build again)";

/// The subjects of `kinds` that are to run against the families in `against`.
///
/// # Errors
/// [`Error::Usage`] for a family that does not exist.
pub fn choose(kinds: &[Kind], against: &[String]) -> Result<Vec<Kind>> {
    if let Some(unknown) = against.iter().find(|a| !FAMILIES.contains(&a.as_str())) {
        return Err(Error::Usage(format!(
            "--against {unknown}: no such peer; there are {}",
            FAMILIES.join(", ")
        )));
    }
    let wanted = |kind: &Kind| match kind.family() {
        Some("urcu") if !URCU => false,
        Some(family) => against.iter().any(|a| a == family),
        None => true,
    };
    Ok(kinds.iter().copied().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn against_chooses_families() {
        let chosen = choose(&Kind::ALL, &["rwlock".into(), "seize".into()]).unwrap();
        assert!(chosen.contains(&Kind::Restart) && chosen.contains(&Kind::StdRwLock));
        assert!(!chosen.contains(&Kind::Crossbeam) && !chosen.contains(&Kind::Urcu(Flavor::Mb)));
        assert!(matches!(choose(&Kind::ALL, &["kernel".into()]), Err(Error::Usage(_))));
    }

    #[test]
    fn every_family_has_a_word() {
        for kind in Kind::ALL {
            assert!(kind.family().is_none_or(|f| FAMILIES.contains(&f)));
        }
    }
}
