// SPDX-License-Identifier: MIT OR Apache-2.0
//! A load made of processes behind a [`Gate`]. A process is this program with the gate as its
//! standard input; its arguments name the operation to repeat.

use super::{Directory, Done, Load, Operation};
use crate::children::Process;
use crate::gate::Gate;
use crate::sys::{Context, Result, now_ns};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

/// First argument of a worker process. (Process 1 may get words of the kernel's command line as
/// arguments; it ignores them.)
pub const ROLE: &str = "worker";

/// How long a worker may take to finish an operation.
const SETTLE: Duration = Duration::from_secs(60);

pub struct Workers {
    gate: Gate,
    processes: Vec<Process>,
    name: &'static str,
    unit: &'static str,
    /// The directory of the processes' files; dropped after them.
    directory: Option<Directory>,
}

impl Workers {
    /// `count` processes that each run [`main`] with `name` and `arguments`.
    pub fn prepare(
        name: &'static str,
        unit: &'static str,
        count: u32,
        arguments: &[u64],
    ) -> Result<Workers> {
        let gate = Gate::new(count as usize)?;
        let mut load = Workers { gate, processes: Vec::new(), name, unit, directory: None };
        for index in 0..count {
            let mut command = Command::new("/proc/self/exe");
            command.args([ROLE, name]);
            for n in [count.into(), index.into()].iter().chain(arguments) {
                command.arg(n.to_string());
            }
            command.stdin(load.gate.fd()?).stdout(Stdio::null());
            load.processes.push(Process::spawn(&mut command)?);
        }
        Ok(load)
    }

    /// Makes the load the owner of the directory that its processes use.
    pub fn keeping(mut self, directory: Directory) -> Workers {
        self.directory = Some(directory);
        self
    }

    /// An error that names a worker that has ended.
    fn failed(&self) -> Result<()> {
        for (i, process) in self.processes.iter().enumerate() {
            if let Some(status) = process.status() {
                // The gate has the reason if the worker could write it. It may also show the worker
                // as busy for ever: it was killed in an operation.
                self.gate.check(self.name)?;
                return Err(format!("{} {i} ended with status {status}", self.name));
            }
        }
        Ok(())
    }
}

impl Load for Workers {
    fn start(&mut self) -> Result<u64> {
        let t = now_ns();
        self.gate.start();
        Ok(t)
    }

    fn stop(&mut self) -> Result<Done> {
        self.gate.close();
        let end_ns = now_ns();
        self.failed()?;
        self.gate.settle(self.name, SETTLE)?;
        Ok(Done::counted(&self.gate, end_ns, self.unit))
    }

    fn check(&mut self, _: Duration) -> Result<()> {
        self.failed()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.gate.quit();
        for process in &self.processes {
            // Processes that do not end are killed when they are dropped.
            process.wait(Duration::from_secs(2));
        }
    }
}

/// The life of a worker process with `arguments` `NAME WORKERS INDEX ARGUMENTS...` and the gate as
/// its standard input: repeats what `operation` returns for NAME, INDEX and ARGUMENTS.
pub fn main(
    arguments: &[String],
    operation: impl FnOnce(&str, u64, &[u64]) -> Option<Operation>,
) -> Result<()> {
    let Some((name, numbers)) = arguments.split_first() else {
        return Err("no worker named".into());
    };
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|n| n.parse().context(format_args!("worker argument {n:?}")))
        .collect::<Result<_>>()?;
    let [count, index, rest @ ..] = &numbers[..] else {
        return Err(format!("worker {name}: too few arguments"));
    };
    let mut operation = operation(name, *index, rest)
        .ok_or_else(|| format!("no worker {name} with {} arguments", rest.len()))?;
    let gate = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
    Gate::from_fd(gate, *count as usize)?.work(*index as usize, &mut operation);
    Ok(())
}
