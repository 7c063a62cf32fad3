// SPDX-License-Identifier: MIT OR Apache-2.0
//! A watched VM: the facts known about it, and its state machine.
//!
//! ```text
//! Seeking --attached--> Attached (watched or paused)
//!   ^ | failed: again, ever more rarely
//!   | v                    |
//!   +------- rebooted -----+            any --process ended--> Ended
//! ```
//!
//! Its vCPUs are watched as soon as their threads are known; their classes are known once the guest
//! can be read. [`pace`](super::pace) tells when something is done again.

use super::finder::Key;
use super::pace::{Attempts, rest};
use super::qemu_registers;
use super::slots::{Registers, Slots, VcpuSlot, VmSlot};
use super::stand_in::StandIn;
use crate::model::VmState;
use crate::raw::clock::now_ns;
use crate::raw::types;
use crate::region::Region;
use reprieve_guest::vmm::process::Life;
use reprieve_guest::vmm::{self, Accel, VcpuThread};
use reprieve_guest::{BpfLayout, Error, Guest, Liveness};
use reprieve_page::plain;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer names of VMs are cut: they are a label of every series.
const NAME_MAX: usize = 256;

/// A VM without a kernel counts as starting for so long.
const STARTING: Duration = Duration::from_secs(10);

/// A guest is left alone for no longer than this after a check: it may start anew meanwhile.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// A search for QEMU's registers that takes longer than this is reported.
pub const SEARCH_REMARK: Duration = Duration::from_secs(5);

const TOO_MANY_VMS: &str = "too many VMs: this one is not watched";
const TOO_LARGE: &str = "no room in memory for the symbols and types of its kernel, beside those of \
                         other VMs";

/// This host's KVM, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kvm {
    /// AMD.
    Svm,
    /// Intel.
    Vmx,
    /// Nothing; the reason.
    Hidden(String),
}

pub struct Machine {
    pub key: Key,
    pub name: Option<String>,
    phase: Phase,
    /// Once the VMM has been asked.
    pub vm: Option<vmm::Vm>,
    /// Dropped before the VM's own entry.
    pub vcpus: Vec<Vcpu>,
    slot: Option<VmSlot>,
    /// Where programs of the guest announce their sections.
    pub region: Option<Region>,
    pub attempts: Attempts,
    /// Its process is stopped (SIGSTOP).
    stopped: bool,
    /// A problem on the host's side.
    pub trouble: Option<String>,
}

/// The VM's state, with the knowledge of its guest.
enum Phase {
    Seeking(Seeking),
    Attached(Box<Watched>),
    /// A process that stands in for a VM.
    StandIn(Box<BpfLayout>),
    Ended(Instant),
}

/// Its guest is being found.
struct Seeking {
    /// Since when it may have been starting.
    since: Instant,
    /// Why the last attempt found none, unless the guest may still be starting.
    why: Option<Why>,
    /// Memory that is swapped out has been searched.
    resident_only: bool,
}

/// A word, of which there are few, and a sentence.
struct Why(&'static str, String);

/// Its guest can be read.
struct Watched {
    attached: Attached,
    paused: bool,
    /// When the next check is due.
    check_at: Instant,
    /// It has other vCPUs than when it was attached to.
    outdated: bool,
}

impl Seeking {
    fn begin(since: Instant) -> Phase {
        Phase::Seeking(Seeking { since, why: None, resident_only: false })
    }
}

pub struct Vcpu {
    pub index: u32,
    pub slot: VcpuSlot,
    /// Its number in the guest.
    pub cpu: Option<u32>,
    /// Since when QEMU's registers are looked for.
    pub searching: Option<Instant>,
}

/// A guest that can be read.
pub struct Attached {
    pub guest: Arc<Guest>,
    pub layout: BpfLayout,
    /// When, on the clock of the snapshots.
    pub since_ns: u64,
    present: Vec<u32>,
}

impl Attached {
    /// Asks the VMM, which may be slow: the list of VMs must not be locked.
    ///
    /// # Errors
    /// Those of [`Guest::layout`].
    pub fn new(guest: Guest) -> Result<Attached, Error> {
        // In this order: a CPU that comes meanwhile is seen at the next look.
        let present = guest.present().unwrap_or_default();
        let layout = guest.layout()?;
        let (guest, since_ns) = (Arc::new(guest), now_ns());
        Ok(Attached { guest, layout, since_ns, present })
    }

    /// For how long it has been attached to.
    fn lasted(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.since_ns))
    }

    /// Whether user mode is quiescent to its RCU, on some of its CPUs.
    pub fn tracks_user(&self) -> bool {
        self.layout.vcpus.iter().any(|vcpu| vcpu.tracks_user)
    }
}

