// SPDX-License-Identifier: MIT OR Apache-2.0
//! `scripts/setup` beside another process that holds apt's lock. Stand-ins for apt-get and dpkg on
//! `PATH` print what the real ones print; nothing is installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// The words of apt-get.
const LOCKED: &str =
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)";

/// A child of another test has a script that is being written open until it executes its program,
/// and such a script is executed by nobody.
static FORKS: Mutex<()> = Mutex::new(());

/// Runs `scripts/setup build` where every package is missing and apt-get is the script `apt_get`.
/// `N` holds how often it was called. A `sleep` takes no time. Also returns the calls.
fn setup(apt_get: &str) -> (Output, Vec<String>) {
    let alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let command = |name: &str, script: &str| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let calls = dir.path().join("calls");
    let count = format!("echo \"$*\" >>{0}; N=$(wc -l <{0})\n", calls.display());
    command("apt-get", &(count + apt_get));
    command("dpkg-query", "exit 1");
    command("id", "echo 0");
    command("sleep", "");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let child = Command::new(root.join("scripts/setup"))
        .arg("build")
        .env("PATH", path)
        .env("TMPDIR", dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(alone);
    let output = child.wait_with_output().unwrap();
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2, "setup leaves a temporary file");
    let calls = fs::read_to_string(calls).unwrap();
    (output, calls.lines().map(str::to_owned).collect())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_lock_that_is_released_is_waited_for() {
    let script = format!("[ $N -ge 4 ] || {{ echo '{LOCKED}' >&2; exit 100; }}");
    let (output, calls) = setup(&script);
    assert!(output.status.success(), "{}", said(&output));
    let said = said(&output);
    assert_eq!(said.matches("lock is held by process 4711 (apt-get)").count(), 1, "{said}");
    assert!(calls[3].contains("update") && calls[4].contains("install"), "{calls:?}");
    assert_eq!(calls.len(), 5, "{calls:?}");
}

#[test]
fn a_lock_that_stays_ends_the_wait() {
    let (output, calls) = setup(&format!("echo '{LOCKED}' >&2; exit 100"));
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("gave up after ten minutes"), "{}", said(&output));
    // Ten minutes, in steps of five seconds.
    assert_eq!(calls.len(), 121);
}

#[test]
fn another_failure_ends_at_once() {
    let (output, calls) = setup("echo 'E: Unable to locate package nonsense' >&2; exit 100");
    assert_eq!((output.status.code(), calls.len()), (Some(1), 1));
    assert!(said(&output).contains("Unable to locate package nonsense"), "{}", said(&output));
}
