// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated kernel: CPUs, the queues of sched_ext, and the functions that the scheduler calls.
//!
//! [`schedule`], [`wake`] and [`enqueue`] call the scheduler in the order of `kernel/sched/ext.c`
//! of Linux 7.1. Every function with external linkage names what it stands for; those of `scx_` do
//! what their namesakes do under the run queue's lock.

use super::super::program::types;
use super::guest::{Vcpu, Vm};
use super::native;
use std::cell::{RefCell, RefMut, UnsafeCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// The PIDs of the idle thread, and of all threads of other classes. vCPUs follow.
const IDLE: usize = 0;
const ORDINARY: usize = 1;

#[derive(Default)]
pub struct Thread {
    pub cpu: usize,
    /// `None`: any CPU.
    mask: Option<BTreeSet<usize>>,
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

impl Thread {
    fn may_run_on(&self, cpu: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask.contains(&cpu))
    }
}

#[derive(Clone, Default)]
pub struct Cpu {
    /// The PID of its thread.
    current: usize,
    /// A thread of another class is runnable: it goes first.
    ordinary: bool,
    local: VecDeque<usize>,
    kicks: u64,
    /// The number of the timer's start that counts.
    timer: u64,
    ticks: bool,
}

/// A call that is due at some time.
pub type Event = Box<dyn FnOnce()>;

#[derive(Default)]
pub struct Machine {
    pub now: u64,
    /// The CPU that executes the kernel.
    pub here: usize,
    pub cpus: Vec<Cpu>,
    /// By PID.
    pub tasks: Vec<&'static TaskStruct>,
    pub threads: Vec<Thread>,
    pub vcpus: Vec<Vcpu>,
    pub vms: Vec<Vm>,
    /// By ID: virtual times and threads, in order.
    queues: Vec<VecDeque<(u64, usize)>>,
    idle: BTreeSet<usize>,
    /// By time, and in the order in which they were planned.
    events: BTreeMap<(u64, u64), Event>,
    planned: u64,
    /// What happens while the next read of a guest's memory stalls.
    pub stall: Option<Event>,
    pub random: fastrand::Rng,
}

thread_local! {
    static MACHINE: &'static RefCell<Machine> = Box::leak(Box::default());
}

/// This thread's machine. Nobody may hold it while the scheduler is called: it comes back here.
pub fn machine() -> RefMut<'static, Machine> {
    MACHINE.with(|machine| machine.borrow_mut())
}

impl Machine {
    pub fn new(cpus: usize, seed: u64) -> Machine {
        let mut machine = Machine {
            now: 1_000_000_000_000,
            cpus: vec![Cpu::default(); cpus],
            idle: (0..cpus).collect(),
            random: fastrand::Rng::with_seed(seed),
            ..Machine::default()
        };
        machine.add_thread(0, 0, Vcpu::default());
        machine.add_thread(0, 0, Vcpu::default());
        machine
    }

    /// Returns its PID.
    pub fn add_thread(&mut self, tgid: usize, cpu: usize, vcpu: Vcpu) -> usize {
        let pid = self.tasks.len();
        self.tasks.push(TaskStruct::new(pid, tgid));
        self.threads.push(Thread { cpu, ..Thread::default() });
        self.vcpus.push(vcpu);
        pid
    }

    pub fn at(&mut self, time: u64, event: impl FnOnce() + 'static) {
        self.planned += 1;
        self.events.insert((time.max(self.now), self.planned), Box::new(event));
    }

    pub fn after(&mut self, time: u64, event: impl FnOnce() + 'static) {
        self.at(self.now + time, event);
    }

    /// Goes on to the next event, if that is before `end`.
    pub fn next(&mut self, end: u64) -> Option<Event> {
        let first = self.events.first_entry().filter(|event| event.key().0 < end);
        self.now = first.as_ref().map_or(end, |event| event.key().0);
        first.map(|event| event.remove())
    }

    /// The CPU executes the kernel: `update_curr_scx`. Returns its thread.
    pub fn enter(&mut self, cpu: usize) -> usize {
        self.here = cpu;
        let pid = self.cpus[cpu].current;
        let (now, thread) = (self.now, &mut self.threads[pid]);
        let ran = now - thread.exec_start;
        thread.exec_start = now;
        thread.slice = thread.slice.saturating_sub(ran);
        thread.ran += ran;
        pid
    }

    /// How long the thread has run.
    pub fn ran(&self, pid: usize) -> u64 {
        let thread = &self.threads[pid];
        let runs = self.cpus[thread.cpu].current == pid;
        thread.ran + u64::from(runs) * (self.now - thread.exec_start)
    }