/// The findings of a check of a guest. It reads memory, which may take long: the list of VMs must
/// not be locked.
pub struct Check {
    alive: Result<Liveness, Error>,
    present: Option<Vec<u32>>,
    vcpus: Vec<VcpuThread>,
}

impl Check {
    pub fn of(guest: &Guest) -> Check {
        let (alive, present) = (guest.alive(), guest.present().ok());
        Check { alive, present, vcpus: guest.vm().vcpus_now() }
    }
}

/// A VM's name as it is shown and written: its command line chooses the length, and may have put
/// in what steers a terminal.
fn shown(mut name: String) -> String {
    if let Some((at, _)) = name.char_indices().nth(NAME_MAX) {
        name.truncate(at);
    }
    plain(&name)
}

impl Machine {
    pub fn new(key: Key, name: Option<String>) -> Machine {
        let now = Instant::now();
        Machine {
            key,
            name: name.map(shown),
            phase: Seeking::begin(now),
            vm: None,
            vcpus: Vec::new(),
            slot: None,
            region: None,
            attempts: Attempts::new(now),
            stopped: false,
            trouble: None,
        }
    }

    /// A process that stands in for a VM, of which everything is known.
    pub fn stand_in(slots: &Arc<Slots>, of: &StandIn) -> Machine {
        let start_time = vmm::process::start_time(of.pid).unwrap_or_default();
        let mut machine = Machine::new(Key { pid: of.pid, start_time }, Some(of.name.clone()));
        machine.attempts.stop();
        machine.slot = slots.add_vm(of.pid);
        let Some(slot) = &machine.slot else {
            machine.trouble = Some(TOO_MANY_VMS.into());
            return machine;
        };
        let mut left_out = 0;
        let registers = Registers::Qemu(of.registers());
        for (index, &tid) in (0..).zip(&of.vcpus) {
            match slots.add_vcpu(slot, of.pid, tid, index, registers) {
                Ok(slot) => {
                    slot.set_registers(registers);
                    machine.vcpus.push(Vcpu { index, slot, cpu: None, searching: None });
                }
                Err(error) => {
                    left_out += 1;
                    machine.trouble = Some(not_watched(left_out, of.vcpus.len(), &error));
                }
            }
        }
        let layout = of.layout();
        machine.set_layout(&layout);
        machine.phase = Phase::StandIn(Box::new(layout));
        machine
    }

    /// As it is shown.
    pub fn state(&self) -> VmState {
        match &self.phase {
            Phase::Seeking(Seeking { why: Some(why), .. }) => VmState::Unreadable(why.1.clone()),
            Phase::Seeking(_) => VmState::Attaching,
            Phase::Attached(watched) if watched.paused || self.stopped => VmState::Paused,
            Phase::Attached(_) | Phase::StandIn(_) => VmState::Watching,
            Phase::Ended(_) => VmState::Gone,
        }
    }

