// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab` as a user runs it: real guests under TCG, and every kind of failure.
//!
//! `make test` sets up what these tests need. `make test-lab` runs those marked `ignored`, which
//! take minutes.

mod common;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// VMs of different tests would compete for the CPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

fn reprieve(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprieve"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if std::env::var_os("REPRIEVE_INIT").is_none() {
        let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/reprieve-init");
        command.env("REPRIEVE_INIT", init);
    }
    // A guest that boots slowly is no failure; `make test` ends what hangs.
    if std::env::var_os("REPRIEVE_TIMEOUT_FACTOR").is_none() {
        command.env("REPRIEVE_TIMEOUT_FACTOR", "20");
    }
    common::ends_with_test(&mut command);
    command
}

fn run(args: &[&str]) -> Output {
    reprieve(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A short TCG run of `churn` with results in `out`.
fn short(out: &Path, more: &[&str]) -> Command {
    short_of("churn", out, more)
}

fn short_of(experiment: &str, out: &Path, more: &[&str]) -> Command {
    let out = out.to_str().unwrap();
    let mut args = vec!["lab", "run", experiment, "--host", "tcg", "--again", "0", "--out", out];
    if !more.contains(&"--phase") {
        args.extend(["--phase", "2s"]);
    }
    args.extend(["--warmup", "1s"]);
    args.extend(more);
    reprieve(&args)
}

fn records(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("raw.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Processes that still have `out` in their command line: the VMs of a run with its results there.
fn vms(out: &Path) -> Vec<u32> {
    let needle = out.to_str().unwrap().as_bytes();
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let named = line.windows(needle.len()).any(|w| w == needle);
        (named && line.windows(4).any(|w| w == b"qemu")).then_some(pid)
    })
    .collect()
}

/// Waits as long as it takes; `make test` ends what hangs.
fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts `command` and waits until the run has a VM.
fn spawn_until_vm(command: &mut Command, out: &Path) -> Child {
    let mut child = command.spawn().unwrap();
    wait_until(|| {
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "the run ended without a VM");
        !vms(out).is_empty()
    });
    child
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: plain system call on a child that is not reaped yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn bad_usage_is_named_and_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").to_str().unwrap().to_string();
    for (args, named) in [
        (vec!["lab", "run", "postmrk"], "postmark"),
        (vec!["lab", "run", "churn", "--repeat", "0"], "--repeat 0"),
        (vec!["lab", "run", "churn", "--repeat", "4294967295"], "--repeat"),
        (vec!["lab", "run", "churn", "churn"], "twice"),
        (vec!["lab", "run", "churn", "--warmup", "9days"], "--warmup"),
        (vec!["lab", "run", "churn", "--guest-kernel", ""], "--guest-kernel"),
        (vec!["lab", "run", "churn", "--host-kernel", "deb:new"], "deb:new"),
        (vec!["lab", "run", "churn", "--policy", "eevdf,fair"], "eevdf-slices"),
        (vec!["lab", "run", "churn", "--policy", "eevdf-slices=1s"], "0.1ms to 100ms"),
        (vec!["lab", "run", "churn", "--policy", "eevdf-slices=0.1005ms"], "whole microseconds"),
        (vec!["lab", "run", "churn", "--policy", "full,eevdf,full"], "twice"),
        (vec!["lab", "run", "churn", "--policy", "eevdf,full", "--host", "tcg"], "sched_ext"),
        (vec!["lab", "run", "churn", "--phase", "1ms"], "1 s"),
        (vec!["lab", "run", "churn", "--guest-kernel", "deb:one"], "deb:one"),
        (vec!["lab", "run", "churn", "--dilate", "0"], "--dilate 0"),
        (vec!["lab", "run", "churn", "--dilate", "fast"], "whole number"),
        (vec!["lab", "run", "churn", "--dilate", "1001"], "1000"),
        (vec!["lab", "run", "churn", "--host-cpus", "1"], "--host-cpus 1"),
        (vec!["lab", "run", "churn", "--host-cpus", "65"], "2 to 64"),
        (vec!["lab", "run", "churn", "--host-cpus", "8", "--host", "tcg"], "--host nested"),
        (vec!["lab", "run", "churn", "--base-slice", "1s"], "as in 1ms"),
        (vec!["lab", "run", "churn", "--base-slice", "1ms", "--host", "kvm"], "--host nested"),
        (vec!["lab", "run", "churn", "--host", "tcg", "--dilate", "10"], "--host nested"),
        (vec!["lab", "run", "churn", "--host", "kvm", "--dilate", "10"], "--host nested"),
        (vec!["lab", "run"], "EXPERIMENT"),
        (vec!["lab", "results", "--experiment", "chrun"], "chrun"),
        (vec!["lab", "results", "--host-cpus", "3"], "2, 8, 16 or 32"),
    ] {
        let mut args = args;
        if args.len() > 2 {
            args.extend(["--out", &out]);
        }
        let output = run(&args);
        // A policy of guard's is no usage error on a kernel that can do it.
        if named == "sched_ext" && Path::new("/sys/kernel/sched_ext").exists() {
            continue;
        }
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(named), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
        assert!(!Path::new(&out).exists(), "{args:?} left an empty directory");
    }
}

#[test]
fn old_results_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("raw.jsonl"), "old").unwrap();
    let output = short(dir.path(), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(dir.path().join("raw.jsonl")).unwrap(), "old");
}

