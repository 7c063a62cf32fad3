// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bursty processes of [RP]: they compute and sleep in turn, each for a random time.

use super::{Load, Operation, compute, workers::Workers};
use crate::sys::Result;
use std::time::Duration;

pub fn prepare(
    processes: u32,
    ops: (u64, u64),
    sleep_ms: (u32, u32),
    seed: u64,
) -> Result<Box<dyn Load>> {
    if ops.0 > ops.1 || sleep_ms.0 > sleep_ms.1 {
        return Err(format!("bursty: empty range of operations {ops:?} or sleeps {sleep_ms:?}"));
    }
    let arguments = [seed, ops.0, ops.1, sleep_ms.0.into(), sleep_ms.1.into()];
    Ok(Box::new(Workers::prepare("bursty", "burst", processes, &arguments)?))
}

/// A burst and one sleep, at random from ranges that include both limits.
pub fn operation(seed: u64, index: u64, ops: (u64, u64), sleep_ms: (u64, u64)) -> Operation {
    // A stream of its own for each process.
    let mut rng = fastrand::Rng::with_seed(seed ^ index.rotate_left(32));
    let mut x = index;
    Box::new(move |slot| {
        // A step of `compute` is a multiplication and an addition.
        x = compute(x, rng.u64(ops.0..=ops.1) / 2);
        slot.operation();
        std::thread::sleep(Duration::from_millis(rng.u64(sleep_ms.0..=sleep_ms.1)));
        Ok(())
    })
}
