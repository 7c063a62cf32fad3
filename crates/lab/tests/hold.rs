// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests keep their CPUs in the requested states, and their kernels report no problem.

use reprieve_lab::error::Error;
use reprieve_lab::images::{ImageSet, Images, Program};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Event, Held, Hold, Workload};
use reprieve_lab::vm::{Accel, Config, Vm};
use std::time::Duration;

/// The limit of the first attempt to boot, and of each command to the first guest. The guest that
/// follows one that hangs gets twice the time: QEMU's emulation is known to hang guests, and a hang
/// cannot be told from a slow machine. `make test` ends what hangs every time.
const LIMIT: Duration = Duration::from_secs(180);

/// Guests that may die. One that the kernel module kills dies every time.
const CRASHES: u32 = 3;

/// How many states a guest holds at a time: CPU 0 is left alone, each of the others holds one.
const ROUND: usize = 4;

const HOLD_US: u32 = 20_000;

/// Complaints of the kernel about a vCPU that gets no CPU for long say nothing of the module.
const QUIET: &str = "nowatchdog rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0";

fn hold(kernel: &str) {
    let cancel = Cancel::default();
    let images = Images::open(&cancel, &Silent).unwrap();
    let set = images.prepare(&[kernel.into()], &[Program::Hold]).unwrap();
    let (mut limit, mut crashes) = (LIMIT, 0);
    while let Err(error) = hold_in_a_guest(kernel, &set, limit) {
        match error {
            Error::Timeout { .. } => limit *= 2,
            _ => crashes += 1,
        }
        assert!(crashes < CRASHES, "{error}");
        eprintln!("{error}: tries again");
    }
}

/// Fails when the guest hangs or dies. Whatever else goes wrong is a panic.
fn hold_in_a_guest(kernel: &str, set: &ImageSet, limit: Duration) -> Result<(), Error> {
    let cancel = Cancel::default();
    let guest = &set.guests[kernel];
    let logs = tempfile::tempdir().unwrap();
    let config = |attempt| Config {
        name: "hold".into(),
        accel: Accel::Tcg,
        dilation: Default::default(),
        cpu: None,
        vcpus: ROUND as u32 + 1,
        spare_vcpus: 0,
        memory_mib: 512,
        kernel: guest.kernel.clone(),
        initrd: guest.initrd.clone(),
        args: QUIET.into(),
        console: logs.path().join(format!("console.{attempt}.log")),
        region: false,
    };
    let again = |attempt, error: &Error| {
        eprintln!("boot {attempt} failed: {error}");
        Ok(())
    };
    let mut vm = Vm::boot_with_retries(config, &set.qemu, limit, &cancel, again).unwrap();
    let notice = |event: Event| {
        // A module that does not load is a notice before the answer.
        assert!(!matches!(event, Event::Notice { .. }), "{event:?}");
        Ok(())
    };
    // User mode by itself: its holds are numbers of steps, whose time depends on the machine.
    let (user, kernel) = Held::ALL.split_at(1);
    assert_eq!(user, [Held::User]);
    for (round, held) in [user].into_iter().chain(kernel.chunks(ROUND)).enumerate() {
        let hold = |(held, cpu): (&Held, u32)| Hold { cpu, held: *held, hold_us: HOLD_US };
        let holds = held.iter().zip(1..).map(hold).collect();
        let prepare = Command::Prepare { workload: Workload::Hold { holds }, measure: None };
        answered(vm.call(&prepare, limit, &cancel, notice))?;
        // Until there is at least one each: a vCPU may have no CPU for a phase.
        let count = held.len() as f64;
        let mut holds = 0.0;
        while holds < count {
            let phase = Command::Phase { phase: round as u32, duration_ms: 3_000 };
            let done = answered(vm.call(&phase, limit, &cancel, notice))?;
            let Event::PhaseDone { result, .. } = done else { panic!("{done:?}") };
            // No more than fit into the phase by the guest's clock, which in emulation may run
            // faster than the host's.
            let most = result.elapsed_ns as f64 / 1e3 / f64::from(HOLD_US) * count;
            holds = result.operations;
            println!("{holds} of {held:?}, {most:.1} at most");
            assert!(holds <= most + count || held == user, "{holds} of {held:?}");
        }
    }
    // A hold that is not possible is an error, and the guest stays usable.
    for (cpu, held, hold_us) in [(9, Held::Reader, 1_000), (1, Held::Hardirq, 2_000_000)] {
        let holds = vec![Hold { cpu, held, hold_us }];
        let prepare = Command::Prepare { workload: Workload::Hold { holds }, measure: None };
        answered(vm.call(&prepare, limit, &cancel, notice))?;
        let error = match vm.call(&Command::Start, limit, &cancel, notice) {
            Err(Error::Guest { message, .. }) => message,
            other => panic!("{:?}", answered(other)?),
        };
        assert!(error.contains("reprieve_hold"), "{error}");
    }
    vm.shut_down(&cancel);
    let console = (1..).map(|attempt| config(attempt).console).take_while(|log| log.exists());
    let said = std::fs::read_to_string(console.last().unwrap()).unwrap();
    for complaint in ["BUG", "WARNING"] {
        assert!(!said.contains(complaint), "{said}");
    }
    Ok(())
}

/// An answer, or the error that the guest has hung or died.
fn answered(answer: Result<Event, Error>) -> Result<Event, Error> {
    match answer {
        Err(error) if error.is_crash() => Err(error),
        answer => Ok(answer.unwrap()),
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
