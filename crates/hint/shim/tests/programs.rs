// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs under the shim.

mod common;

use common::{run, scratch, shim};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the loader says of the program's calls that it binds to the shim.
fn bound(program: &mut Command) -> Vec<String> {
    let output = program.env("LD_DEBUG", "bindings").env("LD_BIND_NOW", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let to_shim = |line: &&str| {
        let mut parts = line.split(" to ");
        let from_program = parts.next().is_some_and(|from| from.contains("shim-locks"));
        from_program && parts.next().is_some_and(|to| to.contains("libreprieve_locks"))
    };
    text.lines().filter(to_shim).map(String::from).collect()
}

/// Compiles `tests/c/NAME.c` to `shim-TO`.
fn compile(name: &str, to: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = scratch().join(format!("shim-{to}"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    run(compiler.arg(&program).arg(source).args(options));
    program
}

#[test]
fn locks_of_c_programs() {
    let program = compile("locks", "locks", &[]);
    let shim = shim();
    assert_eq!(run(&mut Command::new(&program)), "alone\n");
    assert_eq!(run(Command::new(&program).env("LD_PRELOAD", &shim)), "preloaded\n");
    let bound = bound(Command::new(&program).arg("loaded").env("LD_PRELOAD", &shim));
    for function in ["pthread_mutex_lock", "pthread_rwlock_wrlock", "pthread_cond_wait"] {
        let named = format!("`{function}'");
        assert!(bound.iter().any(|line| line.contains(&named)), "{function}: {bound:?}");
    }
}

/// Nothing that the shim does before its first lock is taken allocates.
#[test]
fn an_allocator_that_takes_locks() {
    let program = compile("allocator", "allocator", &[]);
    assert_eq!(run(&mut Command::new(&program)), "allocated\n");
    assert_eq!(run(Command::new(&program).env("LD_PRELOAD", shim())), "allocated\n");
}

/// Conditions as in glibc 2.41, and as before. Elsewhere all stays the C library's.
#[test]
fn layouts_of_conditions() {
    let program = compile("locks", "layouts", &[]);
    let shim = shim();
    let replaced = |offset: u32| {
        let define = format!("-DAT={offset}");
        let options = [define.as_str(), "-shared", "-fPIC", "-nostdlib"];
        let library = compile("conditions", &format!("conditions-{offset}.so"), &options);
        let preload = format!("{}:{}", shim.display(), library.display());
        run(Command::new(&program).arg("replaced").env("LD_PRELOAD", preload))
    };
    assert_eq!([28, 36, 40].map(replaced), ["yes\n", "yes\n", "no\n"]);
}