#[test]
fn a_real_guest_is_measured() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut seconds = 2;
    // On a busy machine, nothing may happen in two seconds.
    // The names of directories reach QEMU whole.
    let out = |seconds| dir.path().join(format!("50 %d, a,,b={seconds}s"));
    while let Some(missing) = measured(&out(seconds), seconds) {
        eprintln!("phases of {seconds} s are too short: {missing}");
        seconds *= 2;
    }
}

/// Runs phases of so many seconds. Returns what one of them lacks, for which it may be too short.
fn measured(out: &Path, seconds: u64) -> Option<String> {
    let phase = format!("{seconds}s");
    let output = short(out, &["--json", "--repeat", "2", "--phase", &phase]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(vms(out), [] as [u32; 0]);

    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stored: Value =
        serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap();
    assert_eq!(printed[0], stored);
    let again = run(&["lab", "report", "--json", out.to_str().unwrap()]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), stored);

    let records = records(out);
    assert_eq!(records[0]["record"], "run");
    let end = records.last().unwrap();
    assert_eq!((&end["record"], &end["complete"]), (&"end".into(), &true.into()), "{end}");
    let phases: Vec<_> = records.iter().filter(|r| r["record"] == "phase_end").collect();
    assert_eq!(phases.len(), 4, "two repeats of two scenarios");
    let mut missing = None;
    for phase in phases {
        if phase["result"]["operations"].as_f64().unwrap() <= 0.0 {
            missing = Some(format!("no operation in {phase}"));
        }
        let of = |kind: &str| {
            let same = |r: &&Value| r["sample"] == kind && r["phase"] == phase["phase"];
            records.iter().filter(same).cloned().collect::<Vec<_>>()
        };
        let periods = of("grace_period");
        let elapsed = phase["result"]["elapsed_ns"].as_u64().unwrap();
        let mut before = 0;
        for period in &periods {
            let at = |key: &str| period[key].as_u64().unwrap();
            let (start, end) = (at("start_ns"), at("end_ns"));
            assert!(before <= start && start < end && end <= elapsed, "{period}");
            assert!(at("cpu_ns") <= 2 * (end - start), "more time than two vCPUs have: {period}");
            before = end;
        }
        for kind in ["grace_period", "memory", "fragmentation", "cpu"] {
            if of(kind).is_empty() {
                missing = Some(format!("no {kind} sample in {phase}"));
            }
        }
        if phase["result"]["cost"]["trace_lost"] != 0 {
            missing = Some(format!("trace events lost in {phase}"));
        }
        // The same grace periods as seen from outside, those too short to be seen apart included.
        // The host reads its count a moment after the phase began or ended, on a slow machine
        // seconds later, which is little of a phase that is long enough: a count of something else
        // stays several times as far off. (`reprieve-dev check grace` compares their durations.)
        let seen = &phase["host"]["outside"]["seen"];
        let count = |key: &str| seen[key].as_u64().unwrap_or_else(|| panic!("{phase}"));
        let outside = count("grace_periods") + count("grace_periods_unseen");
        let inside = periods.len() as u64;
        let (least, most) = ((inside / 2).saturating_sub(3), 2 * inside + 3);
        if outside == 0 || !(least..=most).contains(&outside) {
            missing = Some(format!("{outside} of {inside} grace periods seen in {seen}"));
        }
    }
    let bed: Vec<_> = records.iter().filter(|r| r["record"] == "costs").collect();
    assert_eq!(bed.len(), 1, "the run was not calibrated once");
    missing
}

