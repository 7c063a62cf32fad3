// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts threads together, and ends those that have started where one cannot be.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

/// Where threads wait for a common start.
///
/// No `std::sync::Barrier`: a barrier hands its mutex from thread to thread, and with more threads
/// than CPUs each hand-over waits for the threads that have passed it already and are computing.
/// That took seconds in all.
#[derive(Default)]
pub struct Gate {
    waiting: AtomicUsize,
    open: AtomicBool,
}

impl Gate {
    pub const LOOK: Duration = Duration::from_micros(500);

    /// Waits until another thread opens the gate.
    pub fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            std::thread::sleep(Gate::LOOK);
        }
    }

    /// Waits until `threads` threads wait at the gate, then opens it.
    pub fn open(&self, threads: usize) {
        while self.waiting.load(Ordering::SeqCst) < threads {
            std::thread::sleep(Gate::LOOK);
        }
        self.open.store(true, Ordering::SeqCst);
    }
}

/// Does something when it is dropped, also on a panic or where a thread cannot be started: tells
/// threads to end, for which their scope waits.
pub struct Last<F: Fn()>(pub F);

impl<F: Fn()> Drop for Last<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Starts `of` threads that do `work`, which is told the number of its thread.
///
/// # Errors
/// [`Error::Thread`] if one cannot be started. Those before it run: the caller ends them.
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    of: usize,
    work: impl Fn(usize) -> T + Clone + Send + 'scope,
) -> Result<Vec<ScopedJoinHandle<'scope, T>>> {
    start_as(scope, of, |_| Builder::new(), work)
}

fn start_as<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    of: usize,
    builder: impl Fn(usize) -> Builder,
    work: impl Fn(usize) -> T + Clone + Send + 'scope,
) -> Result<Vec<ScopedJoinHandle<'scope, T>>> {
    let start = |number| {
        let work = work.clone();
        let thread = builder(number).spawn_scoped(scope, move || work(number));
        thread.map_err(|source| Error::Thread { number: number + 1, of, source })
    };
    (0..of).map(start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_end_where_a_thread_cannot_be_started() {
        let (gate, ended) = (Gate::default(), AtomicUsize::new(0));
        // No machine has so much memory for the stack of the third.
        let builder = |number| match number {
            2 => Builder::new().stack_size(1 << 60),
            _ => Builder::new(),
        };
        let started = std::thread::scope(|scope| -> Result<()> {
            let (gate, ended) = (&gate, &ended);
            let _end = Last(|| gate.open(0));
            let wait = |_| {
                gate.pass();
                ended.fetch_add(1, Ordering::SeqCst);
            };
            start_as(scope, 4, builder, wait)?;
            gate.open(4);
            Ok(())
        });
        assert!(matches!(started, Err(Error::Thread { number: 3, of: 4, .. })), "{started:?}");
        assert_eq!(ended.into_inner(), 2);
    }
}
