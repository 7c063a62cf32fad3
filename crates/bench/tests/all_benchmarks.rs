// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every benchmark, for a moment, against every peer: complete tables, one row per subject and
//! group.

use reprieve_bench::{
    Bench, Class, Error, FAMILIES, Neighbour, Options, Outcome, URCU, run, run_all, summary_text,
    text,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn options() -> Options {
    Options {
        against: FAMILIES.map(str::to_owned).into(),
        length: Duration::from_millis(200),
        rounds: 1,
        readers: vec![1, 3],
        neighbours: Neighbour::ALL.into(),
        cancel: Arc::default(),
    }
}

fn check(outcome: &Outcome) {
    let bench = &outcome.bench;
    assert!(outcome.rows.iter().any(|r| r.class == Class::Reprieve));
    assert!(outcome.rows.iter().any(|r| r.class == Class::Peer) || !URCU, "{bench}");
    for (i, column) in outcome.columns.iter().enumerate() {
        let figures: Vec<_> = outcome.rows.iter().filter_map(|r| r.figures[i].as_ref()).collect();
        // A run this short has too few samples for some.
        let may_lack = column.title.ends_with("p99");
        assert!(may_lack || !figures.is_empty(), "{bench}: nothing in \"{}\"", column.title);
        assert!(figures.iter().all(|f| f.min <= f.max && f.max.is_finite()));
        assert!(figures.iter().all(|f| f.rounds.len() == 1));
    }
    let mut rows: Vec<_> = outcome.rows.iter().map(|r| (&r.group, &r.subject)).collect();
    let count = rows.len();
    rows.sort();
    rows.dedup();
    assert_eq!(rows.len(), count, "{bench}: two rows for one subject");
    let table = text(outcome, 0);
    assert!(table.starts_with(&format!("### `reprieve bench {bench}`")), "{table}");
    is_table(&table);
}

/// All rows have as many cells as the heading.
fn is_table(text: &str) {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let cells: Vec<_> = rows.map(|row| row.matches('|').count()).collect();
    assert!(cells.len() > 2 && cells.iter().all(|count| *count == cells[0]), "{text}");
}

#[test]
fn the_system_v_benchmarks_fill_their_tables() {
    for bench in [Bench::Semop, Bench::Msg, Bench::Shm, Bench::Txn] {
        let against = bench.families().iter().map(|&family| family.to_owned()).collect();
        let options = Options { against, readers: vec![1, 8], ..options() };
        let outcome = run(bench, &options, &|what, _| println!("{what}")).unwrap();
        assert_eq!(outcome.bench, bench.name());
        check(&outcome);
    }
}

#[test]
fn every_benchmark_fills_its_table_and_the_summary() {
    let done = Cell::new(0.0);
    let progress = |_: &str, share: f64| {
        assert!(share >= done.get() && share <= 1.0, "{share} after {}", done.get());
        done.set(share);
    };
    let length = options().length * 9;
    let of = |_: Bench, length: Duration| Options { length, ..options() };
    let (summary, result) = run_all(length, &of, &progress);
    result.unwrap();
    assert_eq!(summary.missing, [""; 0]);
    for (bench, outcome) in Bench::ALL.into_iter().zip(&summary.benches) {
        assert_eq!((outcome.bench.as_str(), outcome.title.as_str()), (bench.name(), bench.title()));
        check(outcome);
        // The number of readers that a flood's lines want is not among the options.
        let lines = summary.lines.iter().filter(|l| l.bench == bench.name());
        assert!(lines.count() > 0 || bench == Bench::Flood, "{bench:?}");
    }
    let compared = summary.lines.iter().filter_map(|l| l.peer.as_ref());
    for peer in compared {
        assert!(peer.ratio_min <= peer.ratio && peer.ratio <= peer.ratio_max, "{peer:?}");
        assert!(peer.ratio_min > 0.0 && peer.ratio_max.is_finite(), "{peer:?}");
    }
    let text = summary_text(&summary, 0);
    for line in &summary.lines {
        assert!(text.lines().any(|l| l.contains(&line.measure)), "{}", line.measure);
    }
    is_table(&text);
    let json = serde_json::to_value(&summary).unwrap();
    for (bench, outcome) in Bench::ALL.into_iter().zip(json["benches"].as_array().unwrap()) {
        assert_eq!(outcome["bench"], bench.name());
        let rounds = &outcome["rows"][0]["figures"];
        assert!(rounds.as_array().unwrap().iter().any(|f| f["rounds"].as_array().is_some()));
    }
    assert_eq!(json["lines"][0]["measure"], summary.lines[0].measure);
}

/// Ctrl-C in the second benchmark: the first is there, and the rest is said to be missing.
#[test]
fn what_was_measured_before_a_cancellation_is_kept() {
    let mut options = options();
    options.against = vec!["rwlock".into()];
    options.readers = vec![1];
    let progress = |what: &str, _: f64| {
        if what.starts_with("grace, ") {
            options.cancel.store(true, Ordering::Relaxed);
        }
    };
    let of = |_: Bench, length: Duration| Options { length, ..options.clone() };
    let (summary, result) = run_all(Duration::from_secs(1), &of, &progress);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(summary.benches.iter().map(|o| o.bench.as_str()).collect::<Vec<_>>(), ["read"]);
    assert_eq!(summary.missing.len(), Bench::ALL.len() - 1);
    assert!(summary.lines.iter().all(|l| l.bench == "read") && !summary.lines.is_empty());
    assert!(summary_text(&summary, 160).contains("did not run to the end: grace, flood"));
}

/// In the middle of a sample, which would take hours.
#[test]
fn a_run_that_is_cancelled_ends_early() {
    let mut options = options();
    options.length = Duration::from_secs(86_400);
    let cancel: Arc<AtomicBool> = options.cancel.clone();
    let (began, begins) = std::sync::mpsc::channel();
    let canceller = std::thread::spawn(move || {
        begins.recv().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        cancel.store(true, Ordering::Relaxed);
    });
    let samples = Cell::new(0);
    let progress = |_: &str, _: f64| {
        samples.set(samples.get() + 1);
        let _ = began.send(());
    };
    assert!(matches!(run(Bench::Flood, &options, &progress), Err(Error::Cancelled)));
    assert_eq!(samples.get(), 1);
    canceller.join().unwrap();
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for change in [
        (|o: &mut Options| o.readers.clear()) as fn(&mut Options),
        |o| o.readers = vec![0],
        |o| o.rounds = 0,
        |o| o.length = Duration::ZERO,
        |o| o.against = vec!["nobody".into()],
    ] {
        let mut options = options();
        change(&mut options);
        for bench in Bench::ALL {
            assert!(matches!(run(bench, &options, &|_, _| ()), Err(Error::Usage(_))), "{bench:?}");
        }
        let of = |_: Bench, length: Duration| Options {
            length: options.length.min(length),
            ..options.clone()
        };
        let (summary, result) = run_all(options.length, &of, &|_, _| ());
        assert!(matches!(result, Err(Error::Usage(_))) && summary.benches.is_empty());
    }
}
