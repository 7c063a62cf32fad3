// SPDX-License-Identifier: MIT OR Apache-2.0
//! System V message queues, the kernel's and ours: messages of 64 bytes, sent and received by one
//! process, and from one to another.

use super::sides::{self, Measure};
use super::{Prepared, alone, column};
use crate::error::Result;
use crate::options::Options;
use crate::processes::{self, Shared};
use crate::result::{Column, Unit};
use crate::sysv::{Message, Sysv};
use std::time::Duration;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    sides::prepare(vec![
        Measure {
            column: column("send and receive", Unit::Nanoseconds),
            sample: Box::new(one_process),
        },
        Measure {
            column: Column {
                more_is_better: true,
                ..column("stream, two processes", Unit::KiloPerSecond)
            },
            sample: Box::new(|side, length| Ok(stream(side, length, options)? / 1e3)),
        },
    ])
}

fn one_process(side: Sysv, length: Duration) -> Result<f64> {
    let queue = side.queue()?;
    let mut message = Message { kind: 1, data: [7; 64] };
    alone(length, |n| {
        (0..n).filter(|_| !(queue.send(&message) && queue.receive(&mut message))).count() as u64
    })
}

fn stream(side: Sysv, length: Duration, options: &Options) -> Result<f64> {
    let queue = side.queue()?;
    let work = |i: usize, shared: &Shared| {
        let mut message = Message { kind: 1, data: [0; 64] };
        for number in 0u64.. {
            if i == 0 {
                message.data[..8].copy_from_slice(&number.to_le_bytes());
                if !queue.send(&message) {
                    return;
                }
            } else {
                // In order, none lost.
                if !queue.receive(&mut message) || message.data[..8] != number.to_le_bytes() {
                    return;
                }
                shared.counts[1].add(1);
            }
        }
    };
    processes::rate(2, length, options, &work, &|_| Ok(()))
}
