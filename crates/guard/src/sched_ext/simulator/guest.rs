// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated guests: what their vCPUs do, and RCU.
//!
//! RCU is that of Linux: a grace period follows the last one, some only when a tick asks for them.
//! Every CPU of the guest notices it at a tick and reports at a later one that finds the CPU in no
//! critical section. The kthread of vCPU 0 begins and ends grace periods, and every few ticks
//! reports for those who are idle.

use super::super::program::types;
use super::kernel::Machine;
use super::{Event, native};
use std::collections::VecDeque;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
pub const TICK: u64 = 4 * MS;
/// A tick's interrupt and softirq, the kthread's work, and an interrupt from another vCPU.
const IRQ: u64 = 10 * US;
const KTHREAD: u64 = 30 * US;
const IPI: u64 = 5 * US;
/// How long a vCPU spins until it yields.
const SPINS: u64 = 20 * US;
/// `jiffies_till_first_fqs`, in ticks.
const FQS: u64 = 3;
/// A vCPU is in a critical section for this part of its time.
const SECTIONS: (u64, u64) = (MS, 50 * US);
/// `TASK_IDLE`.
const TASK_IDLE: u32 = 0x402;

/// Where a VM's memory lies in its VMM, and what is there.
const BASE: u64 = 1 << 32;
const GP_SEQ: u64 = 0;
const JIFFIES: u64 = 8;
const FQS_DUE: u64 = 16;
const KTHREAD_CPU: u64 = 28;
const ON_RQ: u64 = 32;
const STATE: u64 = 36;
const KTHREAD_TASK: u64 = 40;
const LEAVES: u64 = 64;
/// The same for each vCPU: `preempt_count`, the current task, `rdp->gp_seq`, registers, a task.
const VCPUS: u64 = 0x200;
const VCPU_BYTES: u64 = 0x80;
const CURRENT: u64 = 8;
const NOTICED: u64 = 16;
const REGISTERS: u64 = 24;
const HFLAGS: u64 = 48;
const TASK: u64 = 0x60;
/// The guest's addresses of its memory, of its kernel, and of where it spins for answers to calls
/// and for the owner of a mutex.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const CALLS: u64 = KERNEL + 0x1000;
const MUTEX: u64 = KERNEL + 0x2000;
const IN_USER: u64 = 0x40_0000;

/// The behaviour of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Habit {
    /// The vCPU always has something to compute.
    #[default]
    Computes,
    /// The vCPU computes for a while and sleeps for a while.
    Naps,
    /// As `Naps`, in small pieces: it waits for locks.
    Blocks,
    /// The vCPU computes for a moment and sleeps for longer.
    Rests,
    /// The vCPU computes for less than a slice, wakes the next one of its VM that sleeps, and
    /// sleeps until another wakes it.
    Relays,
    /// As `Computes`. The vCPU never reports, and claims to be in a critical section at all times.
    Lies,
    /// As `Computes`. Every word of its guest is any number.
    Wild,
    /// As `Computes`. The vCPU needs its VM's only spin lock for part of the time. If it spins for
    /// long, it yields to the holder, if that is how its guest spins.
    Locks { yields: bool },
    /// As `Computes`. The vCPU needs its VM's only mutex for part of the time. While the owner has
    /// a CPU it spins, else it sleeps, as in Linux: `rwsem_spin_on_owner`, `vcpu_is_preempted`. The
    /// mutex is handed to one that has waited for more than a tick.
    Churns,
    /// As `Computes`. The vCPU calls all others of its VM now and then, and spins until all have
    /// had a CPU.
    Calls,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Lock {
    #[default]
    No,
    Spins,
    Holds,
    /// Sleeps until the mutex is released, and then tries again.
    Sleeps,
    Woken,
}

