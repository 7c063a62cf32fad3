// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler, loaded and attached; again, when the kernel wants that. Dropping it detaches and
//! unloads it; nothing is pinned, so a crash does the same.

use super::check;
use crate::constants;
use crate::error::Error;
use crate::options::Options;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject, ProgramInput};
use reprieve_watch::raw::{self, Plain, Shared, Times, complaints, keep_complaint, lacks_right};
use reprieve_watch::vms::machine::Kvm;
use skeleton::{GuardSkel, GuardSkelBuilder};
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use skeleton::types;

/// Written by libbpf-cargo from `bpf/guard.bpf.c`.
#[allow(clippy::undocumented_unsafe_blocks, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/guard.skel.rs"));
}

// SAFETY: made of integers.
unsafe impl Plain for types::guest {}

/// Its arrays outlive it when it is loaded again.
pub struct Program {
    loaded: Mutex<Option<Loaded>>,
    maps: Maps,
    pub guests: Shared<types::guest>,
}

struct Maps {
    guests: MapHandle,
    members: MapHandle,
    tids: MapHandle,
    costs: MapHandle,
}

/// The scheduler in the kernel.
struct Loaded {
    /// Dropped first: the scheduler is detached.
    links: Vec<Link>,
    /// Borrows `storage`; dropped before it.
    skel: ManuallyDrop<GuardSkel<'static>>,
    storage: *mut MaybeUninit<OpenObject>,
    /// The program's variables, as words.
    variables: Shared<u64>,
    /// The CPUs that were online when it was told.
    online: Vec<usize>,
    /// Others are online than it was told of.
    outdated: bool,
}

// SAFETY: `storage` is a box of this alone; the rest may be sent.
unsafe impl Send for Loaded {}

/// Why the kernel ended the scheduler.
pub struct Ended {
    pub why: String,
    /// The kernel wants it to begin anew.
    pub restart: bool,
}

/// How often the scheduler looks at a CPU for which nobody waits. Its ticks look for changes.
pub(super) const LOOK_ALONE: Duration = Duration::from_millis(100);
/// The same, where a CPU that runs one thread may have no ticks.
const LOOK_TICKLESS: Duration = Duration::from_millis(2);

/// A bit of an exit code (`enum scx_exit_code`).
const RESTART: u64 = 1 << 48;
/// How long the kernel may take to be rid of the scheduler that it ended.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long a CPU that goes may still be among those that are online, although no thread can be
/// moved there.
const GOES: Duration = Duration::from_secs(5);

impl Program {
    /// Loads the scheduler, which shares arrays with `watch`. It does not schedule yet.
    pub fn load(options: &Options, watch: &raw::Program, kvm: &Kvm) -> Result<Program, Error> {
        let loaded = Loaded::load(options, watch, kvm, None)?;
        let maps = &loaded.skel.maps;
        let guests = Shared::map(maps.guests.as_fd(), constants_vms()).map_err(|source| {
            Error::Io { what: "mapping the scheduler's guests".into(), source }
        })?;
        let maps = Maps {
            guests: MapHandle::try_from(&maps.guests).map_err(refused("map"))?,
            members: MapHandle::try_from(&maps.members).map_err(refused("map"))?,
            tids: MapHandle::try_from(&maps.tids).map_err(refused("map"))?,
            costs: MapHandle::try_from(&maps.costs).map_err(refused("map"))?,
        };
        Ok(Program { loaded: Mutex::new(Some(loaded)), maps, guests })
    }

    /// From now on it schedules.
    pub fn attach(&self) -> Result<(), Error> {
        match &mut *self.loaded() {
            Some(loaded) => loaded.attach(),
            None => Ok(()),
        }
    }

    /// Loads and attaches the scheduler again, after the kernel has ended it. What it knew of VMs,
    /// and its counters, stay.
    pub fn load_again(
        &self,
        options: &Options,
        watch: &raw::Program,
        kvm: &Kvm,
    ) -> Result<(), Error> {
        let mut loaded = self.loaded();
        *loaded = None;
        let end = Instant::now() + FAREWELL;
        while !check::none_loaded() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut again = Loaded::load(options, watch, kvm, Some(&self.maps))?;
        again.attach()?;
        *loaded = Some(again);
        Ok(())
    }

    fn loaded(&self) -> MutexGuard<'_, Option<Loaded>> {
        self.loaded.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Why the kernel ended it, if it did.
    pub fn ended(&self) -> Option<Ended> {
        self.loaded().as_ref().and_then(Loaded::ended)
    }

    /// Tells the program that thread `tid` is vCPU `slot` of the shared array.
    pub fn add_vcpu(&self, tid: u32, slot: u32) -> Result<(), libbpf_rs::Error> {
        self.maps.tids.update(&slot.to_ne_bytes(), &tid.to_ne_bytes(), MapFlags::ANY)?;
        self.maps.members.update(&tid.to_ne_bytes(), &(slot + 1).to_ne_bytes(), MapFlags::ANY)
    }

