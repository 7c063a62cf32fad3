// SPDX-License-Identifier: MIT OR Apache-2.0
//! One watched VM: the facts known about it, and its state machine.
//!
//! ```text
//! Attaching --attached--> Watching <--> Paused
//!     ^ |                    |
//!     | +--failed--> Unreadable (tried again, ever more rarely)
//!     +----------- rebooted -+            any --process ended--> Gone
//! ```
//!
//! Its vCPUs are watched as soon as their threads are known; their classes are known once the guest
//! can be read.

use super::finder::Key;
use super::qemu_registers;
use super::slots::{Registers, Slots, VcpuSlot, VmSlot, add_former};
use super::stand_in::StandIn;
use crate::model::VmState;
use crate::raw::clock::now_ns;
use crate::raw::types;
use crate::region::Region;
use reprieve_guest::vmm::{self, Accel, Kind};
use reprieve_guest::{BpfLayout, Error, Guest, Liveness};
use reprieve_page::plain;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A failed attempt is repeated after this, and after twice as long each time it fails again.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// A boot that lasted for so long may end without being held against the guest.
const STABLE: Duration = Duration::from_secs(60);
/// The wait after the second of several boots that did not last, doubled after each more, up to
/// [`RETRY_MAX`].
const REBOOT: Duration = Duration::from_secs(1);

/// Longer names of VMs are cut: they are a label of every series.
const NAME_MAX: usize = 256;

/// A VM without a kernel counts as starting for so long.
const STARTING: Duration = Duration::from_secs(10);

/// New threads are looked at this often at most: QEMU makes and ends helpers all the time.
const THREADS_AGAIN: Duration = Duration::from_secs(5);

/// Of the time of the thread that asks VMMs, or of that which looks for regions, those that are
/// slow to answer have one part in so many, all together.
const REST: u32 = 10;

/// Who took no longer than this may have waited for a CPU.
const SLOW: Duration = Duration::from_millis(100);
/// And is left alone for no longer than this: its guest may start anew meanwhile.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// How long to leave a VMM alone that took so long to answer, one of `vms`.
fn rest(took: Duration, vms: usize) -> Duration {
    let rest = took.saturating_mul(REST.saturating_mul(u32::try_from(vms).unwrap_or(u32::MAX)));
    if took > SLOW { rest } else { rest.min(LONGEST_REST) }
}

/// A search for QEMU's registers that takes longer than this is reported.
pub const SEARCH_REMARK: Duration = Duration::from_secs(5);

const TOO_MANY_VMS: &str = "too many VMs, or too many of its user: this one is not watched";
const TOO_LARGE: &str = "no room in memory for the symbols and types of its kernel, beside those of \
                         other VMs";

/// What can be read from this host's KVM.
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
    pub state: VmState,
    /// Once the VMM has been asked.
    pub vm: Option<vmm::Vm>,
    /// Dropped before the VM's own entry.
    pub vcpus: Vec<Vcpu>,
    /// What vCPUs did that were taken out.
    pub former: Option<Box<types::vcpu>>,
    slot: Option<VmSlot>,
    pub attached: Option<Attached>,
    /// Of a process that stands in for a VM; nothing is attached then.
    stand_in: Option<BpfLayout>,
    /// Where programs of the guest announce their sections.
    pub region: Option<Region>,
    region_due: Instant,
    /// An attempt to attach, or a search, is under way.
    busy: bool,
    /// When the last attempt began, and how long it took if it failed.
    attempted: Instant,
    took: Duration,
    /// Memory that is swapped out has been searched.
    resident_only: bool,
    /// Not all of its vCPUs were there when it was attached to.
    outdated: bool,
    retry: Option<Instant>,
    delay: Duration,
    reboots: Reboots,
    found: Instant,
    /// Threads of the process that are no vCPUs, as of the last look.
    others: HashSet<u32>,
    threads_due: Instant,
    check_due: Instant,
    /// A problem on the host's side.
    pub trouble: Option<String>,
    pub ended: Option<Instant>,
    owner: Option<u32>,
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

    /// Whether user mode is quiescent to its RCU, on some of its CPUs.
    pub fn tracks_user(&self) -> bool {
        self.layout.vcpus.iter().any(|vcpu| vcpu.tracks_user)
    }
}

/// A look for CPUs that were plugged in or out in the guest. It asks the VMM, which may be slow:
/// the list of VMs must not be locked.
pub struct Look {
    pub guest: Arc<Guest>,
    present: Vec<u32>,
}

/// What has changed since.
pub struct Changed {
    present: Vec<u32>,
    layout: BpfLayout,
}

