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

/// Peers whose readers keep nothing alive between two reads. (QSBR and arc-swap's cache do.)
fn leaving(subject: &str) -> bool {
    !subject.starts_with("urcu qsbr") && subject != "arc-swap, cached"
}

/// Peers whose references may be held for any time without holding up a grace period.
fn references(subject: &str) -> bool {
    matches!(subject, "haphazard" | "arc-swap")
}

const MEMB: Of = Of::Peer("urcu memb");
const QSBR: Of = Of::Peer("urcu qsbr");

/// A measure without a goal, in every group, beside every peer.
const PLAIN: Measure = Measure {
    bench: Bench::Read,
    title: "",
    column: "",
    group: "",
    subject: "",
    peers: any,
    goals: &[],
};

static READ: [Measure; 11] = [
    Measure {
        title: "empty section, plain",
        column: "empty section",
        subject: "plain",
        goals: &[Goal::Times(1.0, MEMB)],
        ..PLAIN
    },
    Measure {
        title: "empty section, plain, C",
        column: "empty section",
        subject: "plain, C",
        goals: &[Goal::Times(1.0, MEMB)],
        ..PLAIN
    },
    Measure {
        title: "quiescent state, QSBR",
        column: "quiescent state",
        subject: "plain, QSBR",
        goals: &[Goal::Times(1.0, QSBR)],
        ..PLAIN
    },
    Measure {
        title: "empty section, restartable",
        column: "empty section",
        subject: "restartable",
        goals: &[Goal::Most(1.5)],
        ..PLAIN
    },
    Measure {
        title: "empty section, restartable, C",
        column: "empty section",
        subject: "restartable, C",
        goals: &[Goal::Most(1.5)],
        ..PLAIN
    },
    Measure {
        title: "protect and drop",
        column: "get and drop",
        subject: "protected",
        peers: references,
        goals: &[Goal::Most(3.0)],
        ..PLAIN
    },
    Measure {
        title: "protect and drop, C",
        column: "get and drop",
        subject: "protected, C",
        peers: references,
        goals: &[Goal::Most(3.0)],
        ..PLAIN
    },
    Measure {
        title: "hash lookup, restartable, {}",
        column: "lookup, ",
        subject: "restartable",
        goals: &[Goal::Times(1.05, QSBR)],
        ..PLAIN
    },
    Measure {
        title: "hash lookup, restartable, C, {}",
        column: "lookup, ",
        subject: "restartable, C",
        goals: &[Goal::Times(1.05, QSBR)],
        ..PLAIN
    },
    Measure {
        title: "hash lookup, protected, {}",
        column: "lookup, ",
        subject: "protected",
        goals: &[Goal::Times(1.05, QSBR)],
        ..PLAIN
    },
    Measure {
        title: "hash lookup, protected, C, {}",
        column: "lookup, ",
        subject: "protected, C",
        goals: &[Goal::Times(1.05, QSBR)],
        ..PLAIN
    },
];

const GRACE: Measure = Measure { bench: Bench::Grace, subject: "restartable", ..PLAIN };
const THOUSANDTH: Goal = Goal::Times(0.001, Of::Best);
const LIKE_ONE: Goal = Goal::Times(2.0, Of::Group("1 reader"));

static GRACES: [Measure; 8] = [
    Measure { title: "grace period, mean, {}", column: "mean", group: "1 reader", ..GRACE },
    Measure {
        title: "grace period, mean, {}",
        column: "mean",
        group: "16 readers",
        goals: &[Goal::Most(0.02), THOUSANDTH],
        ..GRACE
    },
    Measure {
        title: "grace period, mean, {}",
        column: "mean",
        group: "64 readers",
        goals: &[LIKE_ONE],
        ..GRACE
    },
    Measure { title: "grace period, p99, {}", column: "p99", group: "1 reader", ..GRACE },
    Measure {
        title: "grace period, p99, {}",
        column: "p99",
        group: "16 readers",
        goals: &[Goal::Most(0.05), THOUSANDTH],
        ..GRACE
    },
    Measure {
        title: "grace period, p99, {}",
        column: "p99",
        group: "64 readers",
        goals: &[LIKE_ONE],
        ..GRACE
    },
    Measure {
        title: "grace period, p99, {}",
        column: "p99",
        group: "16 readers, beside membarriers",
        goals: &[Goal::Most(0.1)],
        ..GRACE
    },
    Measure {
        title: "grace period, p99, {}",
        column: "p99",
        group: "16 readers, beside throttled membarriers",
        goals: &[Goal::Most(0.1)],
        ..GRACE
    },
];

const BRCU: Of = Of::Peer("HP-BRCU");
const LONG: Measure =
    Measure { bench: Bench::Long, column: "peak garbage", subject: "traversal", ..PLAIN };

