// SPDX-License-Identifier: MIT OR Apache-2.0
//! The discovery thread. It maintains the list of VMs: finds new ones, attaches to their guests,
//! notices reboots, pauses and ends.
//!
//! Steps that may take long or hang (searching a guest's memory) run in a thread per VM, a few at a
//! time, so that a bad VM can only delay attempts to attach to others. One more thread reads the
//! command lines of all processes: they are memory of a process, which may be a file on a file
//! system that does not answer, and then a read takes until this process ends. Results come back as
//! messages; only the discovery thread changes the list. When it ends, it does not wait for threads
//! that hang: such a thread has only `/proc` files open, and its message is dropped.

use super::finder::{self, Finder, Key};
use super::machine::{Attached, Check, Kvm, Machine};
use super::slots::Slots;
use crate::cgroup;
use crate::options::Which;
use crate::raw::clock;
use crate::region::Region;
use reprieve_guest::{Error, Guest, Options, vmm};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Attempts to attach that run at the same time.
const ATTEMPTS: usize = 4;
/// Attempts that may be repetitions: no guest keeps new ones waiting.
const REPETITIONS: usize = ATTEMPTS - 1;
/// Time between two looks at attempts and searches in progress.
const HURRY: Duration = Duration::from_millis(50);
/// Time for which a VM that ended is still shown.
const FAREWELL: Duration = Duration::from_secs(10);
/// The symbols and types kept of all guests take this part of the host's memory at most, and
/// this part of what this process may have.
const OF_HOST: u64 = 16;
const OF_LIMIT: u64 = 2;
/// How long the thread is waited for when it is to end.
const END: Duration = Duration::from_secs(5);

/// All VMs, by process.
#[derive(Default)]
pub struct Machines(Mutex<BTreeMap<Key, Machine>>);