    /// The number and the slot of a thread that has ended need not be free: another vCPU may
    /// have them by now.
    pub fn remove_vcpu(&self, tid: u32, slot: u32) {
        let (member, own) = (tid.to_ne_bytes(), slot.to_ne_bytes());
        let is = |found: Result<Option<Vec<u8>>, _>, number: u32| {
            found.ok().flatten().is_some_and(|bytes| bytes == number.to_ne_bytes())
        };
        if is(self.maps.members.lookup(&member, MapFlags::ANY), slot + 1) {
            let _ = self.maps.members.delete(&member);
        }
        if is(self.maps.tids.lookup(&own, MapFlags::ANY), tid) {
            let _ = self.maps.tids.update(&own, &0u32.to_ne_bytes(), MapFlags::ANY);
        }
    }

    /// Has the program look again which threads are vCPUs.
    pub fn changed(&self) {
        if let Some(loaded) = &*self.loaded() {
            let generation = offset_of!(types::bss, generation);
            loaded.set(generation, loaded.get(generation) + 1);
        }
    }

    /// Decisions, the time in them, ns, and how long they took.
    pub fn cost(&self) -> (u64, u64, Times) {
        let values = self.maps.costs.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
        };
        let cpus = values.ok().flatten().unwrap_or_default();
        let sum = |at: usize| cpus.iter().map(|cpu| word(cpu, at)).sum();
        let steps: Vec<Vec<u64>> = cpus
            .iter()
            .map(|cpu| {
                let at = |n| offset_of!(types::cost, steps) + n * size_of::<u64>();
                (0..raw::constants::COST_STEPS).map(|n| word(cpu, at(n))).collect()
            })
            .collect();
        let times = Times::of(steps.iter().map(Vec::as_slice));
        (sum(offset_of!(types::cost, runs)), sum(offset_of!(types::cost, total_ns)), times)
    }
}

impl Loaded {
    fn load(
        options: &Options,
        watch: &raw::Program,
        kvm: &Kvm,
        maps: Option<&Maps>,
    ) -> Result<Loaded, Error> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, keep_complaint)));
        let storage = Box::into_raw(Box::new(MaybeUninit::uninit()));
        // SAFETY: a box of its own, freed only where no skeleton exists: below on error, else in
        // `drop`.
        let borrowed = unsafe { &mut *storage };
        let online = online_cpus();
        let opened = open(options, &online, watch, kvm, maps, borrowed).and_then(|skel| {
            let words = size_of::<types::bss>() / size_of::<u64>();
            let variables = Shared::map(skel.maps.bss.as_fd(), words).map_err(|source| {
                Error::Io { what: "mapping the scheduler's variables".into(), source }
            })?;
            Ok((ManuallyDrop::new(skel), variables))
        });
        match opened {
            Ok((skel, variables)) => {
                Ok(Loaded { links: Vec::new(), skel, storage, variables, online, outdated: false })
            }
            Err(error) => {
                // SAFETY: made above; the skeleton that borrowed it is gone.
                drop(unsafe { Box::from_raw(storage) });
                Err(error)
            }
        }
    }

    fn attach(&mut self) -> Result<(), Error> {
        let link = self.skel.maps.guard_ops.attach_struct_ops().map_err(refused("attach"))?;
        self.links.push(link);
        let tick = &self.skel.progs.guard_tick;
        if tick.autoload() {
            self.links.push(tick.attach_trace().map_err(refused("attach to KVM"))?);
        }
        self.set(offset_of!(types::bss, active), 1);
        // From now on the kernel ends the scheduler if a CPU comes or goes. One may have done so
        // while it was being loaded.
        let online = online_cpus();
        self.outdated = online != self.online;
        online.into_iter().try_for_each(|cpu| self.start_timer(cpu))
    }

    /// Starts the timer of a CPU. One that goes needs none: the scheduler ends.
    fn start_timer(&self, cpu: usize) -> Result<(), Error> {
        let timer = &self.skel.progs.guard_start_timer;
        let end = Instant::now() + GOES;
        loop {
            let source = match on_cpu(cpu, || timer.test_run(ProgramInput::default())) {
                Ok(done) => return done.map(drop).map_err(refused("start the timer")),
                Err(source) => source,
            };
            if self.ended().is_some() || !online_cpus().contains(&cpu) {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(out_of_reach(cpu, source));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ended(&self) -> Option<Ended> {
        if self.get(offset_of!(types::bss, exit_kind)) == 0 {
            let why = "CPUs came or went while it was being loaded".into();
            return self.outdated.then_some(Ended { why, restart: true });
        }
        let reason = self.text(offset_of!(types::bss, exit_reason));
        let message = self.text(offset_of!(types::bss, exit_message));
        let why = if message.is_empty() { reason } else { format!("{reason}: {message}") };
        let restart = self.get(offset_of!(types::bss, exit_code)) & RESTART != 0;
        Some(Ended { why, restart })
    }

    /// A variable of [`constants::MESSAGE_LEN`] bytes, in one line.
    fn text(&self, offset: usize) -> String {
        let first = offset / size_of::<u64>();
        let words = first..first + constants::MESSAGE_LEN / size_of::<u64>();
        let bytes = words.flat_map(|word| self.variables.get(word).to_ne_bytes());
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).trim().replace('\n', " ")
    }

    fn get(&self, offset: usize) -> u64 {
        self.variables.get(offset / size_of::<u64>())
    }

    fn set(&self, offset: usize, value: u64) {
        self.variables.put(offset / size_of::<u64>(), value);
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.set(offset_of!(types::bss, active), 0);
        self.links.clear();
        // SAFETY: dropped once, and `storage`, made by `load`, after what borrows it.
        unsafe {
            ManuallyDrop::drop(&mut self.skel);
            drop(Box::from_raw(self.storage));
        }
    }
}

fn constants_vms() -> usize {
    raw::constants::MAX_VMS
}

fn open(
    options: &Options,
    online: &[usize],
    watch: &raw::Program,
    kvm: &Kvm,
    maps: Option<&Maps>,
    storage: &'static mut MaybeUninit<OpenObject>,
) -> Result<GuardSkel<'static>, Error> {
    let mut open = GuardSkelBuilder::default().open(storage).map_err(refused("open"))?;
    let cpus = few_cpus()?;
    let look_alone = if check::ticks_stop() { LOOK_TICKLESS } else { LOOK_ALONE };
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.with_svm = *kvm == Kvm::Svm;
        rodata.with_vmx = *kvm == Kvm::Vmx;
        rodata.settings = settings(options, look_alone, cpus, online.len());
    }
    open.progs.guard_tick.set_autoload(has_function("apic_timer_fn"));
    let [(vcpus, vcpus_len), (vms, vms_len)] = watch.shared_maps();
    for (map, fd, len) in
        [(&mut open.maps.vcpus, vcpus, vcpus_len), (&mut open.maps.vms, vms, vms_len)]
    {
        map.set_max_entries(len).map_err(refused("size"))?;
        map.reuse_fd(fd).map_err(refused("share"))?;
    }
    if let Some(maps) = maps {
        for (map, old) in [
            (&mut open.maps.guests, &maps.guests),
            (&mut open.maps.members, &maps.members),
            (&mut open.maps.tids, &maps.tids),
            (&mut open.maps.costs, &maps.costs),
        ] {
            map.reuse_fd(old.as_fd()).map_err(refused("share"))?;
        }
    }
    open.maps.threads.set_max_entries(1).map_err(refused("size"))?;
    open.load().map_err(refused("load"))
}

