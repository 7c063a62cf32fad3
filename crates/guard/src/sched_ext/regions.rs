// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with hints inside guests: tells them what guard does to their vCPUs, through the region
//! of each VM that has one. (Their hints are read by the eBPF programs, `bpf/classify.bpf.h`.)
//!
//! eBPF programs may not write to a process's memory, and a guest's region cannot be memory of
//! theirs: QEMU maps a file. So a thread copies, every [`PERIOD`], what the eBPF program at context
//! switches has noted in the shared array. It sleeps while no VM has a region.

use crate::constants::MAX_CPUS;
use reprieve_hint::abi::region::VCPUS;
use reprieve_watch::raw::{clock, types};
use reprieve_watch::vms::discovery::Machines;
use reprieve_watch::vms::machine::Machine;
use reprieve_watch::vms::slots::Slots;
use reprieve_watch::{Region, Writer};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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
    troubles: Arc<Troubles>,
    /// `None` at the end.
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

/// By process with a region, why nothing is told, if so.
type Troubles = Mutex<BTreeMap<u32, Option<String>>>;

impl Regions {
    pub fn serve(machines: Arc<Machines>, slots: Arc<Slots>) -> std::io::Result<Regions> {
        let troubles = Arc::<Troubles>::default();
        let mut state = State { machines, slots, vcpus: Vec::new(), served: Vec::new() };
        let (stop, stopped) = channel();
        let told = troubles.clone();
        let work = move || state.run(&told, &stopped);
        let thread = std::thread::Builder::new().name("guard-regions".into()).spawn(work)?;
        Ok(Regions { troubles, running: Some((stop, thread)) })
    }

    /// Whether that process's VM has a region, and why its guest is told nothing, if so.
    pub fn trouble(&self, pid: u32) -> Option<Option<String>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

struct State {
    machines: Arc<Machines>,
    slots: Arc<Slots>,
    /// The entries of all VMs' vCPUs.
    vcpus: Vec<usize>,
    served: Vec<Served>,
}

/// A VM with a region.
struct Served {
    pid: u32,
    region: Region,
    /// Why it cannot be written to, if so.
    writer: Result<Writer, String>,
    /// The guest's number of each vCPU, and its entry in the shared array.
    vcpus: Vec<(usize, usize)>,
    /// The last words to each vCPU, and when.
    said: Vec<(u32, u32)>,
    beat: u64,
}

impl State {
    fn run(&mut self, troubles: &Troubles, stopped: &Receiver<()>) {
        let mut due = Instant::now();
        let mut slept = clock::now_ns();
        let mut period = AGAIN;
        while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            if Instant::now() >= due {
                self.look();
                let all = self.served.iter().map(|vm| (vm.pid, vm.writer.as_ref().err().cloned()));
                *troubles.lock().unwrap_or_else(PoisonError::into_inner) = all.collect();
                due = Instant::now() + AGAIN;
            }
            period = if self.served.is_empty() { AGAIN } else { PERIOD };
            let runnable = self.runnable();
            self.served.iter_mut().for_each(|vm| vm.publish(&self.slots, &runnable, slept));
            slept = clock::now_ns();
        }
    }

    /// Looks which VMs have regions now.
    fn look(&mut self) {
        let machines = self.machines.lock();
        let running = || machines.values().filter(|machine| machine.runs());
        let all = running().flat_map(|machine| &machine.vcpus);
        self.vcpus = all.map(|vcpu| vcpu.slot.index() as usize).collect();
        let with_region = |m: &Machine| Some((m.key.pid, m.region.clone()?, vcpus(m)));
        let wanted: Vec<_> = running().filter_map(with_region).collect();
        // Others wait for the list, and a region is opened below: a file of whoever runs the VM.
        drop(machines);
        let mut before = std::mem::take(&mut self.served);
        for (pid, region, vcpus) in wanted {
            let known = before.iter().position(|vm| (vm.pid, &vm.region) == (pid, &region));
            let known = known.map(|known| before.swap_remove(known));
            let served = known.unwrap_or_else(|| Served::new(pid, region));
            self.served.push(Served { vcpus, ..served });
        }
    }

    /// How many vCPUs run or wait, by the host's CPU where they are or were last.
    fn runnable(&self) -> Vec<u32> {
        let mut runnable = vec![0; MAX_CPUS];
        for &slot in &self.vcpus {
            let (state, cpu) = (field(&self.slots, slot, DOING), field(&self.slots, slot, CPU));
            if matches!(state, RUNNING | PREEMPTED) {
                runnable.get_mut(cpu as usize).into_iter().for_each(|count| *count += 1);
            }
        }
        runnable
    }
}

fn vcpus(machine: &Machine) -> Vec<(usize, usize)> {
    // Until the guest can be read, by the VMM's number, which is nearly always the same.
    let all = machine.vcpus.iter().map(|v| (v.cpu.unwrap_or(v.index), v.slot.index()));
    let all = all.map(|(vcpu, slot)| (vcpu as usize, slot as usize));
    all.filter(|&(vcpu, _)| vcpu < VCPUS).collect()
}

const DOING: usize = offset_of!(types::vcpu, doing);
const CPU: usize = offset_of!(types::vcpu, cpu);

fn field(slots: &Slots, slot: usize, offset: usize) -> u32 {
    slots.program.vcpus.get_field(slot, offset)
}

impl Served {
    fn new(pid: u32, region: Region) -> Served {
        let writer = region.open().map_err(|error| error.to_string());
        Served { pid, region, writer, vcpus: vec![], said: vec![], beat: 0 }
    }

    /// `slept`: when this thread left its CPU last. It may run where a vCPU would if it did not
    /// look: the vCPU has its CPU back when the guest reads, and is told so.
    fn publish(&mut self, slots: &Slots, runnable: &[u32], slept: u64) {
        let Ok(writer) = &self.writer else { return };
        let now = clock::now_ns();
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let len = self.vcpus.iter().map(|&(vcpu, _)| vcpu + 1).max().unwrap_or(0);
        let mut says = vec![(0, 0); len];
        for &(vcpu, slot) in &self.vcpus {
            // The region's numbers are those of `enum doing`.
            let mut state = field(slots, slot, DOING);
            let since: u64 = slots.program.vcpus.get_field(slot, offset_of!(types::vcpu, since));
            let successor = field(slots, slot, offset_of!(types::vcpu, successor));
            if state == PREEMPTED && since > slept && successor == me {
                state = RUNNING;
            }
            // Itself as well, if it sleeps.
            let others = runnable.get(field(slots, slot, CPU) as usize).copied().unwrap_or(0);
            says[vcpu] = (state, others + u32::from(!matches!(state, RUNNING | PREEMPTED)));
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

const RUNNING: u32 = types::doing::DOING_RUNNING.0;
const PREEMPTED: u32 = types::doing::DOING_PREEMPTED.0;
const _: () = assert!(RUNNING == 1 && PREEMPTED == 2 && types::doing::DOING_BLOCKED.0 == 3);
