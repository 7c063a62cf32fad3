// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated guests: what their vCPUs do, and RCU.
//!
//! RCU is that of Linux: a grace period follows the last one, some only when a tick asks for them.
//! Every CPU of the guest notices it at a tick and reports at a later one that finds the CPU in no
//! critical section. The kthread of vCPU 0 begins and ends grace periods, and every few ticks
//! reports for those who are idle.

use super::super::program::types;
use super::kernel::{Machine, machine, schedule, wake, yield_to};
use super::native;
use std::collections::VecDeque;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000 * US;
pub const TICK: u64 = 4 * MS;
/// A tick's interrupt and softirq, the kthread's work, and an interrupt from another vCPU.
const IRQ: u64 = 10 * US;
const KTHREAD: u64 = 30 * US;
const IPI: u64 = 5 * US;
/// How long a vCPU spins until it yields.
const SPINS: u64 = 20 * US;
/// How long after a kick a vCPU is in a section.
const KICK: u64 = 50 * US;
/// `jiffies_till_first_fqs`, in ticks.
const FQS: u64 = 3;
/// A vCPU is in a critical section for this part of its time.
const SECTIONS: (u64, u64) = (MS, 50 * US);
/// `TASK_IDLE`.
const TASK_IDLE: u64 = 0x402;

/// Where a VM's memory lies in its VMM, and what is there.
const BASE: u64 = 1 << 32;
const GP_SEQ: u64 = 0;
const JIFFIES: u64 = 8;
const FQS_DUE: u64 = 16;
const KTHREAD_CPU: u64 = 24;
const ON_RQ: u64 = 32;
const STATE: u64 = 40;
const KTHREAD_TASK: u64 = 48;
const LEAVES: u64 = 64;
const LEAVES_END: u64 = 128;
/// The same for each vCPU: `preempt_count`, the current task, `rdp->gp_seq`, registers, a task.
const VCPUS: u64 = 0x200;
const VCPU_BYTES: u64 = 0x80;
const PREEMPT_COUNT: u64 = 0;
const CURRENT: u64 = 8;
const NOTICED: u64 = 16;
const RIP: u64 = 24;
const EFLAGS: u64 = RIP + 8;
const HFLAGS: u64 = RIP + 48;
const TASK: u64 = 0x60;
/// The guest's addresses of its memory, of its kernel, and of where it spins for answers to calls
/// and for the owner of a mutex, and where it kicks.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const CALLS: u64 = KERNEL + 0x1000;
const MUTEX: u64 = KERNEL + 0x2000;
const KICKS: u64 = KERNEL + 0x3000;
const IN_USER: u64 = 0x40_0000;

/// The behaviour of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Habit {
    /// The vCPU always has something to compute.
    #[default]
    Computes,
    /// The vCPU computes and sleeps, for so long at most.
    Sleeps(u64, u64),
    /// The vCPU computes for less than a slice, wakes the next one of its VM that sleeps, and
    /// sleeps until another wakes it.
    Relays,
    /// As `Computes`. The vCPU never reports, and claims to be in a critical section at all times.
    Lies,
    /// As `Computes`. Every word of its guest is any number.
    Wild,
    /// As `Computes`. The vCPU needs its VM's only spin lock for part of the time.
    Locks(Yields),
    /// As `Computes`. The vCPU needs its VM's only mutex for part of the time. While the owner has
    /// a CPU it spins, else it sleeps, as in Linux: `rwsem_spin_on_owner`, `vcpu_is_preempted`. The
    /// mutex is handed to one that has waited for more than a tick.
    Churns,
    /// As `Computes`. The vCPU calls all others of its VM now and then, and spins until all have
    /// had a CPU.
    Calls,
}

