// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that become others while they are watched.

mod common;

use common::{OTHER, boot_with, spin, wait_for, wait_until_watching, watch};
use reprieve_host::watch::model::{Class, VmState};
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::{Command, Event, Workload};
use std::time::{Duration, Instant};

/// For anything that a guest does under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_guest_that_starts_its_kernel_again_is_seen_again() {
    goes_on_with("deb:6.12", "6.12.");
}

#[test]
#[ignore = "takes another kernel: make test-lab"]
fn a_guest_that_goes_on_with_another_kernel_is_seen_again() {
    goes_on_with("deb:6.1", "6.1.");
}

/// A guest starts kernel `other`, whose release begins with `release`, by kexec: the VM stays, and so does its memory but for what the new kernel needs.
fn goes_on_with(other: &str, release: &str) {
    let mut guest = boot_with("deb:6.12", Some(other), 2, "");
    let mut watch = watch(&guest, false);
    let seen = wait_until_watching(&mut watch);
    assert!(seen.kernel.as_deref().is_some_and(|k| k.starts_with("6.12.")), "{:?}", seen.kernel);

    let [kernel, initrd] = OTHER.map(String::from);
    let cmdline = "console=ttyS0 panic=-1 quiet".into();
    guest.vm.send(&Command::Kexec { kernel, initrd, cmdline }).unwrap();
    let start = Instant::now();
    wait_for(&mut watch, LIMIT, |vm| vm.state != VmState::Watching);
    let noticed = start.elapsed();
    let again = wait_until_watching(&mut watch);
    let seen = start.elapsed();
    let cancel = Cancel::default();
    match guest.vm.next_event(Instant::now() + LIMIT, &cancel).unwrap() {
        Event::Hello { guest, .. } => assert!(guest.kernel.starts_with(release), "{guest:?}"),
        other => panic!("{other:?}"),
    }
    eprintln!(
        "{other}: up after {:?}; noticed after {noticed:?}, seen after {seen:?}: {:?}",
        start.elapsed(),
        again.kernel
    );

    // It is that kernel's memory that is read: what it does is known, and its grace periods are timed.
    let prepare = Command::Prepare { workload: Workload::FileChurn { workers: 2 }, measure: None };
    guest.vm.call(&prepare, LIMIT, &cancel, |_| Ok(())).unwrap();
    guest.vm.call(&Command::Start, LIMIT, &cancel, |_| Ok(())).unwrap();
    let before = wait_until_watching(&mut watch);
    let _spinners = spin(2);
    let critical = |vm: &reprieve_host::watch::model::Vm| -> u64 {
        let preemptions = vm.vcpus.iter().flat_map(|vcpu| &vcpu.preemptions);
        let known = preemptions.filter(|p| !matches!(p.class, Class::Unknown | Class::User));
        known.flat_map(|p| &p.off_cpu.counts).sum()
    };
    let graces = |vm: &reprieve_host::watch::model::Vm| -> u64 {
        vm.grace.as_ref().map_or(0, |grace| grace.durations.counts.iter().sum())
    };
    wait_for(&mut watch, LIMIT, |vm| {
        vm.kernel.as_deref().is_some_and(|k| k.starts_with(release))
            && critical(vm) > critical(&before) + 100
            && graces(vm) > graces(&before) + 10
    });
}
