// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waits of grace periods, sampled.
//!
//! A grace period waits for each vCPU that owes it a quiescent state, and for readers that the
//! guest's own scheduler had preempted. A sample is one, in equal parts for all that it waits for;
//! the shares of many samples are the shares of the grace periods' time.
//!
//! The sampling thread is a real-time one, so that it runs at the time that it chose also while
//! vCPUs want all CPUs: else it would run when a vCPU has just lost its CPU.

use super::collector::Watch;
use super::debts;
use super::model::Class;
use super::raw::{clock, types};
use super::snapshot::view;
use super::vms::discovery::Machines;
use super::vms::machine::{Machine, Vcpu};
use super::vms::slots::woken;
use reprieve_guest::KthreadPlace;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// A wait of a grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GraceWait {
    /// A vCPU that runs, and has not reported a quiescent state.
    Running,
    /// A vCPU that lost its CPU in user mode.
    PreemptedUser,
    /// ... in the kernel, in no reader that can be seen.
    PreemptedKernel,
    /// ... in an RCU read-side section.
    PreemptedReader,
    /// ... in the idle task.
    PreemptedIdle,
    /// ... at an unknown place.
    PreemptedUnknown,
    /// A vCPU that halted, was woken, and waits for a CPU.
    Woken,
    /// A vCPU that is halted: the guest's grace-period kthread has not noticed.
    Halted,
    /// A reader that the guest's own scheduler preempted, and that does not run.
    PreemptedByGuest,
    /// Nobody: it is the turn of the guest's grace-period kthread. It was woken for a vCPU that has
    /// no CPU, and does not know.
    KthreadWaking,
    /// ... It is ready, and its vCPU has no CPU.
    KthreadQueued,
    /// ... It was interrupted: its vCPU lost its CPU.
    KthreadPreempted,
    /// ... It sleeps, and a vCPU that might wake it has no CPU.
    KthreadAsleep,
    /// ... Its vCPU runs, or all vCPUs have CPUs.
    Kthread,
}

impl GraceWait {
    pub const ALL: [GraceWait; 14] = [
        GraceWait::Running,
        GraceWait::PreemptedUser,
        GraceWait::PreemptedKernel,
        GraceWait::PreemptedReader,
        GraceWait::PreemptedIdle,
        GraceWait::PreemptedUnknown,
        GraceWait::Woken,
        GraceWait::Halted,
        GraceWait::PreemptedByGuest,
        GraceWait::KthreadWaking,
        GraceWait::KthreadQueued,
        GraceWait::KthreadPreempted,
        GraceWait::KthreadAsleep,
        GraceWait::Kthread,
    ];

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            GraceWait::Running => "running",
            GraceWait::PreemptedUser => "preempted-user",
            GraceWait::PreemptedKernel => "preempted-kernel",
            GraceWait::PreemptedReader => "preempted-reader",
            GraceWait::PreemptedIdle => "preempted-idle",
            GraceWait::PreemptedUnknown => "preempted-unknown",
            GraceWait::Woken => "woken",
            GraceWait::Halted => "halted",
            GraceWait::PreemptedByGuest => "preempted-by-guest",
            GraceWait::KthreadWaking => "kthread-waking",
            GraceWait::KthreadQueued => "kthread-queued",
            GraceWait::KthreadPreempted => "kthread-preempted",
            GraceWait::KthreadAsleep => "kthread-asleep",
            GraceWait::Kthread => "kthread",
        }
    }

    /// The wait for a vCPU that lost its CPU in that class.
    fn preempted(class: Class, reader: bool) -> GraceWait {
        match class {
            _ if reader => GraceWait::PreemptedReader,
            Class::User => GraceWait::PreemptedUser,
            Class::Idle => GraceWait::PreemptedIdle,
            Class::Unknown => GraceWait::PreemptedUnknown,
            Class::Reader => GraceWait::PreemptedReader,
            Class::Kernel | Class::NoPreempt | Class::IrqsOff | Class::Softirq | Class::Hardirq => {
                GraceWait::PreemptedKernel
            }
        }
    }
}

/// Samples by what the grace period waited for, of one VM.
pub type GraceWaits = BTreeMap<GraceWait, f64>;

/// A grace period of this age is a long one: `guard --max-hold` by default.
pub const LONG: Duration = Duration::from_millis(20);

/// The samples of one VM.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    pub all: GraceWaits,
    /// Samples of grace periods that were [`LONG`] then.
    pub long: GraceWaits,
}

/// Samples all VMs that are watched, until this is dropped.
pub struct GraceSampler {
    stop: Arc<AtomicBool>,
    /// By the VMM's process.
    waits: Arc<Mutex<HashMap<u32, Sampled>>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to sample what grace periods wait for, `hz` times per second on average.
    ///
    /// # Errors
    /// Without `CAP_SYS_NICE`, or in a cgroup that may have no real-time threads: the thread that
    /// samples has to be one.
    pub fn sample_grace_periods(&self, hz: u32) -> io::Result<GraceSampler> {
        let (stop, waits) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (until, to, machines) = (stop.clone(), Arc::clone(&waits), self.machines.clone());
        let (started, start) = mpsc::channel();
        let thread = std::thread::Builder::new().name("grace-sampler".into()).spawn(move || {
            let began = become_real_time();
            let goes = began.is_ok();
            let _ = started.send(began);
            if goes {
                sample(&machines, hz, &to, &until);
            }
        })?;
        let sampler = GraceSampler { stop, waits, thread: Some(thread) };
        start.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        Ok(sampler)
    }
}

