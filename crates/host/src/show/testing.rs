// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots and histograms for tests.

use crate::guard::{
    Backend, Granted, HeldUp, LimitStatistics, Policy, Preempted, PutOff, RegionStatistics,
    Statistics, Step, Times, VmStatistics, Would,
};
use crate::watch::model::*;

/// The histogram of `durations`, in nanoseconds.
pub fn histogram(durations: &[u64]) -> Histogram {
    let mut all = Histogram::default();
    for ns in durations {
        let bucket = (ns / 1000).max(1).ilog2() as usize;
        if all.counts.len() <= bucket {
            all.counts.resize(bucket + 1, 0);
        }
        all.counts[bucket] += 1;
        all.total_ns += ns;
        all.max_ns = all.max_ns.max(*ns);
    }
    all
}

pub fn vcpu(index: u32) -> Vcpu {
    Vcpu {
        index,
        tid: 1000 + index,
        now: VcpuNow::Unseen,
        preemptions: vec![],
        blocks: Histogram::default(),
        on_cpu_ns: 0,
        announced: 0,
        announced_off_cpu_ns: 0,
    }
}

pub fn preempted(since_ns: u64, class: Class) -> VcpuNow {
    VcpuNow::Preempted { since_ns, class, reader: false, at: Location::default() }
}

pub fn vm(pid: u32, name: &str, vcpus: Vec<Vcpu>) -> VmSnapshot {
    VmSnapshot {
        pid,
        name: name.into(),
        vmm: "qemu-kvm".into(),
        state: VmState::Watching,
        kernel: Some("6.12.117+deb12-cloud-amd64".into()),
        blind: vec![],
        vcpus,
        former: None,
        grace: None,
        tracks_user: false,
        held: None,
    }
}

pub fn snapshot(time_ns: u64, vms: Vec<VmSnapshot>) -> Snapshot {
    Snapshot {
        time_ns,
        wall: 1_795_000_000_000_000_000 + time_ns,
        vms,
        processes: vec![],
        cost: Cost::default(),
    }
}

const MS: u64 = 1_000_000;

/// Two busy VMs, one that cannot be read and one process, `seconds` after the beginning: enough of
/// everything to fill a view.
pub fn busy(seconds: u64) -> Snapshot {
    let now = 1_000_000 * MS + seconds * 1000 * MS;
    let preemptions = |class, each: u64, n: u64, readers: u64| Preemptions {
        class,
        off_cpu: histogram(&vec![each * MS; (n * seconds) as usize]),
        readers: readers * seconds,
        readers_off_cpu_ns: readers * seconds * each * MS,
    };
    let mut first = vcpu(0);
    first.now = VcpuNow::Preempted {
        since_ns: now - 41 * MS,
        class: Class::Reader,
        reader: true,
        at: Location {
            task: Some("postmark\x1b[31m".into()),
            pid: Some(733),
            function: Some("__d_lookup_rcu+0x42".into()),
        },
    };
    first.preemptions = vec![
        preemptions(Class::User, 3, 40, 0),
        preemptions(Class::Kernel, 3, 60, 0),
        preemptions(Class::Reader, 12, 10, 10),
        preemptions(Class::NoPreempt, 4, 40, 2),
    ];
    first.on_cpu_ns = 330 * seconds * MS;
    let mut second = vcpu(1);
    second.now = VcpuNow::Running { since_ns: now - 2 * MS, cpu: 1 };
    second.preemptions = vec![
        preemptions(Class::User, 3, 30, 0),
        preemptions(Class::Softirq, 5, 20, 0),
        preemptions(Class::Unknown, 2, 3, 0),
    ];
    second.on_cpu_ns = 700 * seconds * MS;
    second.blocks = histogram(&vec![MS; (20 * seconds) as usize]);
    let mut db = vm(4711, "db-primary", vec![first, second]);
    db.grace = Some(Grace {
        durations: histogram(&vec![17 * MS; (55 * seconds) as usize]),
        unseen: 0,
        current: Some(CurrentGrace {
            seq: 4242,
            began_ns: now - 55 * MS,
            began_earlier: false,
            owing: vec![0],
            blocked_readers: vec![],
        }),
    });
    let mut idle = vcpu(0);
    idle.now = VcpuNow::Halted { since_ns: now - 800 * MS };
    idle.on_cpu_ns = 5 * seconds * MS;
    idle.blocks = histogram(&vec![100 * MS; (9 * seconds) as usize]);
    let mut quiet = vm(4712, "web-1", vec![idle]);
    quiet.grace = Some(Grace { durations: histogram(&[8 * MS]), unseen: 0, current: None });
    let mut odd = vm(4713, "4713", vec![vcpu(0)]);
    odd.kernel = None;
    odd.state = VmState::Unreadable("memory is encrypted (SEV)".into());
    let mut all = snapshot(now, vec![db, quiet, odd]);
    all.processes = vec![Process {
        pid: 99,
        name: "cache-server".into(),
        domains: vec![Domain {
            index: 0,
            threads: 16,
            readers: 3,
            grace_periods: 1000 * seconds,
            callbacks_waiting: 120,
            bytes_waiting: 7 << 20,
            current_age_ns: Some(3 * MS),
            laggards: vec![101, 102],
        }],
    }];
    all.cost = Cost {
        elapsed_ns: seconds * 1000 * MS,
        switches: 5_000 * seconds,
        switch_ns: 3_000_000 * seconds,
        switch_median_ns: Some(540),
        bpf_ns: Some(4_000_000 * seconds),
        process_ns: 6_000_000 * seconds,
        lost: 0,
    };
    all
}

