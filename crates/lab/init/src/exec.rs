// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a program for the lab: in a lab host this is the lab itself.
//!
//! All of its output is sent before its end is reported: the pipes are read until they close. The
//! exception is a grandchild that keeps them open.

use crate::channel::Sender;
use crate::children::Process;
use crate::protocol::{Event, LINE_MAX, OUTPUT_MAX};
use crate::sys::{self, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The standard input of the program that runs.
static INPUT: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Most bytes of a line as JSON, which can be six times as long. The rest of [`LINE_MAX`] is for
/// the event around it.
const LONGEST_JSON: usize = LINE_MAX - 256;
/// How long the output of a program may go on after its end.
const OUTPUT_LIMIT: Duration = Duration::from_secs(60);

const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("TMPDIR", "/tmp"),
    ("LC_ALL", "C.UTF-8"),
];

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
    *INPUT.lock().unwrap_or_else(PoisonError::into_inner) = process.child.stdin.take();
    let (open, closed) = mpsc::channel();
    let to_lab = |stderr| {
        let out = out.clone();
        move |line| out.send(&Event::Output { stderr, line })
    };
    if let Some(pipe) = process.child.stdout.take() {
        forward(pipe, open.clone(), to_lab(false))?;
    }
    if let Some(pipe) = process.child.stderr.take() {
        forward(pipe, open.clone(), to_lab(true))?;
    }
    drop(open);
    let status = loop {
        if let Some(status) = process.wait(Duration::from_secs(3600)) {
            break status;
        }
    };
    *INPUT.lock().unwrap_or_else(PoisonError::into_inner) = None;
    // Ends with an error in any case: nobody sends anything.
    let _ = closed.recv_timeout(sys::scaled(OUTPUT_LIMIT));
    Ok(status)
}

/// Sends the lines of `pipe`, and drops `open` when it is closed.
fn forward(
    pipe: impl Read + Send + 'static,
    open: mpsc::Sender<()>,
    send: impl Fn(String) + Send + 'static,
) -> Result<()> {
    let run = move || {
        let mut pipe = BufReader::new(pipe);
        while let Some(line) = next_line(&mut pipe) {
            for part in parts(&line, LONGEST_JSON) {
                send(part.into());
            }
        }
        drop(open);
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
}
