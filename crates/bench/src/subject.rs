// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is measured.

use crate::error::{Error, Result};
use serde::Serialize;

/// liburcu's flavors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    Memb,
    Mb,
    Qsbr,
    Bp,
}

/// A way to read and to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Restart,
    Protect,
    Plain,
    Qsbr,
    Urcu(Flavor),
    Crossbeam,
    Seize,
    /// With batches that only flushing ends: `peer/seize.rs`.
    SeizeFlushed,
    Haphazard,
    ArcSwap,
    StdRwLock,
    ParkingLot,
    Floor,
    FloorC,
}

/// What a subject is, for ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// This project's.
    Reprieve,
    /// What others offer.
    Peer,
    /// What others offer and is not the same thing, such as a lock where grace periods are compared: shown, not compared with.
    Other,
    /// No protection: shows what the loop costs.
    Floor,
}

impl Kind {
    /// All, in the order of the tables.
    pub const ALL: [Kind; 16] = [
        Kind::Restart,
        Kind::Protect,
        Kind::Plain,
        Kind::Qsbr,
        Kind::Urcu(Flavor::Memb),
        Kind::Urcu(Flavor::Mb),
        Kind::Urcu(Flavor::Qsbr),
        Kind::Urcu(Flavor::Bp),
        Kind::Crossbeam,
        Kind::Seize,
        Kind::Haphazard,
        Kind::ArcSwap,
        Kind::StdRwLock,
        Kind::ParkingLot,
        Kind::Floor,
        Kind::FloorC,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Restart => "restartable",
            Kind::Protect => "protected",
            Kind::Plain => "plain",
            Kind::Qsbr => "plain, QSBR",
            Kind::Urcu(Flavor::Memb) => "urcu memb",
            Kind::Urcu(Flavor::Mb) => "urcu mb",
            Kind::Urcu(Flavor::Qsbr) => "urcu qsbr",
            Kind::Urcu(Flavor::Bp) => "urcu bp",
            Kind::Crossbeam => "crossbeam",
            Kind::Seize | Kind::SeizeFlushed => "seize",
            Kind::Haphazard => "haphazard",
            Kind::ArcSwap => "arc-swap",
            Kind::StdRwLock => "rwlock (std)",
            Kind::ParkingLot => "rwlock (parking_lot)",
            Kind::Floor => "no protection (Rust)",
            Kind::FloorC => "no protection (C)",
        }
    }

    /// See [`Class`].
    pub fn class(self) -> Class {
        match self {
            Kind::Restart | Kind::Protect | Kind::Plain | Kind::Qsbr => Class::Reprieve,
            Kind::Floor | Kind::FloorC => Class::Floor,
            _ => Class::Peer,
        }
    }

    /// The word for it in `--against`; `None` for what always runs.
    fn family(self) -> Option<&'static str> {
        match self {
            Kind::Restart | Kind::Protect | Kind::Plain | Kind::Qsbr => None,
            Kind::Floor | Kind::FloorC => None,
            Kind::Urcu(_) => Some("urcu"),
            Kind::Crossbeam => Some("crossbeam"),
            Kind::Seize | Kind::SeizeFlushed => Some("seize"),
            Kind::Haphazard => Some("haphazard"),
            Kind::ArcSwap => Some("arc-swap"),
            Kind::StdRwLock | Kind::ParkingLot => Some("rwlock"),
        }
    }
}

/// The words of `--against`.
pub const FAMILIES: [&str; 6] = ["urcu", "crossbeam", "seize", "haphazard", "arc-swap", "rwlock"];

/// Whether liburcu was there when this was compiled.
pub const URCU: bool = cfg!(urcu);

/// What to tell a user whose command lacks liburcu.
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
        assert!(chosen.contains(&Kind::Restart) && chosen.contains(&Kind::ParkingLot));
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
