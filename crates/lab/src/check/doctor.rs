// SPDX-License-Identifier: MIT OR Apache-2.0
//! `doctor --vm`, which reads a guest's memory, reports the same as the guest's own kernel: its
//! log, `/proc` and `/sys`.

use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The whole log on the console, and some settings that are not the defaults: `doctor` must show
/// these values.
const ARGS: &str = "loglevel=8 nohz_full=1 rcutree.jiffies_till_first_fqs=0";

/// The verdict of this program's `doctor --vm` on VM `pid`.
fn examine(pid: u32) -> Result<Value> {
    let mut doctor = std::process::Command::new(std::env::current_exe()?);
    let output = doctor.args(["doctor", "--json", "--vm", &pid.to_string()]).output()?;
    let error = || String::from_utf8_lossy(&output.stderr).into_owned();
    let mut report: Value = serde_json::from_slice(&output.stdout).with_context(error)?;
    Ok(report["vms"][0].take())
}

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let mut vm = setup.boot("doctor", 2, 512, ARGS)?;
    let report = examine(vm.pid())?;
    let log = setup.console("doctor")?;
    let mut claims = Vec::new();
    let mut claim = |what: &str, doctor: Value, guest: Value| {
        claims.push((what.to_owned(), doctor, guest));
    };
    claim("guest kernel", report["kernel"].clone(), json!(vm.info.kernel));
    claim("timer frequency", report["hz"].clone(), json!(vm.info.hz));
    claim("preemption", report["preemption"].clone(), json!(vm.info.preempt));
    let preemptible = log.contains("Preemptible hierarchical RCU implementation");
    let flavor = if preemptible { "preemptible readers" } else { "classic" };
    claim("RCU", report["rcu"].clone(), json!(flavor));
    claim("command line", report["command_line"].clone(), json!(vm.info.cmdline));

    let shown = |name: &str| {
        let mut all = report["settings"].as_array().into_iter().flatten();
        all.find(|setting| setting["name"] == name).map(|setting| setting["now"].clone())
    };
    for name in ["jiffies_till_first_fqs", "jiffies_till_next_fqs", "kthread_prio"] {
        let own = setup.read(&mut vm, &format!("/sys/module/rcutree/parameters/{name}"))?;
        let setting = format!("rcutree.{name}");
        claim(&setting, json!(shown(&setting)), json!(own.trim()));
    }
    let tracked = setup.read(&mut vm, "/sys/devices/system/cpu/nohz_full")?;
    let tracked = if tracked.trim() == "1" { "in use" } else { "not in use" };
    claim("context tracking", json!(shown("nohz_full")), json!(tracked));

    vm.shut_down(setup.cancel);

    let mut text = String::new();
    for (what, doctor, guest) in &claims {
        let mark = if doctor == guest { ' ' } else { '!' };
        let _ = writeln!(text, "{mark} {what}: doctor {doctor}, the guest {guest}");
    }
    let passed = claims.iter().all(|(_, doctor, guest)| doctor == guest);
    let all: Vec<Value> = claims
        .iter()
        .map(|(what, doctor, guest)| json!({ "what": what, "doctor": doctor, "guest": guest }))
        .collect();
    Ok(Finding::new(Check::Doctor, passed, text, json!({ "claims": all })))
}
