// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linked lists: walks along 64 nodes, while a writer replaces 1000 nodes a second. CPU time per
//! node.
//!
//! `List`, and a singly linked chain of the benchmark's own nodes by every read side.

use super::{Crowds, Prepared, column, reader_alone};
use crate::error::Result;
use crate::options::Options;
use crate::readers::Work;
use crate::result::{Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Kind, choose};
use crate::table::Table;

/// Nodes of the list.
const LENGTH: u64 = 64;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut columns = vec![column("per node", Unit::Nanoseconds)];
    let crowds = Crowds {
        title: "per node",
        first: columns.len(),
        work: Work::Walks,
        table: || Table::list(LENGTH),
        parts: LENGTH,
    };
    columns.extend(crowds.columns(options));
    let mut recorder = Recorder::new(columns);
    let mut rows = vec![];
    // A single pointer is no list; and a walk protects no single node.
    let chains = Kind::ALL.into_iter().filter(|k| !matches!(k, Kind::ArcSwap | Kind::Protect));
    let kinds: Vec<_> = Kind::LISTS.into_iter().chain(chains).collect();
    for kind in choose(&kinds, &options.against)? {
        rows.push((kind, recorder.row("walks", kind.name(), kind.class())));
    }
    let mut jobs = vec![];
    for &(kind, row) in &rows {
        let what = format!("walk, {}", kind.name());
        jobs.push(Job::figure(what, 1.0, (row, 0), move |length| {
            let table = Table::list(LENGTH);
            let time = reader_alone(kind, &table, length, |reader, n| reader.walks(n))?;
            Ok(time / LENGTH as f64)
        }));
    }
    let crowds = crowds.jobs(options, rows.iter().copied());
    let notes = vec![
        format!("walks along {LENGTH} nodes; with readers: CPU time beside a writer that replaces 1000 nodes/s"),
        "List has items of its own, doubly linked; the others are read sides, with the benchmark's nodes, singly linked".into(),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds })
}