#[derive(Default)]
pub struct Vcpu {
    pub pid: usize,
    pub vm: usize,
    number: usize,
    habit: Habit,
    /// Whether it has a CPU, up to when its work is done, and which plan for the rest counts.
    on: bool,
    since: u64,
    pub plan: u64,
    /// What is left to compute until it does something else, for how long it sleeps then, and until
    /// when it does.
    burst: u64,
    sleeps: u64,
    wakes: u64,
    lock: Lock,
    /// Since when it waits for the mutex.
    waits: u64,
    /// The vCPUs of its VM that have yet to answer its call.
    answers: u128,
    /// When its tick is due, and when the tick's interrupt is over.
    tick: u64,
    irq: u64,
    noticed: u64,
}

#[derive(Default)]
pub struct Vm {
    pub vcpus: Vec<usize>,
    memory: Vec<u8>,
    seq: u64,
    began: u64,
    owes: u128,
    /// Work left for its kthread, if the kthread is ready.
    kthread: Option<u64>,
    fqs_due: u64,
    /// The vCPU that holds the lock, and those that spin for it.
    lock: VecDeque<usize>,
    /// The owner of the mutex, and those that wait for it asleep.
    owner: Option<usize>,
    sleepers: VecDeque<usize>,
    /// The one of these that gets it next, whoever spins.
    handoff: Option<usize>,
    /// How often either was released, or a call was answered by all.
    pub done: u64,
    /// How long its grace periods took since they were asked for.
    pub graces: Vec<u64>,
    pub preempted_in_section: u64,
}

impl Vm {
    fn put<const N: usize>(&mut self, at: u64, bytes: [u8; N]) {
        self.memory[at as usize..][..N].copy_from_slice(&bytes);
    }

    fn set_owes(&mut self, owes: u128) {
        self.owes = owes;
        for leaf in 0..8 {
            self.put(LEAVES + 8 * leaf, ((owes >> (16 * leaf)) as u64 & 0xffff).to_ne_bytes());
        }
    }

    fn set_kthread(&mut self, ready: bool, jiffies: u64) {
        self.put(ON_RQ, [u8::from(ready)]);
        self.put(STATE, (u32::from(!ready) * TASK_IDLE).to_ne_bytes());
        if ready {
            self.kthread.get_or_insert(KTHREAD);
            return;
        }
        self.kthread = None;
        self.fqs_due = jiffies + FQS;
        self.put(FQS_DUE, self.fqs_due.to_ne_bytes());
    }
}

impl Machine {
    /// A VM, of which the scheduler is told.
    pub fn add_vm(&mut self, weight: u32, full: u32) -> usize {
        let (vm, base) = (self.vms.len(), BASE * (self.vms.len() as u64 + 1));
        let memory = vec![0; VCPUS as usize];
        self.vms.push(Vm { memory, began: self.now, ..Vm::default() });
        self.vms[vm].set_kthread(true, 0);
        self.vms[vm].put(KTHREAD_TASK, [15]);
        native::vm(vm, |vm| {
            (vm.ready, vm.gp_seq, vm.direct_map, vm.image) = (1, base + GP_SEQ, DIRECT_MAP, !0);
            (vm.hardirq, vm.softirq_serving, vm.no_preempt) = (0xf_0000, 0x100, 0xff);
            (vm.segments_used, vm.task_bytes) = (1, 4);
            (vm.segments[0].bytes, vm.segments[0].host) = (BASE, base);
        });
        native::guest(vm, |guest| {
            (guest.ready, guest.weight, guest.full) = (1, weight, full);
            let (rcu, spins) = (&mut guest.rcu, &mut guest.spins);
            (rcu.kthread_task, rcu.kthread_cpu) = (base + KTHREAD_TASK, base + KTHREAD_CPU);
            (rcu.kthread_on_rq, rcu.kthread_state) = (base + ON_RQ, base + STATE);
            (rcu.fqs_due, rcu.jiffies) = (base + FQS_DUE, base + JIFFIES);
            spins.used = 2;
            spins.code[0] = types::spin { start: CALLS, bytes: 64, for_owner: 0 };
            spins.code[1] = types::spin { start: MUTEX, bytes: 64, for_owner: 1 };
        });
        vm
    }

