// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of watching at a high rate of vCPU switches: `reprieve watch --overhead`, as a user
//! runs it, on guests made for it.
//!
//! The vCPUs of one guest wake each other and halt all the time; those of another compute in the
//! CPU time that is left. So each wake-up preempts a vCPU, which is the most expensive switch, and
//! each halt lets that vCPU go on.
//!
//! The cost depends on the machine too, so it is only reported beside the promise. The check passes
//! if the eBPF program ran at the switches that the scheduler counted.

use super::guest_setup::{GuestSetup, few_cpus};
use super::load::idle_priority;
use super::{Check, Finding};
use crate::process;
use crate::vm::{Threads, Vm};
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_init::protocol::{Command, Workload};
use reprieve_watch::model::{Cost, Snapshot, VmState};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The promise: at this many switches per second, the share of one CPU and the median time of a
/// switch.
const RATE: f64 = 10_000.0;
const SHARE: f64 = 0.02;
const MEDIAN_NS: u64 = 1_000;

/// Work between two wake-ups: short enough for more switches than the rate of the promise, long
/// enough for realistic caches, which would be warmer at ten times that rate.
const WORK_US: u32 = 150;

/// Length of a `watch`, including attaching.
const WATCHED: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(120);

/// Fewest switches that count as a measurement.
const ENOUGH: u64 = 1_000;

/// How far the two counts of departures may be apart, and how many events may be lost, as shares:
/// on a busy host the recording process may run too late.
const APART: f64 = 0.05;
const LOST: f64 = 0.01;

/// The kernel's counts are read this often.
const SAMPLE: Duration = Duration::from_millis(50);

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let few = few_cpus();
    let vcpus = few.len() as u32;
    let pins: Vec<Vec<u32>> = few.iter().map(|&cpu| vec![cpu]).collect();
    let mut vms = Vec::new();
    // A vCPU of the two works while the other is halted; on one CPU they share it.
    let wakers = Workload::PingPong { pairs: 1, work_us: WORK_US };
    let hogs = Workload::Hog { threads: vcpus };
    for (name, workload) in [("wakers", wakers), ("hogs", hogs)] {
        let mut vm = setup.boot(name, vcpus, 512, "")?;
        vm.threads().pin(&pins, &[])?;
        setup.prepare(&mut vm, workload, None)?;
        setup.call(&mut vm, &Command::Start)?;
        vms.push(vm);
    }
    // Then a vCPU that wakes up need not wait for the end of a slice.
    for &tid in vms[1].threads().vcpus() {
        idle_priority(tid)?;
    }
    let directory = tempfile::tempdir().context("directory of the recording")?;
    let recording = directory.path().join("cost.rec");
    let mut text = String::new();
    let (mut passed, mut met, mut figures) = (true, true, Vec::new());
    for record in [None, Some(recording.as_path())] {
        let what = if record.is_some() { "recorded" } else { "watched" };
        setup.progress.timed(&format!("vCPUs that come and go, {what}"), WATCHED);
        let measured = watch(setup, &vms, record)?;
        passed &= measured.switches >= ENOUGH
            && (measured.seen as f64 / measured.kernel - 1.0).abs() <= APART
            && measured.lost as f64 <= LOST * measured.switches as f64;
        // The promise is about watching; a recording is a choice.
        met &= record.is_some() || measured.meets();
        measured.report(what, &mut text);
        figures.push(measured.figures(what));
    }
    let _ = writeln!(
        text,
        "  promised at {RATE} switches/s: {:.0} % of one CPU, a median of less than {MEDIAN_NS} ns: {}",
        100.0 * SHARE,
        if met { "kept" } else { "NOT kept" }
    );
    vms.into_iter().for_each(|vm| vm.shut_down(setup.cancel));
    let figures = json!({ "promise_kept": met, "modes": figures });
    Ok(Finding::new(Check::Cost, passed, text, figures))
}

