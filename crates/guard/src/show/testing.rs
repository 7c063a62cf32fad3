// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics for tests.

use crate::options::{Backend, Policy};
use crate::statistics::{Granted, Preempted, RegionStatistics, Statistics, VmStatistics};
use reprieve_watch::model::Class;
use reprieve_watch::raw::{Step, Times};

const MS: u64 = 1_000_000;

/// The statistics of a guard with two VMs, `seconds` after the beginning.
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
        weight: 200,
        vcpus: 2,
        on_cpu_ns: 900 * seconds * MS,
        preempted: preempted.collect(),
        region: Some(RegionStatistics {
            suffered: seconds / 5,
            avoided: 4 * seconds,
            ..RegionStatistics::default()
        }),
        extended: granted(40, 175_000, 900_000),
        rescued: granted(20, 250_000, 300_000),
        ticks_waited: 60 * seconds,
        gave_way: 5 * seconds,
        ..VmStatistics::default()
    };
    let web = VmStatistics {
        pid: 4712,
        name: "web\x1b[2J".into(),
        trouble: Some("memory is \x1b[2J encrypted".into()),
        weight: 100,
        vcpus: 1,
        ..VmStatistics::default()
    };
    Statistics {
        time_ns: 1_000_000 * MS + seconds * 1000 * MS,
        elapsed_ns: seconds * 1000 * MS,
        vms: vec![db, web],
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
        process_ns: seconds * MS,
        ..Statistics::new(Backend::SchedExt, Policy::Full)
    }
}