/// To whom a vCPU yields that needs a spin lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Yields {
    Not,
    /// To the holder, if it spins for long.
    ToHolder,
    /// To the one that has the lock next, which sleeps until then. The vCPU is in a section for a
    /// while yet.
    ToNext,
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
    vm: usize,
    number: usize,
    habit: Habit,
    /// Whether it has a CPU, up to when its work is done, and which plan for the rest counts.
    on: bool,
    since: u64,
    plan: u64,
    /// What is left to compute until it does something else, for how long it sleeps then, and until
    /// when it does.
    burst: u64,
    sleeps: u64,
    wakes: u64,
    lock: Lock,
    /// Since when it waits for the lock.
    waits: u64,
    /// The one that it kicked, and up to when it is in a section after that.
    kicked: usize,
    kicks: u64,
    /// The vCPUs of its VM that have yet to answer its call.
    answers: u128,
    /// When its tick is due, and when the tick's interrupt is over.
    tick: u64,
    irq: u64,
    noticed: u64,
}

impl Vcpu {
    /// Ticks that were due are over.
    fn skip_ticks(&mut self, now: u64) {
        if self.tick <= now {
            self.tick += (now - self.tick) / TICK * TICK + TICK;
        }
    }
}

impl Habit {
    /// For how long it computes, and sleeps then. If it `holds` the lock of its VM, that is over.
    fn times(self, holds: bool, random: &mut fastrand::Rng) -> (u64, u64) {
        let mut below = |end| US + random.u64(..end);
        match self {
            Habit::Computes | Habit::Lies | Habit::Wild => (u64::MAX / 4, 0),
            Habit::Locks(_) => (below(if holds { 400 * US } else { 100 * US }), 0),
            Habit::Churns => (below(if holds { 20 * US } else { 10 * US }), 0),
            Habit::Calls => (below(MS), 0),
            Habit::Sleeps(computes, sleeps) => (below(computes), below(sleeps)),
            Habit::Relays => (29 * MS / 10, u64::MAX / 4),
        }
    }
}

#[derive(Default)]
pub struct Vm {
    pub vcpus: Vec<usize>,
    pub seq: u64,
    began: u64,
    owes: u128,
    jiffies: u64,
    /// Work left for its kthread, if the kthread is ready.
    kthread: Option<u64>,
    fqs_due: u64,
    /// The owner of the lock, and those that wait for it asleep.
    owner: Option<usize>,
    sleepers: VecDeque<usize>,
    /// The one of these that gets it next, whoever spins.
    handoff: Option<usize>,
    /// How often the lock was released, or a call was answered by all.
    pub done: u64,
    /// How long its grace periods took since they were asked for.
    pub graces: Vec<u64>,
    pub preempted_in_section: u64,
}

impl Machine {
    /// A VM, of which the scheduler is told.
    pub fn add_vm(&mut self, weight: u32, full: u32) -> usize {
        let (vm, base) = (self.vms.len(), BASE * (self.vms.len() as u64 + 1));
        self.vms.push(Vm { kthread: Some(KTHREAD), began: self.now, ..Vm::default() });
        native::vm(vm, |vm| {
            (vm.ready, vm.gp_seq, vm.direct_map, vm.image) = (1, base + GP_SEQ, DIRECT_MAP, !0);
            (vm.hardirq, vm.softirq_serving, vm.no_preempt) = (0xf_0000, 0x100, 0xff);
            (vm.segments_used, vm.task_bytes) = (1, 4);
            (vm.segments[0].bytes, vm.segments[0].host) = (BASE, base);
            for (start, why) in [
                (CALLS, types::spins_for::SPINS_FOR_ANSWER),
                (MUTEX, types::spins_for::SPINS_FOR_OWNER),
                (KICKS, types::spins_for::SPINS_NO_MORE),
            ] {
                vm.spins.code[vm.spins.used as usize] = types::spin { start, bytes: 64, why };
                vm.spins.used += 1;
            }
        });
        native::guest(vm, |guest| {
            (guest.ready, guest.weight, guest.full) = (1, weight, full);
            let rcu = &mut guest.rcu;
            (rcu.kthread_task, rcu.kthread_cpu) = (base + KTHREAD_TASK, base + KTHREAD_CPU);
            (rcu.kthread_on_rq, rcu.kthread_state) = (base + ON_RQ, base + STATE);
            (rcu.fqs_due, rcu.jiffies) = (base + FQS_DUE, base + JIFFIES);
        });
        vm
    }

