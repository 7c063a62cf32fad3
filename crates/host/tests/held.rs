// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest whose CPUs are kept in known states, looked at from its host: the figures that classes are made of say so, without eBPF.
//!
//! This checks the ground on which `reprieve lab check classes` stands: were a state not held, or not visible in memory, no collector could be right.

use reprieve_guest::{Guest, VcpuView, vmm};
use reprieve_lab::images::{Images, Program};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Held, Hold, Workload};
use reprieve_lab::vm::{Accel, Config, Vm};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

/// CPU 0 of the guest is left alone.
const ROUND: usize = 4;

const SAMPLES: u32 = 400;

/// Of `SAMPLES`, how many must show it. Interrupts come in between.
const RIGHT: u32 = 392;

/// Whether memory shows that `vcpu` is in `held`. User mode and disabled interrupts leave no trace there.
fn shows(vcpu: &VcpuView, held: Held) -> bool {
    let (Ok(count), Ok(task)) = (vcpu.preempt_count(), vcpu.current_task()) else { return false };
    let nothing = count.depth() == 0 && !count.softirq_disabled() && !count.hardirq_disabled();
    let reader = task.rcu_nesting.unwrap_or(0) > 0;
    let thread = task.comm.starts_with("hold");
    match held {
        Held::User | Held::Kernel | Held::IrqsOff => thread && nothing && !reader,
        Held::Reader => thread && nothing && reader,
        Held::Spinlock => thread && count.depth() == 1,
        Held::Bh => thread && count.softirq_disabled() && !count.in_softirq(),
        // Or in ksoftirqd.
        Held::Softirq => count.in_softirq(),
        Held::Hardirq => count.in_hardirq(),
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
        name: "held".into(),
        accel: Accel::Tcg,
        cpu: None,
        vcpus: ROUND as u32 + 1,
        memory_mib: 512,
        kernel: image.kernel.clone(),
        initrd: image.initrd.clone(),
        args: "nohz_full=1-4 isolcpus=1-4 irqaffinity=0".into(),
        console: logs.path().join("console.log"),
    };
    let mut vm = Vm::boot(&config, &set.qemu, LIMIT, &cancel).unwrap();
    let guest = Guest::attach(&vmm::find(&vm.threads().pid().to_string()).unwrap()).unwrap();
    for round in Held::ALL.chunks(ROUND) {
        let hold =
            |(held, cpu): (&Held, u32)| Hold { cpu, held: *held, hold_us: 100_000, pause_us: 0 };
        let holds = round.iter().zip(1..).map(hold).collect();
        let prepare = Command::Prepare { workload: Workload::Hold { holds }, measure: None };
        vm.call(&prepare, LIMIT, &cancel, |_| Ok(())).unwrap();
        vm.call(&Command::Start, LIMIT, &cancel, |_| Ok(())).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let mut right = [0; ROUND];
        for _ in 0..SAMPLES {
            for ((held, cpu), right) in round.iter().zip(1..).zip(&mut right) {
                *right += u32::from(shows(&guest.vcpu(cpu).unwrap(), *held));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(right.iter().all(|&n| n >= RIGHT), "{right:?} of {SAMPLES} samples of {round:?}");
    }
    vm.shut_down();
}
