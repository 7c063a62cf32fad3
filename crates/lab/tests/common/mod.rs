// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of this project for machines that tests boot.

use reprieve_lab::error::Result;
use reprieve_lab::process::{self, Cancel};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Hangs are ended by the test run's own limit.
pub const FOREVER: Duration = Duration::from_secs(24 * 3600);

pub fn run(command: &mut Command, cancel: &Cancel) -> Result<String> {
    let out = process::run(command, FOREVER, cancel)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// What cargo makes of `args`, as optimized as users have it: programs by the names of their
/// targets.
pub fn built(args: &[&str], cancel: &Cancel) -> Result<BTreeMap<String, PathBuf>> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build.args(args).args(["--locked", "--release", "--message-format=json"]);
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?.into();
        message["executable"].as_str().map(|path| (name, PathBuf::from(path)))
    };
    Ok(run(&mut build, cancel)?.lines().filter_map(program).collect())
}
