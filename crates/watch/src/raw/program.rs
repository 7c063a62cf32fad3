// SPDX-License-Identifier: MIT OR Apache-2.0
//! The eBPF program, loaded and attached. Dropping it detaches and unloads it; nothing is pinned,
//! so a crash does the same.

use super::shared::Shared;
use super::skeleton::{WatchSkel, WatchSkelBuilder};
use super::{constants, types};
use crate::error::Error;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject, ProgramInput, RingBufferBuilder};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

/// Settings that are fixed when the program is loaded.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How many vCPUs there may be.
    pub vcpus: usize,
    pub vms: usize,
    pub events: bool,
    pub svm: bool,
    pub vmx: bool,
    /// The age from which on a grace period is late; 0: who holds late ones up is not counted.
    pub late_ns: u64,
}

/// Bytes of the buffer between the program and a recording. A switch takes up to two events of some
/// 90 bytes: at 10,000 per second there is room for more than four seconds, in which a busy host
/// may well let the recording process wait.
const EVENTS_BYTES: u32 = 8 << 20;
/// The kernel's smallest.
const EVENTS_NONE: u32 = 4096;

pub struct Program {
    /// The program's attachments, for as long as it is loaded.
    _links: [Link; 3],
    skel: WatchSkel<'static>,
    threads: MapHandle,
    /// The host's KVM is Intel's.
    vmx: bool,
    pub vcpus: Shared<types::vcpu>,
    pub vms: Shared<types::vm>,
    /// The program's variables, as words.
    variables: Shared<u64>,
}

// SAFETY: methods that take `&self` only make system calls and access shared arrays.
unsafe impl Sync for Program {}

