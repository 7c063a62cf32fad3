// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve bench` as users run it.

mod common;

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
    command.arg("bench").args(arguments).stdin(Stdio::null());
    common::ends_with_test(&mut command);
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn all_benchmarks_end_with_one_table() {
    let short = ["all", "--seconds", "1", "--rounds", "1", "--readers", "1", "--against", "rwlock"];
    let output = bench(&short).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let summary = out.split("\n### ").next().unwrap();
    for measure in ["hash lookup, restartable, 1 reader", "Map lookup, plain", "<= 1 MB"] {
        assert!(summary.contains(measure), "{measure}: {summary}");
    }
}

/// A row is one line, however many columns it has.
#[test]
fn rows_in_a_pipe_are_lines() {
    let short = ["locks", "--seconds", "0.2", "--rounds", "2", "--readers", "1"];
    let output = bench(&short).args(["--against", "pthread"]).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let rows: Vec<_> = out.lines().filter(|line| line.contains("..")).collect();
    // A cell that is wrapped has its range on a line without a name.
    assert!(rows.len() >= 2 && rows.iter().all(|row| !row.starts_with("|  ")), "{out}");
    assert!(rows.iter().any(|row| row.contains("| pthread ")), "{out}");
}

/// Whether the process has a handler for SIGINT.
fn takes_interrupts(pid: libc::pid_t) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (libc::SIGINT - 1)) != 0
}

/// The output of a run that gets SIGINT, alone or with its whole process group, as from a terminal.
fn interrupted(arguments: &[&str], group: bool) {
    let mut command = bench(arguments);
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    while !takes_interrupts(pid) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Most likely among its measurements; the same must happen before them.
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: our child, which has not been waited for, and leads its group.
    assert_eq!(unsafe { libc::kill(if group { -pid } else { pid }, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("interrupted"), "{err}");
}

#[test]
fn an_interrupted_run_says_so() {
    interrupted(&["all", "--seconds", "3600", "--against", "rwlock"], false);
}

/// Ctrl-C wakes processes that wait in System V calls: that is no failure of the calls.
#[test]
fn an_interrupted_run_of_several_processes_says_so() {
    interrupted(&["txn", "--seconds", "3600", "--readers", "1"], true);
}

#[test]
fn nohup_protects_a_run() {
    let mut command = Command::new("sh");
    let script =
        "trap '' HUP; echo && exec \"$0\" bench read --seconds 1 --rounds 1 --against rwlock";
    command.args(["-c", script, env!("CARGO_BIN_EXE_reprieve")]).stdin(Stdio::null());
    common::ends_with_test(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // From here on the shell ignores it.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    while child.try_wait().unwrap().is_none() {
        // SAFETY: our child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGHUP) }, 0);
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_does_not_exist_is_bad_usage() {
    for (arguments, named) in [
        (&["everything"][..], "[possible values: read, grace"),
        (&["all", "--against", "kernel"], "kernel"),
        (&["read", "--seconds", "0"], "--seconds"),
        (&["all", "--seconds", "nan"], "--seconds"),
        (&["read", "--readers", "1,2,1"], "1 is named twice"),
    ] {
        let output = bench(arguments).output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
        assert!(err.contains(named), "{arguments:?}: {err}");
    }
}
