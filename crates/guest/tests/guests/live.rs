// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts read from real guests, compared with what the guests report about themselves.

use crate::common::{LabGuest, alone, boot, resident};
use crate::patience::wait_for;
use reprieve_guest::error::Result;
use reprieve_guest::memory::Physical;
use reprieve_guest::vmm::Segment;
use reprieve_guest::{Error, Guest, Liveness, Options};
use reprieve_lab::protocol::{Command, Workload};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Compares all symbols of the kernel with the guest's `/proc/kallsyms`.
fn symbols_are_the_guests_own(lab: &mut LabGuest, guest: &Guest) {
    let text = lab.read("/proc/kallsyms");
    let own: Vec<&str> = text.lines().filter(|l| !l.contains('[')).collect();
    let symbols = guest.symbols();
    assert_eq!(symbols.len(), own.len());
    for (symbol, own) in symbols.iter().zip(own) {
        assert_eq!(format!("{:016x} {} {}", symbol.address, symbol.kind, symbol.name), own);
    }
}

/// Compares loaded modules and their symbols with the guest's lists, in their order.
fn modules_are_the_guests_own(lab: &mut LabGuest, guest: &Guest) {
    let text = lab.read("/proc/kallsyms");
    let modules = guest.modules().unwrap();
    let loaded = lab.read("/proc/modules");
    let names: Vec<&str> = loaded.lines().filter_map(|l| l.split(' ').next()).collect();
    assert_eq!(modules.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), names);
    assert!(!names.is_empty());
    for module in &modules {
        let mark = format!("\t[{}]", module.name);
        let own: Vec<&str> = text.lines().filter_map(|l| l.strip_suffix(mark.as_str())).collect();
        let seen =
            module.symbols.iter().map(|s| format!("{:016x} {} {}", s.address, s.kind, s.name));
        assert_eq!(seen.collect::<Vec<_>>(), own, "{}", module.name);
        let function = module.symbols.iter().find(|s| matches!(s.kind, 't' | 'T')).unwrap();
        let resolved = guest.resolve(function.address + 1).unwrap();
        assert_eq!((resolved.offset, resolved.module.as_ref()), (1, Some(&module.name)));
    }
    let of_modules: usize = modules.iter().map(|m| m.symbols.bytes()).sum();
    let kept = guest.symbols().bytes() + guest.types().bytes() + of_modules;
    assert_eq!(guest.kept_bytes(), kept, "to resolve an address keeps the modules' symbols");
}

/// Compares the guest's clock, tasks and CPUs.
fn facts_are_the_guests_own(lab: &mut LabGuest, guest: &Guest, vcpus: u32) {
    assert_eq!(guest.release(), lab.vm.info.kernel);
    assert_eq!(guest.hz(), lab.vm.info.hz.or(Some(250)));
    assert_eq!(guest.present().unwrap(), (0..vcpus).collect::<Vec<_>>());
    assert_eq!(guest.vcpus(), vcpus);
    let stat = lab.read("/proc/1/stat");
    let init = guest.symbols().address("init_task").unwrap();
    let task = guest.task(init).unwrap();
    assert_eq!((task.pid, task.comm.as_str()), (0, "swapper/0"));
    assert!(stat.starts_with("1 (init)"), "{stat}");
    let layout = guest.layout().unwrap();
    for (n, vcpu) in layout.vcpus.iter().enumerate() {
        let tid = vcpu.tid.unwrap();
        let comm =
            std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", lab.vm.pid())).unwrap();
        assert_eq!(comm.trim(), format!("CPU {n}/TCG"));
    }
    assert!(matches!(guest.current_task(9000), Err(Error::NoCpu { cpu: 9000 })));
    let schedule = guest.symbols().address("schedule").unwrap();
    assert_eq!(guest.resolve(schedule + 3).unwrap().to_string(), "schedule+0x3");
    assert!(guest.rcu().unwrap().model().preemptible_rcu);
    for vcpu in &layout.vcpus {
        // The reads of an eBPF program.
        let address = guest.current_task(vcpu.cpu).unwrap();
        let at = layout.host_address(address, 4096).unwrap();
        assert_eq!(guest.memory().host_address_of(address).unwrap(), at);
    }
    let spins = layout.spins.iter().map(|spin| {
        let code = &spin.code;
        let last = guest.resolve(code.end - 1).unwrap().name;
        assert_eq!(guest.resolve(code.start).unwrap().to_string(), last, "one function each");
        last
    });
    let spins: Vec<String> = spins.collect();
    for wanted in ["osq_lock", "smp_call_function_many_cond", "kvm_kick_cpu"] {
        assert!(spins.iter().any(|name| name.contains(wanted)), "{wanted} is not in {spins:?}");
    }
    assert_eq!(guest.alive().unwrap(), Liveness::Same);
}