impl Program {
    pub fn load(settings: &Settings) -> Result<Program, Error> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, keep_complaint)));
        let skel = open(settings)?;
        let (_links, threads, vcpus, vms, variables) = attach(&skel, settings)?;
        Ok(Program { _links, skel, threads, vmx: settings.vmx, vcpus, vms, variables })
    }

    /// The maps of threads, of vCPUs and of VMs, for another program that reads the same.
    pub fn shared_maps(&self) -> [(BorrowedFd<'_>, u32); 3] {
        let maps = &self.skel.maps;
        [
            (self.threads.as_fd(), self.vcpus.elements() as u32),
            (maps.vcpus.as_fd(), self.vcpus.elements() as u32),
            (maps.vms.as_fd(), self.vms.elements() as u32),
        ]
    }

    /// Has the program look at thread `tid`, as vCPU `slot`, at its context switches and when a
    /// timer interrupts it.
    pub fn watch_thread(&self, tid: u32, slot: u32) -> io::Result<()> {
        let key = tid.to_ne_bytes();
        self.threads.update(&key, &slot.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?;
        let (word, bit) = filter_bit(tid);
        self.variables.put(word, self.variables.get(word) | bit);
        Ok(())
    }

    /// The class of the vCPU `entry`, which is preempted, if it can be told only now: Intel's KVM
    /// stores the privilege level after the context switch. Costs a system call.
    pub fn late_class(&self, slot: u32, entry: &types::vcpu) -> Option<types::class> {
        let late = self.vmx
            && entry.doing == types::doing::DOING_PREEMPTED
            && entry.class == types::class::CLASS_KERNEL
            && entry.registers == types::registers::REGISTERS_KVM
            && entry.rip == 0;
        if late { self.class_now(slot).ok() } else { None }
    }

    fn class_now(&self, slot: u32) -> libbpf_rs::Result<types::class> {
        let mut arguments = u64::from(slot).to_ne_bytes();
        let input = ProgramInput { context_in: Some(&mut arguments), ..ProgramInput::default() };
        Ok(types::class(self.skel.progs.class_now.test_run(input)?.return_value))
    }

    /// Has the program forget `tid`. Its bit in the filter stays where another thread in `others`
    /// has the same one.
    pub fn forget_thread(&self, tid: u32, mut others: impl Iterator<Item = u32>) {
        let _ = self.threads.delete(&tid.to_ne_bytes());
        let (word, bit) = filter_bit(tid);
        if !others.any(|other| filter_bit(other) == (word, bit)) {
            self.variables.put(word, self.variables.get(word) & !bit);
        }
    }

    /// The entry of the vCPU that `tid` is.
    #[cfg(test)]
    pub fn entry_of(&self, tid: u32) -> Option<u32> {
        let entry = self.threads.lookup(&tid.to_ne_bytes(), MapFlags::ANY).unwrap()?;
        Some(u32::from_ne_bytes(entry.try_into().unwrap()))
    }

    /// The processes that took CPUs of preempted vCPUs, by VM.
    pub fn taken(&self) -> Vec<(types::pair, types::taken_times)> {
        let map = &self.skel.maps.taken_by;
        let all = map.lookup_batch(constants::MAX_PAIRS as u32, MapFlags::ANY, MapFlags::ANY);
        let all = all.into_iter().flatten();
        all.filter_map(|(key, value)| Some((plain(&key)?, plain(&value)?))).collect()
    }

    /// The program's measurements of its own run time, one entry per CPU.
    pub fn costs(&self) -> Vec<types::cost> {
        costs_in(&self.skel.maps.costs)
    }

    /// Events that did not fit in the buffer.
    pub fn lost(&self) -> u64 {
        self.variables.get(offset_of!(types::bss, lost) / size_of::<u64>())
    }

    /// When the first of them was lost since the last call, and when the last.
    pub fn lost_between(&self) -> (u64, u64) {
        let first = offset_of!(types::bss, lost_first) / size_of::<u64>();
        let last = self.variables.get(offset_of!(types::bss, lost_last) / size_of::<u64>());
        let begun = self.variables.get(first);
        self.variables.put(first, 0);
        // An event that was lost during the last call is told of now.
        (if begun == 0 { last } else { begun }, last)
    }

    /// Context switches of watched threads at which the kernel did not run the program, and whose
    /// time could not be found out later.
    pub fn missed(&self) -> u64 {
        self.variables.get(offset_of!(types::bss, missed) / size_of::<u64>())
    }

    /// Hands over what is in the buffer of events.
    pub fn events(&self, mut each: impl FnMut(types::event)) {
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(&self.skel.maps.events, |bytes| {
            plain(bytes).into_iter().for_each(&mut each);
            0
        });
        if added.is_err() {
            return;
        }
        if let Ok(buffer) = builder.build() {
            let _ = buffer.consume();
        }
    }
}

/// A program's measurements of its own run time in that map, one entry per CPU.
pub fn costs_in(map: &impl MapCore) -> Vec<types::cost> {
    let values = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
    let values = values.ok().flatten().unwrap_or_default();
    values.iter().filter_map(|bytes| plain(bytes)).collect()
}

/// Room for a loaded object: a pointer, which is not freed.
pub fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

fn open(settings: &Settings) -> Result<WatchSkel<'static>, Error> {
    let mut open = WatchSkelBuilder::default().open(storage()).map_err(refused("open"))?;
    let rodata = open.maps.rodata_data.as_deref_mut();
    if let Some(rodata) = rodata {
        rodata.with_events = settings.events;
        rodata.with_svm = settings.svm;
        rodata.with_vmx = settings.vmx;
        rodata.late_ns = settings.late_ns;
    }
    let sizes = [
        (&mut open.maps.threads, settings.vcpus as u32),
        (&mut open.maps.vcpus, settings.vcpus as u32),
        (&mut open.maps.vms, settings.vms as u32),
        (&mut open.maps.events, if settings.events { EVENTS_BYTES } else { EVENTS_NONE }),
    ];
    for (map, entries) in sizes {
        map.set_max_entries(entries).map_err(refused("size"))?;
    }
    open.load().map_err(refused("load"))
}

type Parts = ([Link; 3], MapHandle, Shared<types::vcpu>, Shared<types::vm>, Shared<u64>);

