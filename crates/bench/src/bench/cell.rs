// SPDX-License-Identifier: MIT OR Apache-2.0
//! A read-mostly pointer: what arc-swap and this project's `Cell` are made for. The others show
//! the same with the benchmark's own nodes.
//!
//! **load**: read the pointer, check what it leads to, let go. One thread alone, and several beside
//! a writer that replaces it 1000 times a second (CPU time per load). **replace**: one thread alone
//! puts a new node in place and hands the old one over to be freed, which includes allocating and,
//! in the background, freeing.

use super::{Crowds, Prepared, alone, column, reader_alone, rows};
use crate::error::Result;
use crate::options::Options;
use crate::readers::Work;
use crate::result::{Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Kind, choose};
use crate::table::Table;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut columns = vec![column("load", Unit::Nanoseconds), column("replace", Unit::Nanoseconds)];
    let crowds = Crowds {
        title: "load",
        first: columns.len(),
        work: Work::Gets,
        table: Table::cell,
        parts: 1,
    };
    columns.extend(crowds.columns(options));
    let mut recorder = Recorder::new(columns);
    let kinds = [&Kind::CELLS[..], &Kind::ALL].concat();
    let rows = rows(&mut recorder, &choose(&kinds, &options.against)?);
    let mut jobs = vec![];
    for &(kind, row) in &rows {
        let what = format!("load, {}", kind.name());
        jobs.push(Job::figure(what, 1.0, (row, 0), move |length| {
            let table = Table::cell();
            reader_alone(kind, &table, length, |reader, n| reader.gets(n))
        }));
    }
    // The floor keeps what it replaces.
    for &(kind, row) in rows.iter().filter(|r| !matches!(r.0, Kind::Floor | Kind::FloorC)) {
        let what = format!("replace, {}", kind.name());
        jobs.push(Job::figure(what, 1.0, (row, 1), move |length| {
            let table = Table::cell();
            let (time, _) = crate::readers::run(kind, &table, 0, Work::Gets, |writer| {
                alone(length, |n| {
                    (0..n).for_each(|_| writer.replace(0));
                    0
                })
            })?;
            Ok(time)
        }));
    }
    let crowds = crowds.jobs(options, rows.iter().copied());
    let notes = vec![
        "load: alone; with readers: CPU time per load beside a writer that replaces it 1000 times/s. replace: includes allocation".into(),
        "Cell and arc-swap have structures of their own; the others are read sides, with the benchmark's nodes. A copy is one of 16 bytes".into(),
        "arc-swap, cached: each thread holds on to the value that it saw last until it looks again".into(),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds })
}