/// What guard did for two VMs, `seconds` after the beginning.
pub fn guarded(seconds: u64) -> Statistics {
    let preempted = Class::ALL.into_iter().map(|class| match class {
        Class::Reader => Preempted { class, suffered: seconds, avoided: 30 * seconds },
        Class::NoPreempt => Preempted { class, suffered: 0, avoided: 10 * seconds },
        Class::User => Preempted { class, suffered: 50 * seconds, avoided: 0 },
        class => Preempted { class, suffered: 0, avoided: 0 },
    });
    let granted = |count: u64, each_ns: u64, max_ns| Granted {
        count: count * seconds,
        total_ns: count * seconds * each_ns,
        max_ns,
        expired: seconds,
        refused: 2 * seconds,
    };
    let db = VmStatistics {
        pid: 4711,
        name: "db-primary".into(),
        readable: true,
        policies: vec![Policy::Extend, Policy::Rescue],
        weight: 200,
        vcpus: 2,
        on_cpu_ns: 900 * seconds * MS,
        entitled_ns: Some(1000 * seconds * MS),
        preempted: preempted.collect(),
        region: Some(RegionStatistics {
            suffered: seconds / 5,
            avoided: 4 * seconds,
            ..RegionStatistics::default()
        }),
        extended: granted(40, 175_000, 900_000),
        rescued: granted(20, 250_000, 300_000),
        grace_mean_ns: Some(8_000_000),
        late_ns: Some(3_000_000),
        ticks_waited: 60 * seconds,
        spun: 7 * seconds,
        gave_way: 5 * seconds,
        ..VmStatistics::default()
    };
    let web = VmStatistics {
        pid: 4712,
        name: "web\x1b[2J".into(),
        trouble: Some("memory is \x1b[2J encrypted".into()),
        policies: vec![Policy::Full],
        weight: 100,
        vcpus: 1,
        ..VmStatistics::default()
    };
    Statistics {
        time_ns: 1_000_000 * MS + seconds * 1000 * MS,
        elapsed_ns: seconds * 1000 * MS,
        vms: vec![db, web],
        limits: vec![LimitStatistics {
            cgroup: Some("/sys/fs/cgroup/batch".into()),
            id: 77,
            quota_ns: 20 * MS,
            period_ns: 100 * MS,
            burst_ns: 0,
            periods: 10 * seconds,
            throttled: 10 * seconds,
            throttled_ns: 800 * seconds * MS,
            used_ns: 200 * seconds * MS,
        }],
        user_limits_lost: 5,
        load: 250,
        task_groups: 12,
        decisions: 10_000 * seconds,
        decisions_ns: 4 * seconds * MS,
        decision_times: Times {
            median_ns: Some(368),
            p99_ns: Some(1_472),
            steps: vec![
                Step { from_ns: 352, to_ns: 384, runs: 9_500 * seconds },
                Step { from_ns: 1_408, to_ns: 1_536, runs: 500 * seconds },
            ],
        },
        functions: Vec::new(),
        process_ns: seconds * MS,
        ..Statistics::new(Backend::SchedExt, Policy::Full)
    }
}

/// What guard would have done for two VMs, `seconds` after the beginning.
pub fn dry_run(seconds: u64) -> Statistics {
    let done = guarded(seconds);
    let would = Would {
        extend: Some(vec![PutOff {
            class: Class::Reader,
            count: seconds,
            off_cpu_ns: 4 * seconds * MS,
            max_off_cpu_ns: Some(9 * MS),
        }]),
        announced: 2 * seconds,
        granted_at_most_ns: 3 * seconds * MS,
        rescue: Some(HeldUp {
            graces: 3 * seconds,
            of: 50 * seconds,
            count: 4 * seconds,
            total_ns: 50 * seconds * MS,
            max_ns: 20 * MS,
        }),
        ..Would::default()
    };
    let all = [would, Would::default()].into_iter().zip(&done.vms);
    let vms = all.map(|(would, vm)| VmStatistics {
        pid: vm.pid,
        name: vm.name.clone(),
        trouble: vm.trouble.clone(),
        policies: vec![Policy::Full],
        vcpus: vm.vcpus,
        on_cpu_ns: vm.on_cpu_ns,
        preempted: vm.preempted.iter().map(|p| Preempted { avoided: 0, ..p.clone() }).collect(),
        would: Some(would),
        ..VmStatistics::default()
    });
    Statistics {
        time_ns: done.time_ns,
        elapsed_ns: done.elapsed_ns,
        dry_run: true,
        vms: vms.collect(),
        process_ns: done.process_ns,
        ..Statistics::new(Backend::SchedExt, Policy::Full)
    }
}
