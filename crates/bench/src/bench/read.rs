// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of reading.
//!
//! - **empty section**, one thread: enter and leave. **quiescent state** for the QSBR forms, whose
//!   sections are free.
//! - **get and drop**, one thread: read one pointer, check the node, let it go; for protected
//!   references, hazard pointers and arc-swap this is the shortest use there is.
//! - **lookup**: a random one of 4096 keys in 1024 chains, by 1 to 64 readers at once, while a
//!   writer replaces 1000 nodes a second. CPU time per lookup. **by eights**: eight lookups share
//!   a restartable section.

use super::{Crowds, Prepared, column, reader_alone, rows};
use crate::error::Result;
use crate::options::Options;
use crate::readers::Work;
use crate::result::{Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Class, Flavor, Kind, Side, choose};
use crate::table::{Node, Table};

/// Whether readers announce quiescent states.
fn announces(kind: Kind) -> bool {
    matches!(kind, Kind::Qsbr | Kind::C(Side::Qsbr) | Kind::Urcu(Flavor::Qsbr))
}

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut columns = ["empty section", "quiescent state", "get and drop"]
        .map(|title| column(title, Unit::Nanoseconds))
        .to_vec();
    let crowds = Crowds {
        title: "lookup",
        first: columns.len(),
        work: Work::Lookups,
        table: || Table::hash(size_of::<Node>()),
    };
    columns.extend(crowds.columns(options));
    let mut recorder = Recorder::new(columns);
    let kinds: Vec<Kind> = Kind::OURS
        .into_iter()
        .chain(Kind::ALL.into_iter().filter(|k| k.class() != Class::Reprieve))
        .collect();
    let rows = rows(&mut recorder, &choose(&kinds, &options.against)?);
    let mut jobs = vec![];
    for &(kind, row) in &rows {
        // These have no section: what they do is in the next column.
        if !matches!(
            kind,
            Kind::ByEights
                | Kind::Protect
                | Kind::C(Side::Protected)
                | Kind::Haphazard
                | Kind::ArcSwap
        ) {
            let what = format!("empty section, {}", kind.name());
            jobs.push(Job::figure(what, 1.0, (row, announces(kind) as usize), move |length| {
                let table = Table::cell();
                let time = reader_alone(kind, &table, length, |reader, n| {
                    reader.empty(n);
                    0
                })?;
                Ok(time)
            }));
        }
    }
    for &(kind, row) in rows.iter().filter(|r| r.0 != Kind::ByEights) {
        let what = format!("get and drop, {}", kind.name());
        jobs.push(Job::figure(what, 1.0, (row, 2), move |length| {
            let table = Table::cell();
            reader_alone(kind, &table, length, |reader, n| reader.gets(n))
        }));
    }
    let crowds = crowds.jobs(options, rows.iter().copied().filter(|r| r.0 != Kind::ArcSwap));
    let notes = vec![
        "lookup: CPU time of the readers by their lookups, beside a writer that replaces 1000 nodes/s".into(),
        format!("QSBR readers announce a quiescent state after each {} lookups", crate::readers::BATCH),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds })
}
