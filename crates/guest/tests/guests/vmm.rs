// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU processes of all kinds: that they are found, and which of their memory is which RAM of the
//! guest. No guest runs; QEMU itself puts marks into its RAM.

use crate::common::alone;
use crate::qemu::Qemu;
use reprieve_guest::memory::{Physical, ProcessRam};
use reprieve_guest::vmm::{self, Accel};
use reprieve_guest::{Error, Guest};

const GIB: u64 = 1 << 30;

/// Starts QEMU with `args` and a mark at each address of `marks`; checks that the marks are read
/// there, and that the RAM below the hole for devices ends at `low`.
fn marks_are_read_where_they_are(args: &[&str], marks: &[u64], low: u64) {
    let devices: Vec<String> = marks
        .iter()
        .map(|at| format!("loader,addr={at:#x},data={:#x},data-len=8", 0x5eed_0000_0000_0000 | at))
        .collect();
    let mut all = args.to_vec();
    for device in &devices {
        all.extend(["-device", device.as_str()]);
    }
    all.push("-S");
    let qemu = Qemu::start(&all);
    let vm = qemu.vm();
    assert_eq!(vm.accel, Accel::Tcg);
    assert!(vm.exists() && vm.name == Some(qemu.scratch.name()));
    let ram = ProcessRam::open(&vm, vm.memory.clone()).unwrap();
    for &at in marks {
        let mut bytes = [0; 8];
        ram.read(at, &mut bytes).unwrap();
        let mark = u64::from_le_bytes(bytes);
        assert_eq!(mark, 0x5eed_0000_0000_0000 | at, "{args:?} {:x?}", vm.memory);
    }
    let below = vm.memory.iter().map(|s| s.end()).filter(|&end| end <= 4 * GIB).max();
    assert_eq!(below, Some(low), "{args:?}");
    let nowhere = ram.read(low.max(4 * GIB - 8) + 64 * GIB, &mut [0]);
    assert!(matches!(nowhere, Err(Error::NotRam { .. })));
    let numbered = vm.vcpus.iter().zip(0..).all(|(v, n)| v.index == n);
    assert!(!vm.vcpus.is_empty() && numbered, "{:?}", vm.vcpus);
}

#[test]
fn ram_is_found_in_every_kind_of_machine() {
    let _alone = alone();
    let above = 4 * GIB + 0x10_0000;
    marks_are_read_where_they_are(
        &["-machine", "pc", "-m", "512M", "-smp", "3"],
        &[0x10_0000, 0x1fff_0000],
        GIB / 2,
    );
    marks_are_read_where_they_are(
        &["-M", "pc", "-m", "5G"],
        &[0x10_0000, 3 * GIB - 4096, above],
        3 * GIB,
    );
    marks_are_read_where_they_are(&["-machine", "q35", "-m", "3G"], &[0x10_0000, above], 2 * GIB);
    let nodes = [
        "-machine",
        "q35",
        "-m",
        "3G",
        "-smp",
        "2",
        "-object",
        "memory-backend-ram,id=a,size=1G",
        "-object",
        "memory-backend-memfd,id=b,size=2G",
        "-numa",
        "node,nodeid=0,memdev=a,cpus=0",
        "-numa",
        "node,nodeid=1,memdev=b,cpus=1",
    ];
    marks_are_read_where_they_are(&nodes, &[0x10_0000, GIB + 0x10_0000, above], 2 * GIB);
    let backend =
        r#"{"qom-type":"memory-backend-memfd","id":"pc.ram","share":true,"size":1073741824}"#;
    let libvirt =
        ["-machine", "pc,memory-backend=pc.ram", "-m", "size=1048576k", "-object", backend];
    marks_are_read_where_they_are(&libvirt, &[0x10_0000, GIB - 4096], GIB);
}

#[test]
fn vms_are_found_by_name_and_number() {
    let _alone = alone();
    // Other runs of this test may have twins of their own.
    let twin = format!("reprieve-twin-{}", std::process::id());
    let guest = format!("guest={twin}");
    let mut first = Qemu::start(&["-S", "-m", "64M", "-name", &guest]);
    let second = Qemu::start(&["-S", "-m", "64M", "-name", &twin]);
    match vmm::find(&twin) {
        Err(Error::Ambiguous { pids, .. }) => assert_eq!(pids.len(), 2),
        other => panic!("{other:?}"),
    }
    reprieve_lab::process::kill(&mut first.child);
    let vm = vmm::find(&twin).unwrap();
    assert_eq!((vm.pid, vm.name.as_deref()), (second.pid(), Some(twin.as_str())));
    assert_eq!(vmm::find(&second.pid().to_string()).unwrap(), vm);
    let missing = vmm::find("no-such-vm").unwrap_err().to_string();
    assert!(missing.contains(&twin), "{missing}");
    let own = vmm::find(&std::process::id().to_string());
    assert!(matches!(own, Err(Error::NotVmm { .. })), "{own:?}");
    // Nothing has run in it yet.
    match Guest::attach(&vm) {
        Err(e @ Error::NoKernel { .. }) => assert!(e.to_string().contains("firmware"), "{e}"),
        other => panic!("{:?}", other.err()),
    }
    drop(second);
    assert!(!vm.exists());
    assert!(matches!(
        vmm::find(&vm.pid.to_string()),
        Err(Error::Gone { .. } | Error::NotVmm { .. })
    ));
}