    pub fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].current == IDLE
    }

    /// `dispatch_enqueue`.
    fn insert(&mut self, pid: usize, (queue, slice, vtime): (u64, u64, u64)) {
        let thread = &mut self.threads[pid];
        thread.slice = slice;
        thread.queue = Some(queue);
        if queue == LOCAL {
            let cpu = thread.cpu;
            self.cpus[cpu].local.push_back(pid);
            if self.is_idle(cpu) {
                self.after(0, move || schedule(cpu, false));
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
        let thread = &self.threads[pid];
        let near = self.idle.range(thread.cpu..).chain(self.idle.range(..thread.cpu));
        let found = near.copied().find(|&cpu| thread.may_run_on(cpu));
        found.inspect(|cpu| _ = self.idle.remove(cpu))
    }

    fn has_slice(&self, pid: usize) -> bool {
        self.tasks[pid].is_queued() && self.threads[pid].slice > 0
    }
}

fn task(pid: usize) -> &'static TaskStruct {
    machine().tasks[pid]
}

/// `do_enqueue_task`. What the scheduler inserts is in its queue after it returned.
fn enqueue(pid: usize, flags: u64) {
    if machine().threads[pid].direct.is_none() {
        native::guard_enqueue(task(pid), flags);
    }
    let direct = machine().threads[pid].direct.take().expect("the scheduler queues every thread");
    machine().insert(pid, direct);
}

/// Something is to wake the vCPU, on CPU `here`: `try_to_wake_up`.
pub fn wake(pid: usize, here: usize) {
    if task(pid).is_queued() || !machine().is_woken(pid) {
        return;
    }
    machine().here = here;
    let now = machine().now;
    machine().threads[pid].waits = Some(now);
    let pinned = machine().threads[pid].mask.as_ref().is_some_and(|mask| mask.len() == 1);
    if !pinned {
        let prev = machine().threads[pid].cpu;
        let cpu = native::guard_select_cpu(task(pid), prev as i32, TTWU);
        machine().threads[pid].cpu = cpu as usize;
    }
    task(pid).set_queued(true);
    native::guard_runnable(task(pid), WAKEUP);
    enqueue(pid, WAKEUP);
}

/// `__schedule` on the CPU, whose thread sleeps from now on if `sleeps`.
pub fn schedule(cpu: usize, sleeps: bool) {
    let prev = machine().enter(cpu);
    if sleeps && prev > ORDINARY {
        native::guard_stopping(task(prev), false);
        task(prev).set_queued(false);
        native::guard_quiescent(task(prev), SLEEP);
    }
    let next = pick(cpu, prev);
    if next != prev {
        switch(cpu, prev, next, sleeps);
    } else if next == IDLE {
        machine().idle.insert(cpu);
    }
}

/// The thread that runs next: `pick_task_scx` with `balance_one`, after those of other classes.
fn pick(cpu: usize, prev: usize) -> usize {
    if machine().cpus[cpu].ordinary {
        return ORDINARY;
    }
    if machine().has_slice(prev) {
        return prev;
    }
    if machine().cpus[cpu].local.is_empty() {
        native::guard_dispatch(cpu as i32, (prev > ORDINARY).then(|| task(prev)));
    }
    let mut m = machine();
    let next = match m.cpus[cpu].local.front() {
        _ if m.has_slice(prev) => prev,
        Some(&pid) => pid,
        None if m.tasks[prev].is_queued() => prev,
        None => return IDLE,
    };
    if m.threads[next].slice == 0 {
        m.threads[next].slice = SLICE_DEFAULT;
    }
    next
}

/// `put_prev_task`, `set_next_task` and `context_switch`.
fn switch(cpu: usize, prev: usize, next: usize, sleeps: bool) {
    let now = machine().now;
    if prev == IDLE {
        machine().idle.remove(&cpu);
        native::guard_update_idle(cpu as i32, false);
    } else if prev > ORDINARY && !sleeps {
        native::guard_stopping(task(prev), true);
        machine().threads[prev].waits = Some(now);
        if machine().threads[prev].slice == 0 {
            enqueue(prev, 0);
        } else {
            // Another class preempts it.
            machine().threads[prev].queue = Some(LOCAL);
            machine().cpus[cpu].local.push_front(prev);
        }
    }
    if next == IDLE {
        machine().idle.insert(cpu);
        native::guard_update_idle(cpu as i32, true);
    } else if next > ORDINARY {
        let mut m = machine();
        m.remove(next, LOCAL);
        let thread = &mut m.threads[next];
        thread.exec_start = now;
        let waited = thread.waits.take().map_or(0, |since| now - since);
        thread.longest_wait = thread.longest_wait.max(waited);
        drop(m);
        native::guard_running(task(next));
    }
    let mut m = machine();
    m.cpus[cpu].current = next;
    if prev > ORDINARY {
        m.leaves(prev, !sleeps);
    }
    if next > ORDINARY {
        m.gets_cpu(next);
    }
    if !m.cpus[cpu].ticks && next != IDLE {
        m.cpus[cpu].ticks = true;
        let offset = cpu as u64 * 7_000 % TICK_NS;
        m.after(TICK_NS - (now - offset) % TICK_NS, move || tick(cpu));
    }
}

