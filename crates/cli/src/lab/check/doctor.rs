// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `doctor --vm` reads from a guest's memory is what the guest's own kernel says: in its log, in `/proc` and in `/sys`.

use super::load::Spinner;
use super::stage::{Stage, few_cpus};
use super::{Check, Finding};
use crate::doctor;
use anyhow::{Result, anyhow};
use reprieve_lab::protocol::{Command, Workload};
use reprieve_lab::vm::Vm;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// All of the log on the console; and some of the settings that `doctor` prescribes, to see it tell them apart from the others.
const ARGS: &str = "loglevel=8 nohz_full=1 rcutree.jiffies_till_first_fqs=0";

/// Until a vCPU that competes for its CPU has had some of its time stolen.
const STEAL_LIMIT: Duration = Duration::from_secs(60);

/// What the log of a guest says where KVM's features are in use.
const LOGGED: [(&str, &str); 4] = [
    ("KVM found", "Hypervisor detected: KVM"),
    ("PV unhalt", "PV spinlocks enabled"),
    ("PV yield", "setup PV sched yield"),
    ("PV TLB flush", "KVM setup pv remote TLB flush"),
];

pub fn check(stage: &Stage) -> Result<Finding> {
    let mut vm = stage.boot("doctor", 2, 512, ARGS)?;
    let report = doctor::examine(&vm.pid().to_string())?;
    let log = stage.console("doctor")?;
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

    let prescribed = |setting: &str| {
        let all = report["prescriptions"].as_array().into_iter().flatten();
        let of =
            |p: &Value| p["setting"].as_str().and_then(|s| Some(s.split_once('=')?.0 == setting));
        all.filter_map(of).any(|named| named)
    };
    for (name, wanted) in [("jiffies_till_first_fqs", "0"), ("jiffies_till_next_fqs", "1")] {
        let own = stage.read(&mut vm, &format!("/sys/module/rcutree/parameters/{name}"))?;
        let setting = format!("rcutree.{name}");
        claim(&setting, json!(!prescribed(&setting)), json!(own.trim() == wanted));
    }
    let tracked = stage.read(&mut vm, "/sys/devices/system/cpu/nohz_full")?;
    claim("context tracking", json!(!prescribed("nohz_full")), json!(tracked.trim() == "1"));

    let checks = report["checks"].as_array().cloned().unwrap_or_default();
    let used =
        |name: &str| checks.iter().find(|c| c["name"] == name).map(|c| &c["present"]).cloned();
    if stage.on_kvm() {
        for (name, line) in LOGGED {
            claim(name, json!(used(name)), json!(log.contains(line)));
        }
        claim("steal time", json!(used("steal time")), json!(is_stolen_from(stage, &mut vm)?));
    } else {
        claim("paravirtualization", json!(checks.len()), json!(0));
    }
    vm.shut_down();

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

/// Whether the guest knows of time that was stolen from it, where some is.
fn is_stolen_from(stage: &Stage, vm: &mut Vm) -> Result<bool> {
    let cpu = few_cpus()[0];
    vm.threads().pin(&[vec![cpu], vec![cpu]], &[])?;
    let _spinner = Spinner::start(cpu)?;
    stage.prepare(vm, Workload::Hog { threads: 2 }, None)?;
    stage.call(vm, &Command::Start)?;
    let start = Instant::now();
    while start.elapsed() < STEAL_LIMIT {
        let stat = stage.read(vm, "/proc/stat")?;
        let all = stat.lines().next().unwrap_or_default();
        let steal = all.split_ascii_whitespace().nth(8);
        if steal.ok_or_else(|| anyhow!("/proc/stat: {all:?}"))? != "0" {
            return Ok(true);
        }
        stage.sleep(Duration::from_millis(500))?;
    }
    Ok(false)
}