    /// A vCPU, which sleeps.
    pub fn add_vcpu(&mut self, vm: usize, habit: Habit, cpu: usize) -> usize {
        let (slot, tgid) = (self.vcpus.len(), 1_000_000 + vm);
        let (pid, number) = (self.add_thread(tgid, cpu), self.vms[vm].vcpus.len());
        let tick = self.now + self.random.below(TICK);
        self.vcpus.push(Vcpu { pid, vm, number, habit, tick, ..Vcpu::default() });
        let own = VCPUS + number as u64 * VCPU_BYTES;
        let guest = &mut self.vms[vm];
        guest.vcpus.push(slot);
        guest.memory.resize((own + VCPU_BYTES) as usize, 0);
        guest.put(own + TASK, (number as u32 + 10).to_ne_bytes());
        let (base, leaf) = (BASE * (vm as u64 + 1), number / 16);
        let qsmask = base + LEAVES + 8 * leaf as u64;
        native::vcpu(slot, |vcpu| {
            (vcpu.vm, vcpu.tgid, vcpu.index) = (vm as u32, tgid as u32, number as u32);
            (vcpu.registers.0, vcpu.env) = (1, base + own + REGISTERS);
            (vcpu.preempt_count, vcpu.current_task) = (base + own, base + own + CURRENT);
            (vcpu.noticed, vcpu.qsmask) = (base + own + NOTICED, qsmask);
            vcpu.qsbit = 1 << (number % 16);
        });
        native::guest(vm, |guest| {
            let rcu = &mut guest.rcu;
            rcu.leaves_used = leaf as u32 + 1;
            let leaf = &mut rcu.leaves[leaf];
            (leaf.qsmask, leaf.first_cpu) = (qsmask, number as u32 / 16 * 16);
            leaf.cpus = number as u32 % 16 + 1;
            rcu.slots[number] = slot as u32 + 1;
        });
        slot
    }

    fn vcpu_of(&self, pid: usize) -> Option<usize> {
        // PIDs and vCPUs have one order.
        let first = self.vcpus.first()?.pid;
        pid.checked_sub(first)
    }

    /// The bytes at that address of the thread's process.
    pub fn user_memory(&mut self, pid: usize, from: u64, bytes: usize) -> Option<&[u8]> {
        let vcpu = self.vcpu_of(pid)?;
        let (vm, own) = (self.vcpus[vcpu].vm, VCPUS + self.vcpus[vcpu].number as u64 * VCPU_BYTES);
        let offset = from.checked_sub(BASE * (vm as u64 + 1))?;
        if self.vcpus[vcpu].habit == Habit::Wild {
            // Small numbers, addresses in and just outside its memory, and anything.
            let number = match self.random.below(4) {
                0 => self.random.below(256),
                1 => DIRECT_MAP + self.random.below(2 * own),
                2 => u64::MAX,
                _ => self.random.below(u64::MAX),
            };
            let end = (offset as usize).checked_add(bytes)?;
            let words = self.vms[vm].memory.get_mut(offset as usize..end)?;
            words.iter_mut().zip(number.to_ne_bytes()).for_each(|(to, from)| *to = from);
            return Some(words);
        }
        if offset >= own {
            self.show_registers(vcpu);
        }
        self.vms[vm].memory.get(offset as usize..(offset as usize).checked_add(bytes)?)
    }

    fn in_section(&self, vcpu: usize) -> bool {
        let one = &self.vcpus[vcpu];
        match one.habit {
            Habit::Lies => true,
            Habit::Churns if one.lock == Lock::Holds => false,
            _ => {
                one.lock != Lock::No
                    || one.answers != 0
                    || self.ran(one.pid) % SECTIONS.0 < SECTIONS.1
            }
        }
    }

