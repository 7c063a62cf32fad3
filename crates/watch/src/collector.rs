// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Watch`]: loads the eBPF program, follows the VMs, and answers with snapshots and events.

use crate::error::Error;
use crate::model::{Cost, Event, Snapshot, VmSnapshot};
use crate::options::{Options, Which};
use crate::processes::Inspector;
use crate::raw::{self, Program, Settings, Times, clock, types};
use crate::snapshot::events::Events;
use crate::snapshot::takers::Takers;
use crate::snapshot::view;
use crate::vms::discovery::{DiscoveryThread, Machines};
use crate::vms::finder::Key;
use crate::vms::machine::{Kvm, Machine};
use crate::vms::slots::Slots;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Watches virtual machines until it is dropped. Then nothing of it is left in the kernel.
///
/// ```no_run
/// use reprieve_watch::{Options, Watch};
/// let mut watch = Watch::start(&Options::default())?;
/// std::thread::sleep(std::time::Duration::from_secs(1));
/// for vm in watch.snapshot()?.vms {
///     println!("{}: {:?}, {} vCPUs", vm.name, vm.state, vm.vcpus.len());
/// }
/// # Ok::<(), reprieve_watch::Error>(())
/// ```
pub struct Watch {
    /// Dropped first, because it changes the fields that follow.
    _discovery: DiscoveryThread,
    pub(crate) machines: Arc<Machines>,
    slots: Arc<Slots>,
    kvm: Kvm,
    /// Counts who holds up late grace periods.
    counts_held: bool,
    /// `None`: they were not asked for.
    processes: Option<Inspector>,
    events: Option<Events>,
    takers: Takers,
    started_ns: u64,
    process_ns: u64,
}

/// The shortest interval.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The longest time between two looks at processes, so that a snapshot shows them as they are.
const INSPECT_MAX: Duration = Duration::from_secs(1);
/// The same for VMs: what a guest's addresses were until it was reset is not read for long.
const DISCOVER_MAX: Duration = Duration::from_secs(1);
const VMS: usize = 1024;
/// vCPUs: this many per CPU of the host, within bounds. One takes 3 KiB of the kernel's memory.
const VCPUS_PER_CPU: usize = 32;
const VCPUS: std::ops::RangeInclusive<usize> = 512..=8192;

/// Checks that this process is in the first PID namespace, whose number is the same on every
/// kernel.
pub fn sees_host_processes() -> Result<(), Error> {
    const FIRST: &str = "pid:[4026531836]";
    if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name == Path::new(FIRST)) {
        return Ok(());
    }
    Err(Error::Missing {
        what: "the host's process ids, by which the kernel tells threads apart",
        hint: "in a container, share the host's PID namespace (--pid=host, hostPID)",
    })
}

