// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of a dilated guest.

use reprieve_lab::dilation::Dilation;
use reprieve_lab::images::Images;
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::protocol::{Command, Event};
use reprieve_lab::vm::{Accel, Config, Vm};
use std::time::{Duration, Instant};

const KERNEL: &str = "deb:6.12";

/// The limit of the first attempt to boot.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// Until it comes: the limit of the whole test process ends a hang.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// How long the guest runs between two readings of its clock.
const RUN: Duration = Duration::from_secs(3);

/// The guest's time since boot, and this machine's before and after it was read.
struct Reading {
    guest: f64,
    before: Instant,
    after: Instant,
}

fn read(vm: &mut Vm, cancel: &Cancel) -> Reading {
    let before = Instant::now();
    let mut text = String::new();
    let command = Command::Read { path: "/proc/uptime".into() };
    vm.call(&command, FOREVER, cancel, |event| {
        if let Event::Content { text: part } = event {
            text += &part;
        }
        Ok(())
    })
    .unwrap();
    let guest = text.split_ascii_whitespace().next().unwrap().parse().unwrap();
    Reading { guest, before, after: Instant::now() }
}

#[test]
fn a_dilated_guests_clock_runs_slower() {
    const N: u32 = 10;
    let cancel = Cancel::default();
    let images = Images::open(&cancel, &Silent).unwrap();
    let set = images.prepare(&[KERNEL.into()], &[]).unwrap();
    let logs = tempfile::tempdir().unwrap();
    let guest = &set.guests[KERNEL];
    let console = logs.path().join("console.log");
    let config = Config {
        dilation: Dilation::new(N).unwrap(),
        ..Config::new("dilated", Accel::Tcg, guest, console)
    };
    let kvm = Config { accel: Accel::Kvm, ..config.clone() };
    let refused = Vm::boot(&kvm, &set.qemu, FOREVER, &cancel).err().unwrap().to_string();
    assert!(refused.contains("KVM"), "{refused}");

    // An emulated boot may hang.
    let again = |attempt, error: &_| {
        eprintln!("boot {attempt} failed: {error}");
        Ok(())
    };
    let mut vm =
        Vm::boot_with_retries(|_| config.clone(), &set.qemu, BOOT_LIMIT, &cancel, again).unwrap();
    let first = read(&mut vm, &cancel);
    cancel.sleep(RUN).unwrap();
    let last = read(&mut vm, &cancel);
    vm.shut_down(&cancel);
    // The guest read its clock between `before` and `after`. On a busy machine its kernel may be
    // wrong about the frequency of its TSC; and uptime is cut to hundredths of a second.
    let guest = last.guest - first.guest;
    let least = (last.before - first.after).as_secs_f64() / f64::from(N) / 2.0;
    let most = (last.after - first.before).as_secs_f64() / f64::from(N) * 2.0;
    assert!((least..=most).contains(&guest), "{guest} s in the guest, not {least} to {most} s");
}