/// Waits until grace periods of a load were seen, with an age and with CPUs that owe them.
/// (`reprieve-dev check grace` compares how long they take.)
fn grace_periods_are_seen(lab: &mut LabGuest, guest: &Guest) {
    let workload = Workload::FileChurn { workers: 2 };
    lab.call(&Command::Prepare { workload, measure: None }, |_| {});
    lab.call(&Command::Start, |_| {});
    let (rcu, booted) = (guest.rcu().unwrap(), lab.started);
    let (mut owing_seen, mut age_seen) = (false, false);
    while !(owing_seen && age_seen) {
        std::thread::sleep(Duration::from_micros(200));
        let age = rcu.age().unwrap();
        assert!(age.is_none_or(|age| age < booted.elapsed()), "older than the guest");
        let owing = rcu.owing().unwrap();
        assert!(owing.cpus.iter().all(|&cpu| cpu < 2), "{owing:?}");
        age_seen |= age.is_some();
        owing_seen |= !owing.cpus.is_empty();
    }
}

/// Waits until every vCPU is seen to run the load.
fn vcpus_run_the_load(lab: &mut LabGuest, guest: &Guest, vcpus: u32) {
    lab.call(
        &Command::Prepare { workload: Workload::Hog { threads: vcpus }, measure: None },
        |_| {},
    );
    lab.call(&Command::Start, |_| {});
    for n in 0..vcpus {
        wait_for("a hog on each CPU", || {
            let task = guest.current_task(n).and_then(|task| guest.task(task));
            !task.unwrap().is_idle()
        });
    }
}

/// Bytes of the guest's memory that attaching may read, so that it is quick: symbols and types are
/// some 10 MiB.
const ATTACH_MAX: u64 = 64 << 20;

/// Guest memory that counts the bytes read.
struct Counted {
    ram: Arc<dyn Physical>,
    bytes: Arc<AtomicU64>,
}

impl Physical for Counted {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.ram.read(address, buffer)
    }

    fn segments(&self) -> &[Segment] {
        self.ram.segments()
    }
}

#[test]
fn a_guest_is_what_it_says_it_is() {
    let _alone = alone();
    let mut lab = boot("deb:6.12", 2, 5120, "");
    // While the guest is paused, only reads can make its memory grow.
    lab.vm.pause().unwrap();
    let pid = lab.vm.pid();
    let vm = lab.find();
    assert!(vm.memory.iter().any(|s| s.gpa == 1 << 32), "{:x?}", vm.memory);
    let before = resident(pid);
    let guest = Guest::attach(&vm).unwrap();
    let (bytes, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let through = |ram| -> Arc<dyn Physical> { Arc::new(Counted { ram, bytes: bytes.clone() }) };
    let counted = Options { through: Some(&through), ..Options::default() };
    assert_eq!(Guest::attach_with(&vm, &counted).unwrap().boot(), guest.boot());
    let read = bytes.load(Ordering::Relaxed);
    eprintln!("attached in {:?}: {} KiB read", start.elapsed(), read >> 10);
    // Most of the guest's 5 GiB was never touched. QEMU was asked for its layout, so its own
    // buffers may have grown.
    let after = resident(pid);
    assert!(after < before + 4096, "attaching made the VM larger: {before} KiB, now {after}");
    assert!(before < 1 << 20, "{before} KiB: nothing was left to touch");
    assert!(read < ATTACH_MAX, "attaching read {read} bytes");
    let stop = AtomicBool::new(true);
    let stopped = Options { stop: Some(&stop), ..Options::default() };
    assert!(matches!(Guest::attach_with(&vm, &stopped), Err(Error::Stopped)));
    lab.vm.resume().unwrap();
    facts_are_the_guests_own(&mut lab, &guest, 2);
    symbols_are_the_guests_own(&mut lab, &guest);
    modules_are_the_guests_own(&mut lab, &guest);
    vcpus_run_the_load(&mut lab, &guest, 2);
    let (pid, vm) = (lab.vm.pid(), lab.find());
    drop(lab);
    assert_eq!(guest.alive().unwrap(), Liveness::Gone);
    assert!(matches!(guest.jiffies(), Err(Error::Gone { pid: gone }) if gone == pid));
    assert!(matches!(Guest::attach(&vm), Err(Error::Gone { .. } | Error::Io { .. })));
}

#[test]
#[ignore = "takes minutes: boots every kernel"]
fn guests_of_all_kernels_are_what_they_say_they_are() {
    let _alone = alone();
    for kernel in ["deb:6.1", "deb:6.12", "deb:7.3"] {
        let mut lab = boot(kernel, 2, 1024, "");
        let guest = lab.attach();
        facts_are_the_guests_own(&mut lab, &guest, 2);
        symbols_are_the_guests_own(&mut lab, &guest);
        modules_are_the_guests_own(&mut lab, &guest);
        grace_periods_are_seen(&mut lab, &guest);
    }
}