    fn show_registers(&mut self, vcpu: usize) {
        let (section, one) = (self.in_section(vcpu), &self.vcpus[vcpu]);
        let rip = match one.lock {
            Lock::Spins if one.habit == Habit::Churns => MUTEX + 8,
            _ if one.answers != 0 => CALLS + 8,
            _ if section || one.lock == Lock::Holds => KERNEL,
            _ => IN_USER,
        };
        let user = u32::from(rip == IN_USER) * 3;
        let kthread = self.runs_kthread(vcpu);
        let (own, vm) = (VCPUS + one.number as u64 * VCPU_BYTES, &mut self.vms[one.vm]);
        let task = DIRECT_MAP + if kthread { KTHREAD_TASK } else { own + TASK };
        vm.put(own + CURRENT, task.to_ne_bytes());
        vm.put(own, u32::from(section).to_ne_bytes());
        vm.put(own + REGISTERS, rip.to_ne_bytes());
        vm.put(own + REGISTERS + 8, 0x200u64.to_ne_bytes());
        vm.put(own + REGISTERS + HFLAGS, user.to_ne_bytes());
    }

    /// Whether the owner of the mutex of the vCPU's VM has a CPU. An owner to which the mutex was
    /// handed, and which has yet to notice, counts: in Linux the mutex has no owner then, and all
    /// others spin on (`OWNER_NULL`, `RWSEM_FLAG_HANDOFF`).
    fn owner_runs(&self, vcpu: usize) -> bool {
        let runs = |owner: &Vcpu| owner.on || owner.lock != Lock::Holds;
        self.vms[self.vcpus[vcpu].vm].owner.is_some_and(|owner| runs(&self.vcpus[owner]))
    }

    /// The vCPU's kthread runs before its other work.
    fn runs_kthread(&self, vcpu: usize) -> bool {
        self.vcpus[vcpu].number == 0 && self.vms[self.vcpus[vcpu].vm].kthread.is_some()
    }

    /// Its work up to now is done.
    fn advance(&mut self, vcpu: usize) {
        let (kthread, one) = (self.runs_kthread(vcpu), &mut self.vcpus[vcpu]);
        let ran = self.now - one.since;
        one.since = self.now;
        match &mut self.vms[one.vm].kthread {
            Some(left) if kthread => *left = left.saturating_sub(ran),
            _ if one.answers != 0 || !matches!(one.lock, Lock::No | Lock::Holds) => {}
            _ => one.burst = one.burst.saturating_sub(ran),
        }
    }

    /// Decides when the vCPU, which runs, does something else.
    fn plan(&mut self, vcpu: usize) {
        let looks = self.vcpus[vcpu].habit == Habit::Churns && !self.owner_runs(vcpu);
        let (kthread, one) = (self.runs_kthread(vcpu), &mut self.vcpus[vcpu]);
        let left = match self.vms[one.vm].kthread {
            Some(left) if kthread => left,
            _ if one.answers != 0 || (one.lock == Lock::Spins && !looks) => u64::MAX / 2,
            _ if matches!(one.lock, Lock::No | Lock::Holds) => one.burst,
            _ => US,
        };
        one.plan += 1;
        let event = Event::Work(vcpu, one.plan);
        let time = (self.now + left).min(one.tick.max(one.irq));
        self.at(time, event);
    }

    pub fn gets_cpu(&mut self, pid: usize) {
        let Some(vcpu) = self.vcpu_of(pid) else { return };
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        (one.on, one.since, one.irq) = (true, now, now + IRQ);
        self.answer(vcpu);
        self.plan(vcpu);
    }

    pub fn leaves(&mut self, pid: usize, runnable: bool) {
        let Some(vcpu) = self.vcpu_of(pid) else { return };
        self.advance(vcpu);
        let section = self.in_section(vcpu);
        let one = &mut self.vcpus[vcpu];
        one.on = false;
        one.plan += 1;
        let (tick, plan) = (one.tick, one.plan);
        if runnable {
            let vm = &mut self.vms[one.vm];
            vm.preempted_in_section += u64::from(section);
            if tick > self.now {
                self.at(tick, Event::GuestTick(vcpu, plan));
            }
            self.owner_leaves(vcpu);
        }
    }

