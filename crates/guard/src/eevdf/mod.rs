// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend for kernels without sched_ext: the stock scheduler, by the slices of single threads.
//!
//! Under EEVDF a thread's slice is its request: how much it wants to run at a time. The scheduler
//! serves the requests with the earliest deadline, and a deadline is a request away; so a thread
//! with a short slice waits less for its turn, gets as much CPU time as before, and costs more
//! context switches. A grace period waits for every vCPU to run for a moment, twice (to notice it,
//! and to report). So vCPUs that owe one have short slices, but only once it is late: those that
//! owe nothing keep the long slices that are good for throughput.
//!
//! `debts` decides, by what [`Watch`] reads in the guests; `slice` is the kernel's interface;
//! [`undo`] makes sure that no slice stays short when guard is gone, however it
//! went. A new slice takes effect with a thread's next request: one that waits with a long request
//! is served that one first.

mod debts;

pub use crate::options::JOURNALS;
pub use crate::undo::journal::Restored;
pub use crate::undo::{restore, slice};

use super::options::{Backend, Options};
use super::statistics::{Granted, Preempted, Statistics, VmStatistics};
use crate::backend::Guard;
use crate::error::Error;
use crate::options::{Change, Policy};
use crate::undo;
use crate::undo::journal::Before;
use crate::undo::supervisor::Supervisor;
use debts::{Act, Debts};
use reprieve_guest::vmm::process::{self, start_time};
use reprieve_watch::model::{VmSnapshot, VmState};
use reprieve_watch::raw::{Times, clock};
use reprieve_watch::{self, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at a late grace period.
const PACE_NS: u64 = 1_000_000;

/// How long the control thread sleeps after a look at all VMs, at least, as a multiple of what the
/// look took: it takes a quarter of a CPU at most, however many VMs there are.
const REST: u64 = 3;

/// A VM of which a vCPU has waited that long for a CPU is one that the host holds up. Less is what
/// any other thread's moment on the CPU takes.
const CONTENDED_NS: u64 = 300_000;

/// The backend at work. Dropping it restores every slice.
pub struct Eevdf {
    control: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    policy: Policy,
    dry_run: bool,
    begun_ns: u64,
    /// Dropped last, when nothing is left to restore.
    supervisor: Option<Arc<Mutex<Supervisor>>>,
}

/// A thread whose slice somebody else has changed so often is left alone.
const NOTES_MOST: u32 = 64;

/// Number of known threads from which on guard looks for those that have ended.
const KNOWN_LEAST: usize = 256;

/// A thread whose slice cannot be set.
struct Refused {
    /// Tells it from a later thread with the same ID.
    start_time: Option<u64>,
    why: String,
    /// The thread has another scheduling policy, which may change.
    for_now: bool,
}

/// State that the control thread and the statistics share.
struct Shared {
    watch: Mutex<Watch>,
    state: Mutex<State>,
    stop: AtomicBool,
    /// Wakes the control thread when `stop` is set.
    wake: (Mutex<()>, Condvar),
}

struct State {
    debts: Debts,
    /// Threads whose slice was touched, as they were before; some may have ended.
    touched: BTreeMap<u32, Before>,
    /// Touched threads that are to have their slices back, but have another scheduling policy now.
    later: BTreeSet<u32>,
    /// When they were started, and how often the journal has them.
    noted: BTreeMap<u32, (u64, u32)>,
    /// Threads whose slice cannot be set.
    refused: BTreeMap<u32, Refused>,
    /// The slices that threads without a custom one have, or had: the host's administrator, and the
    /// kernel as CPUs come and go, change that.
    defaults: Vec<Duration>,
    /// When so many threads are known, those that have ended are forgotten.
    forget_at: usize,
    looks: u64,
    looks_ns: u64,
    ended: Option<String>,
}

impl State {
    /// `late`: the age from which on a grace period is.
    fn new(late: u64) -> State {
        State {
            debts: Debts::new(late),
            touched: BTreeMap::new(),
            later: BTreeSet::new(),
            noted: BTreeMap::new(),
            refused: BTreeMap::new(),
            defaults: Vec::new(),
            forget_at: KNOWN_LEAST,
            looks: 0,
            looks_ns: 0,
            ended: None,
        }
    }

    /// How the thread was before, if its slice was touched.
    fn touched(&self, tid: u32) -> Option<&Before> {
        self.touched.get(&tid).filter(|before| before.is_there())
    }

    /// Gives the thread its slice back, now or when it is an ordinary thread again.
    fn restore(&mut self, tid: u32) {
        self.later.remove(&tid);
        match self.touched(tid).map_or(Ok(false), Before::restore) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => _ = self.later.insert(tid),
            // The end of guard is what restores it then.
            Err(error) => {
                let what = format!("the slice of thread {tid} cannot be restored: {error}");
                self.ended = Some(what);
            }
        }
    }

    /// Whether the journal may have another line of the thread. Its owner may change its slice
    /// again and again, and each time needs one.
    fn may_note(&mut self, tid: u32, start_time: u64) -> bool {
        let (started, notes) = self.noted.entry(tid).or_insert((start_time, 0));
        if *started != start_time {
            (*started, *notes) = (start_time, 0);
        }
        *notes += 1;
        *notes <= NOTES_MOST
    }

    /// The number of threads of which something is known, at most.
    fn known(&self) -> usize {
        self.touched.len().max(self.noted.len()) + self.refused.len()
    }

    /// Forgets the threads that have ended, if so many are known that some are likely to have.
    /// Whether any was forgotten.
    fn forget_ended(&mut self) -> bool {
        let known = self.known();
        if known < self.forget_at {
            return false;
        }
        self.touched.retain(|_, before| before.is_there());
        self.later.retain(|tid| self.touched.contains_key(tid));
        self.noted.retain(|&tid, &mut (started, _)| start_time(tid) == Some(started));
        self.refused.retain(|&tid, of| of.start_time.is_some() && of.start_time == start_time(tid));
        self.forget_at = KNOWN_LEAST.max(2 * self.known());
        self.known() < known
    }

    /// Why its slice cannot be set.
    fn refused(&self, tid: u32) -> Option<&str> {
        let of = self.refused.get(&tid).filter(|of| of.start_time == start_time(tid));
        of.map(|of| of.why.as_str())
    }

    fn refused_for_good(&self, tid: u32) -> bool {
        self.refused(tid).is_some() && self.refused.get(&tid).is_some_and(|of| !of.for_now)
    }

    fn refuse(&mut self, tid: u32, error: &io::Error) {
        let (start_time, why) = (start_time(tid), error.to_string());
        let for_now = error.kind() == io::ErrorKind::Unsupported;
        self.refused.insert(tid, Refused { start_time, why, for_now });
    }
}

