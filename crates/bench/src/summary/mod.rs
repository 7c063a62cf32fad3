// SPDX-License-Identifier: MIT OR Apache-2.0
//! All benchmarks in one table: a line per measure with our figure, the best peer's, their ratio
//! with its spread, and the target.
//!
//! A ratio's spread is that of the rounds. A round's ratio is our figure of the round divided by
//! the same peer's: what disturbed the round disturbed both.

mod measures;

use crate::bench::{self, Bench};
use crate::error::Result;
use crate::options::Options;
use crate::result::{Figure, Outcome, Row, Unit, best};
use crate::subject::Class;
use measures::{Goal, Measure, Of};
use serde::Serialize;
use std::time::Duration;

/// The results of all benchmarks.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The table.
    pub lines: Vec<Line>,
    /// Whole benchmarks, in the order in which they ran.
    pub benches: Vec<Outcome>,
    /// Names of the benchmarks that did not run to their end.
    pub missing: Vec<&'static str>,
    /// Remarks for a reader of the table.
    pub notes: Vec<String>,
}

/// A measure.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The benchmark that has it.
    pub bench: &'static str,
    /// Its name.
    pub measure: String,
    pub unit: Unit,
    pub more_is_better: bool,
    /// Reprieve's figure.
    pub value: f64,
    /// The best peer that does the same; none if no such peer ran.
    pub peer: Option<Peer>,
    /// The line reaches its goal when it reaches all of these.
    pub targets: Vec<Target>,
}

/// A peer's figure, and the ratio of ours to it.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    pub subject: String,
    pub value: f64,
    /// Our figure divided by the peer's.
    pub ratio: f64,
    /// The smallest of the rounds' ratios.
    pub ratio_min: f64,
    /// The largest.
    pub ratio_max: f64,
}

/// A limit that a figure should keep.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// In words, e.g. `<= 1.05 x urcu qsbr`.
    pub text: String,
    /// In the measure's unit; `None` if the figure that it refers to was not measured.
    pub limit: Option<f64>,
    /// Whether the figure is within the limit.
    pub reached: Option<bool>,
}

impl Line {
    /// Whether all targets are reached; `None` without targets, or if a limit is not known.
    pub fn reached(&self) -> Option<bool> {
        let of: Option<Vec<bool>> = self.targets.iter().map(|t| t.reached).collect();
        of.filter(|of| !of.is_empty()).map(|of| of.into_iter().all(|reached| reached))
    }
}

/// Runs all benchmarks one after the other, `length` in all. `options` returns the options of a
/// benchmark for its part of the time; `progress` gets the name of what runs and the share that is
/// over.
///
/// With an error come the benchmarks that ran to their end before it.
pub fn run_all(
    length: Duration,
    options: &dyn Fn(Bench, Duration) -> Options,
    progress: &dyn Fn(&str, f64),
) -> (Summary, Result<()>) {
    let shares: f64 = Bench::ALL.iter().map(|bench| bench.share()).sum();
    let mut outcomes = vec![];
    let mut before = 0.0;
    let mut result = bench::check_length(length);
    for bench in Bench::ALL {
        if result.is_err() {
            break;
        }
        let share = bench.share() / shares;
        let options = options(bench, length.mul_f64(share).max(bench::SHORTEST));
        let told = |what: &str, done: f64| {
            progress(&format!("{}, {what}", bench.name()), before + share * done);
        };
        match bench::run(bench, &options, &told) {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => result = Err(error),
        }
        before += share;
    }
    (summarize(outcomes), result)
}

