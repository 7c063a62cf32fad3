// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs made for tests, and places to put them.

use reprieve_init::protocol::*;
use reprieve_lab::plan::{Plan, SCHEMA, Scenario, Variant, VmPlan};
use reprieve_lab::policy::Policy;
use reprieve_lab::record::{HostInfo, HostPhase, Record};
use std::path::PathBuf;
use tempfile::TempDir;

/// A directory that goes when it is dropped.
pub struct Scratch(pub TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    /// A run's directory with `raw.jsonl` made of `records`.
    pub fn run(&self, name: &str, records: &[Record]) -> PathBuf {
        self.raw(name, lines(records).as_bytes())
    }

    pub fn raw(&self, name: &str, content: &[u8]) -> PathBuf {
        let dir = self.0.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("raw.jsonl"), content).unwrap();
        dir
    }
}

pub fn lines(records: &[Record]) -> String {
    records.iter().map(|r| serde_json::to_string(r).unwrap() + "\n").collect()
}

pub fn plan(experiment: &str, labels: &[&str], repeat: u32) -> Plan {
    let variant = |label: &&str| Variant {
        label: label.to_string(),
        guest_kernel: "deb:6.12".into(),
        preempt: None,
        guest_args: String::new(),
        policy: Policy::Eevdf,
    };
    let vm = |name: &str, workload| VmPlan {
        name: name.into(),
        vcpus: 2,
        memory_mib: 512,
        pin: vec![],
        pin_other: vec![],
        cgroup: Default::default(),
        workload,
    };
    Plan {
        schema: SCHEMA,
        experiment: experiment.into(),
        repeat,
        scenarios: Scenario::both(),
        warmup_ms: 1000,
        phase_ms: 2000,
        measure: Measure { memory_ms: 20, slow_ms: 1000, trace_kb: 64 },
        variants: labels.iter().map(variant).collect(),
        subject: vm("subject", Workload::Idle),
        competitors: vec![vm("hog", Workload::Hog { threads: 2 })],
        seed: 1,
        command: format!("reprieve lab run {experiment}"),
    }
}

pub fn start(plan: Plan) -> Record {
    let host = HostInfo {
        mode: "kvm".into(),
        why: "it boots".into(),
        kernel: "7.3.4".into(),
        cpus: 2,
        memory_kb: 1 << 20,
        cpu_model: "a CPU".into(),
        qemu: "10.0.3".into(),
        dilation: Default::default(),
        base_slice_ns: Some(2_800_000),
        outer: None,
    };
    Record::Run { plan: Box::new(plan), started: "2026-11-20T16:00:00Z".into(), host }
}

pub fn guest(variant: usize, kernel: &str) -> Record {
    let info = GuestInfo {
        kernel: kernel.into(),
        cpus: 2,
        memory_kb: 512 << 10,
        preempt: Some("voluntary".into()),
        hz: Some(250),
        cmdline: "quiet".into(),
        clocksource: "kvm-clock".into(),
    };
    Record::Guest { vm: format!("subject-{variant}"), variant: Some(variant), info, boot_ms: 8000 }
}

/// A phase of 2 s: grace periods of `durations` ms one after the other, each with 10 us of CPU time
/// per ms; free memory at `free` MiB every 20 ms; one CPU and one fragmentation sample.
pub fn phase(
    id: u32,
    variant: usize,
    repeat: u32,
    scenario: Scenario,
    durations: &[u64],
    free: &[u64],
) -> Vec<Record> {
    let sample = |sample| Record::Sample { phase: id, sample };
    let mut records = vec![Record::PhaseStart { phase: id, variant, repeat, scenario }];
    let mut t = 0;
    for d in durations {
        let ns = d * 1_000_000;
        records.push(sample(Sample::GracePeriod(GracePeriod {
            start_ns: t,
            end_ns: t + ns,
            cpu_ns: d * 10_000,
        })));
        t += ns;
    }
    for (i, mib) in free.iter().enumerate() {
        records.push(sample(Sample::Memory(Memory {
            t_ns: i as u64 * 20_000_000,
            free_kb: mib * 1024,
            slab_kb: 1024,
            used_kb: (400 - mib) * 1024,
        })));
    }
    let unusable = (0..11).map(|order| f64::from(order) / 20.0).collect();
    records.push(sample(Sample::Fragmentation(Fragmentation { t_ns: 1_000_000_000, unusable })));
    records.push(sample(Sample::Cpu(Cpu {
        t_ns: 1_000_000_000,
        steal: 0.25,
        kernel: 0.5,
        user: 0.25,
        idle: 0.0,
        callbacks: None,
    })));
    records.push(end(id, scenario));
    records
}

pub fn end(id: u32, scenario: Scenario) -> Record {
    let over = scenario == Scenario::Overcommit;
    let ns = 2_000_000_000;
    let cpu_ns = [("subject-0".into(), ns), ("hog".into(), if over { ns } else { 0 })];
    Record::PhaseEnd {
        phase: id,
        result: PhaseResult {
            elapsed_ns: ns,
            operations: if over { 100.0 } else { 400.0 },
            unit: "pair".into(),
            figures: vec![],
            cost: MeasureCost {
                trace_events: 1000,
                trace_lost: 0,
                trace_until_ns: None,
                longest_gap_ns: 25_000_000,
            },
        },
        host: HostPhase {
            policy: None,
            vcpu_preemptions: if over { 600 } else { 0 },
            vcpu_wait_ns: if over { 1_000_000_000 } else { 0 },
            cpu_ns: cpu_ns.into(),
            elapsed_ns: ns,
            other_busy: Some(0.01),
            outside: None,
        },
    }
}

/// Two repeats of one variant with figures that can be worked out by hand.
pub fn small(experiment: &str) -> Vec<Record> {
    use Scenario::{Baseline, Overcommit};
    let mut records = vec![start(plan(experiment, &["default"], 2)), guest(0, "6.12.48")];
    records.extend(phase(0, 0, 0, Baseline, &[2, 4, 6], &[300, 290, 320, 295]));
    records.extend(phase(1, 0, 0, Overcommit, &[10, 20], &[300, 260, 280]));
    records.extend(phase(2, 0, 1, Baseline, &[8], &[310, 305, 310]));
    records.extend(phase(3, 0, 1, Overcommit, &[30], &[310, 280, 250]));
    records.push(Record::End { complete: true, reason: None });
    records
}
