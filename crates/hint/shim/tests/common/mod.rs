// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shim, and programs to run under it.

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Builds the shim, optimized as users have it: cargo does not for its tests.
pub fn shim() -> PathBuf {
    let target = scratch().parent().unwrap();
    let arguments = ["build", "--quiet", "--release", "--offline", "--target-dir"];
    let mut build = Command::new(env!("CARGO"));
    run(build.args(arguments).arg(target).current_dir(env!("CARGO_MANIFEST_DIR")));
    let directory = target.join("release");
    run(Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/link")).arg(&directory));
    directory.join("libreprieve_locks.so")
}

/// Compiles `tests/c/NAME.c` to `shim-TO`.
#[allow(dead_code, reason = "not all tests do")]
pub fn compile(name: &str, to: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = scratch().join(format!("shim-{to}"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    run(compiler.arg(&program).arg(source).args(options));
    program
}
