// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated kernel: CPUs, the queues of sched_ext, and the functions that the scheduler calls.
//!
//! [`schedule`], [`wake`] and [`enqueue`] call the scheduler in the order of `kernel/sched/ext.c`
//! of Linux 7.1. Every function with external linkage names what it stands for; those of `scx_` do
//! what their namesakes do under the run queue's lock.

use super::super::program::types;
use super::guest::{Vcpu, Vm};
use super::{Event, native};
use std::cell::{RefCell, UnsafeCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// `SCX_DSQ_LOCAL`, and `SCX_DSQ_LOCAL_ON` without its CPU.
const LOCAL: u64 = (1 << 63) | 2;
const LOCAL_ON: u64 = 3 << 62;
/// `SCX_ENQ_WAKEUP`, `SCX_ENQ_REENQ`, `SCX_WAKE_TTWU` and `SCX_DEQ_SLEEP`.
const WAKEUP: u64 = 1;
const REENQ: u64 = 1 << 40;
const TTWU: u64 = 8;
const SLEEP: u64 = 1;
/// `SCX_KICK_IDLE` and `SCX_KICK_PREEMPT`.
const KICK_IDLE: u64 = 1;
const KICK_PREEMPT: u64 = 2;
/// `SCX_TASK_QUEUED`.
const QUEUED: u32 = 1;
/// `SCX_DSQ_ITER_REV`.
const REVERSE: u64 = 1 << 16;
/// `EFAULT` and `EBUSY`.
const FAULT: i64 = -14;
const BUSY: i32 = -16;
/// `SCX_SLICE_DFL`.
const SLICE_DEFAULT: u64 = 20_000_000;
/// How long a kick takes: an interrupt on the CPU that kicks, and one on the other.
const KICK_NS: u64 = 2_000;
/// The kernel's tick.
const TICK_NS: u64 = 4_000_000;

/// A thread as the scheduler sees it. Its CPU mask is found by the same address.
#[repr(transparent)]
pub struct TaskStruct(UnsafeCell<types::task_struct>);

impl TaskStruct {
    fn new(pid: usize, tgid: usize) -> &'static TaskStruct {
        let task = types::task_struct { pid: pid as i32, tgid: tgid as i32, ..Default::default() };
        let task: &'static TaskStruct = Box::leak(Box::new(TaskStruct(UnsafeCell::new(task))));
        // SAFETY: nobody else has it yet.
        unsafe { (*task.0.get()).cpus_ptr = task.0.get().cast() };
        task
    }

    fn pid(&self) -> usize {
        // SAFETY: one thread simulates, and no reference to the inside lives longer than this.
        unsafe { (*self.0.get()).pid as usize }
    }

    pub fn is_queued(&self) -> bool {
        // SAFETY: as in `pid`.
        unsafe { (*self.0.get()).scx.flags & QUEUED != 0 }
    }

    fn set_queued(&self, queued: bool) {
        // SAFETY: as in `pid`.
        unsafe { (*self.0.get()).scx.flags = u32::from(queued) * QUEUED };
    }
}

/// CPUs, by bits.
#[derive(Clone, Default)]
pub struct Mask(Vec<u64>);

impl Mask {
    pub fn of(cpus: impl IntoIterator<Item = usize>) -> Mask {
        let mut mask = Mask(vec![0; 16]);
        cpus.into_iter().for_each(|cpu| mask.set(cpu, true));
        mask
    }

    fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    fn set(&mut self, cpu: usize, is: bool) {
        let bit = 1 << (cpu % 64);
        self.0[cpu / 64] = (self.0[cpu / 64] & !bit) | (u64::from(is) * bit);
    }
}