    /// Why it is unreadable, if it is, in a word.
    pub fn reason(&self) -> Option<&'static str> {
        match &self.phase {
            Phase::Seeking(Seeking { why: Some(why), .. }) => Some(why.0),
            _ => None,
        }
    }

    /// Whether its process has not ended.
    pub fn runs(&self) -> bool {
        self.ended().is_none()
    }

    pub fn ended(&self) -> Option<Instant> {
        if let Phase::Ended(at) = self.phase { Some(at) } else { None }
    }

    /// Its guest, if it can be read.
    pub fn attached(&self) -> Option<&Attached> {
        if let Phase::Attached(watched) = &self.phase { Some(&watched.attached) } else { None }
    }

    fn watched(&mut self) -> Option<&mut Watched> {
        if let Phase::Attached(watched) = &mut self.phase { Some(watched) } else { None }
    }

    /// Where the words of the guest that runs now are, if it can be read.
    pub fn layout(&self) -> Option<&BpfLayout> {
        match &self.phase {
            Phase::StandIn(layout) => Some(layout),
            _ => self.attached().map(|attached| &attached.layout),
        }
    }

    /// Whether the guest's RCU sees by itself when a CPU is in user mode, of some CPUs.
    pub fn tracks_user(&self) -> bool {
        self.attached().is_some_and(Attached::tracks_user)
    }

    /// Whether an attempt is to leave swapped memory alone.
    pub fn resident_only(&self) -> bool {
        matches!(self.phase, Phase::Seeking(Seeking { resident_only: true, .. }))
    }

    /// Since when it is attached to, and what is kept of its guest's symbols and types, bytes.
    pub fn kept(&self) -> Option<(u64, usize)> {
        let attached = self.attached()?;
        Some((attached.since_ns, attached.guest.kept_bytes()))
    }

    /// Gives the VM up for lack of room. There may be some later.
    fn give_up(&mut self, why: &str) {
        let seeking = Seeking {
            since: Instant::now(),
            why: Some(Why("room", why.into())),
            resident_only: false,
        };
        self.leave(Phase::Seeking(seeking));
        self.attempts.put_off(Instant::now());
    }

    /// Gives the VM up: there is no room for what is kept of its guest.
    pub fn give_up_guest(&mut self) {
        self.give_up(TOO_LARGE);
    }

    /// The VMM has been looked at: its threads are watched from now on.
    pub fn described(&mut self, slots: &Arc<Slots>, kvm: &Kvm, vm: vmm::Vm) {
        if self.slot.is_none() {
            self.slot = slots.add_vm(vm.pid);
        }
        let Some(slot) = &self.slot else {
            self.trouble = Some(TOO_MANY_VMS.into());
            self.give_up(TOO_MANY_VMS);
            self.vm = Some(vm);
            return;
        };
        let registers = match (vm.accel, kvm) {
            (Accel::Tcg, _) => Registers::QemuSearch,
            (Accel::Kvm, Kvm::Hidden(_)) => Registers::None,
            (Accel::Kvm, _) => Registers::Kvm,
        };
        let wanted = &vm.vcpus;
        let gone = |v: &Vcpu| !wanted.iter().any(|w| (w.index, w.tid) == (v.index, v.slot.tid()));
        if self.vcpus.iter().any(gone) {
            // The VM's counters begin anew, all of them: a sum that fell by a part would look like
            // one that begins anew, and grew by the rest at once.
            self.vcpus.clear();
        }
        self.trouble = None;
        let mut left_out = 0;
        for thread in wanted {
            if self.vcpus.iter().any(|v| v.slot.tid() == thread.tid) {
                continue;
            }
            match slots.add_vcpu(slot, vm.pid, thread.tid, thread.index, registers) {
                Ok(slot) => self.vcpus.push(Vcpu {
                    index: thread.index,
                    slot,
                    cpu: None,
                    searching: (registers == Registers::QemuSearch).then(Instant::now),
                }),
                Err(error) => {
                    left_out += 1;
                    self.trouble = Some(not_watched(left_out, wanted.len(), &error));
                }
            }
        }
        self.vcpus.sort_by_key(|v| v.index);
        if let Some(watched) = self.watched() {
            watched.outdated = true;
        }
        self.name = vm.name.clone().map(shown);
        self.vm = Some(vm);
    }

    /// The guest can be read.
    pub fn attach(&mut self, attached: Attached) {
        if !self.runs() {
            return;
        }
        self.set_layout(&attached.layout);
        self.phase = Phase::Attached(Box::new(Watched {
            attached,
            paused: false,
            check_at: Instant::now(),
            outdated: false,
        }));
        self.search();
    }

    fn set_layout(&mut self, layout: &BpfLayout) {
        let Some(slot) = &self.slot else { return };
        slot.unready();
        for vcpu in &mut self.vcpus {
            let tid = vcpu.slot.tid();
            let found = layout.vcpus.iter().find(|v| v.tid == Some(tid));
            vcpu.cpu = found.map(|v| v.cpu);
            vcpu.slot.set_addresses(found, layout.rcu.as_ref());
        }
        slot.ready(layout);
    }

    /// An attempt to attach failed.
    pub fn fail(&mut self, error: &Error) {
        let (since, resident_only) = match &self.phase {
            Phase::Ended(_) => return,
            Phase::Seeking(seeking) => (seeking.since, seeking.resident_only),
            Phase::Attached(_) | Phase::StandIn(_) => (Instant::now(), false),
        };
        let (starts, whole) = match error {
            Error::Gone { .. } => return self.end(),
            Error::NoKernel { whole, .. } => (since.elapsed() < STARTING, *whole),
            // It is read already: a later look finds out.
            _ if self.attached().is_some() => return,
            _ => (false, false),
        };
        self.leave(Phase::Seeking(Seeking {
            since,
            why: (!starts).then(|| Why(reason(error), error.to_string())),
            // Reading swapped memory in may push out what others need: not again.
            resident_only: resident_only || whole,
        }));
    }

    /// The program reads the guest no more.
    fn leave(&mut self, next: Phase) {
        if let Some(slot) = &self.slot {
            slot.unready();
        }
        self.phase = next;
    }

    fn end(&mut self) {
        self.attempts.stop();
        self.leave(Phase::Ended(Instant::now()));
    }

    /// The guest, if a check is due of whether it is still the same boot. The check may take long:
    /// it must not run while the list of VMs is locked.
    pub fn to_check(&self) -> Option<Arc<Guest>> {
        let Phase::Attached(watched) = &self.phase else { return None };
        (Instant::now() >= watched.check_at).then(|| watched.attached.guest.clone())
    }

    /// Takes the result of a check that took so long; there are so many VMs.
    pub fn checked(&mut self, guest: &Arc<Guest>, found: &Check, took: Duration, vms: usize) {
        // A starved VM looks as if it were paused, or stuck.
        let starved = self.vcpus.iter().any(|vcpu| vcpu.slot.wants_cpu());
        let threads = self.vm.as_ref().map(|vm| vm.vcpus.clone()).unwrap_or_default();
        let same = |watched: &&mut Watched| Arc::ptr_eq(&watched.attached.guest, guest);
        let Some(watched) = self.watched().filter(same) else { return };
        let now = Instant::now();
        watched.check_at = now + rest(took, vms.saturating_sub(1)).min(LONGEST_REST);
        match found.alive {
            Ok(Liveness::Same) => watched.paused = false,
            Ok(Liveness::Paused) => watched.paused = !starved,
            Ok(Liveness::Gone) => return self.end(),
            Ok(Liveness::Rebooted) => return self.rebooted(),
            Ok(Liveness::Stuck) if !starved => return self.rebooted(),
            // Or a page is not there at the moment.
            Ok(Liveness::Stuck) | Err(_) => {}
        }
        let plugged =
            |present: &Vec<u32>| !present.is_empty() && *present != watched.attached.present;
        let changed = found.vcpus != threads || found.present.as_ref().is_some_and(plugged);
        if changed && !watched.outdated {
            // Only attaching tells which of the VMM's threads a new CPU is.
            watched.outdated = true;
            let lasted = watched.attached.lasted();
            self.attempts.again(lasted, now);
        }
    }

    fn rebooted(&mut self) {
        let Some(attached) = self.attached() else { return };
        // The guest's start counts from when it is looked for.
        let at = self.attempts.again(attached.lasted(), Instant::now());
        self.leave(Seeking::begin(at));
    }

    /// Checks whether the process still exists. Costs a few reads.
    pub fn tend(&mut self) {
        if !self.runs() {
            return;
        }
        match vmm::process::life(self.key.pid, self.key.start_time) {
            Life::Ended => self.end(),
            life => {
                self.stopped = life == Life::Stopped;
                self.search();
            }
        }
    }

    /// The region of its process, which an attempt to attach looks for.
    pub fn set_region(&mut self, region: Option<Region>) {
        self.region = region;
        if let Some(slot) = &self.slot {
            slot.set_region(self.region.as_ref().map_or(0, Region::address));
        }
    }

    /// Whether an attempt that has asked the VMM need not go on: nothing has changed.
    pub fn is_current(&self, vm: &vmm::Vm) -> bool {
        let same = self.vm.as_ref().is_some_and(|known| known.vcpus == vm.vcpus);
        same && self.is_settled()
    }

    /// Whether it is attached to with all of its vCPUs.
    fn is_settled(&self) -> bool {
        matches!(&self.phase, Phase::Attached(watched) if !watched.outdated)
    }

    /// An attempt ended without anything to do, unless the guest has rebooted since it asked, or a
    /// look has found that it is to be attached to again.
    pub fn settle(&mut self) {
        self.attempts.end();
        if self.is_settled() {
            self.attempts.stop();
        }
    }

    /// Looks for QEMU's registers among the candidates.
    pub fn search(&mut self) {
        let Phase::Attached(watched) = &self.phase else { return };
        let attached = &watched.attached;
        for vcpu in self.vcpus.iter_mut().filter(|v| v.searching.is_some()) {
            let layout = attached.layout.vcpus.iter().find(|v| Some(v.cpu) == vcpu.cpu);
            let Some(layout) = layout else { continue };
            let candidates = vcpu.slot.get().candidates;
            let valid = candidates.into_iter().filter(|&c| c != 0);
            let found = valid
                .filter_map(|c| {
                    qemu_registers::registers_at(self.key.pid, c, layout.per_cpu_offset)
                })
                .next();
            if let Some(address) = found {
                vcpu.slot.set_registers(Registers::Qemu(address));
                vcpu.searching = None;
            }
        }
    }

    /// Whether an attempt is due soon, or a search is in progress that should go on soon.
    pub fn hurried(&self) -> bool {
        let young = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < SEARCH_REMARK);
        let search = self.vcpus.iter().any(|v| young(&v.searching));
        self.runs() && (self.attempts.soon(Instant::now()) || search)
    }

    /// The index of its entry.
    pub fn index(&self) -> Option<u32> {
        self.slot.as_ref().map(|slot| slot.index)
    }

    /// The user who runs it; `None`: it has no entry.
    pub fn user(&self) -> Option<u32> {
        self.slot.as_ref().map(|slot| slot.user)
    }

    /// The program's part of it.
    pub fn entry(&self) -> Option<types::vm> {
        self.slot.as_ref().map(VmSlot::get)
    }
}