    /// The time that was planned for the vCPU has come. Whether it sleeps now.
    pub fn work(&mut self, vcpu: usize) -> bool {
        self.advance(vcpu);
        let now = self.now;
        if self.vcpus[vcpu].tick.max(self.vcpus[vcpu].irq) <= now {
            self.vcpus[vcpu].tick += (now - self.vcpus[vcpu].tick) / TICK * TICK + TICK;
            self.ticks(vcpu);
        }
        let vm = self.vcpus[vcpu].vm;
        if self.runs_kthread(vcpu) {
            if self.vms[vm].kthread == Some(0) {
                self.work_of_kthread(vm);
            }
        } else if match self.vcpus[vcpu].lock {
            Lock::Sleeps => self.sleep(vcpu),
            Lock::Woken => self.try_mutex(vcpu),
            Lock::Spins if self.vcpus[vcpu].habit == Habit::Churns => self.try_mutex(vcpu),
            _ => self.vcpus[vcpu].burst == 0 && self.next_burst(vcpu),
        } {
            return true;
        }
        self.plan(vcpu);
        false
    }

    /// Ends a burst: begins the next one. False if the vCPU sleeps first.
    fn next_burst(&mut self, vcpu: usize) -> bool {
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        let (here, sleeps) = (self.here, one.sleeps != 0);
        if sleeps {
            one.wakes = now + std::mem::take(&mut one.sleeps);
            let (wakes, habit) = (one.wakes, one.habit);
            self.at(wakes, Event::Wake(vcpu, here));
            if habit == Habit::Relays {
                self.relay(vcpu);
            }
        }
        let one = &mut self.vcpus[vcpu];
        if now < one.wakes {
            return self.sleep(vcpu);
        }
        let mut below = |end| self.random.below(end) + US;
        (one.burst, one.sleeps) = match (one.habit, one.lock) {
            (Habit::Computes | Habit::Lies | Habit::Wild, _) => (u64::MAX / 4, 0),
            (Habit::Locks { .. }, Lock::Holds) => (below(400 * US), 0),
            (Habit::Locks { .. }, _) => (below(100 * US), 0),
            (Habit::Calls, _) => (below(MS), 0),
            (Habit::Churns, Lock::Holds) => (below(20 * US), 0),
            (Habit::Churns, _) => (below(10 * US), 0),
            (Habit::Naps, _) => (below(8 * MS), below(6 * MS)),
            (Habit::Blocks, _) => (below(MS), below(MS / 4)),
            (Habit::Rests, _) => (below(MS), below(16 * MS)),
            (Habit::Relays, _) => (29 * MS / 10, u64::MAX / 4),
        };
        match (one.habit, one.lock) {
            (Habit::Locks { .. }, Lock::Holds) => self.unlock(vcpu),
            (Habit::Locks { yields }, _) => self.lock(vcpu, yields),
            (Habit::Calls, _) => self.call(vcpu),
            (Habit::Churns, Lock::Holds) => self.release(vcpu),
            (Habit::Churns, _) => {
                self.vcpus[vcpu].waits = now;
                return self.try_mutex(vcpu);
            }
            _ => {}
        }
        false
    }

    /// The vCPU calls the others. Those that run answer at once.
    fn call(&mut self, vcpu: usize) {
        let vm = &self.vms[self.vcpus[vcpu].vm];
        let others = vm.vcpus.iter().map(|&other| (other, &self.vcpus[other]));
        let off = others.filter(|&(other, one)| other != vcpu && !one.on);
        self.vcpus[vcpu].answers = off.map(|(_, one)| 1 << one.number).sum();
    }

    /// The vCPU gets a CPU, and answers calls.
    fn answer(&mut self, vcpu: usize) {
        let (vm, bit) = (self.vcpus[vcpu].vm, 1 << self.vcpus[vcpu].number);
        for caller in self.vms[vm].vcpus.clone() {
            if self.vcpus[caller].answers & bit == 0 {
                continue;
            }
            if self.vcpus[caller].on {
                self.advance(caller);
            }
            self.vcpus[caller].answers &= !bit;
            if self.vcpus[caller].answers == 0 {
                self.vms[vm].done += 1;
                if self.vcpus[caller].on {
                    self.plan(caller);
                }
            }
        }
    }

    /// The vCPU has nothing to do.
    fn sleep(&mut self, vcpu: usize) -> bool {
        // The timer that wakes the kthread.
        if self.vcpus[vcpu].number == 0 {
            let due = self.vms[self.vcpus[vcpu].vm].fqs_due * TICK;
            self.at(due, Event::Wake(vcpu, self.here));
        }
        true
    }

