// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every benchmark, for a moment, against every peer: complete tables, one row per subject and group, pages that stand alone.

use reprieve_bench::{Bench, Class, Error, FAMILIES, Options, URCU, run, text, write_html};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BENCHES: [Bench; 8] = [
    Bench::Read,
    Bench::Grace,
    Bench::Flood,
    Bench::Cell,
    Bench::List,
    Bench::Map,
    Bench::Dcache,
    Bench::Callbacks,
];

fn options() -> Options {
    Options {
        against: FAMILIES.map(str::to_owned).into(),
        length: Duration::from_millis(200),
        rounds: 1,
        readers: vec![1, 3],
        cancel: Arc::default(),
    }
}

#[test]
fn every_benchmark_fills_its_table_and_draws_its_chart() {
    for bench in BENCHES {
        let outcome = run(bench, &options(), &|_, _| ()).unwrap();
        assert_eq!(outcome.bench, bench.name());
        assert!(outcome.rows.iter().any(|r| r.class == Class::Reprieve));
        assert!(outcome.rows.iter().any(|r| r.class == Class::Peer) || !URCU, "{bench:?}");
        for (i, column) in outcome.columns.iter().enumerate() {
            let figures: Vec<_> = outcome.rows.iter().filter_map(|r| r.figures[i]).collect();
            assert!(!figures.is_empty(), "{bench:?}: nothing in \"{}\"", column.title);
            assert!(figures.iter().all(|f| f.min <= f.max && f.max.is_finite()));
        }
        let mut rows: Vec<_> = outcome.rows.iter().map(|r| (&r.group, &r.subject)).collect();
        let count = rows.len();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), count, "{bench:?}: two rows for one subject");
        assert!(text(&outcome, 120).contains(&outcome.rows[0].subject));
        let path = std::env::temp_dir().join(format!("reprieve-bench-{}.html", std::process::id()));
        write_html(&outcome, &path).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(page.contains("<svg") && page.contains("</svg>"));
        assert!(
            !page.contains("http:") && !page.contains("https:") && !page.contains("<script"),
            "{bench:?} refers to others"
        );
    }
}

#[test]
fn a_run_that_is_cancelled_ends_soon() {
    let mut options = options();
    options.length = Duration::from_secs(600);
    let cancel: Arc<AtomicBool> = options.cancel.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        cancel.store(true, Ordering::Relaxed);
    });
    let start = std::time::Instant::now();
    assert!(matches!(run(Bench::Flood, &options, &|_, _| ()), Err(Error::Cancelled)));
    assert!(start.elapsed() < Duration::from_secs(60));
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
        for bench in BENCHES {
            assert!(matches!(run(bench, &options, &|_, _| ()), Err(Error::Usage(_))), "{bench:?}");
        }
    }
}