#[test]
fn an_interrupted_run_ends_before_its_phase_and_leaves_nothing() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // A run that waited for its phases would take two hours.
    let child = spawn_until_vm(&mut short(&out, &["--phase", "1h"]), &out);
    signal(&child, libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert_eq!(vms(&out), [] as [u32; 0]);
    let end = records(&out).pop().unwrap();
    assert_eq!((&end["record"], &end["complete"]), (&"end".into(), &false.into()), "{end}");
}

#[test]
fn a_killed_run_takes_its_vms_with_it() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut child = spawn_until_vm(&mut short(&out, &["--phase", "1h"]), &out);
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    wait_until(|| vms(&out).is_empty());
}

/// A QEMU that ends before its greeting, like one that gets no KVM or no memory.
#[test]
fn a_qemu_that_does_not_start_is_named() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let qemu = dir.path().join("qemu");
    let script = "#!/bin/sh\ncase \"$*\" in *-version*|*help*) echo 'QEMU emulator version 10.0.0';; *) echo 'no luck today' >&2; exit 1;; esac\n";
    // By another process: a program that another test is about to start holds all files that are
    // open here, and the kernel runs none that is open for writing.
    let write = r#"printf %s "$1" >"$0" && chmod 755 "$0""#;
    let written = Command::new("sh").args(["-c", write]).arg(&qemu).arg(script).status().unwrap();
    assert!(written.success());
    let out = dir.path().join("out");
    let output = short(&out, &[]).env("REPRIEVE_QEMU", &qemu).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("no luck today"), "{}", stderr(&output));
    assert_eq!(records(&out).pop().unwrap()["complete"], false);
}

#[test]
fn a_guest_that_cannot_boot_is_retried_and_named() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let output = short(&out, &["--guest-args", "rdinit=/nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("VM churn") && said.contains("panic"), "{said}");
    // Three crashes end it. An attempt that took longer than the lab's first limit comes on top.
    assert!(said.matches("trying again").count() >= 2, "{said}");
    for log in said.split("(see ").skip(1).filter_map(|rest| rest.split_once(')')) {
        assert!(Path::new(log.0).is_file(), "{} is named and not there: {said}", log.0);
    }
    assert_eq!(vms(&out), [] as [u32; 0]);
    assert_eq!(records(&out).pop().unwrap()["complete"], false);
}

#[test]
fn a_wrong_preemption_model_is_not_measured_under_its_name() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // 6.12 has no lazy preemption: it came with 6.13.
    let output = short(&out, &["--preempt", "lazy"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("lazy"), "{}", stderr(&output));
}

/// Needs root, to mount a disk that only the run sees.
#[test]
fn a_full_disk_is_named() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("disk/run");
    // Two VMs, rather than four.
    let run = short_of("clone", &out, &[]);
    let mount = "mkdir $0/disk && mount -t tmpfs -o size=32k none $0/disk && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", mount]).arg(dir.path()).arg(run.get_program());
    unshare.args(run.get_args()).envs(run.get_envs().filter_map(|(k, v)| Some((k, v?))));
    common::ends_with_test(&mut unshare).stdin(Stdio::null());
    let output = unshare.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("No space left on device"), "{}", stderr(&output));
    assert_eq!(vms(&out), [] as [u32; 0]);
}