    /// A vCPU, which sleeps.
    pub fn add_vcpu(&mut self, vm: usize, habit: Habit, cpu: usize) -> usize {
        let (tgid, number) = (1_000_000 + vm, self.vms[vm].vcpus.len());
        let tick = self.now + self.random.u64(..TICK);
        let vcpu = Vcpu { vm, number, habit, tick, ..Vcpu::default() };
        let pid = self.add_thread(tgid, cpu, vcpu);
        self.vms[vm].vcpus.push(pid);
        let own = VCPUS + number as u64 * VCPU_BYTES;
        let (base, leaf) = (BASE * (vm as u64 + 1), number / 16);
        let qsmask = base + LEAVES + 8 * leaf as u64;
        native::vcpu(pid, |vcpu| {
            (vcpu.vm, vcpu.tgid, vcpu.index) = (vm as u32, tgid as u32, number as u32);
            (vcpu.registers.0, vcpu.env) = (1, base + own + RIP);
            vcpu.preempt_count = base + own + PREEMPT_COUNT;
            vcpu.current_task = base + own + CURRENT;
            (vcpu.noticed, vcpu.qsmask) = (base + own + NOTICED, qsmask);
            vcpu.qsbit = 1 << (number % 16);
        });
        native::guest(vm, |guest| {
            let rcu = &mut guest.rcu;
            rcu.leaves_used = leaf as u32 + 1;
            let leaf = &mut rcu.leaves[leaf];
            (leaf.qsmask, leaf.first_cpu) = (qsmask, number as u32 / 16 * 16);
            leaf.cpus = number as u32 % 16 + 1;
            rcu.slots[number] = pid as u32 + 1;
        });
        pid
    }

    /// The bytes at that address of the thread's process.
    pub fn user_memory(&mut self, pid: usize, from: u64, bytes: usize) -> Option<Vec<u8>> {
        let vm = self.vcpus[pid].vm;
        let first = from.checked_sub(BASE * (vm as u64 + 1))?;
        let skip = first % 8;
        let end = first.checked_add(bytes as u64)?;
        let wild = self.vcpus[self.vms[vm].vcpus[0]].habit == Habit::Wild;
        let words = (first - skip..end).step_by(8).map(|at| {
            let word = self.word(vm, at)?;
            Some(if wild { self.any_word() } else { word })
        });
        let words: Option<Vec<[u8; 8]>> = words.map(|word| word.map(u64::to_ne_bytes)).collect();
        Some(words?.as_flattened()[skip as usize..][..bytes].into())
    }

    /// Small numbers, addresses in and just outside a VM's memory, and anything.
    fn any_word(&mut self) -> u64 {
        match self.random.u8(..4) {
            0 => self.random.u64(..256),
            1 => DIRECT_MAP + self.random.u64(..8 * VCPUS),
            2 => u64::MAX,
            _ => self.random.u64(..),
        }
    }

    /// The word of the VM's memory at a multiple of 8.
    fn word(&self, vm: usize, at: u64) -> Option<u64> {
        let of = &self.vms[vm];
        let own = at.wrapping_sub(VCPUS);
        let vcpu = of.vcpus.get((own / VCPU_BYTES) as usize).copied();
        Some(match at {
            GP_SEQ => of.seq,
            JIFFIES => of.jiffies,
            FQS_DUE => of.fqs_due,
            KTHREAD_CPU => 0,
            ON_RQ => of.kthread.is_some().into(),
            STATE => u64::from(of.kthread.is_none()) * TASK_IDLE,
            KTHREAD_TASK => 15,
            LEAVES..LEAVES_END => (of.owes >> (2 * (at - LEAVES))) as u64 & 0xffff,
            _ => match (own % VCPU_BYTES, vcpu?) {
                (PREEMPT_COUNT, vcpu) => self.in_section(vcpu).into(),
                (CURRENT, vcpu) if self.runs_kthread(vcpu) => DIRECT_MAP + KTHREAD_TASK,
                (CURRENT, _) => DIRECT_MAP + at - CURRENT + TASK,
                (NOTICED, vcpu) => self.vcpus[vcpu].noticed,
                (RIP, vcpu) => self.rip(vcpu),
                (EFLAGS, _) => 0x200,
                (HFLAGS, vcpu) => u64::from(self.rip(vcpu) == IN_USER) * 3,
                (TASK, vcpu) => self.vcpus[vcpu].number as u64 + 16,
                _ => 0,
            },
        })
    }

