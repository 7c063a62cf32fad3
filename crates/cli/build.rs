// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the commit that `reprieve --version` names. A source tree without git has none.

use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    let version = match git(&["rev-parse", "--short", "HEAD"]) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.into(),
    };
    println!("cargo:rustc-env=REPRIEVE_VERSION={version}");
    println!("cargo:rerun-if-changed=build.rs");
    // Every commit, and every change of the branch, adds a line there.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let all = ["-c", "safe.directory=*"].iter().chain(arguments);
    let output = Command::new("git").args(all).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