    /// The vCPU takes the mutex, or waits for it. Whether it sleeps.
    fn try_mutex(&mut self, vcpu: usize) -> bool {
        let (now, runs) = (self.now, self.owner_runs(vcpu));
        let one = &mut self.vcpus[vcpu];
        let vm = &mut self.vms[one.vm];
        let (woken, late) = (one.lock == Lock::Woken, now - one.waits > TICK);
        if vm.owner.is_none_or(|owner| owner == vcpu) {
            vm.owner = Some(vcpu);
            one.lock = Lock::Holds;
            return false;
        }
        if woken && late {
            vm.handoff.get_or_insert(vcpu);
        }
        if runs && (!woken || late) {
            one.lock = Lock::Spins;
        } else {
            (one.lock, one.wakes) = (Lock::Sleeps, u64::MAX);
            match woken {
                true => vm.sleepers.push_front(vcpu),
                false => vm.sleepers.push_back(vcpu),
            }
            return self.sleep(vcpu);
        }
        false
    }

    /// The vCPU loses its CPU: those that spin until it releases the mutex notice that.
    fn owner_leaves(&mut self, vcpu: usize) {
        let vm = self.vcpus[vcpu].vm;
        if self.vms[vm].owner == Some(vcpu) {
            for other in self.vms[vm].vcpus.clone() {
                if self.vcpus[other].on && self.vcpus[other].lock == Lock::Spins {
                    self.advance(other);
                    self.plan(other);
                }
            }
        }
    }

    /// The vCPU releases the mutex. One that has waited for long gets it, whether or not that has a
    /// CPU. Else one that spins takes it, and one that sleeps is woken to try.
    fn release(&mut self, vcpu: usize) {
        let index = self.vcpus[vcpu].vm;
        self.vcpus[vcpu].lock = Lock::No;
        self.vms[index].done += 1;
        let spins = |other: usize| {
            self.vcpus[other].on && self.vcpus[other].lock == Lock::Spins && other != vcpu
        };
        let spinning = self.vms[index].vcpus.iter().copied().filter(|&other| spins(other));
        let next = spinning.min_by_key(|&other| self.vcpus[other].waits);
        let handoff = self.vms[index].handoff.take();
        let next = handoff.or(next);
        self.vms[index].owner = next;
        if let Some(next) = next.filter(|&next| spins(next)) {
            self.advance(next);
            self.vcpus[next].lock = Lock::Holds;
            self.plan(next);
        }
        let vm = &mut self.vms[index];
        let first = handoff.or(vm.sleepers.front().copied());
        if let Some(at) = vm.sleepers.iter().position(|&other| Some(other) == first) {
            let woken = vm.sleepers.remove(at).unwrap();
            (self.vcpus[woken].lock, self.vcpus[woken].wakes) = (Lock::Woken, self.now);
            self.at(self.now + IPI, Event::Wake(woken, self.here));
        }
    }

    /// The next vCPU of the same VM that sleeps is woken.
    fn relay(&mut self, vcpu: usize) {
        let (all, number) = (&self.vms[self.vcpus[vcpu].vm].vcpus, self.vcpus[vcpu].number);
        let mut others = (1..all.len()).map(|n| all[(number + n) % all.len()]);
        // A vCPU that runs only the kthread sleeps, too.
        if let Some(next) = others.find(|&other| self.vcpus[other].wakes > self.now) {
            self.vcpus[next].wakes = self.now;
            self.at(self.now + IPI, Event::Wake(next, self.here));
        }
    }

    fn lock(&mut self, vcpu: usize, yields: bool) {
        let queue = &mut self.vms[self.vcpus[vcpu].vm].lock;
        queue.push_back(vcpu);
        self.vcpus[vcpu].lock = if queue.len() > 1 { Lock::Spins } else { Lock::Holds };
        if yields {
            self.at(self.now + SPINS, Event::Yield(vcpu));
        }
    }

