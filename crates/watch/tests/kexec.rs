// SPDX-License-Identifier: MIT OR Apache-2.0
//! A watched guest that starts another kernel, or the same one again, by kexec.

mod common;

use common::patience::{NO_LIMIT, NO_TIMER_CHECK};
use common::{OTHER, boot_with, spin, wait_for, wait_until_watching, watch};
use reprieve_lab::process::Cancel;
use reprieve_lab::protocol::{Command, Event, Workload};
use reprieve_watch::Watch;
use reprieve_watch::model::{Class, VmSnapshot};
use std::time::Instant;

#[test]
fn a_guest_that_starts_its_kernel_again_is_seen_again() {
    goes_on_with("deb:6.12", "6.12.");
}

#[test]
#[ignore = "takes another kernel: make test-lab"]
fn a_guest_that_goes_on_with_another_kernel_is_seen_again() {
    goes_on_with("deb:6.1", "6.1.");
}

/// Of which CPUs the guest's RCU sees when they are in user mode.
fn tracking(watch: &Watch) -> Vec<bool> {
    let (machines, ..) = watch.parts();
    let machines = machines.lock();
    let layout = machines.values().next().and_then(|machine| machine.layout()).unwrap();
    layout.vcpus.iter().map(|vcpu| vcpu.tracks_user).collect()
}

/// A guest starts kernel `other`, whose release begins with `release`, by kexec. The VM stays, and
/// what the old kernel left in memory stays where the new one does not need it.
fn goes_on_with(other: &str, release: &str) {
    let mut guest = boot_with("deb:6.12", Some(other), 2, "nohz_full=1", false);
    let mut watch = watch(&guest, true);
    let seen = wait_until_watching(&mut watch);
    assert_eq!(tracking(&watch), [false, true], "CPU 1 has context tracking");
    assert!(seen.kernel.as_deref().is_some_and(|k| k.starts_with("6.12.")), "{:?}", seen.kernel);

    let [kernel, initrd] = OTHER.map(String::from);
    let factor = reprieve_lab::limit::kernel_parameter();
    let cmdline = format!("console=ttyS0 panic=-1 quiet {NO_TIMER_CHECK} {factor}");
    guest.vm.send(&Command::Kexec { kernel, initrd, cmdline }).unwrap();
    let start = Instant::now();
    let cancel = Cancel::default();
    match guest.vm.next_event(Instant::now() + NO_LIMIT, &cancel).unwrap() {
        Event::Hello { guest, .. } => assert!(guest.kernel.starts_with(release), "{guest:?}"),
        other => panic!("{other:?}"),
    }
    eprintln!("{other}: up after {:?}", start.elapsed());

    // The new kernel's memory is read: classes are known, and grace periods are timed.
    let prepare = Command::Prepare { workload: Workload::FileChurn { workers: 2 }, measure: None };
    guest.vm.call(&prepare, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
    guest.vm.call(&Command::Start, NO_LIMIT, &cancel, |_| Ok(())).unwrap();
    let before = wait_until_watching(&mut watch);
    assert_eq!(tracking(&watch), [false, false]);
    let _spinners = spin(2);
    let critical = |vm: &VmSnapshot| -> u64 {
        let preemptions = vm.vcpus.iter().flat_map(|vcpu| &vcpu.preemptions);
        let known = preemptions.filter(|p| !matches!(p.class, Class::Unknown | Class::User));
        known.flat_map(|p| &p.off_cpu.counts).sum()
    };
    let graces = |vm: &VmSnapshot| -> u64 {
        vm.grace.as_ref().map_or(0, |grace| grace.durations.counts.iter().sum())
    };
    wait_for(&mut watch, "classes and grace periods", |vm| {
        vm.kernel.as_deref().is_some_and(|k| k.starts_with(release))
            && critical(vm) > critical(&before) + 100
            && graces(vm) > graces(&before) + 10
    });
}
