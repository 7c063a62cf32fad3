// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs under the shim.

use std::path::{Path, PathBuf};
use std::process::Command;

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Builds the shim: cargo does not for its tests.
fn shim() -> PathBuf {
    let target = scratch().join("shim");
    let arguments = ["build", "--quiet", "--offline", "-p", "reprieve-shim", "--target-dir"];
    let mut build = Command::new(env!("CARGO"));
    run(build.args(arguments).arg(&target).current_dir(env!("CARGO_MANIFEST_DIR")));
    target.join("debug/libreprieve_locks.so")
}

/// Whether the program's calls of that function are bound to the shim.
fn bound(program: &mut Command, function: &str) -> bool {
    let output = program.env("LD_DEBUG", "bindings").env("LD_BIND_NOW", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let named = format!("`{function}'");
    text.lines().any(|line| {
        let mut parts = line.split(" to ");
        let from_program = parts.next().is_some_and(|from| from.contains("shim-locks"));
        from_program
            && parts.next().is_some_and(|to| to.contains("libreprieve_locks"))
            && line.contains(&named)
    })
}

#[test]
fn locks_of_c_programs() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/locks.c");
    let program = scratch().join("shim-locks");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    run(compiler.arg(&program).arg(source));
    let shim = shim();
    assert_eq!(run(&mut Command::new(&program)), "alone\n");
    assert_eq!(run(Command::new(&program).env("LD_PRELOAD", &shim)), "preloaded\n");
    for function in ["pthread_mutex_lock", "pthread_rwlock_wrlock", "pthread_cond_wait"] {
        let mut traced = Command::new(&program);
        assert!(bound(traced.env("LD_PRELOAD", &shim), function), "{function}");
    }
}
