// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs under the shim.

mod common;

use common::{run, scratch, shim};
use std::path::Path;
use std::process::Command;

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