fn summarize(benches: Vec<Outcome>) -> Summary {
    let of = |measure: &Measure| benches.iter().find(|o| o.bench == measure.bench.name());
    let lines = measures::all()
        .filter_map(|measure| Some((measure, of(measure)?)))
        .flat_map(|(measure, outcome)| lines(measure, outcome))
        .collect();
    let ran = |bench: &Bench| benches.iter().any(|o| o.bench == bench.name());
    let missing: Vec<_> = Bench::ALL.into_iter().filter(|b| !ran(b)).map(Bench::name).collect();
    let mut notes = vec![
        "ratio: Reprieve's figure by the best peer's, and the smallest..largest of the rounds; below 1 is better, of updates and callbacks per second above 1".into(),
        "best peer: of those that ran and do the same. Sections and hash lookups: all. Protected references: haphazard and arc-swap. Structures: all but QSBR forms, whose readers keep what they saw until they say otherwise; QSBR forms: all".into(),
        "grace period: beside peers that have grace periods; haphazard and locks are in the table of bench grace".into(),
    ];
    if !missing.is_empty() {
        notes.push(format!("did not run to the end: {}", missing.join(", ")));
    }
    Summary { lines, benches, missing, notes }
}

/// A measure's lines, by number of readers or threads.
fn lines(measure: &Measure, outcome: &Outcome) -> Vec<Line> {
    let mut lines = vec![];
    for (i, column) in outcome.columns.iter().enumerate() {
        let Some(readers) = measure.number(&column.title) else { continue };
        let ours = |row: &&Row| {
            row.subject == measure.subject
                && (measure.group.is_empty() || row.group == measure.group)
        };
        for row in outcome.rows.iter().filter(ours) {
            let Some(figure) = &row.figures[i] else { continue };
            let peers = |r: &Row| {
                r.class == Class::Peer && r.group == row.group && (measure.peers)(&r.subject)
            };
            let peer = best(&outcome.rows, i, column.more_is_better, peers)
                .and_then(|(best, _)| compared(&outcome.rows[best], i, figure));
            let find = |group: &str, subject: &str| -> Option<f64> {
                let mut rows = outcome.rows.iter();
                let row = rows.find(|r| r.group == group && r.subject == subject)?;
                Some(row.figures[i].as_ref()?.value)
            };
            let targets = measure.goals.iter().map(|goal| {
                let (text, limit) = match goal {
                    Goal::Most(limit) => (format!("{limit} {}", column.unit.text()), Some(*limit)),
                    Goal::Times(factor, of) => {
                        let (name, value) = match of {
                            Of::Best => ("best peer", peer.as_ref().map(|p| p.value)),
                            Of::Peer(name) => (*name, find(&row.group, name)),
                            Of::Group(group) => (*group, find(group, &row.subject)),
                        };
                        let times = match factor {
                            1.0 => String::new(),
                            factor => format!("{factor} x "),
                        };
                        (format!("{times}{name}"), value.map(|v| v * factor))
                    }
                };
                let value = figure.value;
                let (sign, within): (_, fn(f64, f64) -> bool) = match column.more_is_better {
                    true => (">=", |value, limit| value >= limit),
                    false => ("<=", |value, limit| value <= limit),
                };
                let reached = limit.map(|limit| within(value, limit));
                Target { text: format!("{sign} {text}"), limit, reached }
            });
            let targets = targets.collect();
            let place = if readers.is_empty() { &row.group } else { readers };
            lines.push(Line {
                bench: measure.bench.name(),
                measure: measure.title.replace("{}", place),
                unit: column.unit,
                more_is_better: column.more_is_better,
                value: figure.value,
                peer,
                targets,
            });
        }
    }
    lines
}