#[test]
#[ignore = "boots two lab hosts: make test-lab"]
fn a_run_goes_on_in_a_new_lab_host_when_one_dies() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut args = vec!["lab", "run", "churn", "--host", "nested", "--out", out.to_str().unwrap()];
    args.extend(["--repeat", "2", "--phase", "1s", "--warmup", "1s", "--again", "0"]);
    let mut child = spawn_until_vm(&mut reprieve(&args), &out);
    wait_until(|| {
        assert_eq!(child.try_wait().unwrap(), None, "the run ended before the lab host was killed");
        let text = fs::read_to_string(out.join("raw.jsonl")).unwrap_or_default();
        text.contains(r#""record":"phase_end""#)
    });
    for lab_host in vms(&out) {
        // SAFETY: plain system call, on a VM of this run.
        unsafe { libc::kill(lab_host as i32, libc::SIGKILL) };
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(vms(&out), [] as [u32; 0]);
    let records = records(&out);
    let notices = records.iter().filter(|r| r["record"] == "notice");
    let again = notices.filter(|r| r["text"].to_string().contains("booted again"));
    assert!(again.count() >= 1, "{}", stderr(&output));
    // Each phase counts once, also the one in which the lab host died.
    let ends = records.iter().filter(|r| r["record"] == "phase_end");
    let ends: Vec<_> = ends.map(|r| r["phase"].as_u64().unwrap()).collect();
    assert_eq!(ends, [0, 1, 2, 3]);
    assert_eq!(records.last().unwrap()["complete"], true);
}

/// Every kernel that the lab promises, with eight of the experiments, in a lab host.
#[test]
#[ignore = "takes many minutes: make test-lab"]
fn kernels_and_experiments_run_in_a_lab_host() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let experiments =
        ["postmark", "membench", "clone", "asym", "apache", "dbench", "churn", "psearchy"];
    for kernel in ["deb:6.1", "deb:6.12", "deb:7"] {
        let out = dir.path().join(kernel);
        let mut args = vec!["lab", "run", "--host", "nested", "--guest-kernel", kernel, "--json"];
        args.extend(["--phase", "8s", "--warmup", "4s", "--out", out.to_str().unwrap()]);
        args.extend(["--again", "0"]);
        args.extend(experiments);
        let output = run(&args);
        assert!(output.status.success(), "{kernel}: {}", stderr(&output));
        for experiment in experiments {
            let records = records(&out.join(experiment));
            assert_eq!(records[0]["host"]["mode"], "nested");
            let periods = records.iter().filter(|r| r["sample"] == "grace_period").count();
            assert!(periods > 0, "{kernel} {experiment}: no grace period");
            let guest = records.iter().find(|r| r["record"] == "guest").unwrap();
            let release = guest["info"]["kernel"].as_str().unwrap();
            assert!(release.starts_with(kernel.trim_start_matches("deb:")), "{release}");
        }
        assert_eq!(vms(&out), [] as [u32; 0]);
    }
}

/// vCPUs that spin for each other, in a program whose threads change one address space.
#[test]
#[ignore = "takes many minutes: make test-lab"]
fn vcpus_that_spin_are_found() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut args = vec!["lab", "run", "psearchy", "--host", "nested", "--policy", "full"];
    args.extend(["--phase", "2s", "--out", out.to_str().unwrap()]);
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let records = records(&out);
    let last = records.iter().rfind(|r| r["record"] == "phase_end").unwrap();
    let vms = last["host"]["policy"]["vms"].as_array().unwrap();
    let gave_way =
        |name: &str| vms.iter().find(|vm| vm["name"] == name).unwrap()["gave_way"].as_u64();
    assert!(gave_way("psearchy") > gave_way("hog1"), "{vms:?}");
}

/// Sections of a program in a guest: whether the host finds them, and leaves the vCPU its CPU.
#[test]
#[ignore = "takes many minutes: make test-lab"]
fn sections_that_a_guests_program_announces_are_left_alone() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut args = vec!["lab", "run", "guest-threads", "--host", "nested", "--json"];
    args.extend(["--policy", "eevdf,full", "--phase", "4s", "--out", out.to_str().unwrap()]);
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let value = |variant: usize, scenario: &str, key: &str| {
        let rows = summary[0]["variants"][variant]["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["key"] == key);
        let row = row.unwrap_or_else(|| panic!("no {key} in {rows:?}"));
        row[scenario]["value"].as_f64().unwrap_or_else(|| panic!("{row}"))
    };
    let rates = [0, 1].map(|variant| value(variant, "overcommit", "announced_preemptions"));
    assert!(rates[0] > 0.0 && rates[1] < rates[0] / 2.0, "{rates:?}");
    // The stock scheduler tells nobody anything.
    let answers = |variant, scenario, answer| {
        value(variant, scenario, &format!("bench.answers_of_the_host..{answer}"))
    };
    let unknown = [0, 1].map(|variant| answers(variant, "overcommit", "unknown"));
    assert!(unknown[0] == 100.0 && unknown[1] < 50.0, "{unknown:?}");
    // The host does not tell guard's own thread, which looks, as load.
    for answer in ["vCPU_preempted", "its_CPU_overloaded"] {
        let rates = ["baseline", "overcommit"].map(|scenario| answers(1, scenario, answer));
        assert!(rates[0] < rates[1] / 2.0, "{answer}: {rates:?}");
    }
    let ends = records(&out);
    let told = ends.iter().filter(|r| r["record"] == "phase_end");
    let regions = told.filter_map(|end| {
        let vms = end["host"]["policy"]["vms"].as_array()?;
        vms.iter().find_map(|vm| vm["region"].as_object()).cloned()
    });
    let avoided: u64 = regions.filter_map(|region| region["avoided"].as_u64()).sum();
    assert!(avoided > 0, "no preemption was put off");
    assert_eq!(vms(&out), [] as [u32; 0]);
}
