// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines of the summary: each names a figure of ours, the peers it is compared with, and its
//! targets.

use crate::bench::Bench;

/// A line of the summary; one for each number of readers (or threads) where the column's or the
/// group's name ends with it.
pub struct Measure {
    pub bench: Bench,
    /// Its name; `{}` is the number of readers or threads.
    pub title: &'static str,
    /// The benchmark's column. If it ends with `, `: each column that goes on with a number of
    /// readers.
    pub column: &'static str,
    /// The group of the rows; empty for every group.
    pub group: &'static str,
    /// The row that is compared.
    pub subject: &'static str,
    /// Whether a peer does the same. The best of these is compared with.
    pub peers: fn(&str) -> bool,
    pub goals: &'static [Goal],
}

/// A target, for a machine with 2 CPUs.
pub enum Goal {
    /// At most this, in the measure's unit.
    Most(f64),
    /// A multiple of another figure of the same column: at most, or at least where more is better.
    Times(f64, Of),
}

pub enum Of {
    /// The best peer of the line.
    Best,
    /// The named peer, best or not.
    Peer(&'static str),
    /// The same subject in the named group.
    Group(&'static str),
}

fn any(_: &str) -> bool {
    true
}

/// Peers whose readers keep nothing alive between two reads. (QSBR does.)
fn leaving(subject: &str) -> bool {
    !subject.starts_with("urcu qsbr")
}

/// Peers whose references may be held for any time without holding up a grace period.
fn references(subject: &str) -> bool {
    matches!(subject, "haphazard" | "arc-swap")
}

const MEMB: Of = Of::Peer("urcu memb");
const QSBR: Of = Of::Peer("urcu qsbr");

const READS: Measure = Measure::of(Bench::Read);

/// What a lookup of its own section executes besides, and cannot do without: docs/runtime.md.
const LOOKUP: Goal = Goal::Times(1.4, QSBR);

static READ: [Measure; 12] = [
    READS.line("empty section, plain", "empty section", "plain").goals(&[Goal::Times(1.0, MEMB)]),
    READS
        .line("empty section, plain, C", "empty section", "plain, C")
        .goals(&[Goal::Times(1.0, MEMB)]),
    READS
        .line("quiescent state, QSBR", "quiescent state", "plain, QSBR")
        .goals(&[Goal::Times(1.0, QSBR)]),
    READS
        .line("empty section, restartable", "empty section", "restartable")
        .goals(&[Goal::Times(1.6, MEMB)]),
    READS
        .line("empty section, restartable, C", "empty section", "restartable, C")
        .goals(&[Goal::Times(1.6, MEMB)]),
    READS
        .line("protect and drop", "get and drop", "protected")
        .beside(references)
        .goals(&[Goal::Times(0.5, Of::Best)]),
    READS
        .line("protect and drop, C", "get and drop", "protected, C")
        .beside(references)
        .goals(&[Goal::Times(0.6, Of::Best)]),
    READS.line("hash lookup, restartable, {}", "lookup, ", "restartable").goals(&[LOOKUP]),
    READS
        .line("hash lookup, restartable, by eights, {}", "lookup, ", "restartable, by eights")
        .goals(&[Goal::Times(1.25, QSBR)]),
    READS.line("hash lookup, restartable, C, {}", "lookup, ", "restartable, C").goals(&[LOOKUP]),
    READS.line("hash lookup, protected, {}", "lookup, ", "protected").goals(&[LOOKUP]),
    READS
        .line("hash lookup, protected, C, {}", "lookup, ", "protected, C")
        .goals(&[Goal::Times(1.5, QSBR)]),
];

const GRACE: Measure = Measure::of(Bench::Grace);
const HUNDREDTH: Goal = Goal::Times(0.01, Of::Best);
const LIKE_ONE: Goal = Goal::Times(2.0, Of::Group("1 reader"));

static GRACES: [Measure; 8] = [
    GRACE.line("grace period, mean, {}", "mean", "restartable").group("1 reader"),
    GRACE
        .line("grace period, mean, {}", "mean", "restartable")
        .group("16 readers")
        .goals(&[HUNDREDTH]),
    GRACE
        .line("grace period, mean, {}", "mean", "restartable")
        .group("64 readers")
        .goals(&[HUNDREDTH]),
    GRACE.line("grace period, p99, {}", "p99", "restartable").group("1 reader"),
    GRACE
        .line("grace period, p99, {}", "p99", "restartable")
        .group("16 readers")
        .goals(&[LIKE_ONE]),
    GRACE
        .line("grace period, p99, {}", "p99", "restartable")
        .group("64 readers")
        .goals(&[LIKE_ONE]),
    GRACE
        .line("grace period, p99, {}", "p99", "restartable")
        .group("16 readers, beside membarriers")
        .goals(&[Goal::Times(2.0, Of::Group("1 reader, beside membarriers"))]),
    GRACE
        .line("grace period, p99, {}", "p99", "restartable")
        .group("16 readers, beside throttled membarriers")
        .goals(&[Goal::Times(2.0, Of::Group("1 reader, beside throttled membarriers"))]),
];

const BRCU: Of = Of::Peer("HP-BRCU");
const FLOOD: Measure = Measure::of(Bench::Flood).group("16 readers");
/// What limits a flood's writer: docs/bench.md.
const FREE: Goal = Goal::Times(1.2, Of::Best);
const LONG: Measure = Measure::of(Bench::Long);
const CALLBACKS: Measure = Measure::of(Bench::Callbacks);

static UPDATES: [Measure; 6] = [
    FLOOD.line("flood, peak garbage, {}", "peak garbage", "restartable").goals(&[Goal::Most(1.1)]),
    FLOOD.line("flood, updates, {}", "updates", "restartable").goals(&[FREE]),
    LONG.line("long traversals, {}", "traversals", "traversal").goals(&[Goal::Times(1.0, BRCU)]),
    LONG.line("long traversals, peak garbage, {}", "peak garbage", "traversal")
        .goals(&[Goal::Times(1.0, BRCU)]),
    LONG.line("scans of a Map, peak garbage", "peak garbage", "Map, scanned")
        .group("scans, 64 writers")
        .goals(&[Goal::Most(1.0)]),
    CALLBACKS
        .line("callbacks, {}", "registered and run", "per-CPU lists")
        .goals(&[Goal::Times(2.0, Of::Best)]),
];

const MAP: Measure = Measure::of(Bench::Map).group("maps").beside(leaving);
/// The peer that takes no locks: docs/bench.md.
const PAPAYA: Of = Of::Peer("papaya");
const UPDATE: Goal = Goal::Times(1.2, PAPAYA);
const DCACHE: Measure = Measure::of(Bench::Dcache);

static STRUCTURES: [Measure; 10] = [
    MAP.line("Map lookup, copied", "lookup", "Map, copied"),
    MAP.line("Map lookup, protected", "lookup", "Map, protected"),
    MAP.line("Map lookup, plain", "lookup", "Map, plain"),
    MAP.line("Map lookup, QSBR", "lookup", "Map, QSBR").beside(any),
    MAP.line("Map, replace", "replace", "Map, plain").goals(&[UPDATE]),
    MAP.line("Map, replace, {}", "replace, ", "Map, plain").goals(&[Goal::Times(1.0, PAPAYA)]),
    MAP.line("Map, insert and remove", "insert and remove", "Map, plain").goals(&[UPDATE]),
    MAP.line("Map, growing, per key", "growing, per key", "Map, plain").goals(&[UPDATE]),
    DCACHE.line("dcache, CPU per iteration, {}", "CPU per iteration", "Restart, restartable"),
    DCACHE.line("dcache, iteration, {}", "iteration", "Restart, restartable"),
];

/// All, in the order of the summary.
pub fn all() -> impl Iterator<Item = &'static Measure> {
    READ.iter().chain(&GRACES).chain(&UPDATES).chain(&STRUCTURES)
}

impl Measure {
    /// Of every group, beside every peer, without a goal.
    const fn of(bench: Bench) -> Measure {
        let (title, column, group, subject) = ("", "", "", "");
        Measure { bench, title, column, group, subject, peers: any, goals: &[] }
    }

    const fn line(
        self,
        title: &'static str,
        column: &'static str,
        subject: &'static str,
    ) -> Measure {
        Measure { title, column, subject, ..self }
    }

    const fn group(self, group: &'static str) -> Measure {
        Measure { group, ..self }
    }

    const fn beside(self, peers: fn(&str) -> bool) -> Measure {
        Measure { peers, ..self }
    }

    const fn goals(self, goals: &'static [Goal]) -> Measure {
        Measure { goals, ..self }
    }

    /// If this measure is of the column `title`: the number of readers at its end, or nothing.
    pub fn number<'a>(&self, title: &'a str) -> Option<&'a str> {
        if !self.column.ends_with(", ") {
            return (title == self.column).then_some("");
        }
        let number = title.strip_prefix(self.column)?;
        let unit = [" reader", " readers", " thread", " threads"];
        unit.iter().any(|unit| number.ends_with(unit)).then_some(number)
    }
}
