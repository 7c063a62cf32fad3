// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots and histograms for tests.

use crate::model::*;

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
    Vcpu { index, tid: 1000 + index, ..Vcpu::default() }
}

pub fn preempted(since_ns: u64, class: Class) -> VcpuNow {
    VcpuNow::Preempted { since_ns, class, reader: false, at: Location::default(), throttled: false }
}

pub fn vm(pid: u32, name: &str, vcpus: Vec<Vcpu>) -> VmSnapshot {
    VmSnapshot {
        pid,
        name: name.into(),
        vmm: "qemu-kvm".into(),
        state: VmState::Watching,
        kernel: Some("6.12.117+deb12-cloud-amd64".into()),
        vcpus,
        ..VmSnapshot::default()
    }
}

pub fn snapshot(time_ns: u64, vms: Vec<VmSnapshot>) -> Snapshot {
    Snapshot {
        schema: Snapshot::SCHEMA,
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
        throttled: false,
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
    second.wakes = histogram(&vec![2 * MS; (20 * seconds) as usize]);
    (second.throttled, second.throttled_ns) = (5 * seconds, 25 * seconds * MS);
    let mut db = vm(4711, "db-primary", vec![first, second]);
    db.takers = vec![Taker {
        pid: 4712,
        name: "web-1".into(),
        vm: true,
        cgroup: Some("/machine.slice/web".into()),
        count: 100 * seconds,
        total_ns: 300 * seconds * MS,
    }];
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
    odd.reason = Some("encrypted".into());
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
        process_ns: 6_000_000 * seconds,
        lost: 0,
    };
    all
}
