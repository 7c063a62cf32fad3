// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler, loaded and attached. Dropping it detaches and unloads it; nothing is pinned, so a
//! crash does the same.

use crate::constants;
use crate::error::Error;
use crate::options::Options;
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use reprieve_watch::raw::{self, Plain, Shared, Times, refused};
use reprieve_watch::vms::machine::Kvm;
use skeleton::{GuardSkel, GuardSkelBuilder};
use std::mem::offset_of;
use std::os::fd::AsFd;

pub use skeleton::types;

/// Written by libbpf-cargo from `bpf/guard.bpf.c`.
#[allow(clippy::undocumented_unsafe_blocks, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/guard.skel.rs"));
}

// SAFETY: made of integers.
unsafe impl Plain for types::guest {}
// SAFETY: made of integers.
unsafe impl Plain for types::rcu {}
// SAFETY: made of integers.
unsafe impl Plain for types::grace {}

pub struct Program {
    /// Dropped first: the scheduler is detached.
    links: Vec<Link>,
    skel: GuardSkel<'static>,
    /// The CPUs that were online when it was told.
    online: Vec<usize>,
    /// The program's variables, as words.
    variables: Shared<u64>,
    pub guests: Shared<types::guest>,
}

impl Program {
    /// Loads the scheduler, which shares arrays with `watch`. It does not schedule yet.
    pub fn load(options: &Options, watch: &raw::Program, kvm: &Kvm) -> Result<Program, Error> {
        let online = online_cpus();
        let skel = open(options, &online, watch, kvm)?;
        let mapping = |source| Error::Io { what: "mapping the scheduler's arrays".into(), source };
        let words = size_of::<types::bss>() / size_of::<u64>();
        let variables = Shared::map(skel.maps.bss.as_fd(), words).map_err(mapping)?;
        let guests = Shared::map(skel.maps.guests.as_fd(), raw::constants::MAX_VMS);
        Ok(Program { links: Vec::new(), skel, online, variables, guests: guests.map_err(mapping)? })
    }

    /// From now on it schedules.
    pub fn attach(&mut self) -> Result<(), Error> {
        let link = self.skel.maps.guard_ops.attach_struct_ops().map_err(refused("attach"))?;
        self.links.push(link);
        let tick = &self.skel.progs.guard_guest_timer;
        if tick.autoload() {
            self.links.push(tick.attach_trace().map_err(refused("attach to KVM"))?);
        }
        // From now on the kernel ends the scheduler if a CPU comes or goes. One may have done so
        // while it was being loaded.
        if online_cpus() != self.online {
            return Err(Error::Ended("CPUs came or went: start guard again".into()));
        }
        Ok(())
    }

    /// Why the kernel ended it, if it did.
    pub fn ended(&self) -> Option<String> {
        if self.get(offset_of!(types::bss, exit_kind)) == 0 {
            return None;
        }
        let reason = self.text(offset_of!(types::bss, exit_reason));
        let message = self.text(offset_of!(types::bss, exit_message));
        Some(if message.is_empty() { reason } else { format!("{reason}: {message}") })
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

    /// Has the program look again which threads are vCPUs.
    pub fn changed(&self) {
        let generation = offset_of!(types::bss, generation);
        self.variables.put(generation / size_of::<u64>(), self.get(generation) + 1);
    }

    /// Decisions, the time in them, ns, and how long they took.
    pub fn cost(&self) -> (u64, u64, Times) {
        let costs = raw::costs_in(&self.skel.maps.costs);
        (
            costs.iter().map(|cost| cost.runs).sum(),
            costs.iter().map(|cost| cost.total_ns).sum(),
            Times::of(costs.iter().map(|cost| &cost.steps[..])),
        )
    }
}

fn open(
    options: &Options,
    online: &[usize],
    watch: &raw::Program,
    kvm: &Kvm,
) -> Result<GuardSkel<'static>, Error> {
    let mut open = GuardSkelBuilder::default().open(raw::storage()).map_err(refused("open"))?;
    let cpus = few_cpus()?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.with_svm = *kvm == Kvm::Svm;
        rodata.with_vmx = *kvm == Kvm::Vmx;
        rodata.settings = settings(options, cpus, online.len());
    }
    open.progs.guard_guest_timer.set_autoload(has_function("apic_timer_fn"));
    let maps = &mut open.maps;
    let maps = [&mut maps.threads, &mut maps.vcpus, &mut maps.vms];
    for (map, (fd, len)) in maps.into_iter().zip(watch.shared_maps()) {
        map.set_max_entries(len).map_err(refused("size"))?;
        map.reuse_fd(fd).map_err(refused("share"))?;
    }
    Ok(open.load().map_err(refused("load"))?)
}

pub(super) fn settings(options: &Options, cpus: usize, online: usize) -> types::settings {
    types::settings {
        max_hold: options.max_hold.as_nanos() as u64,
        cpus: cpus as u64,
        online: online as u64,
    }
}

/// Whether the kernel, or a module that is loaded, has the function.
fn has_function(name: &str) -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    symbols.lines().any(|line| line.split_ascii_whitespace().nth(2) == Some(name))
}

/// How many CPUs the host may have, which are no more than guard has room for.
fn few_cpus() -> Result<usize, Error> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count CPUs"))?;
    if cpus > constants::MAX_CPUS {
        return Err(Error::Missing {
            what: "a host of at most 1,024 CPUs",
            hint: "its tables have no more",
        });
    }
    Ok(cpus)
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
