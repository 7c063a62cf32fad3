// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve watch` as users run it. Needs root.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_vm_that_never_came_is_named() {
    let name = format!("no-such-{}", std::process::id());
    for args in [&["watch"][..], &["guard", "--dry-run"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
        command.args(args).args(["--for", "200ms", "--vm", &name]).stdin(Stdio::null());
        let output = common::ends_with_test(&mut command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(&format!("no VM {name} was seen")), "{args:?}: {said}");
    }
}

#[test]
fn watching_ends_with_its_reader() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
    command.args(["watch", "--json", "--interval", "100ms"]).stdin(Stdio::null());
    let mut child = common::ends_with_test(&mut command).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"schema\":3,"), "{line}");
    assert!(child.wait().unwrap().success());
}