    fn in_section(&self, vcpu: usize) -> bool {
        let one = &self.vcpus[vcpu];
        match one.habit {
            Habit::Lies => true,
            Habit::Churns if one.lock == Lock::Holds => false,
            _ if one.lock != Lock::No || one.answers != 0 || self.now < one.kicks => true,
            _ => self.ran(vcpu) % SECTIONS.0 < SECTIONS.1,
        }
    }

    fn rip(&self, vcpu: usize) -> u64 {
        let one = &self.vcpus[vcpu];
        match one.lock {
            Lock::Spins if one.habit == Habit::Churns => MUTEX + 8,
            _ if one.answers != 0 => CALLS + 8,
            _ if self.now < one.kicks => KICKS + 8,
            lock if lock == Lock::Holds || self.in_section(vcpu) => KERNEL,
            _ => IN_USER,
        }
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
        let (plan, time) = (one.plan, (self.now + left).min(one.tick.max(one.irq)));
        self.at(time, move || work(vcpu, plan));
    }

    /// Changes what concerns the vCPU, which may have a CPU.
    fn change(&mut self, vcpu: usize, change: impl FnOnce(&mut Machine)) {
        let on = self.vcpus[vcpu].on;
        if on {
            self.advance(vcpu);
        }
        change(self);
        if on {
            self.plan(vcpu);
        }
    }

    pub fn gets_cpu(&mut self, vcpu: usize) {
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        (one.on, one.since, one.irq) = (true, now, now + IRQ);
        self.answer(vcpu);
        self.plan(vcpu);
    }

    pub fn leaves(&mut self, vcpu: usize, runnable: bool) {
        self.advance(vcpu);
        let section = self.in_section(vcpu);
        let one = &mut self.vcpus[vcpu];
        one.on = false;
        one.plan += 1;
        let (vm, tick, plan) = (one.vm, one.tick, one.plan);
        if runnable {
            self.vms[vm].preempted_in_section += u64::from(section);
            if tick > self.now {
                self.at(tick, move || tick_waits(vcpu, plan));
            }
            // Others, which spin until it releases the mutex, notice that.
            let owns = self.vms[vm].owner == Some(vcpu);
            for other in self.vms[vm].vcpus.clone() {
                if owns && self.vcpus[other].lock == Lock::Spins {
                    self.change(other, |_| ());
                }
            }
        }
    }

    /// The time that was planned for the vCPU has come. Whether it sleeps now.
    fn work(&mut self, vcpu: usize) -> bool {
        self.advance(vcpu);
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        let vm = one.vm;
        if one.tick.max(one.irq) <= now {
            one.skip_ticks(now);
            self.ticks(vcpu);
        }
        let sleeps = match self.vcpus[vcpu].lock {
            _ if self.runs_kthread(vcpu) => {
                if self.vms[vm].kthread == Some(0) {
                    self.work_of_kthread(vm);
                }
                false
            }
            Lock::Sleeps => self.sleep(vcpu),
            Lock::Spins | Lock::Woken => self.acquire(vcpu),
            Lock::No | Lock::Holds => self.vcpus[vcpu].burst == 0 && self.next_burst(vcpu),
        };
        if !sleeps {
            self.plan(vcpu);
        }
        sleeps
    }

