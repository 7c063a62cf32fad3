// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that never stop computing, one per vCPU in turn. [RP] experiment 2's competitor.

use super::{Load, Operation, threads::Threads};
use crate::sys::{Result, cpus};

/// Steps of a round, of two arithmetic operations each: long against the look at the gate, short
/// against a phase.
const STEPS: u64 = 10_000;

pub fn prepare(threads: u32) -> Result<Box<dyn Load>> {
    let work = (0..threads)
        .map(|i| {
            let mut x = u64::from(i);
            let operation: Operation = Box::new(move |slot| {
                x = super::compute(x, STEPS);
                slot.operation();
                Ok(())
            });
            (Some(i % cpus()), operation)
        })
        .collect();
    Ok(Box::new(Threads::prepare("hog", "round", work)?))
}
