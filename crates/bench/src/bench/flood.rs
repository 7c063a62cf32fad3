// SPDX-License-Identifier: MIT OR Apache-2.0
//! A flood of updates: how much memory waits to be freed, and how many updates per second there
//! are.
//!
//! A writer replaces nodes of 1 KiB as fast as it can, beside readers that look keys up without a
//! pause; each old node goes through the subject's deferred free (`call_rcu`, `retire`, `defer`),
//! with its defaults. Garbage is what has been unlinked and not freed, looked at after each update.
//! The peak is that of a sample, whose length matters to those whose garbage has no bound.
//!
//! The floor is a writer that frees each node itself, 1024 updates later. It waits for nobody: its
//! readers read another table. No reclamation lets a writer of this share of the CPUs do more.

use super::{Prepared, column, reader_label, replace_always};
use crate::error::Result;
use crate::options::Options;
use crate::peer::Writer;
use crate::peer::floor::Keeper;
use crate::readers::{self, Work};
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Class, Kind, choose};
use crate::table::Table;
use std::time::Duration;

/// Bytes of a node.
const NODE: usize = 1024;

/// Updates after which the floor frees a node: as much garbage as our default soft cap allows.
const LAG: usize = 1024;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let rate = |title: &str| Column { more_is_better: true, ..column(title, Unit::KiloPerSecond) };
    let mut recorder = Recorder::new(vec![
        column("peak garbage", Unit::Megabytes),
        rate("updates"),
        rate("lookups"),
    ]);
    let mut kinds = choose(&Kind::ALL, &options.against)?;
    // In C the floor has no writer of its own; arc-swap has no table.
    kinds.retain(|k| !matches!(k, Kind::FloorC | Kind::ArcSwap));
    let mut jobs = vec![];
    for &n in &options.readers {
        for &kind in &kinds {
            // A lock makes no garbage, and updates under it stop the readers: another thing.
            let class = match kind {
                Kind::StdRwLock => Class::Other,
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
    let notes = vec![
        format!(
            "nodes of {NODE} bytes; a sample takes {:.1} s, and unbounded garbage grows with it",
            options.length.as_secs_f64() / options.rounds as f64 / jobs.len() as f64
        ),
        format!("no protection: a node is freed {LAG} updates later; readers read another table"),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

fn sample(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<[f64; 3]> {
    let table = Table::hash(NODE);
    let other = (kind == Kind::Floor).then(|| Table::hash(NODE));
    let read = other.as_ref().unwrap_or(&table);
    let ((peak, rate, seconds), totals) =
        readers::run(kind, read, readers, Work::Lookups, |writer| {
            let key = |seed| table.key(seed);
            let (peak, updates, seconds) = match other {
                Some(_) => {
                    let mut blind = Keeper::unread(&table, LAG);
                    let replaced = replace_always(&mut blind, &table, key, length, options);
                    blind.drain();
                    replaced?
                }
                None => replace_always(writer, &table, key, length, options)?,
            };
            Ok((peak, updates as f64 / seconds, seconds))
        })?;
    let lookups = totals.operations as f64 / seconds;
    Ok([(peak * table.ledger().node_bytes()) as f64 / 1e6, rate / 1e3, lookups / 1e3])
}
