// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that makes and removes System V semaphore sets, and others that read.
//!
//! The kernel frees a removed set through `call_rcu`, so each operation leaves about `semaphores` x
//! 64 bytes that wait for a grace period. A grace period has to wait for the readers' short system
//! calls (with some computation between them). Only one set exists at a time, and its id is free at
//! once, but its memory only after a grace period: so the kernel may have none for a new set for a
//! while. That is counted and retried.

use super::threads::Threads;
use super::{Load, Operation, compute};
use crate::sys::{Result, getppid, semaphore_set};
use std::time::Duration;

/// Computation between two system calls of a reader: a few microseconds.
const READER_STEPS: u64 = 2_000;

pub fn prepare(producer_cpu: u32, reader_cpus: &[u32], semaphores: u32) -> Result<Box<dyn Load>> {
    let producer: Operation = Box::new(move |slot| match semaphore_set(semaphores) {
        Ok(()) => {
            slot.operation();
            Ok(())
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {
            slot.refusal();
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
        Err(e) => Err(e),
    });
    let mut work = vec![(Some(producer_cpu), producer)];
    for cpu in reader_cpus {
        let mut x = u64::from(*cpu);
        let reader: Operation = Box::new(move |_| {
            getppid();
            x = compute(x, READER_STEPS);
            Ok(())
        });
        work.push((Some(*cpu), reader));
    }
    Ok(Box::new(Threads::prepare("sem", "semaphore set", work)?))
}
