// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests keep their CPUs in the states that they are told to, without a complaint of their kernels.

use reprieve_lab::images::{Images, Program};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Event, Held, Hold, Workload};
use reprieve_lab::vm::{Accel, Config, Vm};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);

/// CPU 0 of a guest is left alone; each round of `HELD` uses the others.
const ROUND: usize = 4;

fn hold(kernel: &str) {
    let cancel = Cancel::default();
    let images = Images::open(&cancel, &Silent).unwrap();
    let set = images.prepare(&[kernel.into()], &[Program::Hold]).unwrap();
    let guest = &set.guests[kernel];
    let logs = tempfile::tempdir().unwrap();
    let config = Config {
        name: "hold".into(),
        accel: Accel::Tcg,
        cpu: None,
        vcpus: ROUND as u32 + 1,
        memory_mib: 512,
        kernel: guest.kernel.clone(),
        initrd: guest.initrd.clone(),
        args: String::new(),
        console: logs.path().join("console.log"),
    };
    let mut vm = Vm::boot(&config, &set.qemu, LIMIT, &cancel).unwrap();
    let notice = |event: Event| {
        // A module that does not load is a notice before the answer.
        assert!(!matches!(event, Event::Notice { .. }), "{event:?}");
        Ok(())
    };
    for (round, held) in Held::ALL.chunks(ROUND).enumerate() {
        let hold =
            |(held, cpu): (&Held, u32)| Hold { cpu, held: *held, hold_us: 20_000, pause_us: 0 };
        let holds = held.iter().zip(1..).map(hold).collect();
        let prepare = Command::Prepare { workload: Workload::Hold { holds }, measure: None };
        vm.call(&prepare, LIMIT, &cancel, notice).unwrap();
        let phase = Command::Phase { phase: round as u32, duration_ms: 1_000 };
        let started = Instant::now();
        let done = vm.call(&phase, LIMIT, &cancel, notice).unwrap();
        let Event::PhaseDone { result, .. } = done else { panic!("{done:?}") };
        // At least one each, and no more than fit into the time it really took.
        let most = started.elapsed().as_millis() as f64 / 20.0 * ROUND as f64;
        let holds = result.operations;
        assert!((ROUND as f64..=most + 1.0).contains(&holds), "{holds} of {held:?}");
    }
    // What it cannot do it says, and stays usable.
    for (cpu, held, hold_us) in [(9, Held::Reader, 1_000), (1, Held::Hardirq, 2_000_000)] {
        let holds = vec![Hold { cpu, held, hold_us, pause_us: 0 }];
        let prepare = Command::Prepare { workload: Workload::Hold { holds }, measure: None };
        vm.call(&prepare, LIMIT, &cancel, notice).unwrap();
        let error = vm.call(&Command::Start, LIMIT, &cancel, notice).unwrap_err().to_string();
        assert!(error.contains("reprieve_hold"), "{error}");
    }
    vm.shut_down();
    let said = std::fs::read_to_string(&config.console).unwrap();
    for complaint in ["BUG", "WARNING", "stall", "lockup"] {
        assert!(!said.contains(complaint), "{said}");
    }
}

#[test]
fn a_guest_holds_every_state() {
    hold("deb:6.12");
}

#[test]
#[ignore = "fetches more kernels: make test-lab"]
fn older_and_newer_guests_hold_every_state() {
    hold("deb:6.1");
    hold("deb:7");
}
