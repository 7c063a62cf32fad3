// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beside other libraries that are preloaded, and in programs that are hard to reach.

use crate::{Namespace, as_nobody, compiled, done};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A C source of this directory's, as a library.
fn library(name: &str, to: &Path) -> PathBuf {
    let source = format!("{}/tests/ipc/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let library = to.join(format!("lib{name}.so"));
    let flags = ["-O1", "-Wall", "-fno-builtin", "-shared", "-fPIC"];
    done(Command::new("cc").args(flags).arg(source).arg("-o").arg(&library));
    library
}

/// Item 1 of issue 55.
#[test]
fn functions_that_other_libraries_replace_are_not_called() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("calls", directory.path());
    let replaced = library("replaced", directory.path());
    let mut run = n.run(&[program.to_str().unwrap()]);
    assert_eq!(done(run.env("LD_PRELOAD", &replaced)), "fine\n");
}

/// Item 1 of issue 55: fakeroot's own server and its clients talk by System V messages.
#[test]
#[ignore = "needs fakeroot: make test-lab"]
fn fakeroot_sysv_works_as_a_user() {
    let n = Namespace::new();
    let script = "fakeroot-sysv -- sh -c 'touch a; chown 1:2 a; stat -c %u:%g a'";
    assert_eq!(done(&mut as_nobody(&n, script)), "1:2\n");
}

/// Item 1 of issue 55.
#[test]
#[ignore = "needs faketime: make test-lab"]
fn time_limits_end_under_faketime() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("calls", directory.path());
    let script = format!("faketime -f '2001-01-01 00:00:00' {}", program.display());
    assert_eq!(done(&mut n.run(&["sh", "-c", &script])), "fine\n");
}