impl Watch {
    /// Loads the eBPF program and begins to look for VMs in the background: the first snapshots may
    /// show VMs as [`Attaching`](crate::model::VmState::Attaching), or none.
    ///
    /// # Errors
    /// Without root's capabilities, on a kernel without BTF, or when the kernel refuses the
    /// program.
    pub fn start(options: &Options) -> Result<Watch, Error> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::Missing {
                what: "a kernel that describes its types (/sys/kernel/btf/vmlinux)",
                hint: "distributions build theirs with CONFIG_DEBUG_INFO_BTF; in a container, mount the host's /sys",
            });
        }
        sees_host_processes()?;
        let (program, kvm) = load(options)?;
        if options.confine {
            let what = || "giving up rights that are not needed".into();
            raw::confine().map_err(|source| Error::Io { what: what(), source })?;
        }
        let slots = Slots::new(program);
        let machines = Arc::new(Machines::default());
        for stand_in in &options.stand_ins {
            let machine = Machine::stand_in(&slots, stand_in);
            machines.lock().insert(machine.key, machine);
        }
        let thread = |source| Error::Io { what: "starting a thread".into(), source };
        let interval = options.interval.max(INTERVAL_MIN);
        let processes = match options.vms {
            Which::All => Some(Inspector::start(interval.min(INSPECT_MAX)).map_err(thread)?),
            Which::Named(_) => None,
        };
        let discovery = DiscoveryThread::start(
            machines.clone(),
            slots.clone(),
            kvm.clone(),
            options.vms.clone(),
            interval.min(DISCOVER_MAX),
        );
        let discovery = discovery.map_err(thread)?;
        Ok(Watch {
            _discovery: discovery,
            machines,
            slots,
            kvm,
            counts_held: options.late.is_some(),
            processes,
            events: options.events.then(Events::default),
            takers: Takers::default(),
            started_ns: clock::now_ns(),
            process_ns: clock::process_ns(),
        })
    }

    /// Everything watched, now.
    ///
    /// # Errors
    /// When the collector itself broke; never because of a VM.
    pub fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let machines = self.machines.lock();
        let (time_ns, entries) = at_once(&machines);
        let both = machines.values().zip(&entries);
        let view = |(m, entries): (&Machine, &Vec<types::vcpu>)| VmSnapshot {
            held: self.counts_held.then(|| view::held(m)),
            ..view::vm(m, entries, &self.kvm, time_ns)
        };
        let mut vms: Vec<VmSnapshot> = both.map(view).collect();
        drop(machines);
        self.takers.put(self.slots.program.taken(), &mut vms);
        Ok(Snapshot {
            schema: Snapshot::SCHEMA,
            time_ns,
            wall: clock::wall_ns(),
            vms,
            processes: self.processes.as_ref().map(Inspector::latest).unwrap_or_default(),
            cost: self.cost(time_ns),
        })
    }

    /// Events since the last call, in the order of time; nothing unless [`Options::events`]
    /// asked for it. Call it a few times per second: the buffer is bounded, and [`Event::Lost`]
    /// marks the beginning and the end of what did not fit.
    pub fn events(&mut self) -> Vec<Event> {
        match &mut self.events {
            Some(events) => events.take(&self.slots.program, &self.machines),
            None => Vec::new(),
        }
    }

    /// The VMs, and their entries in the shared arrays, for a program that reads the same.
    pub fn parts(&self) -> (Arc<Machines>, Arc<Slots>, Kvm) {
        (self.machines.clone(), self.slots.clone(), self.kvm.clone())
    }

    fn cost(&self, now: u64) -> Cost {
        let program = &self.slots.program;
        let costs = program.costs();
        Cost {
            elapsed_ns: now - self.started_ns,
            switches: costs.iter().map(|cost| cost.runs).sum(),
            switch_ns: costs.iter().map(|cost| cost.total_ns).sum(),
            switch_median_ns: Times::of(costs.iter().map(|cost| &cost.steps[..])).median_ns,
            process_ns: clock::process_ns().saturating_sub(self.process_ns),
            lost: program.lost() + program.missed(),
        }
    }
}

/// The program's entries of all vCPUs, and the time of reading. Read again if this thread lost its
/// own CPU in between.
fn at_once(machines: &BTreeMap<Key, Machine>) -> (u64, Vec<Vec<types::vcpu>>) {
    const AT_ONCE_NS: u64 = 1_000_000;
    const TRIES: u32 = 5;
    let mut tries = 1;
    loop {
        let begun = clock::now_ns();
        let of = |machine: &Machine| machine.vcpus.iter().map(|v| v.slot.get()).collect();
        let entries = machines.values().map(of).collect();
        if clock::now_ns() - begun < AT_ONCE_NS || tries == TRIES {
            return (begun, entries);
        }
        tries += 1;
    }
}

