// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve-dev check`: `watch` against guests that do something known, under TCG here and under
//! KVM in a lab host; `guard` in a lab host.
//!
//! Needs root and a kernel with BTF. The long ones belong to `make test-lab`.

mod common;

use reprieve_lab::protocol::Held;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// VMs of different tests would compete for the CPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the checks and returns their findings; panics with all findings if a check fails.
#[track_caller]
fn check(args: &[&str]) -> Vec<Value> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve-dev"));
    command.args(["check", "--json"]).args(args).stdin(Stdio::null());
    if std::env::var_os("REPRIEVE_INIT").is_none() {
        let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/reprieve-init");
        command.env("REPRIEVE_INIT", init);
    }
    // A guest that boots slowly is no failure; `make test` ends what hangs.
    if std::env::var_os("REPRIEVE_TIMEOUT_FACTOR").is_none() {
        command.env("REPRIEVE_TIMEOUT_FACTOR", "20");
    }
    let output = common::ends_with_test(&mut command).output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}:\n{out}\n{err}");
    let findings: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert!(findings.iter().all(|finding| finding["passed"] == true), "{findings:#?}");
    findings
}

#[test]
fn watch_sees_what_an_emulated_guest_does() {
    let checks = ["classes", "stopped", "grace", "attach", "cycles", "doctor"];
    let mut args = checks.to_vec();
    args.extend(["--host", "tcg", "--preemptions", "100", "--cycles", "5"]);
    let findings = check(&args);
    let names: Vec<&str> = findings.iter().map(|f| f["check"].as_str().unwrap()).collect();
    assert_eq!(names, checks);
    // The findings show that every class was checked, with enough preemptions.
    let held = findings[0]["figures"]["held"].as_array().unwrap();
    // All that the module can hold, and idle.
    assert_eq!(held.len(), Held::ALL.len() + 1, "{held:#?}");
    for held in held {
        assert!(held["preemptions"].as_u64().unwrap() >= 100, "{held}");
        assert!(held["share"].as_f64().unwrap() >= 0.99, "{held}");
    }
}

/// In a lab host: this machine's kernel may have no sched_ext.
#[test]
fn the_kernel_takes_guards_program() {
    let findings = check(&["program", "--host", "nested"]);
    let verified = findings[0]["figures"]["verified"].as_array().unwrap();
    println!("verified instructions, by function: {verified:?}");
    // The kernel gives up at a million.
    assert!(!verified.is_empty(), "{findings:?}");
    assert!(verified.iter().all(|n| (1..1_000_000).contains(&n.as_u64().unwrap())), "{verified:?}");
}

#[test]
#[ignore = "takes minutes: make test-lab"]
fn watch_sees_what_older_and_newer_guests_do() {
    for kernel in ["deb:6.1", "deb:7"] {
        check(&["--host", "tcg", "--guest-kernel", kernel]);
    }
}

#[test]
#[ignore = "takes many minutes: make test-lab"]
fn watch_sees_what_guests_under_kvm_do() {
    for kernel in ["deb:6.1", "deb:6.12", "deb:7"] {
        check(&[
            "classes",
            "stopped",
            "grace",
            "cycles",
            "doctor",
            "--host",
            "nested",
            "--guest-kernel",
            kernel,
        ]);
    }
}

#[test]
#[ignore = "takes many minutes: make test-lab"]
fn watch_sees_a_guest_of_64_vcpus() {
    let findings = check(&["attach", "--host", "nested", "--host-cpus", "64", "--dilate", "32"]);
    assert_eq!(findings[0]["figures"]["vcpus"], 64, "{findings:?}");
}

#[test]
#[ignore = "takes many minutes: make test-lab"]
fn guard_schedules_guests_and_the_stock_scheduler_comes_back() {
    let findings = check(&["guard", "guard-share", "guard-latency", "--host", "nested"]);
    let runs = findings[0]["figures"]["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3, "{findings:#?}");
}