impl GraceSampler {
    /// The samples of the VM of process `pid` so far; they never decrease.
    pub fn waits(&self, pid: u32) -> Sampled {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.get(&pid).cloned().unwrap_or_default()
    }
}

impl Drop for GraceSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn become_real_time() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: changes this thread only; the parameters are a local variable.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) } {
        0 => Ok(()),
        _ => {
            let error = io::Error::last_os_error();
            let why = format!(
                "a real-time priority, without which samples would say nothing: {error} \
                 (CAP_SYS_NICE is needed, and in a cgroup of version 1 some cpu.rt_runtime_us)"
            );
            Err(io::Error::new(error.kind(), why))
        }
    }
}

fn sample(machines: &Machines, hz: u32, to: &Mutex<HashMap<u32, Sampled>>, stop: &AtomicBool) {
    let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    for n in 0u64.. {
        // Multiples of the golden ratio: in step with no tick and no slice.
        let part = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let period = 1_000_000_000 / u64::from(hz.max(1));
        std::thread::sleep(Duration::from_nanos(period / 2 + ((period * part) >> 32)));
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for machine in machines.lock().values().filter(|machine| machine.runs()) {
            let Some((waits, long)) = waits_now(machine, this) else { continue };
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            to.entry(machine.key.pid).or_default().add(&waits, long);
        }
    }
}

impl Sampled {
    /// Adds a sample.
    fn add(&mut self, waits: &[GraceWait], long: bool) {
        for wait in waits {
            let part = 1.0 / waits.len() as f64;
            *self.all.entry(*wait).or_default() += part;
            if long {
                *self.long.entry(*wait).or_default() += part;
            }
        }
    }
}

/// Whether a grace period that began then is [`LONG`] now.
fn is_long(began_ns: u64, now_ns: u64) -> bool {
    u128::from(now_ns.saturating_sub(began_ns)) >= LONG.as_nanos()
}

/// The waits of the grace period in progress, and whether it is long; `None` if there is none, or
/// it cannot be read.
fn waits_now(machine: &Machine, this: u32) -> Option<(Vec<GraceWait>, bool)> {
    let debts = debts::now(machine).filter(|debts| debts.seq & 3 != 0)?;
    let mut waits: Vec<GraceWait> = debts
        .vcpus
        .iter()
        .map(|vcpu| waits_for(vcpu, this))
        .chain(std::iter::repeat_n(GraceWait::PreemptedByGuest, debts.waiting_readers))
        .collect();
    if waits.is_empty() {
        waits.push(kthread(machine, this));
    }
    let long = debts.began_ns(machine).is_some_and(|began| is_long(began, clock::now_ns()));
    Some((waits, long))
}

/// Why the grace-period kthread, whose turn it is, does not run.
fn kthread(machine: &Machine, this: u32) -> GraceWait {
    let off = |vcpu: &Vcpu| {
        let wait = waits_for(vcpu, this);
        !matches!(wait, GraceWait::Running | GraceWait::Halted)
    };
    let guest = machine.attached().map(|attached| &attached.guest);
    // A kthread that cannot be read is not known to be ready.
    let place = guest.and_then(|guest| guest.rcu().and_then(|rcu| rcu.kthread_place()).ok());
    let (cpu, wait) = match place {
        Some(KthreadPlace::Waking { cpu }) => (cpu, GraceWait::KthreadWaking),
        Some(KthreadPlace::Queued { cpu }) => (cpu, GraceWait::KthreadQueued),
        Some(KthreadPlace::Current { cpu }) => (cpu, GraceWait::KthreadPreempted),
        Some(KthreadPlace::Asleep) | None => {
            let any = machine.vcpus.iter().any(off);
            return if any { GraceWait::KthreadAsleep } else { GraceWait::Kthread };
        }
    };
    let its = machine.vcpus.iter().find(|vcpu| vcpu.cpu == Some(cpu));
    if its.is_some_and(off) { wait } else { GraceWait::Kthread }
}

fn waits_for(vcpu: &Vcpu, this: u32) -> GraceWait {
    let entry = vcpu.slot.get();
    match entry.doing {
        // The vCPU runs again as soon as this thread sleeps.
        types::doing::DOING_PREEMPTED if entry.successor == this => GraceWait::Running,
        types::doing::DOING_PREEMPTED => {
            let class = view::class(entry.class);
            GraceWait::preempted(class, entry.reader != 0)
        }
        types::doing::DOING_BLOCKED if woken(&entry).is_some() => GraceWait::Woken,
        types::doing::DOING_BLOCKED => GraceWait::Halted,
        _ => GraceWait::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_counts_whatever_else_it_is() {
        assert_eq!(GraceWait::preempted(Class::Hardirq, true), GraceWait::PreemptedReader);
        assert_eq!(GraceWait::preempted(Class::Softirq, false), GraceWait::PreemptedKernel);
    }

    #[test]
    fn a_grace_period_becomes_long_and_the_next_is_young() {
        const MS: u64 = 1_000_000;
        let mut sampled = Sampled::default();
        for (began, now) in [(0, 0), (0, 19), (0, 20), (0, 21), (22, 22), (22, 23)] {
            sampled.add(&[GraceWait::Woken, GraceWait::Running], is_long(began * MS, now * MS));
        }
        assert_eq!((sampled.all[&GraceWait::Woken], sampled.all[&GraceWait::Running]), (3.0, 3.0));
        assert_eq!((sampled.long[&GraceWait::Woken], sampled.long.len()), (1.0, 2));
    }

    #[test]
    fn names_are_different() {
        let mut names = GraceWait::ALL.map(GraceWait::name);
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
