// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pairs of threads that pass a byte to and fro: while one works the other sleeps, so that a vCPU
//! without other work halts at every turn.
//!
//! A pair has one byte. The threads of a stopped load must not wait for it for ever: a read ends
//! after [`READ_LIMIT`], and the thread that did not get the byte does not send one.

use super::threads::Threads;
use super::{Load, Operation, compute, steps_in};
use crate::sys::{Context, Result, cpus};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const READ_LIMIT: Duration = Duration::from_millis(100);

pub fn prepare(pairs: u32, work_us: u32) -> Result<Box<dyn Load>> {
    let steps = if work_us > 0 { steps_in(work_us) } else { 0 };
    let mut work = Vec::new();
    for pair in 0..pairs {
        let (server, returner) = UnixStream::pair().context("a pair of sockets")?;
        for (line, first, side) in [(server, true, 0), (returner, false, 1)] {
            line.set_read_timeout(Some(READ_LIMIT)).context("a pair of sockets")?;
            work.push((Some((2 * pair + side) % cpus()), operation(line, first, steps)));
        }
    }
    Ok(Box::new(Threads::prepare("ping", "wakeup", work)?))
}

/// A turn: if the byte is here, works and passes it on; then waits for it.
fn operation(mut line: UnixStream, mut here: bool, steps: u64) -> Operation {
    let (mut byte, mut x) = ([0], 1);
    Box::new(move |slot| {
        if here {
            x = compute(x, steps);
            line.write_all(&byte)?;
            here = false;
        }
        match line.read(&mut byte) {
            Ok(0) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            Ok(_) => {
                here = true;
                slot.operation();
                Ok(())
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(e) => Err(e),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_pair_stops_and_goes_on() {
        let mut load = prepare(1, 10).unwrap();
        for _ in 0..2 {
            // Until the byte has passed in one of the runs; a slow machine needs several.
            loop {
                load.start().unwrap();
                std::thread::sleep(Duration::from_millis(50));
                let done = load.stop().unwrap();
                assert_eq!(done.unit, "wakeup");
                if done.operations > 0.0 {
                    break;
                }
            }
        }
    }
}