/// guard is loaded again when a CPU comes or goes.
pub(super) fn settings(
    options: &Options,
    look_alone: Duration,
    cpus: usize,
    online: usize,
) -> types::settings {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    types::settings {
        max_hold: ns(options.max_hold),
        look_alone: ns(look_alone),
        cpus: cpus as u64,
        online: online as u64,
    }
}

/// Whether the kernel, or a module that is loaded, has the function.
fn has_function(name: &str) -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    symbols.lines().any(|line| line.split_ascii_whitespace().nth(2) == Some(name))
}

fn refused(step: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |error| {
        if lacks_right(&error) {
            return Error::Missing {
                what: "the right to load a scheduler",
                hint: "run it as root, or with the capabilities of reprieve-guard.service",
            };
        }
        Error::Bpf { step, message: complaints(&error) }
    }
}

/// How many CPUs the host may have, which are no more than guard has room for.
pub fn few_cpus() -> Result<usize, Error> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count CPUs"))?;
    if cpus > constants::MAX_CPUS {
        return Err(Error::Missing {
            what: "a host of at most 1,024 CPUs",
            hint: "its tables have no more",
        });
    }
    Ok(cpus)
}

/// Whether this process may run on each CPU, to start its timer there.
pub fn reach_cpus() -> Result<(), Error> {
    for cpu in online_cpus() {
        match on_cpu(cpu, || ()) {
            Err(source) if online_cpus().contains(&cpu) => return Err(out_of_reach(cpu, source)),
            _ => {}
        }
    }
    Ok(())
}

/// Why this process cannot run on a CPU that is online. A mask it could widen.
fn out_of_reach(cpu: usize, source: std::io::Error) -> Error {
    if source.raw_os_error() != Some(libc::EINVAL) {
        return Error::Io { what: format!("running on CPU {cpu}"), source };
    }
    Error::Unsupported {
        why: format!(
            "it has to run on each CPU for a moment, and the cpuset of its cgroup lacks CPU {cpu} \
             (systemd's AllowedCPUs=, of its unit or of a slice): start it in another cgroup"
        ),
    }
}

/// Runs `what` on `cpu` with this thread.
fn on_cpu<T>(cpu: usize, what: impl FnOnce() -> T) -> std::io::Result<T> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let result = what();
    sched_setaffinity(None, &before)?;
    Ok(result)
}

/// By the kernel's list, since this process may be confined to some.
fn online_cpus() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_out_of_reach_is_named_with_the_likely_cause() {
        // The last of those that there may be: hardly any host has it.
        let cpu = constants::MAX_CPUS - 1;
        if online_cpus().contains(&cpu) {
            return;
        }
        let error = out_of_reach(cpu, on_cpu(cpu, || ()).unwrap_err()).to_string();
        assert!(error.contains("CPU 1023") && error.contains("AllowedCPUs="), "{error}");
    }
}
