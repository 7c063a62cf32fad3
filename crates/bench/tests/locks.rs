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

#[test]
fn a_lock_that_does_not_exist_is_bad_usage() {
    assert!(matches!(run(Bench::Locks, &options("urcu"), &|_, _| {}), Err(Error::Usage(_))));
}
