// SPDX-License-Identifier: MIT OR Apache-2.0
//! A flood of updates: how much memory waits to be freed, and how many updates per second there
//! are.
//!
//! A writer replaces nodes of 1 KiB as fast as it can, beside readers that look keys up without a
//! pause; each old node goes through the subject's deferred free (`call_rcu`, `retire`, `defer`),
//! with its defaults. Garbage is what has been unlinked and not freed, looked at after each update.
//! The peak is that of a sample, whose length matters to those whose garbage has no bound.

use super::{Prepared, column, reader_label, replace_always};
use crate::error::Result;
use crate::options::Options;
use crate::readers::{self, Work};
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Class, Kind, choose};
use crate::table::Table;
use std::time::Duration;

/// Bytes of a node.
const NODE: usize = 1024;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let rate = |title: &str| Column { more_is_better: true, ..column(title, Unit::KiloPerSecond) };
    let mut recorder = Recorder::new(vec![
        column("peak garbage", Unit::Megabytes),
        rate("updates"),
        rate("lookups"),
    ]);
    let mut kinds = choose(&Kind::ALL, &options.against)?;
    // Nothing is freed there, or there is no table.
    kinds.retain(|k| k.class() != Class::Floor && *k != Kind::ArcSwap);
    let mut jobs = vec![];
    for &n in &options.readers {
        for &kind in &kinds {
            // A lock makes no garbage, and updates under it stop the readers: another thing.
            let class = match kind {
                Kind::StdRwLock | Kind::ParkingLot => Class::Other,
                _ => kind.class(),
            };
            let row = recorder.row(&reader_label(n), kind.name(), class);
            jobs.push(Job {
                what: format!("{}, {}", reader_label(n), kind.name()),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    let sample = sample(kind, n, length, options)?;
                    for (column, value) in sample.into_iter().enumerate() {
                        recorder.add(row, column, value);
                    }
                    Ok(())
                }),
            });
        }
    }
    let notes = vec![format!(
        "nodes of {NODE} bytes; a sample takes {:.1} s, and unbounded garbage grows with it",
        options.length.as_secs_f64() / options.rounds as f64 / jobs.len() as f64
    )];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

fn sample(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<[f64; 3]> {
    let table = Table::hash(NODE);
    let ((peak, rate, seconds), totals) =
        readers::run(kind, &table, readers, Work::Lookups, |writer| {
            let (peak, updates, seconds) =
                replace_always(writer, &table, |seed| table.key(seed), length, options)?;
            Ok((peak, updates as f64 / seconds, seconds))
        })?;
    let lookups = totals.operations as f64 / seconds;
    Ok([(peak * table.ledger().node_bytes()) as f64 / 1e6, rate / 1e3, lookups / 1e3])
}
