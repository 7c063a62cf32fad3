// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve hint run` as users run it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// `reprieve hint run -- PROGRAM ARGUMENTS`, with the library built beside the command.
fn run(program: &[&str]) -> Output {
    let command = Path::new(env!("CARGO_BIN_EXE_reprieve"));
    let profile = command.parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "-p", "reprieve-shim", "--target-dir"]);
    build.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hint/shim/link");
    assert!(Command::new(link).arg(profile).status().unwrap().success());
    let mut command = Command::new(command);
    command.env_remove("REPRIEVE_LOCKS_LIBRARY").env_remove("LD_PRELOAD");
    command.args(["hint", "run", "--"]).args(program).output().unwrap()
}

#[test]
fn programs_get_the_locks_or_a_reason() {
    let output = run(&["cat", "/proc/self/maps"]);
    let maps = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && maps.contains("/libreprieve_locks.so"), "{output:?}");
    // The C library of this machine is one that the library knows.
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));

    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    fs::copy("/bin/cat", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    refused(&program, "set-uid");
    refused(&directory.path().join("none"), "No such file");
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&pipe, "not a regular file");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    compile("cc", &["-static"], &program);
    refused(&program, "statically linked");
}

#[track_caller]
fn refused(program: &Path, why: &str) {
    let output = run(&[program.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains(why), "{why}: {output:?}");
}

/// Makes a program that says so.
fn compile(compiler: &str, options: &[&str], program: &Path) {
    let source = program.with_extension("c");
    fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ran\"); }\n").unwrap();
    let mut compiler = Command::new(compiler);
    assert!(compiler.args(options).arg(&source).arg("-o").arg(program).status().unwrap().success());
}

/// Sanitizers and valgrind's checks of locks do not know the library's.
#[test]
fn programs_that_check_locks_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    for (option, why) in [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer")] {
        compile("cc", &[&format!("-fsanitize={option}")], &program);
        refused(&program, why);
    }
    let output = run(&["valgrind", "--tool=helgrind", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("helgrind"), "{output:?}");
    // Valgrind's other tools find what they need.
    assert!(run(&["valgrind", "--quiet", "--error-exitcode=9", "true"]).status.success());
}

/// A child with another C library starts, without the library.
#[test]
fn children_with_musl_start() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    compile("musl-gcc", &[], &program);
    let output = run(&["sh", "-c", &format!("{}; exit $?", program.display())]);
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"ran\n"[..], &b""[..]), "{output:?}");
    refused(&program, "not linked with the GNU C library");
}

/// Tools that change the name of a program's loader put the new one at the end.
#[test]
fn the_name_of_the_loader_may_be_anywhere_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("cat");
    let mut bytes = fs::read("/bin/cat").unwrap();
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    let headers = (0..number(56, 2)).map(|n| number(32, 8) + n * number(54, 2));
    // PT_INTERP, and in it the place in the file and the size.
    let header = headers.into_iter().find(|&at| number(at, 4) == 3).unwrap();
    let (at, size) = (number(header + 8, 8), number(header + 32, 8));
    let name = bytes[at..at + size].to_vec();
    bytes[at..at + size].fill(b'x');
    bytes.resize(bytes.len().max(3 << 20), 0);
    let at = bytes.len() as u64;
    bytes[header + 8..header + 16].copy_from_slice(&at.to_le_bytes());
    bytes.extend(name);
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let output = run(&[program.to_str().unwrap(), "/proc/self/maps"]);
    let maps = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && maps.contains("/libreprieve_locks.so"), "{output:?}");
}

#[test]
fn a_region_is_made_once_and_can_be_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a,b");
    let region = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
        command.env("REPRIEVE_HINT_REGION", "off").args(["hint", "region"]).args(words);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let name = file.to_str().unwrap();
    let (code, options, said) = region(&["create", name]);
    assert!(code == Some(0) && said.contains("created"), "{said}");
    assert!(options.contains("/a,,b,size=1048576,share=on"), "{options}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
    let (code, again, said) = region(&["create", name]);
    assert!(code == Some(0) && again == options && said.contains("already"), "{said}");
    let (code, shown, _) = region(&["show", name]);
    assert!(code == Some(0) && shown.contains("0 threads"), "{shown}");
    let (code, shown, _) = region(&["show", "--json", name]);
    assert!(code == Some(0) && shown.contains(r#""threads""#), "{shown}");

    // A file that is not a region is left alone.
    let other = directory.path().join("other");
    fs::write(&other, "precious").unwrap();
    let (code, _, said) = region(&["create", other.to_str().unwrap()]);
    assert!(code == Some(1) && said.contains("something else"), "{said}");
    let (code, _, said) = region(&["show", other.to_str().unwrap()]);
    assert!(code == Some(1) && said.contains("no region of this version"), "{said}");
    assert_eq!(fs::read(&other).unwrap(), b"precious");
    let (code, _, said) = region(&["show"]);
    assert!(code == Some(1) && said.contains("REPRIEVE_HINT_REGION=off"), "{said}");
}