fn compared(peer: &Row, column: usize, ours: &Figure) -> Option<Peer> {
    let theirs = peer.figures[column].as_ref()?;
    let ratio = ours.value / theirs.value;
    let rounds = ours.rounds.iter().zip(&theirs.rounds).map(|(a, b)| a / b);
    let rounds = rounds.filter(|ratio| ratio.is_finite());
    let (min, max) = rounds.fold((ratio, ratio), |(min, max), r| (r.min(min), r.max(max)));
    Some(Peer {
        subject: peer.subject.clone(),
        value: theirs.value,
        ratio,
        ratio_min: min,
        ratio_max: max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Neighbour;
    use crate::subject::{FAMILIES, URCU};

    fn summary(figure: &dyn Fn(&str, &str, &str) -> Vec<f64>) -> Summary {
        let options = |bench: Bench| Options {
            against: FAMILIES.map(str::to_owned).into(),
            length: Duration::from_secs(1),
            rounds: 1,
            readers: bench.default_readers().into(),
            neighbours: Neighbour::ALL.into(),
            cancel: Default::default(),
        };
        let outcome = |bench| bench::invented(bench, &options(bench), figure);
        summarize(Bench::ALL.map(outcome).into())
    }

    fn line<'a>(summary: &'a Summary, measure: &str) -> &'a Line {
        summary.lines.iter().find(|l| l.measure == measure).unwrap()
    }

    /// No measure names a row, a column or a peer that its benchmark does not have.
    #[test]
    fn every_measure_is_found_and_named_once() {
        let summary = summary(&|_, _, _| vec![1.0]);
        for measure in measures::all() {
            let outcome = summary.benches.iter().find(|o| o.bench == measure.bench.name()).unwrap();
            assert!(!lines(measure, outcome).is_empty(), "{}", measure.title);
        }
        let mut names: Vec<_> = summary.lines.iter().map(|l| &l.measure).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two lines have one name");
        assert!(names.iter().all(|name| !name.contains("{}")));
        for line in summary.lines.iter().filter(|_| URCU) {
            assert!(line.peer.is_some(), "{}: beside nobody", line.measure);
            assert!(line.targets.iter().all(|t| t.limit.is_some()), "{line:?}");
        }
        assert_eq!(summary.missing, [""; 0]);
    }

    #[test]
    fn figures_are_compared_with_the_best_peer_and_the_target() {
        let summary = summary(&|group, subject, column| match (group, subject, column) {
            ("", "restartable", "empty section") => vec![1.4, 1.6, 1.2],
            ("", "rwlock (std)", "empty section") => vec![1.0, 2.0, 3.0],
            ("", "protected", "get and drop") => vec![4.0],
            ("", "rwlock (std)", "get and drop") => vec![0.5],
            ("", "haphazard", "get and drop") => vec![6.0],
            ("16 readers", "restartable", "updates") => vec![190.0],
            ("16 readers", "restartable", "peak garbage") => vec![1.0],
            ("16 readers", "restartable", "mean") => vec![0.02],
            ("64 readers", "restartable", "p99") => vec![0.05],
            ("1 reader", "restartable", "p99") => vec![0.03],
            (_, _, "mean" | "updates") => vec![100.0],
            _ => vec![7.0],
        });
        let section = line(&summary, "empty section, restartable");
        let peer = section.peer.as_ref().unwrap();
        assert_eq!((section.value, peer.subject.as_str(), peer.value), (1.4, "rwlock (std)", 2.0));
        // Round by round: 1.4, 0.8, 0.4.
        assert!((peer.ratio - 0.7).abs() < 1e-9, "{peer:?}");
        assert!((peer.ratio_min - 0.4).abs() < 1e-9 && peer.ratio_max == 1.4, "{peer:?}");
        let protect = line(&summary, "protect and drop");
        assert_eq!(protect.peer.as_ref().unwrap().subject, "haphazard", "a lock protects no node");
        assert_eq!(protect.reached(), Some(false));
        let flood = line(&summary, "flood, updates, 16 readers");
        assert_eq!(flood.targets[0].text, ">= 1.2 x best peer");
        assert_eq!(flood.targets[0].limit, Some(120.0));
        assert_eq!(flood.reached(), Some(true));
        let garbage = line(&summary, "flood, peak garbage, 16 readers");
        assert_eq!(
            (garbage.targets[0].text.as_str(), garbage.reached()),
            ("<= 1.1 MB", Some(true))
        );
        let grace = line(&summary, "grace period, mean, 16 readers");
        assert_eq!(grace.targets[0].text, "<= 0.01 x best peer");
        assert_eq!(grace.reached(), Some(true));
        let grace = line(&summary, "grace period, p99, 64 readers");
        assert_eq!((grace.targets[0].limit, grace.reached()), (Some(0.06), Some(true)));
        assert_eq!(line(&summary, "grace period, mean, 1 reader").reached(), None);
        let memb = &line(&summary, "empty section, plain").targets[0];
        assert_eq!((memb.text.as_str(), memb.limit), ("<= urcu memb", URCU.then_some(7.0)));
    }
}