    /// Ends a burst: begins the next one. Whether the vCPU sleeps first.
    fn next_burst(&mut self, vcpu: usize) -> bool {
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        let (here, habit, holds) = (self.here, one.habit, one.lock == Lock::Holds);
        let sleeps = std::mem::take(&mut one.sleeps);
        if sleeps != 0 {
            one.wakes = now + sleeps;
            self.after(sleeps, move || wake(vcpu, here));
            if habit == Habit::Relays {
                self.relay(vcpu);
            }
        }
        let one = &mut self.vcpus[vcpu];
        if now < one.wakes {
            return self.sleep(vcpu);
        }
        (one.burst, one.sleeps) = habit.times(holds, &mut self.random);
        match habit {
            Habit::Locks(_) | Habit::Churns if holds => self.release(vcpu),
            Habit::Locks(_) | Habit::Churns => {
                one.waits = now;
                if habit == Habit::Locks(Yields::ToHolder) {
                    self.after(SPINS, move || yield_to(vcpu));
                }
                return self.acquire(vcpu);
            }
            Habit::Calls => self.call(vcpu),
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
            if self.vcpus[caller].answers & bit != 0 {
                self.change(caller, |m| m.vcpus[caller].answers &= !bit);
                self.vms[vm].done += u64::from(self.vcpus[caller].answers == 0);
            }
        }
    }

    /// The vCPU has nothing to do.
    fn sleep(&mut self, vcpu: usize) -> bool {
        // The timer that wakes the kthread.
        if self.vcpus[vcpu].number == 0 {
            let (due, here) = (self.vms[self.vcpus[vcpu].vm].fqs_due * TICK, self.here);
            self.at(due, move || wake(vcpu, here));
        }
        true
    }

    /// The vCPU takes the lock of its VM, or waits for it: for a spin lock in line, for a mutex
    /// asleep if that has lost its owner's CPU. Whether the vCPU sleeps.
    fn acquire(&mut self, vcpu: usize) -> bool {
        let (now, runs) = (self.now, self.owner_runs(vcpu));
        let one = &mut self.vcpus[vcpu];
        let vm = &mut self.vms[one.vm];
        if vm.owner.is_none_or(|owner| owner == vcpu) {
            (vm.owner, one.lock) = (Some(vcpu), Lock::Holds);
            return false;
        }
        let (woken, late) = (one.lock == Lock::Woken, now - one.waits > TICK);
        if woken && late {
            vm.handoff.get_or_insert(vcpu);
        }
        let spins = match one.habit {
            Habit::Churns => runs && (!woken || late),
            habit => habit != Habit::Locks(Yields::ToNext),
        };
        if spins {
            one.lock = Lock::Spins;
            return false;
        }
        (one.lock, one.wakes) = (Lock::Sleeps, u64::MAX);
        match woken {
            true => vm.sleepers.push_front(vcpu),
            false => vm.sleepers.push_back(vcpu),
        }
        self.sleep(vcpu)
    }

    /// The vCPU releases the lock. The mutex goes to one that has waited for long, whether or not
    /// that has a CPU; else to one that spins, and one that sleeps is woken to try. The spin lock
    /// goes to the first in line.
    fn release(&mut self, vcpu: usize) {
        let index = self.vcpus[vcpu].vm;
        self.vcpus[vcpu].lock = Lock::No;
        self.vms[index].done += 1;
        let spins = |other: usize| {
            let one = &self.vcpus[other];
            one.lock == Lock::Spins && (one.on || one.habit != Habit::Churns)
        };
        let spinning = self.vms[index].vcpus.iter().copied().filter(|&other| spins(other));
        let next = spinning.min_by_key(|&other| self.vcpus[other].waits);
        let next = self.vms[index].handoff.or(next);
        let takes = next.filter(|&next| spins(next));
        let vm = &mut self.vms[index];
        vm.owner = next;
        let first = vm.handoff.take().or(vm.sleepers.front().copied());
        if let Some(at) = vm.sleepers.iter().position(|&other| Some(other) == first) {
            let woken = vm.sleepers.remove(at).unwrap();
            (self.vcpus[woken].lock, self.vcpus[woken].wakes) = (Lock::Woken, self.now);
            self.interrupt(woken);
            let one = &mut self.vcpus[vcpu];
            if one.habit == Habit::Locks(Yields::ToNext) {
                (one.kicked, one.kicks) = (woken, self.now + KICK);
                self.after(IPI, move || yield_to(vcpu));
            }
        }
        if let Some(next) = takes {
            self.change(next, |m| m.vcpus[next].lock = Lock::Holds);
        }
    }