pub struct Thread {
    pub task: &'static TaskStruct,
    pub cpu: usize,
    pub mask: Mask,
    /// Where an insertion that its enqueueing asked for puts it: queue, slice, virtual time.
    direct: Option<(u64, u64, u64)>,
    /// The queue where it waits, and its place there.
    queue: Option<u64>,
    slice: u64,
    exec_start: u64,
    ran: u64,
    /// Since when it waits for a CPU, if it does, and the longest that it did.
    pub waits: Option<u64>,
    pub longest_wait: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub enum Current {
    #[default]
    Idle,
    /// A thread of another class.
    Ordinary,
    Thread(usize),
}

#[derive(Clone, Default)]
pub struct Cpu {
    pub current: Current,
    /// A thread of another class is runnable: it goes first.
    pub ordinary: bool,
    local: VecDeque<usize>,
    kicks: u64,
    /// The number of the timer's start that counts.
    pub timer: u64,
    ticks: bool,
}

/// A generator that any seed makes different (splitmix64).
#[derive(Default)]
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[derive(Default)]
pub struct Machine {
    pub now: u64,
    /// The CPU that executes the kernel.
    pub here: usize,
    pub cpus: Vec<Cpu>,
    /// By PID. 0 is the idle thread, 1 stands for all of other classes.
    pub threads: Vec<Thread>,
    /// By ID: virtual times and threads, in order.
    queues: Vec<VecDeque<(u64, usize)>>,
    idle: Mask,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    pub random: Random,
    pub vms: Vec<Vm>,
    pub vcpus: Vec<Vcpu>,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Changes the machine. The scheduler may not be called meanwhile: it comes back here.
pub fn machine<R>(change: impl FnOnce(&mut Machine) -> R) -> R {
    MACHINE.with_borrow_mut(|machine| change(machine.as_mut().expect("a machine was made")))
}

impl Machine {
    /// Replaces this thread's machine.
    pub fn make(cpus: usize, seed: u64) {
        let mut machine = Machine {
            now: 1_000_000_000_000,
            cpus: vec![Cpu::default(); cpus],
            idle: Mask::of(0..cpus),
            random: Random(seed),
            ..Machine::default()
        };
        machine.add_thread(0, 0);
        machine.add_thread(0, 0);
        MACHINE.set(Some(machine));
    }

    pub fn add_thread(&mut self, tgid: usize, cpu: usize) -> usize {
        let pid = self.threads.len();
        self.threads.push(Thread {
            task: TaskStruct::new(pid, tgid),
            cpu,
            mask: Mask::of(0..self.cpus.len()),
            direct: None,
            queue: None,
            slice: 0,
            exec_start: 0,
            ran: 0,
            waits: None,
            longest_wait: 0,
        });
        pid
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time.max(self.now), self.order, event)));
    }

    /// Goes on to the next event, if that is before `end`.
    pub fn next(&mut self, end: u64) -> Option<Event> {
        let Reverse((time, ..)) = *self.events.peek()?;
        if time >= end {
            self.now = end;
            return None;
        }
        self.now = time;
        self.events.pop().map(|Reverse((.., event))| event)
    }

    fn current(&self) -> &'static TaskStruct {
        self.threads[match self.cpus[self.here].current {
            Current::Idle => 0,
            Current::Ordinary => 1,
            Current::Thread(pid) => pid,
        }]
        .task
    }

    /// `update_curr_scx`.
    pub fn update_current(&mut self, cpu: usize) {
        if let Current::Thread(pid) = self.cpus[cpu].current {
            let thread = &mut self.threads[pid];
            let ran = self.now - thread.exec_start;
            thread.exec_start = self.now;
            thread.slice = thread.slice.saturating_sub(ran);
            thread.ran += ran;
        }
    }

    /// How long the thread has run.
    pub fn ran(&self, pid: usize) -> u64 {
        let thread = &self.threads[pid];
        let runs = self.cpus[thread.cpu].current == Current::Thread(pid);
        thread.ran + u64::from(runs) * (self.now - thread.exec_start)
    }

    /// `dispatch_enqueue`.
    fn insert(&mut self, pid: usize, (queue, slice, vtime): (u64, u64, u64)) {
        let thread = &mut self.threads[pid];
        thread.slice = slice;
        thread.queue = Some(queue);
        if queue == LOCAL {
            let cpu = thread.cpu;
            self.cpus[cpu].local.push_back(pid);
            if self.cpus[cpu].current == Current::Idle {
                self.at(self.now, Event::Reschedule(cpu));
            }
            return;
        }
        let waiting = &mut self.queues[queue as usize];
        let place = waiting.partition_point(|other| other.0.wrapping_sub(vtime) as i64 <= 0);
        waiting.insert(place, (vtime, pid));
    }

    /// Takes the thread out of that queue.
    fn remove(&mut self, pid: usize, queue: u64) {
        match queue {
            LOCAL => self.cpus[self.threads[pid].cpu].local.retain(|&other| other != pid),
            _ => self.queues[queue as usize].retain(|other| other.1 != pid),
        }
        self.threads[pid].queue = None;
    }

    /// `scx_pick_idle_cpu`, near the thread's last CPU.
    fn pick_idle(&mut self, pid: usize) -> Option<usize> {
        let (mask, first) = (&self.threads[pid].mask, self.threads[pid].cpu / 64);
        let found = (0..16).map(|n| (first + n) % 16).find_map(|word| {
            let both = self.idle.0[word] & mask.0[word];
            (both != 0).then(|| word * 64 + both.trailing_zeros() as usize)
        });
        found.inspect(|&cpu| self.idle.set(cpu, false))
    }

    fn has_slice(&self, current: Current) -> bool {
        matches!(current, Current::Thread(pid)
            if self.threads[pid].task.is_queued() && self.threads[pid].slice > 0)
    }
}

