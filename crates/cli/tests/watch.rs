// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve watch` as users run it. Needs root.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn watching_ends_with_its_reader() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
    command.args(["watch", "--json", "--interval", "100ms"]).stdin(Stdio::null());
    let mut child = common::ends_with_test(&mut command).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    assert!(child.wait().unwrap().success());
}