/// Loads the program for the KVM of this host.
fn load(options: &Options) -> Result<(Program, Kvm), Error> {
    let module = |name: &str| Path::new("/sys/module").join(name).exists();
    let (svm, vmx) = (module("kvm_amd"), module("kvm_intel"));
    // All of the host's: this process may be confined to some.
    let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1);
    let usual = (cpus * VCPUS_PER_CPU).clamp(*VCPUS.start(), *VCPUS.end());
    let stand_ins: usize = options.stand_ins.iter().map(|vm| vm.vcpus.len()).sum();
    let settings = Settings {
        vcpus: (usual + stand_ins).min(*VCPUS.end()),
        vms: VMS,
        events: options.events,
        svm,
        vmx: vmx && !svm,
        late_ns: options.late.map_or(0, |late| u64::try_from(late.as_nanos()).unwrap_or(u64::MAX)),
    };
    let hidden = |why: String| Kvm::Hidden(why);
    match Program::load(&settings) {
        Ok(program) if svm => Ok((program, Kvm::Svm)),
        Ok(program) if vmx => Ok((program, Kvm::Vmx)),
        Ok(program) => {
            Ok((program, hidden("KVM was not loaded when watching began: start it again".into())))
        }
        Err(error) if svm || vmx => {
            let without = Settings { svm: false, vmx: false, ..settings };
            let why = format!("this kernel's KVM cannot be read ({error})");
            Ok((Program::load(&without)?, hidden(why)))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StandIn;
    use crate::cgroup;
    use crate::model::{Vcpu, VcpuNow};
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Watches thread `tid` of process `pid` as if it were a vCPU, once it was seen.
    fn watch(pid: u32, tid: u32) -> Watch {
        let stand_ins = vec![StandIn { pid, name: "many".into(), vcpus: vec![tid], ram: 1 << 30 }];
        let vms = Which::Named(vec![]);
        let mut watch = Watch::start(&Options { vms, stand_ins, ..Options::default() }).unwrap();
        until(&mut watch, |vm| vm.vcpus[0].now != VcpuNow::Unseen);
        watch
    }

    fn until(watch: &mut Watch, is: impl Fn(&VmSnapshot) -> bool) -> VmSnapshot {
        loop {
            let snapshot = watch.snapshot().unwrap();
            if is(&snapshot.vms[0]) {
                return snapshot.vms[0].clone();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn pin(tid: u32) {
        let mut first = rustix::thread::CpuSet::new();
        let may = rustix::thread::sched_getaffinity(None).unwrap();
        first.set((0..).find(|&cpu| may.is_set(cpu)).unwrap());
        let tid = rustix::thread::Pid::from_raw(tid as i32);
        rustix::thread::sched_setaffinity(tid, &first).unwrap();
    }

    /// Runs `check` beside a thread that computes on the CPU of [`pin`].
    fn beside_a_spinner<T>(check: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(0);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
            stop.store(true, Ordering::Relaxed);
            checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn preemptions(vcpu: &Vcpu) -> u64 {
        vcpu.preemptions.iter().flat_map(|p| &p.off_cpu.counts).sum()
    }

    /// A process that computes, and its cgroup, if this host lets it have a quota of CPU time.
    struct Limited(Child, Option<cgroup::Quota>);

    impl Drop for Limited {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn throttling_is_told_from_contention_and_a_taker_has_a_name() {
        let quota = cgroup::Quota::new(&format!("reprieve-test-{}", std::process::id()));
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = child.id();
        let limited = Limited(child, quota);
        pin(pid);
        let mut watch = watch(pid, pid);
        if let Some(quota) = &limited.1 {
            quota.add(pid);
            quota.set(Some(5_000));
            let vm = until(&mut watch, |vm| vm.vcpus[0].throttled > 3);
            assert!(vm.vcpus[0].throttled_ns > 0);
            until(&mut watch, |vm| {
                matches!(vm.vcpus[0].now, VcpuNow::Preempted { throttled: true, .. })
            });
            quota.set(None);
        }
        let before = until(&mut watch, |vm| {
            !matches!(vm.vcpus[0].now, VcpuNow::Preempted { throttled: true, .. })
        });
        let own = std::process::id();
        let taken = |vm: &VmSnapshot| {
            let own = vm.takers.iter().find(|taker| taker.pid == own);
            own.map_or(0, |taker| taker.count)
        };
        let after = beside_a_spinner(|| until(&mut watch, |vm| taken(vm) > taken(&before) + 5));
        let throttled = |vm: &VmSnapshot| vm.vcpus[0].throttled;
        assert_eq!(throttled(&after), throttled(&before), "{after:?}");
        let taker = after.takers.iter().find(|taker| taker.pid == own).unwrap();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!((taker.name.as_str(), taker.vm), (comm.trim_end(), false));
        assert!(taker.total_ns > 0 && preemptions(&after.vcpus[0]) > 5);
    }
}
