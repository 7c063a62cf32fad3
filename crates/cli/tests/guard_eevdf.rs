// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve guard --backend eevdf` with a real guest: slices become short, and whatever ends
//! guard, none stays so. The same guest shows a dry run of the scheduler, which needs no sched_ext.

#[path = "common/mod.rs"]
mod commands;
#[path = "../../watch/tests/common/mod.rs"]
mod common;

use commands::with_run;
use reprieve_guard::undo::slice::{self, SHORT};
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::{Command as Order, Workload};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

fn guard(run: &Path, args: &[&str]) -> Command {
    let mut command = with_run(run);
    command.arg("guard").args(args);
    command
}

/// A guard of that VM alone.
fn start(run: &Path, vm: u32) -> (Child, BufReader<ChildStdout>) {
    let vm = vm.to_string();
    let args = ["--backend", "eevdf", "--vm", &vm, "--json", "--interval", "1h"];
    let mut command = guard(run, &args);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn line(out: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    assert!(out.read_line(&mut line).unwrap() > 0, "guard ended");
    serde_json::from_str(&line).unwrap()
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: plain system call on processes of this test.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Waits as long as it takes; `make test` ends what hangs.
fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A dry run of the scheduler sees what guard would have acted on. Then the test kills it: there is
/// nothing to undo.
fn what_the_scheduler_would_do(name: &str, vm: u32) {
    // As many as there are CPUs: wherever a vCPU runs, one competes with it.
    let _spinners = common::spin(std::thread::available_parallelism().unwrap().get());
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
    command.args(["guard", "--dry-run", "--vm", name, "--interval", "100ms"]);
    let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let ready = line(&mut out);
    assert_eq!((&ready["dry_run"], &ready["backend"]), (&true.into(), &"sched-ext".into()));
    let critical = ["reader", "no-preempt", "irqs-off", "softirq", "hardirq"];
    let seen = loop {
        let seen = line(&mut out);
        let would = &seen["vms"][0]["would"];
        if would["extend"][0]["off_cpu_ns"].as_u64() > Some(0)
            && would["rescue"]["total_ns"].as_u64() > Some(0)
        {
            break seen;
        }
    };
    let (of, would) = (&seen["vms"][0], &seen["vms"][0]["would"]);
    assert_eq!((&seen["dry_run"], &of["pid"]), (&true.into(), &vm.into()));
    for class in would["extend"].as_array().unwrap() {
        let all = of["preempted"].as_array().unwrap();
        let same = all.iter().find(|of| of["class"] == class["class"]).unwrap();
        // Readers in other classes are a part of those.
        let part = !critical.contains(&class["class"].as_str().unwrap());
        assert!(part || class["count"] == same["suffered"], "{seen}");
    }
    let rescue = |field: &str| would["rescue"][field].as_u64().unwrap();
    assert!(rescue("graces") > 0 && rescue("count") >= rescue("graces"), "{seen}");
    // The program may be between the two.
    assert!(rescue("max_ns") > 0 && rescue("total_ns") > 0, "{seen}");
    // Nothing was done.
    let nothing = of["preempted"].as_array().unwrap().iter().all(|of| of["avoided"] == 0);
    assert!(nothing && of["extended"]["count"] == 0 && of["rescued"]["count"] == 0, "{seen}");

    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn no_slice_stays_short() {
    let dir = tempfile::tempdir().unwrap();
    let (run, lock) = (dir.path(), dir.path().join("reprieve"));
    if let Err(why) = slice::supported() {
        let refused = guard(run, &["--backend", "eevdf"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(&why));
        return;
    }
    let mut guest = common::boot("deb:6.12", 2, "");
    let named = guest.name.clone();
    let (cancel, limit) = (Cancel::default(), Duration::from_secs(3600));
    let prepare = Order::Prepare { workload: Workload::FileChurn { workers: 2 }, measure: None };
    for order in [prepare, Order::Start] {
        guest.vm.call(&order, limit, &cancel, |_| Ok(())).unwrap();
    }
    let (vm, vcpus) = (guest.vm.pid(), guest.vm.threads().vcpus().to_vec());
    let default = slice::default().unwrap();
    let slices = || vcpus.iter().map(|&tid| slice::get(tid).unwrap()).collect::<Vec<_>>();
    let restored = || slices().iter().all(|&slice| slice == default);
    let short = || slices().iter().all(|&slice| slice == SHORT);
    let locks = || fs::read_dir(&lock).map_or(0, |entries| entries.count());
    let restore = || guard(run, &["restore"]);
    let supervisor = || {
        let path = fs::read_dir(&lock).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(path).unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap()
    };
    assert!(restored(), "{:?}", slices());

    what_the_scheduler_would_do(&named, vm);
    assert!(restored() && locks() == 0, "{:?}", slices());

    // guard shortens slices, and restores them at its end.
    let (mut child, mut out) = start(run, vm);
    assert_eq!(line(&mut out)["event"], "ready");
    wait_until(short);
    let second = guard(run, &["--backend", "eevdf"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let why = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(why.contains("guard runs already"), "{why}");
    let active = restore().output().unwrap();
    assert!(String::from_utf8_lossy(&active.stdout).contains("left alone"), "{active:?}");
    // Where it cannot see that guard, it does not take it for dead.
    let command = restore();
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--pid", "--fork", "--mount-proc"]).arg(command.get_program());
    let elsewhere = elsewhere.args(command.get_args()).output().unwrap();
    let why = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(!elsewhere.status.success() && why.contains("PID namespace"), "{why}");
    assert_eq!(locks(), 1);
    signal(child.id(), libc::SIGTERM);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(restored() && locks() == 0, "{:?}", slices());
    let last: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["vms"][0]["short"], &last["vms"][0]["vcpus"]),
        (&2.into(), &2.into()),
        "{last}"
    );

    // Killed while slices are short.
    let (mut child, mut out) = start(run, vm);
    assert_eq!(line(&mut out)["event"], "ready");
    wait_until(short);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| restored() && locks() == 0);

    // Its supervisor is killed: guard would leave slices short if it were, too, so it ends.
    let (mut child, mut out) = start(run, vm);
    assert_eq!(line(&mut out)["event"], "ready");
    wait_until(short);
    signal(supervisor(), libc::SIGKILL);
    out.read_to_string(&mut String::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(restored() && locks() == 0, "{:?}", slices());

    // Killed together with its supervisor: the lock remains.
    let (mut child, mut out) = start(run, vm);
    assert_eq!(line(&mut out)["event"], "ready");
    wait_until(short);
    // Stopped, guard cannot give slices back when its supervisor is killed.
    signal(child.id(), libc::SIGSTOP);
    wait_until(|| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    });
    let supervisor = supervisor();
    signal(supervisor, libc::SIGKILL);
    child.kill().unwrap();
    child.wait().unwrap();
    // The supervisor was guard's child, and is reaped by whoever adopts it.
    wait_until(|| {
        let stat = fs::read_to_string(format!("/proc/{supervisor}/stat"));
        stat.map_or(true, |stat| stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
    });
    assert!(short() && locks() == 1);
    let given_back = restore().output().unwrap();
    assert!(given_back.status.success(), "{given_back:?}");
    assert!(restored() && locks() == 0, "{:?}", slices());
}