impl Look {
    pub fn changed(&self) -> Option<Changed> {
        let present = self.guest.present().ok()?;
        if present.is_empty() || present == self.present {
            return None;
        }
        Some(Changed { present, layout: self.guest.layout().ok()? })
    }
}

/// How long to wait after a reboot before the guest's memory is searched. It may look as if it
/// rebooted whenever it likes, and each search takes much of a host's CPU time.
#[derive(Default)]
struct Reboots {
    next: Duration,
}

impl Reboots {
    /// `lasted`: for how long the boot before was watched.
    fn wait(&mut self, lasted: Duration) -> Duration {
        let wait = if lasted >= STABLE { Duration::ZERO } else { self.next };
        self.next = (wait * 2).clamp(REBOOT, RETRY_MAX);
        wait
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
            state: VmState::Attaching,
            vm: None,
            vcpus: Vec::new(),
            former: None,
            slot: None,
            attached: None,
            stand_in: None,
            region: None,
            region_due: now,
            busy: false,
            attempted: now,
            took: Duration::ZERO,
            resident_only: false,
            outdated: false,
            retry: Some(now),
            delay: RETRY,
            reboots: Reboots::default(),
            found: now,
            others: HashSet::new(),
            threads_due: now,
            check_due: now,
            trouble: None,
            ended: None,
            owner: None,
        }
    }

    /// Who runs it, root if that is not known: as of the first time that this is asked.
    pub fn owner(&mut self) -> u32 {
        let pid = self.key.pid;
        *self.owner.get_or_insert_with(|| vmm::process::user(pid).unwrap_or(0))
    }

    /// A process that stands in for a VM, of which everything is known.
    pub fn stand_in(slots: &Arc<Slots>, of: &StandIn) -> Machine {
        let start_time = vmm::process::start_time(of.pid).unwrap_or_default();
        let mut machine = Machine::new(Key { pid: of.pid, start_time }, Some(of.name.clone()));
        (machine.state, machine.retry) = (VmState::Watching, None);
        machine.slot = slots.add_vm(of.pid);
        let Some(slot) = &machine.slot else {
            machine.trouble = Some(TOO_MANY_VMS.into());
            return machine;
        };
        let mut left_out = 0;
        for (index, vcpu) in (0..).zip(&of.vcpus) {
            let registers = Registers::Qemu(vcpu.registers);
            match slots.add_vcpu(slot, of.pid, vcpu.tid, index, registers) {
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
        machine.stand_in = Some(layout);
        machine
    }

    /// Where the words of the guest that runs now are, if it can be read.
    pub fn layout(&self) -> Option<&BpfLayout> {
        self.attached.as_ref().map(|attached| &attached.layout).or(self.stand_in.as_ref())
    }

    /// Whether the guest's RCU sees by itself when a CPU is in user mode, of some CPUs.
    pub fn tracks_user(&self) -> bool {
        self.attached.as_ref().is_some_and(Attached::tracks_user)
    }

    /// Since when an attempt to attach is due.
    pub fn attempt_due(&self) -> Option<Instant> {
        let due = self.retry.filter(|&at| Instant::now() >= at);
        due.filter(|_| !self.busy && self.ended.is_none())
    }

    /// An attempt to attach begins; returns whether it is to leave swapped memory alone.
    pub fn begin_attempt(&mut self) -> bool {
        (self.busy, self.attempted) = (true, Instant::now());
        self.resident_only
    }

    /// Since when it is attached to, who runs it, and what is kept of its guest's symbols and
    /// types, bytes.
    pub fn kept(&self) -> Option<(u64, u32, usize)> {
        let (attached, slot) = (self.attached.as_ref()?, self.slot.as_ref()?);
        Some((attached.since_ns, slot.user, attached.guest.kept_bytes()))
    }

    /// There is no room for what is kept of its guest. There may be some later.
    pub fn give_up_guest(&mut self) {
        self.detach();
        self.state = VmState::Unreadable(TOO_LARGE.into());
        self.retry = Some(Instant::now() + RETRY_MAX);
    }

    /// There is no entry for it. There may be one later.
    fn no_room(&mut self) {
        self.trouble = Some(TOO_MANY_VMS.into());
        self.state = VmState::Unreadable(TOO_MANY_VMS.into());
        self.retry = Some(Instant::now() + RETRY_MAX);
    }

    /// The VMM has been asked: its threads are watched from now on.
    pub fn described(&mut self, slots: &Arc<Slots>, kvm: &Kvm, vm: vmm::Vm) {
        if self.slot.is_none() {
            self.slot = slots.add_vm(vm.pid);
        }
        let Some(slot) = &self.slot else {
            self.no_room();
            self.vm = Some(vm);
            return;
        };
        let registers = match (vm.kind, kvm) {
            (Kind::Qemu(Accel::Tcg), _) => Registers::QemuSearch,
            (Kind::Qemu(Accel::Kvm), Kvm::Hidden(_)) => Registers::None,
            (Kind::Qemu(Accel::Kvm), _) => Registers::Kvm,
            _ => Registers::None,
        };
        let wanted = &vm.vcpus;
        let vcpus = std::mem::take(&mut self.vcpus);
        let (stay, gone) = vcpus
            .into_iter()
            .partition(|v| wanted.iter().any(|w| (w.index, w.tid) == (v.index, v.slot.tid())));
        self.vcpus = stay;
        take_out(&mut self.former, gone);
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
        self.outdated = true;
        self.region_due = Instant::now();
        self.others = other_threads(vm.pid, &vm);
        self.name = vm.name.clone().map(shown);
        self.vm = Some(vm);
    }

    /// The guest can be read.
    pub fn attach(&mut self, attached: Attached) {
        self.busy = false;
        if self.ended.is_some() {
            return;
        }
        self.retry = None;
        self.delay = RETRY;
        (self.resident_only, self.outdated) = (false, false);
        self.state = VmState::Watching;
        self.set_layout(&attached.layout);
        self.attached = Some(attached);
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
        self.busy = false;
        if self.ended.is_some() {
            return;
        }
        // One that took long (all of a large guest's memory was searched) is not begun again at
        // once: others wait for their turns, and it takes CPU time.
        self.took = self.attempted.elapsed();
        self.retry = Some(Instant::now() + self.delay.max(self.took));
        self.delay = (self.delay * 2).min(RETRY_MAX);
        match error {
            Error::Gone { .. } => return self.end(),
            // Reading swapped memory in may push out what others need: not again.
            Error::NoKernel { whole, .. } => self.resident_only |= whole,
            // Somebody else may be at the VMM's monitor: its threads cannot be asked for.
            _ if self.attached.is_some() => return,
            _ => {}
        }
        self.detach();
        match error {
            Error::NoKernel { .. } if self.found.elapsed() < STARTING => {
                self.state = VmState::Attaching;
            }
            _ => self.state = VmState::Unreadable(error.to_string()),
        }
    }

    fn detach(&mut self) {
        self.attached = None;
        if let Some(slot) = &self.slot {
            slot.unready();
        }
    }

    fn end(&mut self) {
        self.detach();
        self.retry = None;
        self.state = VmState::Gone;
        self.ended.get_or_insert_with(Instant::now);
    }

    /// The guest, if a check is due of whether it is still the same boot. The check may take long:
    /// it must not run while the list of VMs is locked.
    pub fn to_check(&self) -> Option<Arc<Guest>> {
        let due = Instant::now() >= self.check_due;
        self.attached.as_ref().filter(|_| due).map(|attached| attached.guest.clone())
    }

    /// A check took so long; there are so many VMs.
    pub fn check_took(&mut self, took: Duration, vms: usize) {
        self.check_due = Instant::now() + rest(took, vms);
    }

    /// Takes the result of a check.
    pub fn checked(&mut self, guest: &Arc<Guest>, found: &Result<Liveness, Error>) {
        if !self.attached.as_ref().is_some_and(|attached| Arc::ptr_eq(&attached.guest, guest)) {
            return;
        }
        match found {
            Ok(Liveness::Same) => self.state = VmState::Watching,
            Ok(Liveness::Paused) => self.state = VmState::Paused,
            Ok(Liveness::Gone) => self.end(),
            Ok(Liveness::Rebooted) => {
                let since = self.attached.as_ref().map_or(0, |attached| attached.since_ns);
                let lasted = Duration::from_nanos(now_ns().saturating_sub(since));
                self.rebooted(lasted);
            }
            // It is searched, or will be. Or a page is not there at the moment.
            Ok(Liveness::Doubtful) | Err(_) => {}
        }
    }

    /// `lasted`: for how long the boot before was watched.
    fn rebooted(&mut self, lasted: Duration) {
        self.detach();
        self.resident_only = false;
        self.state = VmState::Attaching;
        // It starts when it is looked for.
        let at = Instant::now() + self.reboots.wait(lasted);
        (self.found, self.delay, self.retry) = (at, RETRY, Some(at));
        self.took = Duration::ZERO;
    }

    /// Whether its memory may be searched for another kernel; if so that counts as begun.
    pub fn begin_search(&mut self) -> bool {
        !std::mem::replace(&mut self.busy, true)
    }

    pub fn searched(&mut self, guest: &Arc<Guest>, replaced: bool) {
        self.busy = false;
        if replaced {
            self.checked(guest, &Ok(Liveness::Rebooted));
        }
    }

    /// Checks whether the process and its vCPUs still exist. Costs a few reads. Returns the look at
    /// the guest, if one is due. There are so many VMs.
    pub fn tend(&mut self, vms: usize) -> Option<Look> {
        if self.ended.is_some() {
            return None;
        }
        if vmm::process::is_gone(self.key.pid, self.key.start_time) {
            self.end();
            return None;
        }
        let look = self.look_for_vcpus(vms);
        self.search();
        look
    }

    /// Whether the region is to be looked for: it is a device of the VM's, which may come and go.
    /// Whoever looks reads the VMM's memory, which may be slow: the list of VMs must not be locked.
    pub fn region_due(&self) -> Option<Instant> {
        (self.ended.is_none() && Instant::now() >= self.region_due).then_some(self.region_due)
    }

    /// `took`: how long the look lasted; there are so many VMs.
    pub fn set_region(&mut self, region: Option<Region>, took: Duration, vms: usize) {
        self.region_due = Instant::now() + THREADS_AGAIN.max(rest(took, vms));
        self.region = region;
        if let Some(slot) = &self.slot {
            slot.set_region(self.region.as_ref().map_or(0, Region::address));
        }
    }

    /// CPUs that were plugged in or out.
    fn look_for_vcpus(&mut self, vms: usize) -> Option<Look> {
        let start = Instant::now();
        if start < self.threads_due {
            return None;
        }
        let vm = self.vm.as_ref()?;
        let others = other_threads(vm.pid, vm);
        // A VMM may have as many threads as it likes.
        self.threads_due = Instant::now() + THREADS_AGAIN.max(rest(start.elapsed(), vms));
        let new = !others.is_subset(&self.others);
        let lost = self.vcpus.iter().any(|v| {
            !std::path::Path::new(&format!("/proc/{}/task/{}", vm.pid, v.slot.tid())).exists()
        });
        if (new || lost) && !self.busy && self.attached.is_some() {
            // Only worth an attempt if the VMM itself has other vCPUs now, which the attempt finds
            // out.
            self.others = others;
            self.retry = Some(Instant::now());
        }
        let attached = self.attached.as_ref()?;
        Some(Look { guest: attached.guest.clone(), present: attached.present.clone() })
    }

    /// A look took so long; there are so many VMs.
    pub fn look_took(&mut self, took: Duration, vms: usize) {
        self.threads_due = self.threads_due.max(Instant::now() + rest(took, vms));
    }

    /// Whoever looks for the region has waited for longer than this process is worth.
    pub fn give_up_region(&mut self) {
        self.region_due = Instant::now() + Duration::from_secs(24 * 3600);
    }

    /// Takes what a look found.
    pub fn looked(&mut self, look: &Look, changed: Changed) {
        let same = |attached: &&mut Attached| Arc::ptr_eq(&attached.guest, &look.guest);
        let Some(attached) = self.attached.as_mut().filter(same) else { return };
        // Which of the VMM's threads a new CPU is, the guest knows of when it is attached to.
        (self.outdated, self.retry) = (true, Some(Instant::now()));
        (attached.present, attached.layout) = (changed.present, changed.layout.clone());
        self.set_layout(&changed.layout);
    }

    /// Whether an attempt that has asked the VMM need not go on: nothing has changed.
    pub fn is_current(&self, vm: &vmm::Vm) -> bool {
        let same = self.vm.as_ref().is_some_and(|known| known.vcpus == vm.vcpus);
        self.attached.is_some() && !self.outdated && same
    }

    /// An attempt ended without anything to do, unless the guest has rebooted since it asked.
    pub fn settle(&mut self) {
        self.busy = false;
        // A look may have found meanwhile that it is to be attached to again.
        if self.attached.is_some() && !self.outdated {
            self.retry = None;
        }
    }

    /// Looks for QEMU's registers among the candidates.
    pub fn search(&mut self) {
        let Some(attached) = &self.attached else { return };
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

    /// Whether an attempt or a search is in progress that should go on soon.
    pub fn hurried(&self) -> bool {
        let young = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < SEARCH_REMARK);
        // A pause after a reboot is longer than the delay.
        let pause = self.delay.max(self.took);
        let soon = |at| Instant::now() + pause >= at && self.delay < Duration::from_secs(2);
        self.ended.is_none()
            && (self.retry.is_some_and(soon) || self.vcpus.iter().any(|v| young(&v.searching)))
    }

    /// The last grace period that was seen to begin, as the program keeps it, and when.
    pub fn began(&self) -> Option<(u64, u64)> {
        self.slot.as_ref().map(VmSlot::began)
    }

    /// Of its entry.
    pub fn index(&self) -> Option<u32> {
        self.slot.as_ref().map(|slot| slot.index)
    }

    /// Who runs it; `None`: it has no entry.
    pub fn user(&self) -> Option<u32> {
        self.slot.as_ref().map(|slot| slot.user)
    }

    /// The program's part of it.
    pub fn entry(&self) -> Option<types::vm> {
        self.slot.as_ref().map(VmSlot::get)
    }
}

/// What these vCPUs did is kept in `former`.
fn take_out(former: &mut Option<Box<types::vcpu>>, gone: Vec<Vcpu>) {
    for vcpu in gone {
        add_former(former.get_or_insert_default(), &vcpu.slot.get(), now_ns());
    }
}

fn not_watched(left_out: usize, of: usize, error: &std::io::Error) -> String {
    format!("{left_out} of its {of} vCPUs are not watched: {error}")
}

fn other_threads(pid: u32, vm: &vmm::Vm) -> HashSet<u32> {
    let Ok(dir) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return HashSet::new() };
    let vcpus: HashSet<u32> = vm.vcpus.iter().map(|v| v.tid).collect();
    let tids = dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    tids.filter(|tid| !vcpus.contains(tid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{Program, Settings};
    use crate::snapshot::view;

    #[test]
    fn a_guest_that_reboots_all_the_time_is_searched_ever_more_rarely() {
        let (short, mut reboots) = (Duration::from_secs(2), Reboots::default());
        let mut waits = |lasted, n: usize| -> Vec<u64> {
            (0..n).map(|_| reboots.wait(lasted).as_secs()).collect()
        };
        assert_eq!(waits(short, 8), [0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(waits(STABLE, 2), [0, 0], "reboots that are far apart are seen at once");
        assert_eq!(waits(short, 2), [1, 2]);
    }

    #[test]
    fn the_pause_after_a_reboot_is_no_part_of_the_start() {
        let mut machine = Machine::new(Key { pid: 1, start_time: 1 }, None);
        let lasted = Duration::from_secs(2);
        machine.rebooted(lasted);
        assert!(machine.hurried(), "none after the first");
        for _ in 0..7 {
            let before = Instant::now();
            machine.rebooted(lasted);
            assert!(machine.retry.is_some_and(|at| at >= before + REBOOT && machine.found >= at));
        }
        machine.settle();
        assert!(machine.retry.is_some(), "an attempt asked before the reboot");
        // However late this thread comes to it.
        machine.found = Instant::now() + Duration::from_secs(24 * 3600);
        machine.fail(&Error::NoKernel { reason: String::new(), whole: false });
        assert_eq!(machine.state, VmState::Attaching);
        assert!(machine.hurried());
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
        assert!(machine.attempt_due().is_some());
        machine.begin_attempt();
        let before = Instant::now();
        machine.no_room();
        machine.settle();
        assert!(machine.retry.is_some_and(|at| at >= before + RETRY_MAX));
        assert!(matches!(&machine.state, VmState::Unreadable(why) if why == TOO_MANY_VMS));
    }

    #[test]
    fn counters_do_not_fall_when_a_vcpu_is_taken_out() {
        let settings = Settings { vcpus: 4, vms: 2, ..Settings::default() };
        let slots = Slots::new(Program::load(&settings).unwrap());
        let pid = std::process::id();
        let mut machine = Machine::stand_in(&slots, &StandIn::example(pid, pid));
        let slot = &machine.vcpus[0].slot;
        // Of no process, so that the program does not count for it.
        let entry = types::vcpu { on_cpu_ns: 700, ..types::vcpu::default() };
        slots.program.vcpus.put(slot.index() as usize, entry);
        let on_cpu_ns = |machine: &Machine| {
            let entries: Vec<_> = machine.vcpus.iter().map(|v| v.slot.get()).collect();
            let vm = view::vm(machine, &entries, &Kvm::Svm, now_ns());
            vm.counted().map(|vcpu| vcpu.on_cpu_ns).sum::<u64>()
        };
        assert_eq!((on_cpu_ns(&machine), machine.former.is_some()), (700, false));
        take_out(&mut machine.former, std::mem::take(&mut machine.vcpus));
        assert_eq!(on_cpu_ns(&machine), 700);
    }
}