fn attach(skel: &WatchSkel<'_>, settings: &Settings) -> Result<Parts, Error> {
    let shared = |what: &'static str| {
        move |source| Error::Io { what: format!("mapping the eBPF program's {what}"), source }
    };
    let vcpus = Shared::map(skel.maps.vcpus.as_fd(), settings.vcpus).map_err(shared("vCPUs"))?;
    let vms = Shared::map(skel.maps.vms.as_fd(), settings.vms).map_err(shared("VMs"))?;
    let words = size_of::<types::bss>() / size_of::<u64>();
    let variables = Shared::map(skel.maps.bss.as_fd(), words).map_err(shared("variables"))?;
    let threads = MapHandle::try_from(&skel.maps.threads).map_err(refused("map"))?;
    let links = [
        skel.progs.switched.attach().map_err(refused("attach"))?,
        skel.progs.woke.attach().map_err(refused("attach"))?,
        skel.progs.ticked.attach().map_err(refused("attach"))?,
    ];
    Ok((links, threads, vcpus, vms, variables))
}

/// The bit of `tid` in the program's filter, and the word of the variables that it is in.
fn filter_bit(tid: u32) -> (usize, u64) {
    const FIRST: usize = offset_of!(types::bss, filter) / size_of::<u64>();
    let bit = tid as usize % constants::FILTER_BITS;
    (FIRST + bit / 64, 1 << (bit % 64))
}

fn plain<T: super::shared::Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: long enough, read without alignment, and any bits are a value.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The error of a step of loading, with the reason.
pub fn refused(step: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |error| {
        if lacks_right(&error) {
            return Error::Missing {
                what: "the right to load eBPF programs",
                hint: "run it as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (guard: those of reprieve-guard.service)",
            };
        }
        Error::Bpf { step, message: complaints(&error) }
    }
}

/// Whether the error says that this process lacks a right. The verifier's refusals look alike, but
/// it says why.
fn lacks_right(error: &libbpf_rs::Error) -> bool {
    error.kind() == libbpf_rs::ErrorKind::PermissionDenied
        && COMPLAINTS.lock().unwrap_or_else(|e| e.into_inner()).telling.is_empty()
}

/// The error, with what libbpf complained of before it.
fn complaints(error: &libbpf_rs::Error) -> String {
    let mut message = format!("{error:#}");
    let kept = std::mem::take(&mut *COMPLAINTS.lock().unwrap_or_else(|e| e.into_inner()));
    for complaint in if kept.telling.is_empty() { kept.others } else { kept.telling } {
        message.push_str("; ");
        message.push_str(&complaint);
    }
    message
}

/// libbpf's messages about the last failures, which would otherwise go to standard error.
static COMPLAINTS: Mutex<Complaints> =
    Mutex::new(Complaints { telling: Vec::new(), others: Vec::new() });
const COMPLAINTS_MAX: usize = 8;

#[derive(Default)]
struct Complaints {
    telling: Vec<String>,
    /// libbpf's own words, for want of telling ones.
    others: Vec<String>,
}

/// Keeps the lines of the verifier's long log that name a reason.
fn keep_complaint(_: libbpf_rs::PrintLevel, text: String) {
    let mut kept = COMPLAINTS.lock().unwrap_or_else(|e| e.into_inner());
    let room = COMPLAINTS_MAX - kept.telling.len();
    kept.telling.extend(telling(&text).into_iter().take(room));
    let own = text.lines().filter_map(|line| line.strip_prefix("libbpf: "));
    let room = COMPLAINTS_MAX - kept.others.len();
    kept.others.extend(own.map(|line| line.trim().to_owned()).take(room));
}