fn task(pid: usize) -> &'static TaskStruct {
    machine(|m| m.threads[pid].task)
}

/// `do_enqueue_task`. What the scheduler inserts is in its queue after it returned.
fn enqueue(pid: usize, flags: u64) {
    if machine(|m| m.threads[pid].direct.is_none()) {
        native::guard_enqueue(task(pid), flags);
    }
    machine(|m| {
        let direct = m.threads[pid].direct.take().expect("the scheduler queues every thread");
        m.insert(pid, direct);
    });
}

/// `try_to_wake_up`, on CPU `here`.
pub fn wake(pid: usize, here: usize) {
    let (prev, fixed) = machine(|m| {
        m.here = here;
        m.threads[pid].waits = Some(m.now);
        let mut allowed = (0..m.cpus.len()).filter(|&cpu| m.threads[pid].mask.has(cpu));
        let first = allowed.next();
        (m.threads[pid].cpu, first.filter(|_| allowed.next().is_none()))
    });
    let cpu =
        fixed.unwrap_or_else(|| native::guard_select_cpu(task(pid), prev as i32, TTWU) as usize);
    machine(|m| m.threads[pid].cpu = cpu);
    task(pid).set_queued(true);
    native::guard_runnable(task(pid), WAKEUP);
    enqueue(pid, WAKEUP);
}

/// `__schedule` on the CPU, whose thread sleeps from now on if `sleeps`.
pub fn schedule(cpu: usize, sleeps: bool) {
    let prev = machine(|m| {
        m.here = cpu;
        m.update_current(cpu);
        m.cpus[cpu].current
    });
    if let (Current::Thread(pid), true) = (prev, sleeps) {
        native::guard_stopping(task(pid), false);
        task(pid).set_queued(false);
        native::guard_quiescent(task(pid), SLEEP);
    }
    let next = pick(cpu, prev);
    if next != prev {
        switch(cpu, prev, next, sleeps);
    } else if next == Current::Idle {
        machine(|m| m.idle.set(cpu, true));
    }
}

/// The thread that runs next: `pick_task_scx` with `balance_one`, after those of other classes.
fn pick(cpu: usize, prev: Current) -> Current {
    let (settled, empty) = machine(|m| {
        let other = m.cpus[cpu].ordinary.then_some(Current::Ordinary);
        (other.or(m.has_slice(prev).then_some(prev)), m.cpus[cpu].local.is_empty())
    });
    if let Some(settled) = settled {
        return settled;
    }
    let before = match prev {
        Current::Thread(pid) => Some(task(pid)),
        _ => None,
    };
    if empty {
        native::guard_dispatch(cpu as i32, before);
    }
    machine(|m| {
        if m.has_slice(prev) {
            return prev;
        }
        let next = match (m.cpus[cpu].local.front(), prev) {
            (Some(&pid), _) => pid,
            (None, Current::Thread(pid)) if m.threads[pid].task.is_queued() => pid,
            _ => return Current::Idle,
        };
        if m.threads[next].slice == 0 {
            m.threads[next].slice = SLICE_DEFAULT;
        }
        Current::Thread(next)
    })
}