impl Eevdf {
    /// # Errors
    /// On a kernel without custom slices, without the rights to watch, or in a process that has
    /// more than one thread already.
    pub fn start(options: &Options) -> Result<Eevdf, Error> {
        slice::supported().map_err(|why| Error::Unsupported { why })?;
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| Error::Io { what, source }
        };
        let default = slice::default().map_err(io("reading the default slice"))?;
        let late = u64::try_from(options.late().0.as_nanos()).unwrap_or(u64::MAX);
        let mut state = State::new(late);
        state.defaults.push(default);
        let supervisor = if options.dry_run {
            None
        } else {
            let (supervisor, later) = undo::begin(&options.journal)?;
            for before in later {
                state.touched.insert(before.tid, before);
                state.later.insert(before.tid);
            }
            Some(Arc::new(Mutex::new(supervisor)))
        };
        let watch = Watch::start(&reprieve_watch::Options {
            vms: options.vms.clone(),
            interval: options.interval,
            ..reprieve_watch::Options::default()
        })?;
        let shared = Arc::new(Shared {
            watch: Mutex::new(watch),
            state: Mutex::new(state),
            stop: AtomicBool::new(false),
            wake: Default::default(),
        });
        let control = Control {
            shared: shared.clone(),
            supervisor: supervisor.clone(),
            short: options.slice,
            pace_ns: PACE_NS.min(late),
        };
        let thread = std::thread::Builder::new().name("guard-control".into());
        let control = thread.spawn(move || control.run()).map_err(io("starting a thread"))?;
        Ok(Eevdf {
            control: Some(control),
            shared,
            policy: options.policy,
            dry_run: options.dry_run,
            begun_ns: clock::now_ns(),
            supervisor,
        })
    }
}

