// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmark of locks, as short as it can be.

use reprieve_bench::{Bench, Error, Options, run};
use std::time::Duration;

fn options(against: &str) -> Options {
    Options {
        against: vec![against.to_owned()],
        length: Duration::from_millis(200),
        rounds: 1,
        readers: vec![2],
        churn: false,
        neighbours: vec![],
        lengths: [100, 1_000].map(Duration::from_nanos).into(),
        hogs: vec![0, 1],
        cancel: Default::default(),
    }
}

/// Each lock takes part, excludes, and has figures.
#[test]
fn locks_are_compared() {
    let outcome = run(Bench::Locks, &options("pthread"), &|_, _| {}).unwrap();
    for subject in ["spin", "fair", "mutex", "rw lock", "rw semaphore", "pthread", "pthread rw"] {
        let rows: Vec<_> = outcome.rows.iter().filter(|row| row.subject == subject).collect();
        assert!(!rows.is_empty(), "{subject}");
        for row in rows {
            let figures = row.figures.iter().flatten();
            assert!(figures.clone().count() > 0 && figures.clone().all(|f| f.value >= 0.0));
        }
    }
    assert!(outcome.rows.iter().all(|row| row.subject != "std" && row.subject != "mcs"));
}

/// Lengths and hogs are those that were asked for, and each has fairness and waits (a p99 of them
/// where there are enough).
#[test]
fn lengths_and_hogs_are_chosen() {
    let lengths = [250, 2_000].map(Duration::from_nanos).into();
    let chosen = Options { lengths, hogs: vec![2], ..options("std") };
    let outcome = run(Bench::Locks, &chosen, &|_, _| {}).unwrap();
    let crowds = || outcome.rows.iter().filter(|row| row.group.contains(" us"));
    let mut groups: Vec<_> = crowds().map(|row| row.group.as_str()).collect();
    groups.dedup();
    let styles = ["spin locks", "mutexes", "reader-writer locks"];
    let expected = styles.map(|style| {
        ["0.25", "2"].map(|us| format!("{style}, 2 threads, {us} us, 2 hogs per CPU"))
    });
    assert_eq!(groups, expected.concat());
    for row in crowds() {
        let figure = |title: &str| {
            let column = outcome.columns.iter().position(|column| column.title == title).unwrap();
            row.figures[column].as_ref()
        };
        for title in ["fairness", "wait, longest", "samples"] {
            assert!(figure(title).is_some(), "{title} of {row:?}");
        }
        let enough = figure("samples").unwrap().value >= 100.0;
        assert_eq!(figure("wait, p99").is_some(), enough, "{row:?}");
    }
}

#[test]
fn lengths_and_hogs_out_of_range_are_bad_usage() {
    let usage = |options: Options| match run(Bench::Locks, &options, &|_, _| {}) {
        Err(Error::Usage(text)) => text,
        other => panic!("{other:?}"),
    };
    let none = usage(Options { lengths: vec![], ..options("std") });
    let long = usage(Options { lengths: vec![Duration::from_secs(1)], ..options("std") });
    assert!(none.contains("--lengths") && long.contains("--lengths"));
    let crowd = usage(Options { hogs: vec![65], ..options("std") });
    assert!(usage(Options { hogs: vec![], ..options("std") }).contains("--hogs"));
    assert!(crowd.contains("--hogs"));
}

#[test]
fn a_lock_that_does_not_exist_is_bad_usage() {
    assert!(matches!(run(Bench::Locks, &options("urcu"), &|_, _| {}), Err(Error::Usage(_))));
}