    /// Another vCPU of the VM, which runs here, sends that one an interrupt.
    fn interrupt(&mut self, vcpu: usize) {
        let here = self.here;
        self.after(IPI, move || wake(vcpu, here));
    }

    /// The next vCPU of the same VM that sleeps is woken.
    fn relay(&mut self, vcpu: usize) {
        let (all, number) = (&self.vms[self.vcpus[vcpu].vm].vcpus, self.vcpus[vcpu].number);
        let mut others = (1..all.len()).map(|n| all[(number + n) % all.len()]);
        // A vCPU that runs only the kthread sleeps, too.
        if let Some(next) = others.find(|&other| self.vcpus[other].wakes > self.now) {
            self.vcpus[next].wakes = self.now;
            self.interrupt(next);
        }
    }

    /// The owner of the lock for which the vCPU spins, or which it kicks.
    pub fn yields_to(&self, vcpu: usize) -> Option<usize> {
        let one = &self.vcpus[vcpu];
        let kicked = (self.now < one.kicks).then_some(one.kicked);
        let owner = self.vms[one.vm].owner.filter(|_| one.lock == Lock::Spins);
        owner.or(kicked).filter(|_| one.on)
    }

    /// The vCPU's CPU executes the kernel. Whether that plan counts still.
    fn is_planned(&mut self, vcpu: usize, plan: u64) -> bool {
        self.here = self.threads[vcpu].cpu;
        self.vcpus[vcpu].plan == plan
    }

    fn sleeps(&self, vcpu: usize) -> bool {
        !self.tasks[vcpu].is_queued()
    }

    /// Something is to wake the vCPU. Whether it does.
    pub fn is_woken(&mut self, vcpu: usize) -> bool {
        let (now, one) = (self.now, &mut self.vcpus[vcpu]);
        one.skip_ticks(now);
        let (vm, first) = (&mut self.vms[one.vm], one.number == 0);
        if first && now / TICK >= vm.fqs_due {
            vm.kthread.get_or_insert(KTHREAD);
        }
        now >= one.wakes || (first && vm.kthread.is_some())
    }

    /// The guest's tick comes.
    fn ticks(&mut self, vcpu: usize) {
        let (jiffies, section, one) =
            (self.now / TICK, self.in_section(vcpu), &mut self.vcpus[vcpu]);
        let (index, first, bit) = (one.vm, one.number == 0, 1 << one.number);
        let vm = &mut self.vms[index];
        vm.jiffies = jiffies;
        if one.noticed != vm.seq {
            one.noticed = vm.seq;
        } else if !section {
            vm.owes &= !bit;
        }
        if (vm.owes == 0 || (first && jiffies >= vm.fqs_due)) && vm.kthread.is_none() {
            if vm.seq & 1 == 0 {
                vm.began = self.now;
            }
            let vcpu = vm.vcpus[0];
            // Its work until now was not the kthread's.
            self.change(vcpu, |m| m.vms[index].kthread = Some(KTHREAD));
            if self.sleeps(vcpu) {
                self.interrupt(vcpu);
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
        }
        (vm.owes, vm.kthread, vm.fqs_due) = (owes, None, now / TICK + FQS);
    }
}

/// The time has come that was planned for the vCPU.
fn work(vcpu: usize, plan: u64) {
    let sleeps = machine().is_planned(vcpu, plan) && machine().work(vcpu);
    if sleeps {
        let cpu = machine().here;
        schedule(cpu, true);
    }
}

/// The vCPU's tick is due, if it waits for a CPU still.
fn tick_waits(vcpu: usize, plan: u64) {
    let waits = machine().is_planned(vcpu, plan);
    if waits {
        native::native_tick(vcpu as u32);
    }
}