impl Drop for Eevdf {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(lock(&self.shared.wake.0));
        self.shared.wake.1.notify_all();
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

impl Guard for Eevdf {
    fn statistics(&mut self) -> Result<Statistics, Error> {
        // Held until `state` is: a look in between would forget VMs that end.
        let mut watch = lock(&self.shared.watch);
        let snapshot = watch.snapshot()?;
        let state = lock(&self.shared.state);
        drop(watch);
        // Nothing is known any more of VMs that ended.
        let vms = snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone);
        let now = clock::now_ns();
        Ok(Statistics {
            time_ns: now,
            elapsed_ns: now - self.begun_ns,
            backend: Backend::Eevdf,
            policy: self.policy,
            dry_run: self.dry_run,
            vms: vms.map(|vm| vm_statistics(vm, &state, now)).collect(),
            decisions: state.looks,
            decisions_ns: state.looks_ns,
            decision_times: Times::default(),
            functions: Vec::new(),
            restarts: 0,
            process_ns: clock::process_ns(),
        })
    }

    fn set(&mut self, _: Option<&str>, _: &Change) -> Result<Vec<String>, Error> {
        Err(Error::Unsupported { why: "a policy per VM needs --backend sched-ext".into() })
    }

    fn ended(&mut self) -> Option<String> {
        let ended = lock(&self.shared.state).ended.clone();
        let gone = self.control.as_ref().is_none_or(JoinHandle::is_finished);
        let alone = self.supervisor.as_ref().is_some_and(|of| lock(of).is_gone());
        let alone = alone.then(|| "its supervisor ended, which gives slices back".into());
        ended.or_else(|| gone.then(|| "the control thread ended".into())).or(alone)
    }
}

fn vm_statistics(vm: &VmSnapshot, state: &State, now: u64) -> VmStatistics {
    let shortened = state.debts.shortened(vm.pid, now);
    let refused: Vec<&str> = vm.vcpus.iter().filter_map(|vcpu| state.refused(vcpu.tid)).collect();
    let unreadable = match &vm.state {
        VmState::Unreadable(why) => Some(why.clone()),
        _ => None,
    };
    let mut preempted: BTreeMap<&str, Preempted> = BTreeMap::new();
    for of in vm.counted().flat_map(|vcpu| &vcpu.preemptions) {
        let none = || Preempted { class: of.class, suffered: 0, avoided: 0 };
        preempted.entry(of.class.name()).or_insert_with(none).suffered +=
            of.off_cpu.counts.iter().sum::<u64>();
    }
    VmStatistics {
        pid: vm.pid,
        name: vm.name.clone(),
        readable: vm.state == VmState::Watching,
        trouble: unreadable.or_else(|| refused.first().map(|why| why.to_string())),
        weight: 0,
        vcpus: vm.vcpus.len() as u32,
        on_cpu_ns: vm.counted().map(|vcpu| vcpu.on_cpu_ns).sum(),
        entitled_ns: None,
        preempted: preempted.into_values().collect(),
        shortened: Granted {
            count: shortened.count,
            total_ns: shortened.total_ns,
            max_ns: shortened.max_ns,
            expired: 0,
            refused: refused.len() as u64,
        },
        ..VmStatistics::default()
    }
}

