// SPDX-License-Identifier: MIT OR Apache-2.0
//! A load made of threads of init behind a [`Gate`].

use super::{Directory, Done, Load, Operation};
use crate::gate::Gate;
use crate::sys::{self, Context, Result, now_ns};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a worker may take to finish an operation.
const SETTLE: Duration = Duration::from_secs(20);

/// The name of a thread, in messages.
const NAME: &str = "worker thread";

pub struct Threads {
    gate: Gate,
    threads: Vec<JoinHandle<()>>,
    unit: &'static str,
    /// The directory of the threads' files; dropped after them.
    directory: Option<Directory>,
}

impl Threads {
    /// A thread per entry of `work`: the CPU to which it is bound, if any, and its operation.
    pub fn prepare(
        name: &'static str,
        unit: &'static str,
        work: Vec<(Option<u32>, Operation)>,
    ) -> Result<Threads> {
        let gate = Gate::new(work.len())?;
        let mut load = Threads { gate: gate.clone(), threads: Vec::new(), unit, directory: None };
        let (tell, told) = std::sync::mpsc::channel();
        for (i, (cpu, operation)) in work.into_iter().enumerate() {
            let (gate, tell) = (gate.clone(), tell.clone());
            let run = move || {
                let pinned = cpu.map_or(Ok(()), sys::pin);
                let fine = pinned.is_ok();
                let _ = tell.send(pinned);
                drop(tell);
                if fine {
                    gate.work(i, operation);
                }
            };
            let builder = std::thread::Builder::new().name(format!("{name}{i}"));
            load.threads
                .push(builder.stack_size(128 << 10).spawn(run).context("starting a thread")?);
        }
        drop(tell);
        // `load` is dropped, and with it the other threads, if one could not be bound.
        for pinned in told {
            pinned?;
        }
        Ok(load)
    }

    /// Makes the load the owner of the directory that its threads use.
    pub fn keeping(mut self, directory: Directory) -> Threads {
        self.directory = Some(directory);
        self
    }
}

impl Load for Threads {
    fn start(&mut self) -> Result<u64> {
        let t = now_ns();
        self.gate.start();
        Ok(t)
    }

    fn stop(&mut self) -> Result<Done> {
        self.gate.close();
        let end_ns = now_ns();
        self.gate.settle(NAME, SETTLE)?;
        Ok(Done::counted(&self.gate, end_ns, self.unit))
    }

    fn check(&mut self, _: Duration) -> Result<()> {
        self.gate.check(NAME)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.gate.quit();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_fails_in_a_running_load_is_found() {
        let mut calls = 0;
        let fails: Operation = Box::new(move |slot| {
            slot.operation();
            calls += 1;
            let full = || std::io::Error::from_raw_os_error(libc::ENOSPC);
            if calls < 100 { Ok(()) } else { Err(full()) }
        });
        let works: Operation = Box::new(|slot| {
            slot.operation();
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        let mut load =
            Threads::prepare("test", "call", vec![(None, works), (None, fails)]).unwrap();
        load.check(Duration::ZERO).unwrap();
        load.start().unwrap();
        let error = loop {
            match load.check(Duration::ZERO) {
                Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => break error,
            }
        };
        assert!(error.starts_with("worker thread 1 failed: No space"), "{error}");
    }
}
