// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that keeps the list of VMs: finds new ones, attaches to their guests, notices reboots, pauses and ends.
//!
//! Whatever may take long or hang (asking a VMM, searching a guest's memory) runs in a thread of its own per VM, a few at a time, so that one bad VM
//! delays nobody but, at worst, the next attempts. Results come back as messages; only this thread changes the list.
//! When it is to end, so is whatever it does, or is left to itself: an attempt has nothing but its VM's `/proc` files open, and finds nobody to tell.

use super::discover::{self, Discovery, Key};
use super::machine::{Kvm, Machine};
use super::options::Which;
use super::processes::Processes;
use super::slots::Slots;
use reprieve_guest::{Error, Guest, Options, vmm};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Attempts at a time.
const ATTEMPTS: usize = 4;
/// How often things that are under way are looked at.
const HURRY: Duration = Duration::from_millis(50);
/// A VM that ended is still shown for so long.
const FAREWELL: Duration = Duration::from_secs(10);

/// All VMs, by process.
#[derive(Default)]
pub struct Machines(Mutex<BTreeMap<Key, Machine>>);

impl Machines {
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Machine>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

enum Message {
    /// The VMM has answered.
    Described(Key, vmm::Vm, Sender<bool>),
    Attached(Key, Box<Guest>),
    Failed(Key, Error),
    /// Nothing new.
    Settled(Key),
    Stop,
}

/// Ends the thread, and waits for it, when dropped.
pub struct Keeper {
    messages: Sender<Message>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(
        machines: Arc<Machines>,
        slots: Arc<Slots>,
        kvm: Kvm,
        which: Which,
        interval: Duration,
        processes: Arc<Mutex<Processes>>,
    ) -> std::io::Result<Keeper> {
        let (messages, inbox) = channel();
        let (own, stop) = (messages.clone(), Arc::new(AtomicBool::new(false)));
        let mut work = Work {
            machines,
            slots,
            kvm,
            which,
            interval,
            discovery: Discovery::default(),
            processes,
            messages: own,
            stop: stop.clone(),
            attempts: Vec::new(),
        };
        let run = move || work.run(inbox);
        let thread = std::thread::Builder::new().name("watch-keeper".into()).spawn(run)?;
        Ok(Keeper { messages, stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    machines: Arc<Machines>,
    slots: Arc<Slots>,
    kvm: Kvm,
    which: Which,
    interval: Duration,
    discovery: Discovery,
    processes: Arc<Mutex<Processes>>,
    messages: Sender<Message>,
    stop: Arc<AtomicBool>,
    attempts: Vec<JoinHandle<()>>,
}

impl Work {
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
        if self.which == Which::All {
            self.processes.lock().unwrap_or_else(|e| e.into_inner()).look(&self.stop);
        }
        let mut machines = self.machines.lock();
        let known = |pid| {
            machines
                .range(Key { pid, start_time: 0 }..)
                .next()
                .is_some_and(|(k, m)| k.pid == pid && m.ended.is_none())
        };
        let found = self.discovery.look(known);
        for (key, name) in found {
            if self.which.wants(key.pid, name.as_deref()) {
                machines.entry(key).or_insert_with(|| Machine::new(key, name));
            }
        }
        let over = |m: &Machine| m.ended.is_some_and(|at| at.elapsed() >= FAREWELL);
        machines.retain(|_, machine| !over(machine));
    }

    fn tend(&mut self) {
        let mut guests = Vec::new();
        for machine in self.machines.lock().values_mut() {
            machine.tend();
            guests.extend(machine.to_check().map(|guest| (machine.key, guest)));
        }
        // Without the lock: a VMM may be asked, and slow.
        for (key, guest) in guests {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let start = Instant::now();
            let found = guest.alive();
            if let Some(machine) = self.machines.lock().get_mut(&key) {
                machine.checked(&guest, &found, start.elapsed());
            }
        }
    }

    /// Begins attempts that are due; says whether something is under way.
    fn hurry(&mut self) -> bool {
        self.attempts.retain(|attempt| !attempt.is_finished());
        let mut hurried = false;
        for machine in self.machines.lock().values_mut() {
            machine.search();
            if self.attempts.len() < ATTEMPTS && machine.begin_attempt() {
                let (key, messages, stop) = (machine.key, self.messages.clone(), self.stop.clone());
                let attempt = std::thread::Builder::new().name("watch-attach".into());
                match attempt.spawn(move || attempt_to_attach(key, &messages, &stop)) {
                    Ok(thread) => self.attempts.push(thread),
                    Err(source) => {
                        let what = "starting a thread".into();
                        machine.fail(&Error::Io { what, source });
                    }
                }
            }
            hurried |= machine.hurried();
        }
        hurried
    }

    fn handle(&mut self, message: Message) {
        let mut machines = self.machines.lock();
        match message {
            Message::Described(key, vm, go_on) => {
                let Some(machine) = machines.get_mut(&key) else { return };
                let current = machine.is_current(&vm);
                if !current {
                    machine.described(&self.slots, &self.kvm, vm);
                }
                let _ = go_on.send(!current);
            }
            Message::Attached(key, guest) => {
                if let Some(machine) = machines.get_mut(&key) {
                    machine.attach(*guest);
                }
            }
            Message::Failed(key, error) => {
                if let Some(machine) = machines.get_mut(&key) {
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

fn attempt_to_attach(key: Key, messages: &Sender<Message>, stop: &AtomicBool) {
    let described = discover::describe(key);
    let vm = match described {
        Ok(vm) => vm,
        Err(error) => {
            let _ = messages.send(Message::Failed(key, error));
            return;
        }
    };
    let (answer, go_on) = channel();
    let _ = messages.send(Message::Described(key, vm.clone(), answer));
    // Closed when the keeper ends.
    let result = match go_on.recv() {
        Ok(true) => {
            match Guest::attach_with(&vm, &Options { stop: Some(stop), ..Options::default() }) {
                Ok(guest) => Message::Attached(key, Box::new(guest)),
                Err(error) => Message::Failed(key, error),
            }
        }
        Ok(false) => Message::Settled(key),
        Err(_) => return,
    };
    let _ = messages.send(result);
}
