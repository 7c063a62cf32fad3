// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a program for the lab: in a lab host this is the lab itself.
//!
//! All of its output is sent before its end is reported: the pipes are read until they close. The
//! exception is a grandchild that keeps them open and writes nothing more.

use crate::channel::Sender;
use crate::children::Process;
use crate::protocol::{Event, LINE_MAX, OUTPUT_MAX};
use crate::sys::{self, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The program that runs, for [`interrupt`]; 0 for none.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Its standard input.
static INPUT: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Most bytes of a line as JSON, which can be six times as long. The rest of [`LINE_MAX`] is for
/// the event around it.
const LONGEST_JSON: usize = LINE_MAX - 256;
/// After the end of a program: how long its output may pause, and how long it may go on in all.
const SILENCE: Duration = Duration::from_secs(2);
const OUTPUT_LIMIT: Duration = Duration::from_secs(120);

const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("TMPDIR", "/tmp"),
    ("LC_ALL", "C.UTF-8"),
];

/// Sends SIGINT to the program that runs, if one does. From any thread.
pub fn interrupt() {
    let pid = RUNNING.load(Ordering::Acquire);
    if pid > 0 {
        let _ = sys::kill(pid, libc::SIGINT);
    }
}

/// Sends a line to the program that runs, if one does and reads it. From any thread.
pub fn input(line: &str) {
    if let Some(pipe) = &mut *INPUT.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = writeln!(pipe, "{line}");
    }
}

/// Runs a program to its end; returns its exit status, or 128 + the signal that killed it.
pub fn run(argv: &[String], env: &[(String, String)], out: &Sender) -> Result<i32> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err("exec: no program given".into());
    };
    let _ = std::fs::create_dir_all("/root");
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(ENVIRONMENT);
    command.envs(env.iter().map(|(k, v)| (k, v))).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command)?;
    RUNNING.store(process.pid(), Ordering::Release);
    *INPUT.lock().unwrap_or_else(PoisonError::into_inner) = process.child.stdin.take();
    let (open, mut output) = output();
    let to_lab = |stderr| {
        let out = out.clone();
        move |line| out.send(&Event::Output { stderr, line })
    };
    if let Some(pipe) = process.child.stdout.take() {
        output.pipes.extend(pipe.as_fd().try_clone_to_owned());
        forward(pipe, open.clone(), to_lab(false))?;
    }
    if let Some(pipe) = process.child.stderr.take() {
        output.pipes.extend(pipe.as_fd().try_clone_to_owned());
        forward(pipe, open.clone(), to_lab(true))?;
    }
    drop(open);
    let status = loop {
        if let Some(status) = process.wait(Duration::from_secs(3600)) {
            break status;
        }
    };
    RUNNING.store(0, Ordering::Release);
    *INPUT.lock().unwrap_or_else(PoisonError::into_inner) = None;
    output.wait(sys::scaled(SILENCE), sys::scaled(OUTPUT_LIMIT));
    Ok(status)
}

/// Lines read from the pipes, and lines handed on.
#[derive(Default)]
struct Lines {
    read: AtomicU64,
    sent: AtomicU64,
}

/// Held by the reader of a pipe as long as the pipe is open.
#[derive(Clone)]
struct Open {
    lines: Arc<Lines>,
    _open: mpsc::Sender<()>,
}

impl Open {
    fn read(&self) {
        self.lines.read.fetch_add(1, Ordering::Release);
    }

    fn sent(&self) {
        self.lines.sent.fetch_add(1, Ordering::Release);
    }
}

/// Sees when all [`Open`]s are dropped.
struct Output {
    lines: Arc<Lines>,
    closed: mpsc::Receiver<()>,
    /// To see whether the threads that read them have had a CPU.
    pipes: Vec<OwnedFd>,
}

fn output() -> (Open, Output) {
    let (open, closed) = mpsc::channel();
    let lines = Arc::new(Lines::default());
    (Open { lines: lines.clone(), _open: open }, Output { lines, closed, pipes: Vec::new() })
}

impl Output {
    /// Waits until every pipe is closed, or no line has come for `silence`, or `limit` has passed.
    /// A line that waits to be read or sent is no silence: then the lab is slow, not the program.
    fn wait(&self, silence: Duration, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.wait_by(|closed| {
            closed.recv_timeout(silence) == Err(mpsc::RecvTimeoutError::Timeout)
                && Instant::now() < deadline
        });
    }

    /// Does so with a `pause` that lets the time of a silence pass, and returns whether to go on.
    fn wait_by(&self, mut pause: impl FnMut(&mpsc::Receiver<()>) -> bool) {
        let unread = || self.pipes.iter().any(|pipe| sys::readable(pipe.as_fd(), 0));
        let mut before = None;
        loop {
            let sent = self.lines.sent.load(Ordering::Acquire);
            let idle = self.lines.read.load(Ordering::Acquire) == sent;
            if idle && before == Some(sent) && !unread() {
                return;
            }
            before = Some(sent);
            if !pause(&self.closed) {
                return;
            }
        }
    }
}

