// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a program for the lab: in a lab host this is the lab itself.

use crate::channel::Sender;
use crate::children::Process;
use crate::protocol::Event;
use crate::sys::{self, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The program that runs, for [`interrupt`]; 0 for none.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Longer lines are broken up.
const LONGEST_LINE: u64 = 64 << 10;
/// How long output may take to end after the program has.
const OUTPUT_LIMIT: Duration = Duration::from_secs(2);

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

/// Runs a program to its end; returns its exit status, or 128 + the signal that killed it.
pub fn run(argv: &[String], env: &[(String, String)], out: &Sender) -> Result<i32> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err("exec: no program given".into());
    };
    let _ = std::fs::create_dir_all("/root");
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(ENVIRONMENT);
    command.envs(env.iter().map(|(k, v)| (k, v))).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command)?;
    RUNNING.store(process.pid(), Ordering::Release);
    let (done, ended) = mpsc::channel();
    if let Some(pipe) = process.child.stdout.take() {
        forward(pipe, false, out.clone(), done.clone())?;
    }
    if let Some(pipe) = process.child.stderr.take() {
        forward(pipe, true, out.clone(), done.clone())?;
    }
    drop(done);
    let status = loop {
        if let Some(status) = process.wait(Duration::from_secs(3600)) {
            break status;
        }
    };
    RUNNING.store(0, Ordering::Release);
    // A grandchild may hold the pipes open; its output is no longer waited for.
    while let Ok(()) = ended.recv_timeout(OUTPUT_LIMIT) {}
    Ok(status)
}

/// Sends what comes out of `pipe` line by line.
fn forward(
    pipe: impl Read + Send + 'static,
    stderr: bool,
    out: Sender,
    done: mpsc::Sender<()>,
) -> Result<()> {
    let run = move || {
        let mut pipe = BufReader::new(pipe);
        while let Some(line) = next_line(&mut pipe) {
            out.send(&Event::Output { stderr, line });
        }
        let _ = done.send(());
    };
    std::thread::Builder::new()
        .name("output".into())
        .spawn(run)
        .map(drop)
        .map_err(|e| format!("starting an output thread: {e}"))
}

fn next_line(pipe: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    match pipe.take(LONGEST_LINE).read_until(b'\n', &mut line) {
        Ok(n) if n > 0 => {}
        _ => return None,
    }
    while line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        line.pop();
    }
    Some(String::from_utf8_lossy(&line).into_owned())
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
        let long = vec![b'x'; LONGEST_LINE as usize + 10];
        let mut input = &long[..];
        assert_eq!(next_line(&mut input).unwrap().len(), LONGEST_LINE as usize);
        assert_eq!(next_line(&mut input).unwrap().len(), 10);
        assert_eq!(next_line(&mut input), None);
    }
}