/// The thread that looks and acts.
struct Control {
    shared: Arc<Shared>,
    /// `None`: a dry run.
    supervisor: Option<Arc<Mutex<Supervisor>>>,
    short: Duration,
    pace_ns: u64,
}

impl Control {
    fn run(self) {
        // This thread needs little CPU time, but soon.
        let _ = slice::set(0, Some(slice::MIN));
        while !self.shared.stop.load(Ordering::Relaxed) {
            let (begun, used) = (clock::now_ns(), clock::thread_ns());
            let wait = self.look(begun);
            let wait = wait.max((clock::thread_ns() - used) * REST);
            {
                let mut state = lock(&self.shared.state);
                state.looks += 1;
                state.looks_ns += clock::now_ns().saturating_sub(begun);
                if state.ended.is_some() {
                    break;
                }
            }
            let asleep = lock(&self.shared.wake.0);
            if !self.shared.stop.load(Ordering::Relaxed) {
                let _ = self.shared.wake.1.wait_timeout(asleep, Duration::from_nanos(wait));
            }
        }
        let mut state = lock(&self.shared.state);
        let acts = state.debts.settle(clock::now_ns());
        self.act(&mut state, None, &acts);
    }

    /// A look at all guests; returns for how long none is needed.
    fn look(&self, now: u64) -> u64 {
        let watch = lock(&self.shared.watch);
        let mut state = lock(&self.shared.state);
        let mut present = BTreeSet::new();
        let looks = watch.grace_periods(|pid| {
            present.insert(pid);
            state.debts.due(pid, now)
        });
        for look in &looks {
            let late = state.debts.note(look.pid, look.seq, look.began_ns, now);
            let waits = look.preempted_since_ns.is_some_and(|since| now >= since + CONTENDED_NS);
            let owing: &[u32] = if late { &look.owing } else { &[] };
            let acts = state.debts.owing(look.pid, owing, waits, now);
            self.act(&mut state, Some(look.pid), &acts);
            state.debts.looked(look.pid, look.took_ns, clock::now_ns());
        }
        let acts = state.debts.keep(&present, now);
        self.act(&mut state, None, &acts);
        for tid in state.later.clone() {
            state.restore(tid);
        }
        self.forget_ended(&mut state);
        state.debts.next_look(now, self.pace_ns)
    }

    /// The journal forgets what the state does. What it knows besides does no harm: the end of
    /// guard leaves threads that have ended alone.
    fn forget_ended(&self, state: &mut State) {
        let Some(supervisor) = &self.supervisor else { return };
        if !state.forget_ended() {
            return;
        }
        if let Err(error) = lock(supervisor).keep(state.touched.values()) {
            state.ended = Some(format!("the journal cannot be written: {error}"));
        }
    }

    /// Threads get short slices only as vCPUs of process `vm`.
    fn act(&self, state: &mut State, vm: Option<u32>, acts: &[Act]) {
        let Some(supervisor) = &self.supervisor else { return };
        for act in acts {
            match (*act, vm) {
                (Act::Shorten(tid), Some(vm)) => {
                    if !self.shorten(state, supervisor, vm, tid) {
                        state.debts.failed(vm, tid);
                    }
                }
                (Act::Shorten(_), None) => {}
                (Act::Restore(tid), _) => state.restore(tid),
            }
        }
    }

    /// Whether that could be done.
    fn shorten(
        &self,
        state: &mut State,
        supervisor: &Mutex<Supervisor>,
        vm: u32,
        tid: u32,
    ) -> bool {
        // A vCPU may have ended, and its number be another process's.
        if state.refused_for_good(tid) || !process::has_thread(vm, tid) {
            return false;
        }
        let done = self.know(state, supervisor, tid);
        match done.and_then(|()| slice::set(tid, Some(self.short))) {
            Ok(()) => {
                state.later.remove(&tid);
                state.refused.remove(&tid);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                state.touched.remove(&tid);
            }
            Err(error) => {
                // Its policy may have changed just after that: then it is short.
                if error.kind() == io::ErrorKind::Unsupported {
                    state.later.insert(tid);
                }
                state.refuse(tid, &error);
            }
        }
        false
    }

