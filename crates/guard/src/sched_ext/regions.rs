// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with hints inside guests: tells them what guard does to their vCPUs, through the region
//! of each VM that has one. (Their hints are read by the eBPF programs, `bpf/classify.bpf.h`.)
//!
//! eBPF programs may not write to a process's memory, and a guest's region cannot be memory of
//! theirs: QEMU maps a file. So a thread copies, every [`PERIOD`], what the eBPF program at context
//! switches has noted in the shared array. It sleeps while no VM has a region.

use reprieve_hint::abi::region::VCPUS;
use reprieve_watch::raw::{clock, types};
use reprieve_watch::vms::discovery::Machines;
use reprieve_watch::vms::machine::Machine;
use reprieve_watch::vms::slots::Slots;
use reprieve_watch::{Region, Writer};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(1);
/// How often the list of VMs is looked at.
const AGAIN: Duration = Duration::from_millis(100);
/// How often the beat changes where nothing else does.
const BEAT_NS: u64 = 100_000_000;

/// Ends the thread, and waits for it, when dropped.
pub struct Regions {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// By process with a region, why nothing is told, if so.
    troubles: Mutex<BTreeMap<u32, Option<String>>>,
}

impl Regions {
    pub fn serve(machines: Arc<Machines>, slots: Arc<Slots>) -> std::io::Result<Regions> {
        let shared = Arc::new(Shared::default());
        let mut state = State { machines, slots, served: Vec::new() };
        let kept = shared.clone();
        let work = move || state.run(&kept);
        let thread = std::thread::Builder::new().name("guard-regions".into()).spawn(work)?;
        Ok(Regions { shared, thread: Some(thread) })
    }

    /// Whether that process's VM has a region, and why its guest is told nothing, if so.
    pub fn trouble(&self, pid: u32) -> Option<Option<String>> {
        self.shared.troubles.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct State {
    machines: Arc<Machines>,
    slots: Arc<Slots>,
    served: Vec<Served>,
}

/// A VM with a region.
struct Served {
    pid: u32,
    region: Region,
    /// Why it cannot be written to, if so.
    writer: Result<Writer, String>,
    /// The guest's number of each vCPU, and its entry in the shared array.
    vcpus: Vec<(u32, u32)>,
    /// The last words to each vCPU, and when.
    said: Vec<(u32, u32)>,
    beat: u64,
}

impl State {
    fn run(&mut self, shared: &Shared) {
        let mut due = Instant::now();
        let mut slept = clock::now_ns();
        while !shared.stop.load(Ordering::Relaxed) {
            if Instant::now() >= due {
                self.look();
                let all = self.served.iter().map(|vm| (vm.pid, vm.writer.as_ref().err().cloned()));
                *shared.troubles.lock().unwrap_or_else(PoisonError::into_inner) = all.collect();
                due = Instant::now() + AGAIN;
            }
            for served in &mut self.served {
                served.publish(&self.slots, slept);
            }
            let idle = self.served.is_empty();
            slept = clock::now_ns();
            std::thread::park_timeout(if idle { AGAIN } else { PERIOD });
        }
    }

    /// Looks which VMs have regions now.
    fn look(&mut self) {
        let machines = self.machines.lock();
        let running = machines.values().filter(|machine| machine.runs());
        let with_region = |m: &Machine| Some((m.key.pid, m.region.clone()?, vcpus(m)));
        let wanted: Vec<_> = running.filter_map(with_region).collect();
        // Others wait for the list, and a region is opened below: a file of whoever runs the VM.
        drop(machines);
        let mut before = std::mem::take(&mut self.served);
        for (pid, region, vcpus) in wanted {
            let known = before.iter().position(|vm| (vm.pid, &vm.region) == (pid, &region));
            let mut served = match known {
                Some(known) => before.swap_remove(known),
                None => Served::new(pid, region),
            };
            served.vcpus = vcpus;
            self.served.push(served);
        }
    }
}

fn vcpus(machine: &Machine) -> Vec<(u32, u32)> {
    // Until the guest can be read, by the VMM's number, which is nearly always the same.
    let all = machine.vcpus.iter().map(|v| (v.cpu.unwrap_or(v.index), v.slot.index()));
    all.filter(|&(vcpu, _)| (vcpu as usize) < VCPUS).collect()
}

impl Served {
    fn new(pid: u32, region: Region) -> Served {
        let writer = region.open().map_err(|error| error.to_string());
        Served { pid, region, writer, vcpus: vec![], said: vec![], beat: 0 }
    }

    /// `slept`: when this thread left its CPU last. It may run where a vCPU would if it did not
    /// look: the vCPU has its CPU back when the guest reads, and is told so.
    fn publish(&mut self, slots: &Slots, slept: u64) {
        let Ok(writer) = &self.writer else { return };
        let entries = &slots.program.vcpus;
        let now = clock::now_ns();
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let len = self.vcpus.iter().map(|&(vcpu, _)| vcpu as usize + 1).max().unwrap_or(0);
        let mut says = vec![(0, 0); len];
        for &(vcpu, slot) in &self.vcpus {
            let (vcpu, slot) = (vcpu as usize, slot as usize);
            let field = |offset| entries.get_field::<u32>(slot, offset);
            // The region's numbers are those of `enum doing`.
            let mut state = field(offset_of!(types::vcpu, doing));
            let since = entries.get_field::<u64>(slot, offset_of!(types::vcpu, since));
            let displaced = since > slept && field(offset_of!(types::vcpu, successor)) == me;
            if displaced && state == types::doing::DOING_PREEMPTED.0 {
                state = types::doing::DOING_RUNNING.0;
            }
            // How many threads wait for its CPU is not known.
            says[vcpu] = (state, 0);
        }
        if says == self.said && now - self.beat < BEAT_NS {
            return;
        }
        if let Err(error) = writer.publish(now, &says) {
            self.writer = Err(error.to_string());
            return;
        }
        (self.said, self.beat) = (says, now);
    }
}

const _: () = assert!(
    types::doing::DOING_RUNNING.0 == 1
        && types::doing::DOING_PREEMPTED.0 == 2
        && types::doing::DOING_BLOCKED.0 == 3
);