/// `put_prev_task`, `set_next_task` and `context_switch`.
fn switch(cpu: usize, prev: Current, next: Current, sleeps: bool) {
    match prev {
        Current::Thread(pid) if !sleeps => {
            native::guard_stopping(task(pid), true);
            let preempted = machine(|m| {
                m.threads[pid].waits = Some(m.now);
                if m.threads[pid].slice == 0 {
                    return false;
                }
                // By another class.
                m.threads[pid].queue = Some(LOCAL);
                m.cpus[cpu].local.push_front(pid);
                true
            });
            if !preempted {
                enqueue(pid, 0);
            }
        }
        Current::Idle => {
            machine(|m| m.idle.set(cpu, false));
            native::guard_update_idle(cpu as i32, false);
        }
        _ => {}
    }
    match next {
        Current::Thread(pid) => {
            machine(|m| {
                m.remove(pid, LOCAL);
                let (thread, now) = (&mut m.threads[pid], m.now);
                thread.exec_start = now;
                let waited = thread.waits.take().map_or(0, |since| now - since);
                thread.longest_wait = thread.longest_wait.max(waited);
            });
            native::guard_running(task(pid));
        }
        Current::Idle => {
            machine(|m| m.idle.set(cpu, true));
            native::guard_update_idle(cpu as i32, true);
        }
        Current::Ordinary => {}
    }
    machine(|m| {
        m.cpus[cpu].current = next;
        if let Current::Thread(pid) = prev {
            m.leaves(pid, !sleeps);
        }
        if let Current::Thread(pid) = next {
            m.gets_cpu(pid);
        }
        if !m.cpus[cpu].ticks && next != Current::Idle {
            m.cpus[cpu].ticks = true;
            let offset = cpu as u64 * 7_000 % TICK_NS;
            m.at((m.now - offset) / TICK_NS * TICK_NS + TICK_NS + offset, Event::Tick(cpu));
        }
    });
}

/// `yield_to`, by KVM for the vCPU that runs on the CPU and spins.
pub fn yield_to(cpu: usize, from: usize, to: usize) {
    let waits = machine(|m| {
        m.here = cpu;
        m.update_current(cpu);
        m.threads[to].queue.is_some()
    });
    if waits && native::guard_yield(task(from), Some(task(to))) {
        schedule(cpu, false);
    }
}

/// `set_cpus_allowed_ptr`. The mask has the CPU where the thread is.
pub fn set_mask(pid: usize, mask: Mask) {
    let (runs, queue, queued) = machine(|m| {
        let thread = &m.threads[pid];
        m.here = thread.cpu;
        let queue = m.threads[pid].queue.inspect(|&queue| m.remove(pid, queue));
        m.update_current(m.here);
        let runs = m.cpus[m.here].current == Current::Thread(pid);
        (runs, queue, m.threads[pid].task.is_queued())
    });
    // `sched_change_begin`: `dequeue_task_scx`.
    if queue.is_some_and(|queue| queue != LOCAL) {
        native::guard_dequeue(task(pid), 0);
    }
    if runs {
        native::guard_stopping(task(pid), false);
    }
    if queued {
        native::guard_quiescent(task(pid), 0);
    }
    machine(|m| m.threads[pid].mask = mask);
    // `sched_change_end`: `enqueue_task_scx`, and `set_next_task_scx` without `ops.enqueue`.
    if queued {
        native::guard_runnable(task(pid), 0);
    }
    if runs {
        native::guard_running(task(pid));
    } else if queued {
        enqueue(pid, 0);
    }
}

/// `sched_tick`. The tick stops while the CPU is idle.
pub fn tick(cpu: usize) {
    let current = machine(|m| {
        m.here = cpu;
        m.update_current(cpu);
        m.cpus[cpu].ticks = m.cpus[cpu].current != Current::Idle;
        if m.cpus[cpu].ticks {
            m.at(m.now + TICK_NS, Event::Tick(cpu));
        }
        m.cpus[cpu].current
    });
    if let Current::Thread(pid) = current {
        native::guard_tick(task(pid));
        if !machine(|m| m.has_slice(current)) {
            schedule(cpu, false);
        }
    }
}

/// `kick_cpus_irq_workfn`.
pub fn kicked(cpu: usize) {
    let go = machine(|m| {
        m.update_current(cpu);
        let kicks = std::mem::take(&mut m.cpus[cpu].kicks);
        match m.cpus[cpu].current {
            Current::Idle => true,
            Current::Thread(pid) if kicks & KICK_PREEMPT != 0 => {
                m.threads[pid].slice = 0;
                true
            }
            _ => false,
        }
    });
    if go {
        schedule(cpu, false);
    }
}