fn reason(error: &Error) -> &'static str {
    match error {
        Error::NoKernel { .. } => "no-kernel",
        Error::Encrypted { .. } => "encrypted",
        Error::NotVmm { .. } => "vmm",
        Error::Unsupported { .. } | Error::NoTypes { .. } => "unsupported",
        Error::Permission { .. } => "permission",
        Error::Layout { .. } => "layout",
        _ => "other",
    }
}

fn not_watched(left_out: usize, of: usize, error: &std::io::Error) -> String {
    format!("{left_out} of its {of} vCPUs are not watched: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_starts_is_no_unreadable_one() {
        let mut machine = Machine::new(Key { pid: 1, start_time: 1 }, None);
        let nothing = |whole| Error::NoKernel { reason: String::new(), whole };
        // However late this thread comes to it.
        machine.phase = Seeking::begin(Instant::now() + Duration::from_secs(24 * 3600));
        machine.fail(&nothing(true));
        assert_eq!((machine.state(), machine.resident_only()), (VmState::Attaching, true));
        machine.fail(&Error::Encrypted { how: String::new() });
        assert!(matches!(machine.state(), VmState::Unreadable(_)) && machine.resident_only());
        machine.fail(&Error::Gone { pid: 1 });
        assert!(machine.state() == VmState::Gone && !machine.runs());
        machine.fail(&nothing(false));
        assert_eq!(machine.state(), VmState::Gone);
    }

    #[test]
    fn a_name_has_a_longest_length_and_steers_no_terminal() {
        let key = Key { pid: 1, start_time: 1 };
        let name = |length| Machine::new(key, Some("ä".repeat(length))).name.unwrap();
        assert_eq!([NAME_MAX, 5000].map(|length| name(length).chars().count()), [NAME_MAX; 2]);
        let steering = Machine::new(key, Some("x\u{9b}2J\u{202e}\x1b[m".into())).name.unwrap();
        assert_eq!(steering, "x?2J??[m");
    }

    #[test]
    fn a_vm_for_which_there_is_no_room_is_tried_again_later() {
        let mut machine = Machine::new(Key { pid: 1, start_time: 1 }, None);
        let now = Instant::now();
        assert!(machine.attempts.due(now).is_some() && machine.attempts.begin(now));
        machine.give_up(TOO_MANY_VMS);
        machine.settle();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        let due = |at| machine.attempts.due(at).is_some();
        assert!(!due(later(20)) && due(later(31)));
        assert!(matches!(machine.state(), VmState::Unreadable(why) if why == TOO_MANY_VMS));
    }
}