static UPDATES: [Measure; 6] = [
    Measure {
        bench: Bench::Flood,
        title: "flood, peak garbage, {}",
        column: "peak garbage",
        group: "16 readers",
        subject: "restartable",
        goals: &[Goal::Most(1.1)],
        ..PLAIN
    },
    Measure {
        bench: Bench::Flood,
        title: "flood, updates, {}",
        column: "updates",
        group: "16 readers",
        subject: "restartable",
        goals: &[Goal::Times(1.8, Of::Best)],
        ..PLAIN
    },
    Measure {
        title: "long traversals, {}",
        column: "traversals",
        goals: &[Goal::Times(1.0, BRCU)],
        ..LONG
    },
    Measure {
        title: "long traversals, peak garbage, {}",
        goals: &[Goal::Times(1.0, BRCU)],
        ..LONG
    },
    Measure {
        title: "scans of a Map, peak garbage",
        group: "scans, 64 writers",
        subject: "Map, scanned",
        goals: &[Goal::Most(1.0)],
        ..LONG
    },
    Measure {
        bench: Bench::Callbacks,
        title: "callbacks, {}",
        column: "registered and run",
        subject: "per-CPU lists",
        goals: &[Goal::Times(2.0, Of::Best)],
        ..PLAIN
    },
];

const CELL: Measure = Measure { bench: Bench::Cell, column: "load", peers: leaving, ..PLAIN };
const LIST: Measure = Measure { bench: Bench::List, column: "per node", peers: leaving, ..PLAIN };
const MAP: Measure = Measure {
    bench: Bench::Map,
    column: "lookup",
    group: "maps",
    subject: "Map, plain",
    peers: leaving,
    ..PLAIN
};
const IDS: Measure = Measure { group: "objects by number", ..MAP };
const DCACHE: Measure = Measure { bench: Bench::Dcache, subject: "Restart, restartable", ..PLAIN };

static STRUCTURES: [Measure; 20] = [
    Measure {
        title: "Cell load, copied",
        subject: "Cell, copied",
        goals: &[Goal::Most(3.0)],
        ..CELL
    },
    Measure {
        title: "Cell load, copied, {}",
        column: "load, ",
        subject: "Cell, copied",
        goals: &[Goal::Most(3.0)],
        ..CELL
    },
    Measure {
        title: "Cell load, protected",
        subject: "Cell, protected",
        peers: references,
        goals: &[Goal::Most(3.0)],
        ..CELL
    },
    Measure {
        title: "Cell load, protected, {}",
        column: "load, ",
        subject: "Cell, protected",
        peers: references,
        goals: &[Goal::Most(3.0)],
        ..CELL
    },
    Measure {
        title: "Cell load, plain",
        subject: "Cell, plain",
        goals: &[Goal::Most(3.0)],
        ..CELL
    },
    Measure {
        title: "Cell load, QSBR",
        subject: "Cell, QSBR",
        peers: any,
        goals: &[Goal::Most(3.0)],
        ..CELL
    },
    Measure { title: "List, per node", group: "list", subject: "List, plain", ..LIST },
    Measure { title: "list_head, per node", group: "list", subject: "list_head, plain", ..LIST },
    Measure { title: "hlist, per node", group: "hlist", subject: "hlist, plain", ..LIST },
    Measure { title: "chain, per node", group: "chain", subject: "restartable", ..LIST },
    Measure { title: "Map lookup, copied", subject: "Map, copied", ..MAP },
    Measure { title: "Map lookup, protected", subject: "Map, protected", ..MAP },
    Measure { title: "Map lookup, plain", ..MAP },
    Measure { title: "Map lookup, QSBR", subject: "Map, QSBR", peers: any, ..MAP },
    Measure { title: "Map, replace", column: "replace", ..MAP },
    Measure { title: "Map, insert and remove", column: "insert and remove", ..MAP },
    Measure { title: "Map, growing, per key", column: "growing, per key", ..MAP },
    Measure { title: "IdTable lookup, protected", subject: "IdTable, protected", ..IDS },
    Measure { title: "dcache, CPU per iteration, {}", column: "CPU per iteration", ..DCACHE },
    Measure { title: "dcache, iteration, {}", column: "iteration", ..DCACHE },
];

/// All, in the order of the summary.
pub fn all() -> impl Iterator<Item = &'static Measure> {
    READ.iter().chain(&GRACES).chain(&UPDATES).chain(&STRUCTURES)
}

impl Measure {
    /// If this measure is of the column `title`: the number of readers at its end, or nothing.
    pub fn number<'a>(&self, title: &'a str) -> Option<&'a str> {
        if !self.column.ends_with(", ") {
            return (title == self.column).then_some("");
        }
        let number = title.strip_prefix(self.column)?;
        (number.ends_with(" reader") || number.ends_with(" readers")).then_some(number)
    }
}
