// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common part of the System V benchmarks: each measure is taken of the kernel's calls and of
//! ours, one right after the other.

use super::Prepared;
use crate::error::Result;
use crate::result::{Column, Recorder};
use crate::schedule::Job;
use crate::sysv::{Stage, Sysv};
use std::rc::Rc;
use std::time::Duration;

/// A column, and how one of its figures is taken.
pub struct Measure<'a> {
    pub column: Column,
    pub sample: Box<Sample<'a>>,
}

/// Takes one figure of a side in about the time given.
pub type Sample<'a> = dyn Fn(Sysv, Duration) -> Result<f64> + 'a;

pub fn prepare(measures: Vec<Measure<'_>>) -> Result<Prepared<'_>> {
    let stage = Rc::new(Stage::new()?);
    let (sides, note) = stage.sides();
    let mut recorder = Recorder::new(measures.iter().map(|m| m.column.clone()).collect());
    let row = |(side, class): (Sysv, _)| (side, recorder.row("", side.name(), class));
    let rows: Vec<_> = sides.into_iter().map(row).collect();
    let mut jobs = vec![];
    for (at, Measure { column, sample }) in measures.into_iter().enumerate() {
        let sample: Rc<Sample> = sample.into();
        for &(side, row) in &rows {
            let (stage, sample) = (stage.clone(), sample.clone());
            let what = format!("{}, {}", column.title, side.name());
            jobs.push(Job::figure(what, 1.0, (row, at), move |length| {
                let _stays = &stage;
                sample(side, length)
            }));
        }
    }
    Ok(Prepared { notes: note.into_iter().collect(), recorder, jobs, crowds: vec![] })
}