/// `reenq_local`.
pub fn enqueue_again(cpu: usize) {
    let local = machine(|m| {
        m.here = cpu;
        std::mem::take(&mut m.cpus[cpu].local)
    });
    for pid in local {
        machine(|m| m.threads[pid].queue = None);
        enqueue(pid, REENQ);
    }
}

/// Functions that the scheduler calls, of a machine.
macro_rules! kernel {
    ($($(#[$doc:meta])* fn $name:ident($m:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?
        $body:block)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] extern "C" fn $name($($arg: $kind),*) $(-> $result)? {
            machine(|$m| $body)
        })*
    };
}

type Task = TaskStruct;
type Iter = types::bpf_iter_scx_dsq;

kernel! {
    fn bpf_ktime_get_ns(m) -> u64 { m.now }
    fn bpf_get_prandom_u32(m) -> u32 { m.random.below(1 << 32) as u32 }
    fn bpf_get_smp_processor_id(m) -> u32 { m.here as u32 }

    /// Until a switch is over, the thread that leaves is current.
    fn bpf_get_current_task_btf(m) -> &'static Task { m.current() }

    /// The memory of the process whose thread is current.
    fn bpf_probe_read_user(m, to: *mut u8, bytes: u32, from: u64) -> i64 {
        let Some(source) = m.user_memory(m.current().pid(), from, bytes as usize) else {
            return FAULT;
        };
        // SAFETY: the scheduler has room for as many bytes as it asks for.
        unsafe { to.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        0
    }

    fn bpf_task_from_pid(m, pid: i32) -> Option<&'static Task> {
        m.threads.get(pid as usize).filter(|_| pid > 0).map(|thread| thread.task)
    }
    fn bpf_task_release(_m, _task: &Task) {}
    fn bpf_rcu_read_lock(_m) {}
    fn bpf_rcu_read_unlock(_m) {}

    fn bpf_cpumask_test_cpu(m, cpu: u32, of: &Task) -> bool {
        m.threads[of.pid()].mask.has(cpu as usize)
    }

    /// One of the mask's CPUs, by chance.
    fn bpf_cpumask_any_distribute(m, of: &Task) -> u32 {
        let (count, mask) = (m.cpus.len(), &m.threads[of.pid()].mask);
        let first = m.random.below(count as u64) as usize;
        let mut all = (first..first + count).map(|cpu| cpu % count);
        all.find(|&cpu| mask.has(cpu)).expect("a mask has CPUs") as u32
    }

    fn bpf_timer_init(m, timer: &mut types::bpf_timer, _map: *mut u8, _clock: u64) -> i64 {
        timer.__opaque[0] = m.here as u64;
        0
    }

    /// The timer is pinned to the CPU that starts it.
    fn bpf_timer_start(m, timer: &mut types::bpf_timer, ns: u64, _flags: u64) -> i64 {
        let cpu = m.here;
        assert_eq!(timer.__opaque[0], cpu as u64, "a CPU's timer is started elsewhere");
        m.cpus[cpu].timer += 1;
        m.at(m.now + ns, Event::Timer(cpu, m.cpus[cpu].timer));
        0
    }

    fn scx_bpf_create_dsq(m, queue: u64, _node: i32) -> i32 {
        m.queues.resize(m.queues.len().max(queue as usize + 1), VecDeque::new());
        0
    }

    fn scx_bpf_dsq_nr_queued(m, queue: u64) -> i32 {
        match queue {
            LOCAL => m.cpus[m.here].local.len() as i32,
            _ if queue & LOCAL_ON == LOCAL_ON => m.cpus[queue as u32 as usize].local.len() as i32,
            _ => m.queues[queue as usize].len() as i32,
        }
    }

    fn scx_bpf_dsq_peek(m, queue: u64) -> Option<&'static Task> {
        m.queues[queue as usize].front().map(|first| m.threads[first.1].task)
    }

    fn scx_bpf_task_cpu(m, task: &Task) -> i32 { m.threads[task.pid()].cpu as i32 }

    fn scx_bpf_task_set_slice(m, task: &Task, slice: u64) -> bool {
        m.threads[task.pid()].slice = slice;
        true
    }

    /// The thread's last CPU, or any that is idle.
    fn scx_bpf_select_cpu_dfl(m, task: &Task, last: i32, _flags: u64, idle: &mut bool) -> i32 {
        let (pid, last) = (task.pid(), last as usize);
        let stays = m.idle.has(last) && m.threads[pid].mask.has(last);
        m.idle.set(last, m.idle.has(last) && !stays);
        let found = if stays { Some(last) } else { m.pick_idle(pid) };
        *idle = found.is_some();
        found.unwrap_or(last) as i32
    }

    fn scx_bpf_pick_idle_cpu(m, of: &Task, _flags: u64) -> i32 {
        m.pick_idle(of.pid()).map_or(BUSY, |cpu| cpu as i32)
    }

    /// Takes effect after the interrupts that it needs. A kick for an idle CPU does nothing if the
    /// CPU is busy then, or another one that is busy now.
    fn scx_bpf_kick_cpu(m, cpu: i32, flags: u64) {
        let target = &mut m.cpus[cpu as usize];
        if flags & KICK_IDLE != 0 && target.current != Current::Idle && cpu as usize != m.here {
            return;
        }
        let before = target.kicks;
        target.kicks |= flags;
        if before == 0 {
            m.at(m.now + KICK_NS, Event::Kick(cpu as usize));
        }
    }

    /// Of the thread that is just being woken or enqueued.
    fn scx_bpf_dsq_insert(m, task: &Task, queue: u64, slice: u64, _flags: u64) {
        m.threads[task.pid()].direct = Some((queue, slice, 0));
    }

    fn __scx_bpf_dsq_insert_vtime(
        m, task: &Task, args: &types::scx_bpf_dsq_insert_vtime_args
    ) -> bool {
        m.threads[task.pid()].direct = Some((args.dsq_id, args.slice, args.vtime));
        true
    }

    /// The iterator holds its queue, direction, position, and the slice of what it moves.
    fn bpf_iter_scx_dsq_new(_m, iter: &mut Iter, queue: u64, flags: u64) -> i32 {
        iter.__opaque = [queue, flags & REVERSE, 0, 0, 0, 0];
        0
    }

    fn bpf_iter_scx_dsq_next(m, iter: &mut Iter) -> Option<&'static Task> {
        let (waiting, place) = (&m.queues[iter.__opaque[0] as usize], iter.__opaque[2] as usize);
        iter.__opaque[2] += 1;
        let reverse = iter.__opaque[1] != 0;
        let place = if reverse { waiting.len().checked_sub(place + 1)? } else { place };
        waiting.get(place).map(|found| m.threads[found.1].task)
    }

    fn bpf_iter_scx_dsq_destroy(_m, _iter: &mut Iter) {}
    fn scx_bpf_dsq_move_set_slice(_m, iter: &mut Iter, slice: u64) { iter.__opaque[3] = slice; }

    /// Of this CPU, soon.
    fn scx_bpf_dsq_reenq(m, _local: u64, _flags: u64) { m.at(m.now, Event::EnqueueAgain(m.here)); }
}