/// `yield_to`, by KVM for a vCPU that spins or kicks.
pub fn yield_to(from: usize) {
    let Some(to) = machine().yields_to(from) else { return };
    let cpu = machine().threads[from].cpu;
    machine().enter(cpu);
    let waits = machine().threads[to].queue.is_some();
    if waits && native::guard_yield(task(from), Some(task(to))) {
        schedule(cpu, false);
    }
}

/// `set_cpus_allowed_ptr`. The mask has the CPU where the thread is, or the thread sleeps.
pub fn set_mask(pid: usize, mask: BTreeSet<usize>) {
    let queued = task(pid).is_queued();
    if !queued {
        machine().threads[pid].cpu = *mask.first().expect("a mask has CPUs");
    }
    let mut m = machine();
    let queue = m.threads[pid].queue.inspect(|&queue| m.remove(pid, queue));
    let cpu = m.threads[pid].cpu;
    let runs = m.enter(cpu) == pid;
    drop(m);
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
    machine().threads[pid].mask = Some(mask);
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
fn tick(cpu: usize) {
    let current = machine().enter(cpu);
    machine().cpus[cpu].ticks = current != IDLE;
    if current != IDLE {
        machine().after(TICK_NS, move || tick(cpu));
    }
    if current > ORDINARY {
        native::guard_tick(task(current));
        if !machine().has_slice(current) {
            schedule(cpu, false);
        }
    }
}

/// The timer expires that the CPU started so many starts ago.
fn timer_expires(cpu: usize, start: u64) {
    machine().enter(cpu);
    if machine().cpus[cpu].timer == start {
        native::native_timer(cpu as u32);
    }
}

/// `kick_cpus_irq_workfn`.
fn kicked(cpu: usize) {
    let mut m = machine();
    let current = m.enter(cpu);
    let preempts = std::mem::take(&mut m.cpus[cpu].kicks) & KICK_PREEMPT != 0;
    if preempts && current > ORDINARY {
        m.threads[current].slice = 0;
    } else if current != IDLE {
        return;
    }
    drop(m);
    schedule(cpu, false);
}

/// `reenq_local`.
fn enqueue_again(cpu: usize) {
    machine().here = cpu;
    let local = std::mem::take(&mut machine().cpus[cpu].local);
    for pid in local {
        machine().threads[pid].queue = None;
        enqueue(pid, REENQ);
    }
}

/// Threads of other classes come to the CPU or go: they run for `runs` and rest for `rests` in the
/// mean.
pub fn ordinary(cpu: usize, runs: u64, rests: u64) {
    let mut m = machine();
    m.cpus[cpu].ordinary = !m.cpus[cpu].ordinary;
    let mean = if m.cpus[cpu].ordinary { runs } else { rests };
    let time = 1 + m.random.u64(..2 * mean);
    m.after(time, move || ordinary(cpu, runs, rests));
    drop(m);
    schedule(cpu, false);
}

/// Functions that the scheduler calls, of a machine.
macro_rules! kernel {
    ($($(#[$doc:meta])* fn $name:ident($m:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?
        $body:block)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] extern "C" fn $name($($arg: $kind),*) $(-> $result)? {
            let $m = &mut *machine();
            $body
        })*
    };
}

type Task = TaskStruct;
type Iter = types::bpf_iter_scx_dsq;