/// The lines that name a reason; that of a program's log also names the program.
fn telling(text: &str) -> Vec<String> {
    // Since 7.3 the verifier shows the line and the instruction, marked so.
    const TELLING: [&str; 7] = [
        "failed to resolve",
        "unknown func",
        "invalid ",
        "Invalid ",
        "R1 type",
        "incompatible with",
        ">>>",
    ];
    // The verifier's last words come before its statistics.
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let next = lines().skip(1).chain([""]);
    let telling = lines().zip(next).filter(|(line, next)| {
        next.starts_with("processed ") || TELLING.iter().any(|word| line.contains(word))
    });
    let mut telling: Vec<String> = telling.map(|(line, _)| line.trim().into()).collect();
    let program = lines().next().and_then(|line| line.strip_suffix(": -- BEGIN PROG LOAD LOG --"));
    if let (Some(program), Some(first)) = (program, telling.first_mut()) {
        *first = format!("{}: {first}", program.trim_start_matches("libbpf: "));
    }
    telling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_refusal_comes_with_the_programs_name() {
        let log = "libbpf: prog 'timer': -- BEGIN PROG LOAD LOG --\n\
                   ; cpu = test(p->cpus_ptr) @ a.bpf.h:1\n1833: (85) call test#5\n\
                   R2 must be a rcu pointer\nprocessed 20 insns (limit 9)\n\
                   -- END PROG LOAD LOG --\n";
        assert_eq!(telling(log), ["prog 'timer': R2 must be a rcu pointer"]);
        let missing = "libbpf: extern (func ksym) 'f': failed to resolve\n";
        assert_eq!(telling(missing), [missing.trim()]);
        assert_eq!(telling("libbpf: failed to load object\n"), [] as [&str; 0]);
    }

    #[test]
    fn the_program_is_asked_for_a_class() {
        let settings = Settings { vcpus: 2, vms: 1, ..Settings::default() };
        let program = Program::load(&settings).unwrap();
        let class = types::class::CLASS_READER;
        program.vcpus.put(1, types::vcpu { class, ..types::vcpu::default() });
        assert_eq!(program.class_now(1).unwrap(), class);
        assert_eq!(program.class_now(2).unwrap(), types::class::CLASS_UNKNOWN, "no such entry");
        // Without Intel's KVM there is nothing to ask for.
        let entry = types::vcpu {
            doing: types::doing::DOING_PREEMPTED,
            class: types::class::CLASS_KERNEL,
            registers: types::registers::REGISTERS_KVM,
            ..types::vcpu::default()
        };
        assert_eq!(program.late_class(1, &entry), None);
    }

    /// The program looks at this thread as a vCPU, and at a word of this process as its guest's
    /// gp_seq: a grace period that was seen to begin, with `began_seq`, `ago_ns` ago, has ended.
    /// Returns the guest's entry.
    fn end_of_grace(began_seq: u64, ago_ns: u64) -> types::vm {
        const RUNNING: u64 = 7 << 2 | 1;
        let settings = Settings { vcpus: 1, vms: 1, ..Settings::default() };
        let program = Program::load(&settings).unwrap();
        let gp_seq = std::sync::atomic::AtomicU64::new(RUNNING + 3);
        let vm = types::vm {
            ready: 1,
            gp_seq: gp_seq.as_ptr().addr() as u64,
            seq: RUNNING,
            began: crate::raw::clock::now_ns().wrapping_sub(ago_ns),
            began_seq,
            ..types::vm::default()
        };
        program.vms.put(0, vm);
        program.vcpus.put(0, types::vcpu { tgid: std::process::id(), ..types::vcpu::default() });
        // SAFETY: no preconditions.
        program.watch_thread(unsafe { libc::gettid() } as u32, 0).unwrap();
        loop {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let vm = program.vms.get(0);
            if vm.seq != RUNNING {
                return vm;
            }
        }
    }

    #[test]
    fn a_grace_period_without_a_beginning_is_counted_as_unseen() {
        const SECOND: u64 = 1_000_000_000;
        let numbers = |vm: types::vm| (vm.graces.counts.iter().sum::<u64>(), vm.unseen);
        let seen = end_of_grace(7 << 2 | 1, SECOND);
        assert_eq!(numbers(seen), (1, 0));
        assert!(seen.graces.max_ns >= SECOND && seen.graces.total_ns == seen.graces.max_ns);
        // As of the one before: the CPU that saw it begin has not stored that yet.
        assert_eq!(numbers(end_of_grace(6 << 2 | 1, SECOND)), (0, 1));
        // As of the next one, which began on another CPU meanwhile.
        let later = end_of_grace(7 << 2 | 1, 0u64.wrapping_sub(3600 * SECOND));
        assert_eq!((numbers(later), later.graces.max_ns), ((0, 1), 0));
        // The grace period began before its guest was watched.
        assert_eq!(numbers(end_of_grace(constants::NO_SEQ, SECOND)), (0, 0));
    }
}
