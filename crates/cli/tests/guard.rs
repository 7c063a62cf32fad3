// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `reprieve guard`, and its refusal where the kernel has no sched_ext.

mod common;

use common::with_run;
use std::path::Path;
use std::process::{Command, Output};

fn guard(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_reprieve")).arg("guard").args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn values_that_make_no_sense_are_bad_usage() {
    for args in [
        ["--max-hold", "1us"],
        ["--policy", "none"],
        ["--backend", "cfs"],
        ["--vm", "db"],
        ["--interval", "1ms"],
        ["--prometheus", "localhost:9977"],
    ] {
        let output = guard(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(output.stdout.is_empty() && said(&output).contains(args[0]), "{}", said(&output));
    }
}

#[test]
fn a_dry_run_of_nothing_is_refused() {
    let output = guard(&["--dry-run", "--policy", "plain"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let said = said(&output);
    assert!(said.lines().count() == 1 && said.contains("--policy: "), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn who_asks_a_guard_that_does_not_run_is_told() {
    if Path::new("/sys/kernel/sched_ext").exists() {
        return; // somebody may run one
    }
    for args in [&["show"][..], &["show", "--json"], &["set", "--vm", "db", "--policy", "full"]] {
        let output = guard(args);
        let said = said(&output);
        if output.status.success() || said.contains("this is a dry run") {
            return; // somebody's dry run needs no sched_ext
        }
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        if said.contains("it ended, or") || said.contains("asking guard") {
            return; // it was one, and ended meanwhile
        }
        assert!(said.lines().count() == 1 && said.contains("does not run here"), "{said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_lock_that_cannot_be_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("reprieve"), "").unwrap();
    let output = with_run(dir.path()).args(["guard", "--backend", "eevdf"]).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    if said.contains("guard cannot work here") {
        return; // this kernel has no custom slices
    }
    assert!(said.contains("/run/reprieve"), "{said}");
    assert_eq!(said.matches("os error").count(), 1, "{said}");
}

#[test]
fn policies_that_make_no_sense_are_bad_usage() {
    for args in [&["set"][..], &["set", "--policy", "none"], &["--policy", "full", "show"]] {
        let output = guard(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    }
}

#[test]
fn a_kernel_without_sched_ext_is_named_in_one_line() {
    if Path::new("/sys/kernel/sched_ext").exists() {
        return; // `make test-lab` runs guard on such a kernel
    }
    for args in [&[][..], &["--json"], &["--reserve", "25%"], &["--policy", "plain"]] {
        let output = guard(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = said(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("sched_ext") && said.contains("--backend eevdf"), "{said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