kernel! {
    fn bpf_ktime_get_ns(m) -> u64 { m.now }
    fn bpf_get_prandom_u32(m) -> u32 { m.random.u32(..) }
    fn bpf_get_smp_processor_id(m) -> u32 { m.here as u32 }

    /// Until a switch is over, the thread that leaves is current.
    fn bpf_get_current_task_btf(m) -> &'static Task {
        m.tasks[m.cpus[m.here].current]
    }

    fn bpf_task_from_pid(m, pid: i32) -> Option<&'static Task> {
        m.tasks.get(pid as usize).filter(|_| pid > 0).copied()
    }
    fn bpf_task_release(_m, _task: &Task) {}
    fn bpf_rcu_read_lock(_m) {}
    fn bpf_rcu_read_unlock(_m) {}

    fn bpf_cpumask_test_cpu(m, cpu: u32, of: &Task) -> bool {
        m.threads[of.pid()].may_run_on(cpu as usize)
    }

    /// Chooses one of the mask's CPUs, by chance.
    fn bpf_cpumask_any_distribute(m, of: &Task) -> u32 {
        let (count, thread) = (m.cpus.len(), &m.threads[of.pid()]);
        let first = m.random.usize(..count);
        let mut all = (first..first + count).map(|cpu| cpu % count);
        all.find(|&cpu| thread.may_run_on(cpu)).expect("a mask has CPUs") as u32
    }

    fn bpf_timer_init(_m, _timer: &types::bpf_timer, _map: *mut u8, _clock: u64) -> i64 { 0 }

    /// The timer is pinned to the CPU that starts it.
    fn bpf_timer_start(m, timer: &mut types::bpf_timer, ns: u64, _flags: u64) -> i64 {
        let cpu = m.here;
        let before = std::mem::replace(&mut timer.__opaque[0], cpu as u64 + 1);
        assert!(before == 0 || before == timer.__opaque[0], "a timer is started on another CPU");
        m.cpus[cpu].timer += 1;
        let start = m.cpus[cpu].timer;
        m.after(ns, move || timer_expires(cpu, start));
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
        m.queues[queue as usize].front().map(|first| m.tasks[first.1])
    }

    fn scx_bpf_task_cpu(m, task: &Task) -> i32 { m.threads[task.pid()].cpu as i32 }

    fn scx_bpf_task_set_slice(m, task: &Task, slice: u64) -> bool {
        m.threads[task.pid()].slice = slice;
        true
    }

    /// The thread's last CPU, or any that is idle.
    fn scx_bpf_select_cpu_dfl(m, task: &Task, last: i32, _flags: u64, idle: &mut bool) -> i32 {
        let (pid, last) = (task.pid(), last as usize);
        let stays = m.threads[pid].may_run_on(last) && m.idle.remove(&last);
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
        if flags & KICK_IDLE != 0 && target.current != IDLE && cpu as usize != m.here {
            return;
        }
        let before = target.kicks;
        target.kicks |= flags;
        if before == 0 {
            m.after(KICK_NS, move || kicked(cpu as usize));
        }
    }

    /// Acts on the thread that is just being woken or enqueued.
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
        waiting.get(place).map(|found| m.tasks[found.1])
    }

    fn bpf_iter_scx_dsq_destroy(_m, _iter: &mut Iter) {}
    fn scx_bpf_dsq_move_set_slice(_m, iter: &mut Iter, slice: u64) { iter.__opaque[3] = slice; }

    /// Acts on this CPU, soon.
    fn scx_bpf_dsq_reenq(m, _local: u64, _flags: u64) {
        let cpu = m.here;
        m.after(0, move || enqueue_again(cpu));
    }
}

/// The memory of the process whose thread is current.
#[unsafe(no_mangle)]
extern "C" fn bpf_probe_read_user(to: *mut u8, bytes: u32, from: u64) -> i64 {
    let mut m = machine();
    let current = m.cpus[m.here].current;
    let Some(source) = m.user_memory(current, from, bytes as usize) else { return FAULT };
    // SAFETY: the scheduler has room for as many bytes as it asks for.
    unsafe { to.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
    let (here, stall) = (m.here, m.stall.take());
    drop(m);
    if let Some(stall) = stall {
        stall();
        machine().here = here;
    }
    0
}

/// Moves the thread. Where it leaves the scheduler's hands, `ops.dequeue` follows.
fn move_to(pid: usize, from: u64, to: u64, slice: Option<u64>) {
    let mut m = machine();
    m.remove(pid, from);
    if to == LOCAL {
        m.threads[pid].cpu = m.here;
    }
    // The end of a queue that is not ordered by virtual time.
    let place = (to, slice.unwrap_or(m.threads[pid].slice), 0);
    m.insert(pid, place);
    drop(m);
    if to == LOCAL {
        native::guard_dequeue(task(pid), 0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn scx_bpf_dsq_move_to_local(queue: u64) -> bool {
    let m = machine();
    let mut waiting = m.queues[queue as usize].iter().map(|waits| waits.1);
    let found = waiting.find(|&pid| m.threads[pid].may_run_on(m.here));
    drop(m);
    found.inspect(|&pid| move_to(pid, queue, LOCAL, None)).is_some()
}

/// Only if the thread is still in the iterator's queue.
#[unsafe(no_mangle)]
extern "C" fn scx_bpf_dsq_move(iter: &mut Iter, task: &Task, to: u64, _flags: u64) -> bool {
    let ([from, _, _, slice, ..], pid) = (iter.__opaque, task.pid());
    let m = machine();
    let thread = &m.threads[pid];
    let there = thread.queue == Some(from) && (to != LOCAL || thread.may_run_on(m.here));
    drop(m);
    if there {
        move_to(pid, from, to, Some(slice));
    }
    there
}
