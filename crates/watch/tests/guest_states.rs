// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest whose CPUs are kept in known states: `preempt_count` and the current task, read from the
//! host without eBPF, show these states, and which CPUs a grace period waits for.
//!
//! `reprieve lab check classes` relies on this: if the guest did not hold a state, or memory did
//! not show it, no collector could classify it.

#[path = "../../guest/tests/guests/patience.rs"]
mod patience;

use patience::{NO_LIMIT, Wait};
use reprieve_guest::{Guest, VcpuView, vmm};
use reprieve_lab::images::{Images, Program};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Held, Hold, Workload};
use reprieve_lab::vm::{Accel, Config};
use std::time::Duration;

/// CPUs that hold a state at the same time. CPU 0 of the guest is left alone.
const ROUND: usize = 4;

/// Samples of each state.
const SAMPLES: u32 = 400;

/// Samples that must show the state. A sample may fall between two holds, where a vCPU that has to
/// share its CPU may stay for a while, which spoils many samples; a state that memory does not show
/// is hardly ever right.
const RIGHT: u32 = 360;

/// As long as can be: what comes between two holds takes the same time for all of them.
const HOLD_US: u32 = 10_000_000;
const HOLD_ATOMIC_US: u32 = 1_000_000;
/// The guest holds user mode for a number of steps, which cannot be stopped.
const HOLD_USER_US: u32 = 100_000;

fn hold((held, cpu): (&Held, u32)) -> Hold {
    let hold_us = match held {
        Held::User => HOLD_USER_US,
        Held::Kernel | Held::Reader | Held::Spinlock | Held::Owing => HOLD_US,
        Held::Bh | Held::Softirq | Held::Hardirq | Held::IrqsOff => HOLD_ATOMIC_US,
    };
    Hold { cpu, held: *held, hold_us, pause_us: 0 }
}

/// The findings of a look at a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The state that the guest holds.
    Right,
    /// An interrupt or a softirq, which covers the state. How often that happens depends on the
    /// machine's speed.
    Covered,
    Wrong,
}

/// Looks at one vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    right: u32,
    covered: u32,
    wrong: u32,
}

impl Tally {
    fn add(&mut self, look: Look) {
        match look {
            Look::Right => self.right += 1,
            Look::Covered => self.covered += 1,
            Look::Wrong => self.wrong += 1,
        }
    }
}

/// Whether memory shows that `vcpu` is in `held`. User mode and disabled interrupts leave no trace
/// there.
fn look(vcpu: &VcpuView, held: Held) -> Look {
    let (Ok(count), Ok(task)) = (vcpu.preempt_count(), vcpu.current_task()) else {
        return Look::Wrong;
    };
    let nothing = count.depth() == 0 && !count.softirq_disabled() && !count.hardirq_disabled();
    let reader = task.rcu_nesting.unwrap_or(0) > 0;
    let thread = task.comm.starts_with("hold");
    let interrupted = count.in_hardirq() || count.in_softirq();
    let (right, covered) = match held {
        Held::User | Held::Kernel | Held::IrqsOff => (thread && nothing && !reader, interrupted),
        Held::Reader => (thread && nothing && reader, interrupted),
        Held::Spinlock => (thread && count.depth() == 1, interrupted),
        Held::Bh => (thread && count.softirq_disabled() && !count.in_softirq(), interrupted),
        // The task may be ksoftirqd.
        Held::Softirq => (count.in_softirq(), count.in_hardirq()),
        Held::Hardirq => (count.in_hardirq(), false),
        Held::Owing => (thread && count.depth() == 1 && reader, interrupted),
    };
    match (right, covered) {
        (true, _) => Look::Right,
        (false, true) => Look::Covered,
        (false, false) => Look::Wrong,
    }
}

/// `SAMPLES` of each state.
fn sampled(guest: &Guest, round: &[Held]) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); round.len()];
    while tallies.iter().any(|t| t.right + t.wrong < SAMPLES) {
        for ((held, cpu), tally) in round.iter().zip(1..).zip(&mut tallies) {
            if tally.right + tally.wrong < SAMPLES {
                tally.add(look(&guest.vcpu(cpu).unwrap(), *held));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    tallies
}

/// Waits until `cpu` has owed a grace period and the one after it.
fn owes_one_after_the_other(guest: &Guest, cpu: u32) {
    let mut wait = Wait::new("two grace periods in a row that a CPU owes");
    let mut last = None;
    loop {
        let owing = guest.rcu().unwrap().owing().unwrap();
        if !owing.torn && owing.cpus.contains(&cpu) {
            let number = owing.seq >> 2;
            if last.is_some_and(|last| number == last + 1) {
                return;
            }
            last = Some(number);
        }
        wait.pause(|| format!("CPU {cpu}, the last that it owed is {last:?}"));
    }
}

#[test]
fn memory_shows_what_a_guest_holds() {
    let cancel = Cancel::default();
    let images = Images::open(&cancel, &Silent).unwrap();
    let set = images.prepare(&["deb:6.12".into()], &[Program::Hold]).unwrap();
    let image = &set.guests["deb:6.12"];
    let logs = tempfile::tempdir().unwrap();
    let config = Config {
        name: format!("guest-states-{}", std::process::id()),
        accel: Accel::Tcg,
        dilation: Default::default(),
        cpu: None,
        vcpus: ROUND as u32 + 1,
        spare_vcpus: 0,
        memory_mib: 512,
        kernel: image.kernel.clone(),
        initrd: image.initrd.clone(),
        args: "nohz_full=1-4 isolcpus=1-4 irqaffinity=0".into(),
        console: logs.path().join("console.log"),
        region: false,
    };
    let mut vm = patience::boot(&config, &set.qemu);
    let guest = Guest::attach(&vmm::find(&vm.threads().pid().to_string()).unwrap()).unwrap();
    // CPU 0 is never one of `nohz_full`: RCU does not see there that it is in user mode.
    for vcpu in guest.layout().unwrap().vcpus {
        assert_eq!(vcpu.tracks_user, vcpu.cpu != 0, "CPU {}", vcpu.cpu);
    }
    for round in Held::ALL.chunks(ROUND) {
        let holds = round.iter().zip(1..).map(hold).collect();
        let prepare = Command::Prepare { workload: Workload::Hold { holds }, measure: None };
        vm.call(&prepare, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
        vm.call(&Command::Start, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
        for (held, cpu) in round.iter().zip(1..) {
            let mut wait = Wait::new("the first hold");
            while look(&guest.vcpu(cpu).unwrap(), *held) != Look::Right {
                wait.pause(|| format!("{held:?} on CPU {cpu}"));
            }
            if *held == Held::Owing {
                owes_one_after_the_other(&guest, cpu);
            }
        }
        loop {
            let tallies = sampled(&guest, round);
            eprintln!("{round:?}: {tallies:?}");
            if tallies.iter().all(|t| t.right >= RIGHT) {
                break;
            }
        }
    }
    vm.shut_down(&cancel);
}
