// SPDX-License-Identifier: MIT OR Apache-2.0
//! A benchmark program whose output the lab follows while it runs.
//!
//! Its output goes to a pseudo-terminal, so that it writes every line at once and not when a buffer
//! is full. Lines are kept with the time at which they were read.

use crate::children::Process;
use crate::sys::{self, Context, Result, now_ns, scaled};
use rustix::process::Signal;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long the last output of a program that has ended is waited for.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Most lines that are kept; later output is read and dropped.
const MOST_LINES: usize = 100_000;

/// A line (the last may not be whole yet) and when its first byte was read (`CLOCK_MONOTONIC`, ns).
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub time_ns: u64,
    pub text: String,
}

#[derive(Default)]
struct Output {
    lines: Mutex<Vec<Line>>,
    grown: Condvar,
    /// Whether all of it was read.
    whole: AtomicBool,
}

pub struct PtyProgram {
    name: String,
    process: Process,
    output: Arc<Output>,
    /// To see whether the thread that reads it has had a CPU.
    terminal: File,
}

impl PtyProgram {
    pub fn start(name: &str, command: &mut Command) -> Result<PtyProgram> {
        let (master, slave) = sys::pty().context("pseudo-terminal")?;
        let errors = slave.try_clone().context("pseudo-terminal")?;
        command.stdin(Stdio::null()).stdout(slave).stderr(errors);
        let process = Process::spawn(command)?;
        // The command holds the other side of the terminal, which must close when the program ends.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let output = Arc::new(Output::default());
        let (into, name) = (output.clone(), name.to_string());
        let terminal = master.try_clone().context("pseudo-terminal")?;
        std::thread::Builder::new()
            .name("program".into())
            .stack_size(64 << 10)
            .spawn(move || read(master, &into))
            .context(format_args!("starting the reader of {name}"))?;
        Ok(PtyProgram { name, process, output, terminal })
    }

    pub fn lines(&self) -> Vec<Line> {
        self.output.lines.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Waits until one of its lines satisfies `wanted`; an error if it ends before, or takes longer
    /// than `limit`.
    pub fn wait_for(&self, wanted: impl Fn(&str) -> bool, limit: Duration) -> Result<Line> {
        let start = Instant::now();
        let deadline = start + scaled(limit);
        let mut seen = 0;
        let mut ended = None;
        let mut lines = self.output.lines.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if let Some(line) = lines[seen..].iter().find(|l| wanted(&l.text)) {
                return Ok(line.clone());
            }
            // The last line may still grow.
            seen = lines.len().saturating_sub(1);
            let late = Instant::now() > deadline;
            // The program's last words may not be read yet; a child of it may keep the terminal
            // open.
            if ended.is_none() && self.process.status().is_some() {
                ended = Some(Instant::now() + scaled(LAST_OUTPUT));
            }
            let read = || !sys::readable(self.terminal.as_fd(), 0);
            let over =
                |until| self.output.whole.load(Relaxed) || (Instant::now() > until && read());
            if late || ended.is_some_and(over) {
                drop(lines);
                return Err(if late {
                    format!(
                        "{} did not print the expected line within {} s{}",
                        self.name,
                        start.elapsed().as_secs(),
                        self.tail()
                    )
                } else {
                    self.check()
                        .err()
                        .unwrap_or_else(|| format!("{} ended{}", self.name, self.tail()))
                });
            }
            let wait = Duration::from_millis(100);
            lines =
                self.output.grown.wait_timeout(lines, wait).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// An error if it has ended.
    pub fn check(&self) -> Result<()> {
        match self.process.status() {
            Some(status) => Err(format!("{} ended with status {status}{}", self.name, self.tail())),
            None => Ok(()),
        }
    }

    fn tail(&self) -> String {
        let lines = self.lines();
        let tail: Vec<&str> =
            lines[lines.len().saturating_sub(5)..].iter().map(|l| l.text.as_str()).collect();
        if tail.is_empty() { String::new() } else { format!("; its output: {}", tail.join(" / ")) }
    }

    /// Signals it and its children.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

/// Collects the output until the other side is closed.
fn read(mut from: File, into: &Output) {
    let mut chunk = [0; 4096];
    let mut fresh = true;
    // On Linux the end of a pseudo-terminal is an error (EIO).
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        let time_ns = now_ns();
        let mut lines = into.lines.lock().unwrap_or_else(|e| e.into_inner());
        for byte in chunk[..n].iter().map(|b| char::from(*b)) {
            if byte == '\n' || byte == '\r' {
                fresh = true;
            } else if lines.len() < MOST_LINES {
                if fresh {
                    lines.push(Line { time_ns, text: String::new() });
                    fresh = false;
                }
                if let Some(line) = lines.last_mut() {
                    line.text.push(byte);
                }
            }
        }
        into.grown.notify_all();
    }
    let _lines = into.lines.lock().unwrap_or_else(|e| e.into_inner());
    into.whole.store(true, Relaxed);
    into.grown.notify_all();
}
