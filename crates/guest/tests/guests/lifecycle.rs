// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest that is paused, gets a CPU, is reset and ends: `Guest::alive` and `Guest::layout` notice
//! each of these.

use crate::common::alone;
use crate::patience::wait_for;
use crate::qemu::Qemu;
use reprieve_guest::{Liveness, Options};

#[test]
#[ignore = "takes minutes: boots a guest several times"]
fn pause_new_cpu_reboot_and_end_are_noticed() {
    let _alone = alone();
    // Newer kernels accept no new CPU from the ACPI tables of an older QEMU ("plus 0 hotplug
    // CPUs").
    let mut qemu = Qemu::with_guest("deb:6.1");
    let guest = qemu.attach(&Options::default());
    let alive = || match guest.alive().unwrap() {
        Liveness::Gone => panic!("the VM has ended"),
        // The new kernel is not yet where the old one was.
        Liveness::Stuck => Liveness::Rebooted,
        alive => alive,
    };
    assert_eq!(alive(), Liveness::Same);
    assert_eq!((guest.present().unwrap(), guest.layout().unwrap().vcpus.len()), (vec![0], 1));

    qemu.command(r#"{"execute":"stop"}"#);
    wait_for("the pause", || alive() == Liveness::Paused);
    qemu.command(r#"{"execute":"cont"}"#);
    wait_for("the end of the pause", || alive() == Liveness::Same);

    let cpu = r#"{"execute":"device_add","arguments":{"driver":"max-x86_64-cpu","id":"more","socket-id":0,"core-id":1,"thread-id":0}}"#;
    qemu.command(cpu);
    wait_for("the new CPU", || guest.present().unwrap() == [0, 1]);
    let layout = guest.layout().unwrap();
    assert_eq!(layout.vcpus.len(), 2);
    let tids = [layout.vcpus[0].tid.unwrap(), layout.vcpus[1].tid.unwrap()];
    assert!(tids[0] != tids[1], "{tids:?}");
    assert_eq!((guest.vcpus(), guest.alive().unwrap()), (2, Liveness::Same));

    // The same kernel again; what the first boot left in memory is there for a while.
    qemu.command(r#"{"execute":"system_reset"}"#);
    wait_for("the reboot", || alive() == Liveness::Rebooted);
    let mut again = qemu.attach(&Options::default());
    wait_for("another boot", || {
        again = qemu.attach(&Options::default());
        again.boot() != guest.boot()
    });
    assert_eq!((again.alive().unwrap(), alive()), (Liveness::Same, Liveness::Rebooted));

    drop(qemu);
    assert_eq!(again.alive().unwrap(), Liveness::Gone);
    assert_eq!(guest.alive().unwrap(), Liveness::Gone);
}
