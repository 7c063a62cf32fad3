// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbols and types from files instead of the guest's memory.

use crate::common::alone;
use crate::damage::ask_all;
use crate::qemu::Qemu;
use reprieve_guest::kernel::vmcoreinfo::KERNEL_BASE;
use reprieve_guest::{Error, Guest, Options, Sources, Symbol};

#[test]
#[ignore = "takes minutes: boots a guest"]
fn symbols_and_types_can_come_from_files() {
    let _alone = alone();
    let qemu = Qemu::with_guest("deb:6.12");
    let plain = qemu.attach(&Options::default());
    // As `nm` prints it of the file that the kernel was made from: before KASLR. Debian's own is in
    // the debug package only.
    let map = qemu.scratch.0.join("System.map");
    let moved = plain.info().kaslr_offset();
    let line = |s: Symbol| {
        let address = if s.address >= KERNEL_BASE { s.address - moved } else { s.address };
        format!("{address:016x} {} {}\n", s.kind, s.name)
    };
    let lines: String = plain.symbols().iter().map(line).collect();
    std::fs::write(&map, &lines).unwrap();
    let sources = Sources { symbols: Some(map.clone()), types: None };
    let given = qemu.attach(&Options { sources, ..Options::default() });
    for name in ["schedule", "rcu_state", "pcpu_hot", "__per_cpu_offset"] {
        assert_eq!(
            given.symbols().address(name).unwrap(),
            plain.symbols().address(name).unwrap(),
            "{name}"
        );
    }
    assert_eq!(given.boot(), plain.boot());
    ask_all(&given);
    let types = qemu.scratch.0.join("types");
    let (start, end) = (
        plain.symbols().address("__start_BTF").unwrap(),
        plain.symbols().address("__stop_BTF").unwrap(),
    );
    std::fs::write(&types, plain.memory().bytes(start, (end - start) as usize).unwrap()).unwrap();
    let sources = Sources { symbols: Some(map), types: Some(types) };
    let both = qemu.attach(&Options { sources, ..Options::default() });
    assert_eq!(both.types().unwrap().len(), plain.types().unwrap().len());
    assert_eq!(both.layout().unwrap(), plain.layout().unwrap());
    // Another build's map.
    let map = qemu.scratch.0.join("other");
    let uts = lines.lines().find(|l| l.ends_with(" init_uts_ns")).unwrap();
    let other = uts.replace(&uts[..16], &format!("{:016x}", KERNEL_BASE + 0x100));
    std::fs::write(&map, lines.replace(uts, &other)).unwrap();
    let sources = Sources { symbols: Some(map), types: None };
    let vm = qemu.vm();
    match Guest::attach_with(&vm, &Options { sources, ..Options::default() }) {
        Err(e @ Error::Source { .. }) => assert!(e.to_string().contains("another build"), "{e}"),
        other => panic!("{:?}", other.err()),
    }
}