/// Sends the lines of `pipe`.
fn forward(
    pipe: impl Read + Send + 'static,
    open: Open,
    send: impl Fn(String) + Send + 'static,
) -> Result<()> {
    let run = move || {
        let mut pipe = BufReader::new(pipe);
        while let Some(line) = next_line(&mut pipe) {
            open.read();
            for part in parts(&line, LONGEST_JSON) {
                send(part.into());
            }
            open.sent();
        }
    };
    std::thread::Builder::new()
        .name("output".into())
        .spawn(run)
        .map(drop)
        .map_err(|e| format!("starting an output thread: {e}"))
}

fn next_line(pipe: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    match pipe.take(OUTPUT_MAX as u64).read_until(b'\n', &mut line) {
        Ok(n) if n > 0 => {}
        _ => return None,
    }
    while line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        line.pop();
    }
    Some(String::from_utf8_lossy(&line).into_owned())
}

/// Cuts `line` into as few parts as make at most `most` bytes of JSON each; an empty line is one
/// part.
fn parts(line: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut length) = (0, 0);
    for (at, c) in line.char_indices() {
        let bytes = match c {
            '"' | '\\' => 2,
            c if c.is_ascii_control() => 6,
            c => c.len_utf8(),
        };
        if length + bytes > most && at > start {
            parts.push(&line[start..at]);
            (start, length) = (at, 0);
        }
        length += bytes;
    }
    parts.push(&line[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_into_lines() {
        let mut input = &b"one\r\n\ntwo \xff\nlast"[..];
        let lines: Vec<String> = std::iter::from_fn(|| next_line(&mut input)).collect();
        assert_eq!(lines, ["one", "", "two \u{fffd}", "last"]);
    }

    #[test]
    fn endless_line_is_broken_up() {
        let long = vec![b'x'; OUTPUT_MAX + 10];
        let mut input = &long[..];
        assert_eq!(next_line(&mut input).unwrap().len(), OUTPUT_MAX);
        assert_eq!(next_line(&mut input).unwrap().len(), 10);
        assert_eq!(next_line(&mut input), None);
    }

    #[test]
    fn every_line_sent_is_one_that_the_lab_accepts() {
        let most = OUTPUT_MAX;
        let dearest = ["x", "\"", "\\", "\u{1}", "\u{1b}", "\u{7f}", "\u{fffd}", "\u{10ffff}"];
        for text in dearest.map(|c| c.repeat(most)) {
            // Each byte that is no UTF-8 becomes three.
            let text = if text.starts_with('\u{fffd}') { text } else { text[..most].into() };
            let parts = parts(&text, LONGEST_JSON);
            assert_eq!(parts.concat(), text);
            for part in parts {
                let event = Event::Output { stderr: false, line: part.into() };
                assert!(serde_json::to_string(&event).unwrap().len() < LINE_MAX);
            }
        }
        let record = r#"{"text":"a \"b\""}"#.repeat(most / 17);
        assert_eq!(parts(&record, LONGEST_JSON).len(), 1, "a record stays whole");
        assert_eq!(parts("", 10), [""]);
        assert_eq!(parts("ab\u{1}c", 7), ["ab", "\u{1}c"]);
    }

    #[test]
    fn what_waits_to_be_read_is_no_silence() {
        use std::io::Write;
        let (mut pipe, end) = std::os::unix::net::UnixStream::pair().unwrap();
        let (_open, mut output) = output();
        output.pipes.push(end.try_clone().unwrap().into());
        pipe.write_all(b"x").unwrap();
        let mut pauses = 0;
        output.wait_by(|_| {
            pauses += 1;
            if pauses == 10 {
                (&end).read_exact(&mut [0]).unwrap();
            }
            true
        });
        assert_eq!(pauses, 10);
    }

    /// Writes a line in each pause but the last, then holds the pipe open.
    #[test]
    fn output_is_waited_for_while_it_goes_on_and_not_longer() {
        use std::io::Write;
        let (mut pipe, end) = std::os::unix::net::UnixStream::pair().unwrap();
        let (lines, received) = mpsc::channel();
        let (open, output) = output();
        forward(end, open, move |line| drop(lines.send(line))).unwrap();
        let mut pauses = 0;
        output.wait_by(|_| {
            pauses += 1;
            if pauses <= 20 {
                writeln!(pipe, "{pauses}").unwrap();
                assert_eq!(received.recv().unwrap(), pauses.to_string());
                // The line is counted right after it was handed on.
                while output.lines.sent.load(Ordering::Acquire) < pauses {
                    std::thread::yield_now();
                }
            }
            true
        });
        assert_eq!(pauses, 21, "a pipe held open ends the wait after one silence");
        drop(pipe);
        // Closed now: no need to wait for a silence.
        let forever = Duration::from_secs(24 * 3600);
        output.wait(forever, forever);
    }
}