impl Machines {
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Machine>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

enum Message {
    /// The VMMs that run and were not known.
    Found(Vec<(Key, Option<String>)>),
    /// The VMM was looked at.
    Described(Key, vmm::Vm, Option<Region>, Sender<bool>),
    /// With the CPU time that it took.
    Attached(Key, Box<Attached>, Duration),
    Failed(Key, Error, Duration),
    /// The VMM was looked at, and nothing has changed.
    Settled(Key),
    Stop,
}

/// Ends the thread when dropped, and waits for it, unless it hangs.
pub struct DiscoveryThread {
    messages: Sender<Message>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Closed by the thread.
    ended: Receiver<()>,
}

impl DiscoveryThread {
    pub fn start(
        machines: Arc<Machines>,
        slots: Arc<Slots>,
        kvm: Kvm,
        which: Which,
        interval: Duration,
    ) -> std::io::Result<DiscoveryThread> {
        let ((messages, inbox), (end, ended)) = (channel(), channel());
        let (own, stop) = (messages.clone(), Arc::new(AtomicBool::new(false)));
        let (find, requests) = channel::<HashSet<u32>>();
        let found = messages.clone();
        // Nobody waits for this thread. It ends when the requests are closed.
        let answer = move || {
            let mut finder = Finder::default();
            for known in requests {
                let _ = found.send(Message::Found(finder.find(|pid| known.contains(&pid))));
            }
        };
        std::thread::Builder::new().name("watch-finder".into()).spawn(answer)?;
        let mut state = State {
            machines,
            slots,
            kvm,
            which,
            interval,
            find,
            finding: false,
            room_for_guests: room_for_guests(),
            messages: own,
            stop: stop.clone(),
            attempts: Vec::new(),
        };
        let run = move || {
            state.run(inbox);
            drop(state);
            drop::<Sender<()>>(end);
        };
        let thread = std::thread::Builder::new().name("watch-discovery".into()).spawn(run)?;
        Ok(DiscoveryThread { messages, stop, thread: Some(thread), ended })
    }
}

impl Drop for DiscoveryThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.messages.send(Message::Stop);
        // A guest's memory may be a file that cannot be read: the thread ends with the process.
        let hangs = self.ended.recv_timeout(END) == Err(RecvTimeoutError::Timeout);
        if let Some(thread) = self.thread.take().filter(|_| !hangs) {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct State {
    machines: Arc<Machines>,
    slots: Arc<Slots>,
    kvm: Kvm,
    which: Which,
    interval: Duration,
    find: Sender<HashSet<u32>>,
    /// An answer to that is awaited.
    finding: bool,
    /// Bytes for what is kept of guests.
    room_for_guests: usize,
    messages: Sender<Message>,
    stop: Arc<AtomicBool>,
    attempts: Vec<JoinHandle<()>>,
}

impl State {
    fn run(&mut self, inbox: Receiver<Message>) {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                self.discover();
                self.tend();
                due = Instant::now() + self.interval;
            }
            let hurried = self.hurry();
            let left = due.saturating_duration_since(Instant::now());
            match inbox.recv_timeout(if hurried { left.min(HURRY) } else { left }) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn discover(&mut self) {
        let mut machines = self.machines.lock();
        let over = |m: &Machine| m.ended().is_some_and(|at| at.elapsed() >= FAREWELL);
        machines.retain(|_, machine| !over(machine));
        if !self.finding {
            let run = machines.values().filter(|machine| machine.runs());
            self.finding = self.find.send(run.map(|machine| machine.key.pid).collect()).is_ok();
        }
    }

    fn tend(&mut self) {
        let mut guests = Vec::new();
        for machine in self.machines.lock().values_mut() {
            machine.tend();
            guests.extend(machine.to_check().map(|guest| (machine.key, guest)));
        }
        // Without the lock, because reads may be slow.
        for (key, guest) in guests {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let start = Instant::now();
            let found = Check::of(&guest);
            let took = start.elapsed();
            let mut machines = self.machines.lock();
            let vms = machines.len();
            if let Some(machine) = machines.get_mut(&key) {
                machine.checked(&guest, &found, took, vms);
            }
        }
        // The memory for a guest's modules grows.
        keep_within(&mut self.machines.lock(), self.room_for_guests);
    }

    /// Begins attempts that are due; returns whether an attempt or a search is in progress.
    fn hurry(&mut self) -> bool {
        self.attempts.retain(|attempt| !attempt.is_finished());
        let mut hurried = false;
        let mut machines = self.machines.lock();
        // VMs that have waited for longest come first: none keeps others from being attached for
        // good.
        let now = Instant::now();
        let due = machines.values().filter_map(|m| Some((m.attempts.due(now)?, m.key)));
        let mut due: Vec<(Instant, Key)> = due.collect();
        due.sort_unstable();
        for (_, key) in due {
            let Some(machine) = machines.get_mut(&key) else { continue };
            let most = if machine.attempts.repeats() { REPETITIONS } else { ATTEMPTS };
            if self.attempts.len() >= most || !machine.attempts.begin(now) {
                continue;
            }
            let resident_only = machine.resident_only();
            let (messages, stop) = (self.messages.clone(), self.stop.clone());
            let attempt = std::thread::Builder::new().name("watch-attach".into());
            match attempt.spawn(move || attempt_to_attach(key, resident_only, &messages, &stop)) {
                Ok(thread) => self.attempts.push(thread),
                Err(source) => {
                    machine.attempts.failed(Duration::ZERO, 0, now);
                    let what = "starting a thread".into();
                    machine.fail(&Error::Io { what, source });
                }
            }
        }
        for machine in machines.values_mut() {
            machine.search();
            hurried |= machine.hurried();
        }
        hurried
    }

    fn handle(&mut self, message: Message) {
        let now = Instant::now();
        let mut machines = self.machines.lock();
        match message {
            Message::Found(found) => {
                self.finding = false;
                for (key, name) in found {
                    if self.which.wants(key.pid, name.as_deref()) {
                        // A VM with that process ID has ended, and is not shown beside this one.
                        machines.retain(|k, m| k.pid != key.pid || *k == key || m.runs());
                        machines.entry(key).or_insert_with(|| Machine::new(key, name));
                    }
                }
            }
            Message::Described(key, vm, region, go_on) => {
                let Some(machine) = machines.get_mut(&key) else { return };
                let current = machine.is_current(&vm);
                if !current {
                    machine.described(&self.slots, &self.kvm, vm);
                }
                machine.set_region(region);
                // Without an entry, nothing would be done for it with what is found in the guest.
                let _ = go_on.send(!current && machine.index().is_some());
            }
            Message::Attached(key, attached, took) => {
                let others = resting(&machines, now);
                if let Some(machine) = machines.get_mut(&key) {
                    machine.attempts.succeeded(took, others, now);
                    machine.attach(*attached);
                }
                keep_within(&mut machines, self.room_for_guests);
            }
            Message::Failed(key, error, took) => {
                let others = resting(&machines, now);
                if let Some(machine) = machines.get_mut(&key) {
                    machine.attempts.failed(took, others, now);
                    machine.fail(&error);
                }
            }
            Message::Settled(key) => {
                if let Some(machine) = machines.get_mut(&key) {
                    machine.settle();
                }
            }
            Message::Stop => {}
        }
    }
}

/// VMs whose attempts rest.
fn resting(machines: &BTreeMap<Key, Machine>, now: Instant) -> usize {
    machines.values().filter(|machine| machine.attempts.rests(now)).count()
}

/// The CPU time of this thread, which made one attempt, and of those that searched memory for it.
fn cpu_time(options: &Options) -> Duration {
    let searched = options.spent_ns.load(Ordering::Relaxed);
    Duration::from_nanos(clock::thread_ns().saturating_add(searched))
}

/// Gives guests up for whose symbols and types there is no room, the latest first.
fn keep_within(machines: &mut BTreeMap<Key, Machine>, room: usize) {
    let kept = machines.iter().filter_map(|(key, machine)| Some((machine.kept()?, *key)));
    let mut kept: Vec<((u64, usize), Key)> = kept.collect();
    kept.sort_unstable();
    let mut left = room;
    for ((_, bytes), key) in kept {
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => machines.get_mut(&key).into_iter().for_each(Machine::give_up_guest),
        }
    }
}

fn room_for_guests() -> usize {
    let host = rustix::system::sysinfo();
    let host = host.totalram.saturating_mul(host.mem_unit.into());
    let room = (host / OF_HOST).min(cgroup::memory_limit() / OF_LIMIT);
    room.try_into().unwrap_or(usize::MAX)
}

fn attempt_to_attach(key: Key, resident_only: bool, messages: &Sender<Message>, stop: &AtomicBool) {
    let options = Options { stop: Some(stop), resident_only, ..Options::default() };
    let failed = |error| Message::Failed(key, error, cpu_time(&options));
    let vm = match finder::describe(key) {
        Ok(vm) => vm,
        Err(error) => {
            let _ = messages.send(failed(error));
            return;
        }
    };
    let (answer, go_on) = channel();
    let region = Region::find(key.pid);
    let _ = messages.send(Message::Described(key, vm.clone(), region, answer));
    // Closed when the discovery thread ends.
    let result = match go_on.recv() {
        Ok(true) => match Guest::attach_with(&vm, &options).and_then(Attached::new) {
            Ok(attached) => Message::Attached(key, Box::new(attached), cpu_time(&options)),
            Err(error) => failed(error),
        },
        Ok(false) => Message::Settled(key),
        Err(_) => return,
    };
    let _ = messages.send(result);
}