/// A `watch`'s report of its own cost, from the moment it had attached.
struct Measured {
    seconds: f64,
    recorded: bool,
    /// How often a vCPU left its CPU: by the kernel's count, and by the histograms of `watch`.
    kernel: f64,
    seen: u64,
    preempted: u64,
    switches: u64,
    switch_ns: u64,
    median_ns: Option<u64>,
    bpf_ns: u64,
    process_ns: u64,
    lost: u64,
    recorded_bytes: u64,
}

impl Measured {
    fn per_second(&self) -> f64 {
        self.switches as f64 / self.seconds
    }

    /// Shares of one CPU: eBPF, the process, and both at the rate of the promise. The work of the
    /// process depends on the rate only if it records.
    fn shares(&self) -> (f64, f64, f64) {
        let share = |ns: u64| ns as f64 / 1e9 / self.seconds;
        let (bpf, process) = (share(self.bpf_ns), share(self.process_ns));
        let scale = RATE / self.per_second();
        (bpf, process, bpf * scale + process * if self.recorded { scale } else { 1.0 })
    }

    fn meets(&self) -> bool {
        self.shares().2 <= SHARE && self.median_ns.is_some_and(|ns| ns < MEDIAN_NS)
    }

    fn report(&self, what: &str, text: &mut String) {
        let (bpf, process, both) = self.shares();
        let median = self.median_ns.map_or("?".into(), |ns| ns.to_string());
        let _ = writeln!(
            text,
            "  {what}: {:.0} switches/s, {:.0} of them preemptions; per switch {median} ns in the median, {:.0} ns on average; eBPF {:.2} %, the process {:.2} % of one CPU",
            self.per_second(),
            self.preempted as f64 / self.seconds,
            self.switch_ns as f64 / self.switches.max(1) as f64,
            100.0 * bpf,
            100.0 * process,
        );
        let _ = write!(text, "    {:.2} % at {RATE} switches/s; ", 100.0 * both);
        if self.recorded_bytes > 0 {
            let each = self.recorded_bytes as f64 / self.switches.max(1) as f64;
            let _ = write!(text, "{each:.1} bytes per switch in the file; ");
        }
        let _ = writeln!(
            text,
            "{} departures seen, {:.0} by the kernel's count; {} events lost",
            self.seen, self.kernel, self.lost
        );
    }

    fn figures(&self, what: &str) -> Value {
        let (bpf, process, both) = self.shares();
        json!({
            "mode": what, "switches_per_s": self.per_second(), "preemptions_per_s": self.preempted as f64 / self.seconds,
            "switch_median_ns": self.median_ns, "switch_mean_ns": self.switch_ns as f64 / self.switches.max(1) as f64, "bpf_share": bpf,
            "process_share": process, "share_at_rate": both, "seen": self.seen, "kernel": self.kernel, "lost": self.lost,
            "recorded_bytes": self.recorded_bytes,
        })
    }
}