    /// Makes sure that the supervisor knows how thread `tid`, unless it is short already, is now:
    /// somebody else may have given it another slice since it was restored.
    fn know(&self, state: &mut State, supervisor: &Mutex<Supervisor>, tid: u32) -> io::Result<()> {
        let touched = state.touched(tid).copied();
        if touched.map_or(Ok(false), |before| before.is_short())? {
            return Ok(());
        }
        let mut before = Before::of(tid, &state.defaults, self.short)?;
        if touched == Some(before) {
            return Ok(());
        }
        if !state.may_note(tid, before.start_time) {
            return Err(io::Error::other("somebody else changes its slice again and again"));
        }
        let default = before.slice.is_some().then(slice::default).transpose()?;
        if let Some(default) = default.filter(|default| !state.defaults.contains(default)) {
            state.defaults.push(default);
            before = Before::of(tid, &state.defaults, self.short)?;
        }
        if let Err(error) = lock(supervisor).note(&before.line()) {
            state.ended = Some(format!("the journal cannot be written: {error}"));
            return Err(error);
        }
        state.touched.insert(tid, before);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_thread_is_not_of_a_later_one_with_its_id() {
        let tid = std::process::id();
        let started = start_time(tid).unwrap();
        let mut state = State::new(0);
        for (start_time, known) in [(started, true), (started - 1, false)] {
            state.touched.insert(tid, Before { tid, start_time, slice: None, short: None });
            let (start_time, why) = (Some(start_time), "not permitted".to_owned());
            state.refused.insert(tid, Refused { start_time, why, for_now: false });
            assert_eq!(
                (state.touched(tid).is_some(), state.refused(tid).is_some()),
                (known, known)
            );
        }
        for (start_time, notes) in [(1, NOTES_MOST), (2, NOTES_MOST)] {
            assert!((0..notes).all(|_| state.may_note(tid, start_time)));
            assert!(!state.may_note(tid, start_time));
        }
        state.refuse(tid, &io::Error::other("again"));
        assert_eq!((state.refused(tid), state.refused_for_good(tid)), (Some("again"), true));
        state.refuse(tid, &io::ErrorKind::Unsupported.into());
        assert!(state.refused(tid).is_some() && !state.refused_for_good(tid));
    }

    #[test]
    fn threads_that_have_ended_are_forgotten() {
        let tid = std::process::id();
        let started = start_time(tid).unwrap();
        let mut state = State::new(0);
        let know = |state: &mut State, tid, start_time| {
            state.touched.insert(tid, Before { tid, start_time, slice: None, short: None });
            state.later.insert(tid);
            assert!(state.may_note(tid, start_time));
            let (start_time, why) = (Some(start_time), "not permitted".to_owned());
            state.refused.insert(tid, Refused { start_time, why, for_now: true });
        };
        know(&mut state, tid, started);
        // No process has so high a number.
        for ended in (1 << 30..).take(KNOWN_LEAST / 2 - 2) {
            know(&mut state, ended, 1);
        }
        assert!(!state.forget_ended(), "few are known");
        know(&mut state, 1 << 29, 1);
        assert!(state.forget_ended());
        assert_eq!(state.touched.keys().collect::<Vec<_>>(), [&tid]);
        assert_eq!((state.later.len(), state.noted.len(), state.refused.len()), (1, 1, 1));
        assert_eq!((state.known(), state.forget_at), (2, KNOWN_LEAST));
        // A later thread with the same number is another.
        know(&mut state, tid, started - 1);
        state.forget_at = 2;
        assert!(state.forget_ended());
        assert_eq!(state.known(), 0);
        assert!(state.later.is_empty());
    }
}
