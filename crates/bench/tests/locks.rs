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
        neighbours: vec![],
        cancel: Default::default(),
    }
}

/// Each lock takes part, excludes, and has figures.
#[test]
fn locks_are_compared() {
    let outcome = run(Bench::Locks, &options("pthread"), &|_, _| {}).unwrap();
    for subject in ["spin", "mutex", "rw lock", "rw semaphore", "pthread", "pthread rw"] {
        let rows: Vec<_> = outcome.rows.iter().filter(|row| row.subject == subject).collect();
        assert!(!rows.is_empty(), "{subject}");
        for row in rows {
            let figures = row.figures.iter().flatten();
            assert!(figures.clone().count() > 0 && figures.clone().all(|f| f.value >= 0.0));
        }
    }
    assert!(outcome.rows.iter().all(|row| row.subject != "std"));
}

/// Each crowd has fairness and waits (a p99 of them where there are enough).
#[test]
fn crowds_have_fairness_and_waits() {
    let outcome = run(Bench::Locks, &options("std"), &|_, _| {}).unwrap();
    for row in outcome.rows.iter().filter(|row| row.group.contains(" us")) {
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
fn a_lock_that_does_not_exist_is_bad_usage() {
    assert!(matches!(run(Bench::Locks, &options("urcu"), &|_, _| {}), Err(Error::Usage(_))));
}