/// Runs `reprieve watch` on `vms`, as a user does.
fn watch(setup: &GuestSetup, vms: &[Vm], record: Option<&Path>) -> Result<Measured> {
    let argv = argv()?;
    let mut command = Process::new(&argv[0]);
    let length = format!("{}s", WATCHED.as_secs());
    command.args(&argv[1..]).args(["watch", "--for", &length, "--json", "--overhead"]);
    for vm in vms {
        command.args(["--vm", &vm.pid().to_string()]);
    }
    if let Some(path) = record {
        command.arg("--record").arg(path);
    }
    let threads: Vec<Threads> = vms.iter().map(|vm| vm.threads().clone()).collect();
    let over = AtomicBool::new(false);
    let (out, counts) = std::thread::scope(|scope| {
        let count = scope.spawn(|| {
            let mut counts = Vec::new();
            while !over.load(Ordering::Relaxed) {
                counts.push((now_ns(), threads.iter().map(departures).sum()));
                std::thread::sleep(SAMPLE);
            }
            counts
        });
        let out = process::run(&mut command, LIMIT, setup.cancel);
        over.store(true, Ordering::Relaxed);
        (out, count.join().unwrap_or_default())
    });
    let out = out?;
    let out = String::from_utf8_lossy(&out);
    let snapshots: Vec<Snapshot> =
        out.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a snapshot")?;
    let attached = |snapshot: &&Snapshot| {
        snapshot.vms.len() == vms.len()
            && snapshot.vms.iter().all(|vm| vm.state == VmState::Watching)
    };
    let (Some(first), Some(last)) = (snapshots.iter().find(attached), snapshots.last()) else {
        bail!("`watch` did not see the guests");
    };
    let seconds = (last.time_ns - first.time_ns) as f64 / 1e9;
    if seconds <= 0.0 {
        bail!("`watch` saw the guests too late");
    }
    let since = |of: fn(&Cost) -> u64| of(&last.cost).saturating_sub(of(&first.cost));
    let went = |of: fn(&Snapshot) -> u64| of(last).saturating_sub(of(first));
    Ok(Measured {
        seconds,
        recorded: record.is_some(),
        kernel: at(&counts, last.time_ns) - at(&counts, first.time_ns),
        seen: went(|s| preempted(s) + blocked(s)),
        preempted: went(preempted),
        switches: since(|cost| cost.switches),
        switch_ns: since(|cost| cost.switch_ns),
        median_ns: last.cost.switch_median_ns,
        bpf_ns: since(|cost| cost.bpf_ns.unwrap_or_default()),
        process_ns: since(|cost| cost.process_ns),
        lost: since(|cost| cost.lost),
        recorded_bytes: record
            .and_then(|path| std::fs::metadata(path).ok())
            .map_or(0, |file| file.len()),
    })
}

/// The count at `time`, interpolated between two readings.
fn at(counts: &[(u64, u64)], time: u64) -> f64 {
    let behind = counts.partition_point(|(at, _)| *at < time).clamp(1, counts.len().max(2) - 1);
    let (Some(&(t0, n0)), Some(&(t1, n1))) = (counts.get(behind - 1), counts.get(behind)) else {
        return f64::NAN;
    };
    n0 as f64 + (n1 - n0) as f64 * (time as f64 - t0 as f64) / (t1 - t0).max(1) as f64
}

/// CLOCK_MONOTONIC, as in snapshots.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written. The clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How to start this program. In a lab host a loader does, which is in what the kernel knows of the
/// command line.
fn argv() -> Result<Vec<String>> {
    let own = std::env::current_exe().context("this program's path")?;
    if !own.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux")) {
        let own = own.into_os_string().into_string();
        return Ok(vec![own.map_err(|path| anyhow!("{path:?} is not UTF-8"))?]);
    }
    let line = std::fs::read_to_string("/proc/self/cmdline").context("own command line")?;
    Ok(line.split_terminator('\0').take_while(|word| *word != "lab").map(String::from).collect())
}

fn preempted(snapshot: &Snapshot) -> u64 {
    let vcpus = snapshot.vms.iter().flat_map(|vm| &vm.vcpus);
    vcpus.flat_map(|vcpu| &vcpu.preemptions).flat_map(|p| &p.off_cpu.counts).sum()
}

fn blocked(snapshot: &Snapshot) -> u64 {
    snapshot.vms.iter().flat_map(|vm| &vm.vcpus).flat_map(|vcpu| &vcpu.blocks.counts).sum()
}

/// How often the vCPUs of a VM have given up or lost their CPUs, by the kernel's count.
fn departures(vm: &Threads) -> u64 {
    let of_thread = |tid: &u32| -> u64 {
        let path = format!("/proc/{}/task/{tid}/status", vm.pid());
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let count = |line: &str| -> Option<u64> {
            line.split_once("ctxt_switches:")?.1.trim().parse().ok()
        };
        status.lines().filter_map(count).sum()
    };
    vm.vcpus().iter().map(of_thread).sum()
}