    fn unlock(&mut self, vcpu: usize) {
        let vm = &mut self.vms[self.vcpus[vcpu].vm];
        self.vcpus[vcpu].lock = Lock::No;
        vm.done += 1;
        vm.lock.pop_front();
        let Some(&next) = vm.lock.front() else { return };
        if self.vcpus[next].on {
            self.advance(next);
        }
        self.vcpus[next].lock = Lock::Holds;
        if self.vcpus[next].on {
            self.plan(next);
        }
    }

    /// The vCPU to which this one yields, if it runs and spins.
    pub fn yields_to(&self, vcpu: usize) -> Option<usize> {
        let one = &self.vcpus[vcpu];
        let spins = one.on && one.lock == Lock::Spins;
        self.vms[one.vm].lock.front().copied().filter(|_| spins)
    }

    fn sleeps(&self, vcpu: usize) -> bool {
        !self.threads[self.vcpus[vcpu].pid].task.is_queued()
    }

    /// Something is to wake the vCPU. Whether it does.
    pub fn is_woken(&mut self, vcpu: usize) -> bool {
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        if one.tick < now {
            one.tick += (now - one.tick) / TICK * TICK + TICK;
        }
        let (vm, wakes, first) = (one.vm, one.wakes, one.number == 0);
        if first && now / TICK >= self.vms[vm].fqs_due {
            self.vms[vm].set_kthread(true, 0);
        }
        now >= wakes || (first && self.vms[vm].kthread.is_some())
    }

    /// The guest's tick comes.
    fn ticks(&mut self, vcpu: usize) {
        let (jiffies, section, one) =
            (self.now / TICK, self.in_section(vcpu), &mut self.vcpus[vcpu]);
        let (vm, first, bit) = (&mut self.vms[one.vm], one.number == 0, 1 << one.number);
        vm.put(JIFFIES, jiffies.to_ne_bytes());
        if one.noticed != vm.seq {
            one.noticed = vm.seq;
            vm.put(VCPUS + one.number as u64 * VCPU_BYTES + NOTICED, vm.seq.to_ne_bytes());
        } else if vm.owes & bit != 0 && !section {
            vm.set_owes(vm.owes & !bit);
        }
        if (vm.owes == 0 || (first && jiffies >= vm.fqs_due)) && vm.kthread.is_none() {
            if vm.seq & 1 == 0 {
                vm.began = self.now;
            }
            let vcpu = vm.vcpus[0];
            // Its work until now was not the kthread's.
            if self.vcpus[vcpu].on {
                self.advance(vcpu);
            }
            self.vms[self.vcpus[vcpu].vm].set_kthread(true, 0);
            match self.sleeps(vcpu) {
                true => self.at(self.now + IPI, Event::Wake(vcpu, self.here)),
                false if self.vcpus[vcpu].on => self.plan(vcpu),
                false => {}
            }
        }
    }

    /// The kthread runs: it reports for those who are idle, and if nobody else has to report, ends
    /// the grace period and begins the next.
    fn work_of_kthread(&mut self, vm: usize) {
        let mut owes = self.vms[vm].owes;
        for (number, &vcpu) in self.vms[vm].vcpus.iter().enumerate() {
            owes &= !(u128::from(self.sleeps(vcpu)) << number);
        }
        let (now, vm) = (self.now, &mut self.vms[vm]);
        let mut begins = owes == 0;
        if begins && vm.seq & 1 != 0 {
            vm.graces.push(now - vm.began);
            vm.began = now;
            vm.seq += 3;
            // Nobody has a callback yet that needs the next one: a tick asks for that.
            begins = vm.graces.len() % 4 != 0;
        }
        if begins {
            vm.seq += 1;
            owes = !0 >> (128 - vm.vcpus.len());
            // `rcu_gp_init` has its own CPU notice it.
            self.vcpus[vm.vcpus[0]].noticed = vm.seq;
            vm.put(VCPUS + NOTICED, vm.seq.to_ne_bytes());
        }
        vm.put(GP_SEQ, vm.seq.to_ne_bytes());
        vm.set_owes(owes);
        vm.set_kthread(false, now / TICK);
    }
}
