// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to guests while they are watched: paused, given a CPU, reset, ended, and full of damage.

use crate::common::{LIMIT, alone, images, wait_for};
use crate::qemu::Qemu;
use crate::random::Random;
use reprieve_guest::error::Result;
use reprieve_guest::kernel::vmcoreinfo::KERNEL_BASE;
use reprieve_guest::memory::Physical;
use reprieve_guest::vmm::{self, Segment};
use reprieve_guest::{Error, Guest, Liveness, Options, Sources, Symbol};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KERNEL: &str = "deb:6.12";

/// A guest with one CPU of two, that can be reset.
fn start(name: &str) -> Qemu {
    let set = images(name);
    let image = &set.guests[name];
    let (kernel, initrd) = (image.kernel.to_str().unwrap(), image.initrd.to_str().unwrap());
    let append = "console=ttyS0 panic=-1 quiet";
    let args =
        ["-machine", "q35", "-cpu", "max", "-smp", "1,maxcpus=2", "-m", "512M", "-kernel", kernel];
    // The init needs a line to wait on; nobody speaks on this one.
    let more = ["-initrd", initrd, "-append", append, "-serial", "null", "-serial", "null"];
    Qemu::start(&[&args[..], &more].concat(), true)
}

fn attach(qemu: &Qemu, options: &Options) -> Guest {
    let vm = vmm::Vm::of_process(qemu.pid()).unwrap();
    let end = Instant::now() + LIMIT;
    loop {
        match Guest::attach_with(&vm, options) {
            // The symbol table is there long before the kernel has started all it has.
            Ok(guest) if guest.modules().is_ok_and(|m| !m.is_empty()) => return guest,
            Ok(_)
            | Err(Error::NoKernel { .. } | Error::Corrupt { .. } | Error::NotMapped { .. }) => {}
            Err(e) => panic!("{e}"),
        }
        assert!(Instant::now() < end, "no kernel to attach to");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
#[ignore = "takes minutes: boots a guest several times"]
fn changes_are_noticed() {
    let _alone = alone();
    // Newer kernels take no CPUs later on from the tables of an older QEMU ("plus 0 hotplug CPUs").
    let qemu = start("deb:6.1");
    let guest = attach(&qemu, &Options::default());
    assert_eq!(guest.alive().unwrap(), Liveness::Same);
    assert_eq!((guest.present().unwrap(), guest.layout().unwrap().vcpus.len()), (vec![0], 1));

    qemu.command(r#"{"execute":"stop"}"#);
    wait_for("the pause", LIMIT, || guest.alive().unwrap() == Liveness::Paused);
    qemu.command(r#"{"execute":"cont"}"#);
    wait_for("the end of the pause", LIMIT, || guest.alive().unwrap() == Liveness::Same);

    let cpu = r#"{"execute":"device_add","arguments":{"driver":"max-x86_64-cpu","id":"more","socket-id":0,"core-id":1,"thread-id":0}}"#;
    qemu.command(cpu);
    wait_for("the new CPU", LIMIT, || guest.present().unwrap() == [0, 1]);
    let layout = guest.layout().unwrap();
    assert_eq!(layout.vcpus.len(), 2);
    let tids = [layout.vcpus[0].tid.unwrap(), layout.vcpus[1].tid.unwrap()];
    assert!(tids[0] != tids[1], "{tids:?}");
    assert_eq!((guest.vcpus(), guest.alive().unwrap()), (2, Liveness::Same));

    // The same kernel again; what the first boot left in memory is there for a while.
    qemu.command(r#"{"execute":"system_reset"}"#);
    wait_for("the reboot", LIMIT, || guest.alive().unwrap() == Liveness::Rebooted);
    let again = attach(&qemu, &Options::default());
    assert_ne!(again.boot(), guest.boot());
    assert_eq!(
        (again.alive().unwrap(), guest.alive().unwrap()),
        (Liveness::Same, Liveness::Rebooted)
    );

    drop(qemu);
    assert_eq!(again.alive().unwrap(), Liveness::Gone);
    assert_eq!(guest.alive().unwrap(), Liveness::Gone);
}

/// Guest memory in which one read of so many comes back damaged.
struct Damaged {
    ram: Arc<dyn Physical>,
    random: Arc<Mutex<Random>>,
    /// Of a thousand.
    rate: Arc<AtomicU64>,
}

impl Physical for Damaged {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.ram.read(address, buffer)?;
        let mut random = self.random.lock().unwrap();
        if random.next() % 1000 < self.rate.load(Ordering::Relaxed) {
            let mut bytes = buffer.to_vec();
            random.damage(&mut bytes);
            bytes.resize(buffer.len(), 0xff);
            buffer.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn segments(&self) -> &[Segment] {
        self.ram.segments()
    }
}

/// Everything that can be asked.
fn ask_all(guest: &Guest) {
    let _ = (
        guest.jiffies(),
        guest.present(),
        guest.online(),
        guest.vcpus(),
        guest.alive(),
        guest.layout(),
    );
    let _ = (guest.modules(), guest.free_lists(), guest.resolve(0xffff_ffff_c000_1234));
    for n in 0..3 {
        let Ok(vcpu) = guest.vcpu(n) else { continue };
        let _ = (vcpu.preempt_count(), vcpu.current_task(), vcpu.rcu_data(), vcpu.tid());
    }
    if let Ok(rcu) = guest.rcu() {
        let _ = (rcu.grace_period(), rcu.owing(), rcu.kthread());
    }
}

#[test]
#[ignore = "takes minutes: attaches to damaged guests hundreds of times"]
fn a_damaged_guest_does_no_harm() {
    let _alone = alone();
    let qemu = start(KERNEL);
    let random = Arc::new(Mutex::new(Random(7)));
    let rate = Arc::new(AtomicU64::new(0));
    let through = |ram: Arc<dyn Physical>| -> Arc<dyn Physical> {
        Arc::new(Damaged { ram, random: random.clone(), rate: rate.clone() })
    };
    let options = Options { through: Some(&through), ..Options::default() };
    let guest = attach(&qemu, &options);
    let vm = vmm::Vm::of_process(qemu.pid()).unwrap();
    let (mut attached, mut refused) = (0, 0);
    for round in 0..300 {
        rate.store(1 << (round % 8), Ordering::Relaxed);
        let start = Instant::now();
        for _ in 0..10 {
            ask_all(&guest);
        }
        match Guest::attach_with(&vm, &options) {
            Ok(other) => {
                attached += 1;
                ask_all(&other);
            }
            Err(_) => refused += 1,
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }
    assert!(attached > 0 && refused > 0, "{attached} attached, {refused} refused");
    // All of it was in the reading.
    rate.store(0, Ordering::Relaxed);
    let sound = Guest::attach(&vm).unwrap();
    assert_eq!((sound.boot(), sound.alive().unwrap()), (guest.boot(), Liveness::Same));
}

#[test]
#[ignore = "takes minutes: boots a guest"]
fn symbols_and_types_can_come_from_files() {
    let _alone = alone();
    let qemu = start(KERNEL);
    let plain = attach(&qemu, &Options::default());
    // As `nm` prints it of the file that the kernel was made from: before KASLR. Debian's own is in the debug package only.
    let map = qemu.scratch.0.join("System.map");
    let moved = plain.info().kaslr_offset();
    let line = |s: Symbol| {
        let address = if s.address >= KERNEL_BASE { s.address - moved } else { s.address };
        format!("{address:016x} {} {}\n", s.kind, s.name)
    };
    let lines: String = plain.symbols().iter().map(line).collect();
    std::fs::write(&map, &lines).unwrap();
    let sources = Sources { symbols: Some(map.clone()), types: None };
    let given = attach(&qemu, &Options { sources, ..Options::default() });
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
    let both = attach(&qemu, &Options { sources, ..Options::default() });
    assert_eq!(both.types().unwrap().len(), plain.types().unwrap().len());
    assert_eq!(both.layout().unwrap(), plain.layout().unwrap());
    // Another build's map.
    let map = qemu.scratch.0.join("other");
    let uts = lines.lines().find(|l| l.ends_with(" init_uts_ns")).unwrap();
    let other = uts.replace(&uts[..16], &format!("{:016x}", KERNEL_BASE + 0x100));
    std::fs::write(&map, lines.replace(uts, &other)).unwrap();
    let sources = Sources { symbols: Some(map), types: None };
    let vm = vmm::Vm::of_process(qemu.pid()).unwrap();
    match Guest::attach_with(&vm, &Options { sources, ..Options::default() }) {
        Err(e @ Error::Source { .. }) => assert!(e.to_string().contains("another build"), "{e}"),
        other => panic!("{:?}", other.err()),
    }
}
