// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve verify` as a process.

use std::process::{Command, Output};

fn verify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_reprieve")).arg("verify").args(arguments).output().unwrap()
}

/// Compiles a program whose section contains this.
fn program(directory: &std::path::Path, name: &str, body: &str) -> String {
    let (source, program) = (directory.join("p.c"), directory.join(name));
    let text = format!(
        "__attribute__((section(\"reprieve_restart\"), used)) static long f(void) {{ {body} }}\nint main(void) {{ return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let status =
        Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(status.success());
    program.into_os_string().into_string().unwrap()
}

#[test]
fn the_exit_status_tells_clean_files_from_others() {
    let directory = tempfile::tempdir().unwrap();
    let good = program(directory.path(), "good", "return 1;");
    let bad = program(directory.path(), "bad", "__asm__ volatile(\"syscall\"); return 1;");
    let output = verify(&[&good]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("clean: 1 functions"));
    let output = verify(&[&good, &bad]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("bad: f+0x") && text.contains("`syscall` enters the kernel"), "{text}");
    assert_eq!(verify(&[]).status.code(), Some(2));
    assert_eq!(verify(&["--nonsense", &good]).status.code(), Some(2));
    let nothing = directory.path().join("nothing");
    assert_eq!(verify(&[nothing.to_str().unwrap()]).status.code(), Some(1));
    assert_eq!(verify(&[directory.path().to_str().unwrap()]).status.code(), Some(1));
}

#[test]
fn json_names_the_rule_and_the_function() {
    let directory = tempfile::tempdir().unwrap();
    let bad = program(directory.path(), "bad", "__asm__ volatile(\"syscall\"); return 1;");
    let output = verify(&["--json", &bad, "/dev/null"]);
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[0]["clean"], false);
    assert_eq!(value[0]["findings"][0]["rule"], "system");
    assert_eq!(value[0]["findings"][0]["function"], "f");
    assert!(value[1]["error"].as_str().unwrap().contains("regular file"));
}

#[test]
fn text_of_a_file_does_not_control_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let body = "return 1; } __attribute__((section(\"reprieve_restart\"), used)) static long gEVIL(void) { __asm__ volatile(\"syscall\"); return 1;";
    let bad = program(directory.path(), "bad\n\u{1b}[2J", body);
    let mut bytes = std::fs::read(&bad).unwrap();
    let at = bytes.windows(6).position(|bytes| bytes == b"gEVIL\0").unwrap();
    bytes[at + 1..at + 5].copy_from_slice(b"\x1b[2J");
    std::fs::write(&bad, bytes).unwrap();
    let none = format!("{bad}-none");
    let output = verify(&[&bad, &none]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("bad??[2J: g?[2J+0x") && text.contains("bad??[2J-none: No such"),
        "{text}"
    );
    assert!(text.lines().count() == 2 && !text.contains('\u{1b}'), "{text:?}");
}

/// Nobody writes to it: nothing must wait for that.
#[test]
fn a_pipe_is_no_program() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = verify(&[pipe.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("not a regular file"), "{output:?}");
}
