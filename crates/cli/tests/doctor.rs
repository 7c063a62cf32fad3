// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve doctor` reports the state of the machine, and its exit status says whether all is
//! there.

use serde_json::Value;
use std::fs::OpenOptions;
use std::process::Command;

fn doctor(force: Option<&str>) -> (i32, Vec<Value>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
    command.args(["doctor", "--json"]).env_remove("REPRIEVE_FORCE");
    if let Some(force) = force {
        command.env("REPRIEVE_FORCE", force);
    }
    let output = command.output().unwrap();
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = serde_json::from_value(report["host"].take()).unwrap();
    (output.status.code().unwrap(), checks)
}

fn find(checks: &[Value], name: &str) -> Value {
    checks.iter().find(|c| c["name"] == name).unwrap().clone()
}

#[test]
fn the_runtimes_choice_is_shown() {
    let (status, checks) = doctor(Some("plain"));
    let forced = find(&checks, "restartable sections");
    assert_eq!((status, &forced["present"]), (1, &Value::Bool(false)));
    assert!(forced["detail"].as_str().unwrap().contains("REPRIEVE_FORCE=plain"), "{forced}");
    let (_, checks) = doctor(None);
    let chosen = find(&checks, "restartable sections");
    assert!(!chosen["detail"].as_str().unwrap().contains("REPRIEVE_FORCE"), "{chosen}");
}

#[test]
fn the_exit_status_says_whether_all_is_there() {
    let (status, checks) = doctor(None);
    let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    assert_eq!(find(&checks, "KVM")["present"], kvm.is_ok());
    assert_eq!(find(&checks, "KVM")["optional"], true);
    assert_eq!(find(&checks, "sched_ext")["optional"], false);
    let fine = |c: &Value| c["present"] == true || c["optional"] == true;
    assert_eq!(status == 0, checks.iter().all(fine));
}

#[test]
fn a_vm_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_reprieve"))
        .args(["doctor", "--vm", "no-such\u{1b}[2Jvm"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no-such") && !message.contains('\u{1b}'), "{message}");
}