/// Moves the thread. Where it leaves the scheduler's hands, `ops.dequeue` follows.
fn move_to(pid: usize, from: u64, to: u64, slice: Option<u64>) {
    machine(|m| {
        m.remove(pid, from);
        let here = m.here;
        let thread = &mut m.threads[pid];
        if to == LOCAL {
            thread.cpu = here;
        }
        // The end of a queue that is not ordered by virtual time.
        let place = (to, slice.unwrap_or(thread.slice), 0);
        m.insert(pid, place);
    });
    if to == LOCAL {
        native::guard_dequeue(task(pid), 0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn scx_bpf_dsq_move_to_local(queue: u64) -> bool {
    let found = machine(|m| {
        let mut waiting = m.queues[queue as usize].iter();
        waiting.find(|other| m.threads[other.1].mask.has(m.here)).map(|other| other.1)
    });
    found.inspect(|&pid| move_to(pid, queue, LOCAL, None)).is_some()
}

/// Only if the thread is still in the iterator's queue.
#[unsafe(no_mangle)]
extern "C" fn scx_bpf_dsq_move(iter: &mut Iter, task: &Task, to: u64, _flags: u64) -> bool {
    let ([from, _, _, slice, ..], pid) = (iter.__opaque, task.pid());
    let there = machine(|m| {
        m.threads[pid].queue == Some(from) && (to != LOCAL || m.threads[pid].mask.has(m.here))
    });
    if there {
        move_to(pid, from, to, Some(slice));
    }
    there
}
