// SPDX-License-Identifier: GPL-2.0
/*
 * guard - a scheduler for virtual machines, with regard to guests' critical
 * sections and grace periods. It schedules vCPUs; the kernel schedules all
 * other threads, before any vCPU, but for the time that is reserved for vCPUs.
 * guard_policy.h decides which vCPU runs next and for how long, and explains
 * the words. This is the glue between the policy, sched_ext and guests' memory.
 *
 * Each CPU has a queue, ordered by virtual time. A vCPU waits in the queue of
 * the CPU where it ran last, or of an idle one (enqueue). A CPU takes from
 * another queue that is behind, and from any if it has nothing to run (pick). A
 * CPU takes a vCPU that is rescued out of whichever queue has it. Besides, the
 * kernel has a local queue for each CPU: the vCPU there is what it runs next.
 *
 * A slice ends in dispatch(), where the thread is still current. Its guest's
 * memory is the program's user memory then: guard reads what the vCPU is doing,
 * and may let it go on. sched_ext looks at slices on the scheduler's tick only.
 * A timer on each CPU looks more often: for the end of a slice or an extension,
 * and for vCPUs that hold up a grace period (timer_expired).
 *
 * A guest may lie in all that guard reads from it. That chooses whom guard
 * extends and rescues, within fixed bounds. It does not choose whose turn comes
 * later for that.
 */
#define REPRIEVE_GUARD
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "watch.h"
#include "maps.bpf.h"
#include "count.bpf.h"
#include "observation.bpf.h"
#include "registers.bpf.h"
#include "classify.bpf.h"
#include "guard_kernel.bpf.h"
#include "guard.h"
#include "guard_state.bpf.h"
#include "guard_share.bpf.h"
#include "guard_look.bpf.h"
#include "guard_local.bpf.h"
#include "guard_extend.bpf.h"
#include "guard_turn.bpf.h"
#include "guard_rescue.bpf.h"

/* Why the kernel ended the scheduler: its words. 0 while it runs. */
u64 exit_kind;
char exit_reason[MESSAGE_LEN];
char exit_message[MESSAGE_LEN];

SEC("struct_ops/guard_select_cpu")
s32 BPF_PROG(guard_select_cpu, struct task_struct *p, s32 prev_cpu,
	     u64 wake_flags)
{
	struct task *task = task_of(p);
	_Bool idle = 0;
	s32 cpu;

	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags & ~SCX_WAKE_SYNC,
				     &idle);
	if (idle && task) {
		task->turn.used = 0;
		task->turn.why = WHY_TURN;
		place(task, cpu, 1);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_FOR_KERNEL, 0);
	}
	return cpu;
}

/* How long a thread may take to be in its queue after enqueue(). */
#define COMES_NS 50000

SEC("struct_ops/guard_enqueue")
void BPF_PROG(guard_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);
	s32 where = scx_bpf_task_cpu(p), idle;
	struct scx_bpf_dsq_insert_vtime_args insert = {
		.slice = SLICE_FOR_KERNEL,
		.enq_flags = enq_flags,
	};
	struct cpu *cpu;
	u64 now;

	if (!task) {
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SLICE_FOR_KERNEL,
				   enq_flags);
		return;
	}
	now = bpf_ktime_get_ns();
	task->turn.used = 0;
	task->turn.why = WHY_TURN;
	/* The idle CPU's queue, so that no other CPU is before it. */
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0)
		where = idle;
	task->wait.woken = !!(enq_flags & SCX_ENQ_WAKEUP);
	insert.dsq_id = QUEUE_CPU + where;
	insert.vtime = place(task, where, task->wait.woken);
	task->wait.queued = 1;
	if (!task->wait.since)
		task->wait.since = now;
	/* clang describes a function of such a name where its address is taken.
	 */
	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime))
		__scx_bpf_dsq_insert_vtime(p, &insert);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return;
	}
	/* The thread is in the queue only after this function: a CPU may have
	 * looked there before, and be idle in a moment. last_came tells it to
	 * look again. Full barrier: before the idle CPUs are read. */
	if (policy_after(now, last_came) > COMES_NS / 4)
		__sync_lock_test_and_set(&last_came, now);
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return;
	}
	cpu = cpu_of(where);
	if (!cpu || !cpu->since)
		return;
	/* Another CPU looks at its next tick. */
	look_within(cpu, where, until(cpu, now), now);
}

SEC("struct_ops/guard_update_idle")
void BPF_PROG(guard_update_idle, s32 where, _Bool idle)
{
	u64 now = bpf_ktime_get_ns(), came = last_came;
	struct cpu *cpu = cpu_of(where);

	if (!cpu)
		return;
	cpu->idle = idle;
	if (idle)
		cpu->why = WHY_TURN;
	/* A thread that waits may have claimed the CPU, but a thread of another
	 * class came first. */
	if (!idle && scx_bpf_dsq_nr_queued(QUEUE_CPU + where) > 0)
		look_within(cpu, where, LOOK_BUSY_NS, now);
	if (!idle || policy_after(now, came) >= COMES_NS)
		return;
	scx_bpf_kick_cpu(where, SCX_KICK_IDLE);
	/* The kernel tells only once that the CPU is idle. It looks again when
	 * the thread must be in its queue. */
	look_within(cpu, where, COMES_NS, now);
}

/* The thread leaves its queue, also because it gets a CPU. */
SEC("struct_ops/guard_dequeue")
void BPF_PROG(guard_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (task)
		task->wait.queued = 0;
}

SEC("struct_ops/guard_dispatch")
void BPF_PROG(guard_dispatch, s32 where, struct task_struct *prev)
{
	u64 now = bpf_ktime_get_ns();
	struct cpu *cpu = cpu_of(where);

	if (!cpu)
		return;
	cpu->chosen = 1;
	pick(prev, cpu, where, now);
	account(now);
}

/* A vCPU that spins asks KVM, and KVM asks here, to run the vCPU that it waits
 * for. Queues may not be changed here: dispatch() follows. */
SEC("struct_ops/guard_yield")
_Bool BPF_PROG(guard_yield, struct task_struct *from, struct task_struct *to)
{
	u32 here = bpf_get_smp_processor_id(), there;
	struct cpu *cpu = cpu_of(here);
	struct task *waits = task_of(from), *task;

	if (!waits || !cpu)
		return 0;
	if (to) {
		task = task_of(to);
		if (!task || !task->wait.queued || !task->slot ||
		    !waits->slot || task->vm != waits->vm ||
		    !may_yield_to(task))
			return 0;
		there = kernel_allows(to, here) ? here : task->cpu;
		if (there != here &&
		    !yield_there(there, to->pid, bpf_ktime_get_ns()))
			return 0;
		if (there == here && cpu->wanted >> 32 != WHY_RESCUED)
			want(cpu, to->pid, WHY_YIELDED);
	}
	cpu->runs.yields = 1;
	scx_bpf_task_set_slice(from, 0);
	return 1;
}

SEC("struct_ops/guard_runnable")
void BPF_PROG(guard_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	resolve(p, task, bpf_ktime_get_ns());
	join(task, bpf_ktime_get_ns());
}

SEC("struct_ops/guard_quiescent")
void BPF_PROG(guard_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	/* If only its mask or its priority changes, its turn goes on. */
	if (deq_flags & SCX_DEQ_SLEEP) {
		task->turn.why = WHY_TURN;
		task->turn.used = 0;
		task->wait.since = 0;
	}
	task->wait.queued = 0;
	leave(task, bpf_ktime_get_ns());
}

SEC("struct_ops/guard_running")
void BPF_PROG(guard_running, struct task_struct *p)
{
	/* Not always this CPU: another one may change a thread that runs. */
	u32 where = scx_bpf_task_cpu(p);
	struct cpu *cpu = cpu_of(where);
	struct task *task = task_of(p);
	u64 now;

	if (!task || !cpu)
		return;
	now = bpf_ktime_get_ns();
	/* The thread comes from another class while it runs. */
	if (!task->thread.placed)
		place(task, where, 0);
	task->cpu = where;
	resolve(p, task, now);
	join(task, now);
	task->wait.queued = 0;
	task->wait.since = 0;
	task->wait.ticked = 0;
	task->spin.awaits = 0;
	task->spin.since = 0;
	begin(task, now);
	if (!task->turn.why && !task->turn.used)
		start(task, cpu);
	cpu->why = task->turn.why;
	cpu->runs.yields = 0;
	cpu->runs.pid = p->pid;
	cpu->runs.vm = task->slot ? task->vm + 1 : 0;
	cpu->runs.extends = 0;
	/* A thread that comes back after another class goes on with its turn,
	 * as after a change of its mask. If its turn was over (it was
	 * extended), it has a short rest. */
	cpu->slice = policy_left(task->turn.used ? task->turn.length
						 : turn_length(where),
				 task->turn.used, LOOK_EXTENDED_NS);
	cpu->since = now;
	cpu->looks.local = 0;
	cpu->chosen = 0;
	look_soon(cpu, where, now);
}

SEC("struct_ops/guard_stopping")
void BPF_PROG(guard_stopping, struct task_struct *p, _Bool runnable)
{
	u32 where = scx_bpf_task_cpu(p);
	struct cpu *cpu = cpu_of(where);
	struct task *task = task_of(p);
	u64 now, ran;

	if (!task || !cpu)
		return;
	now = bpf_ktime_get_ns();
	ran = cpu->since ? now - cpu->since : 0;
	charge(task, now);
	/* The rest of a turn, after its end, is not part of it. */
	if (!task->turn.used ||
	    task->turn.used + cpu->slice < task->turn.length)
		task->turn.length = task->turn.used + cpu->slice;
	task->turn.used += ran;
	end_extension(task, !runnable, now);
	if (has_full(task) && p == bpf_get_current_task_btf()) {
		look_at_rcu(now);
		task->left.noticed = noticed(task);
	}
	count_out_of_turn(task, ran);
	task->left.at = now;
	cpu->since = 0;
	cpu->runs.vm = 0;
	/* Another class takes the CPU, perhaps for long. */
	if (runnable && !cpu->chosen)
		look_within(cpu, where, LOOK_BUSY_NS, now);
}

/* The thread leaves for another class, perhaps for a moment: it keeps its
 * distance from its queue. */
SEC("struct_ops/guard_disable")
void BPF_PROG(guard_disable, struct task_struct *p)
{
	struct task *task = task_of(p);

	if (!task || !task->thread.placed)
		return;
	task->thread.vtime -= queue_vtime(task);
	task->thread.placed = 0;
}

SEC("struct_ops.s/guard_init_task")
s32 BPF_PROG(guard_init_task, struct task_struct *p,
	     struct scx_init_task_args *args)
{
	return bpf_task_storage_get(&tasks, p, 0,
				    BPF_LOCAL_STORAGE_GET_F_CREATE)
		       ? 0
		       : -12; /* ENOMEM */
}

SEC("struct_ops/guard_exit_task")
void BPF_PROG(guard_exit_task, struct task_struct *p,
	      struct scx_exit_task_args *args)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	leave(task, bpf_ktime_get_ns());
	repay(task);
	task->slot = 0;
}

SEC("struct_ops/guard_exit")
void BPF_PROG(guard_exit, struct scx_exit_info *ei)
{
	const char *reason = ei->reason;
	const char *message = ei->msg;

	active = 0;
	bpf_probe_read_kernel_str(exit_reason, MESSAGE_LEN, reason);
	bpf_probe_read_kernel_str(exit_message, MESSAGE_LEN, message);
	barrier();
	exit_kind = ei->kind;
}

/* Whether the turn of the vCPU that runs here, and is current, should end. */
static __always_inline _Bool over(struct cpu *cpu, struct task *task, u32 where,
				  u64 now)
{
	u64 ran = now - cpu->since;
	_Bool due, section;

	if (task->extended)
		due = now - task->extended >= MAX_EXTEND_NS;
	else if (cpu->why == WHY_RESCUED)
		due = rescue_over(task->turn.used + ran);
	else
		due = ran >= cpu->slice && waits(where);
	if (due)
		return 1;
	if (!task->extended && !waits(where))
		return 0;
	section = current_in_section(now);
	return task->spin.awaits || (task->extended && !section);
}

/* The same, after a look at its guest's RCU. Sets when to look again. */
static __always_inline _Bool look_at_vcpu(struct cpu *cpu, struct timer *timer,
					  u32 where, u64 now)
{
	struct task *task = task_of(bpf_get_current_task_btf());
	_Bool ends;

	if (!task || !task->slot)
		return 0;
	if (has_full(task))
		look_at_rcu(now);
	ends = over(cpu, task, where, now);
	/* If an extension begins here, the look at its end is in time. */
	if (ends && !task->spin.awaits && cpu->why != WHY_RESCUED &&
	    !task->extended)
		ends = extend_current(now) != POLICY_STAY;
	cpu->runs.extends = !!task->extended;
	if (cpu->runs.extends || task->spin.since == now ||
	    cpu->why == WHY_RESCUED)
		timer->next = LOOK_EXTENDED_NS;
	return ends;
}

static int timer_expired(void *map, u32 *key, struct timer *timer)
{
	u32 where = bpf_get_smp_processor_id();
	struct task_struct *p = bpf_get_current_task_btf();
	struct cpu *cpu = cpu_of(where);
	u64 now = bpf_ktime_get_ns();
	_Bool ends;

	if (!active || !cpu)
		return 0;
	/* In timer, not in a variable: the verifier would follow each value. */
	timer->next = cpu->since ? LOOK_ALONE_NS : LOOK_IDLE_NS;
	/* Near until this look is over: a tick in between starts no timer. */
	cpu->looks.next = now;
	if (cpu->since) {
		if (waits(where))
			timer->next = until(cpu, now);
		if (cpu->runs.vm && cpu->runs.pid == (u32)p->pid)
			ends = look_at_vcpu(cpu, timer, where, now);
		else
			ends = now - cpu->since >= cpu->slice && waits(where);
		/* The thread runs alone here, and another queue is behind. */
		if (!ends && !waits(where) && now - cpu->since >= cpu->slice)
			ends = behind(where, now) != where;
		if (ends)
			scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	} else if (!is_taken(cpu)) {
		/* A thread may have come to any queue while the CPU went idle.
		 */
		scx_bpf_kick_cpu(where, SCX_KICK_IDLE);
	}
	look_at_local(cpu, timer, now);
	rescue_pending(now);
	account(now);
	bpf_timer_start(&timer->timer, timer->next, BPF_F_TIMER_CPU_PIN);
	cpu->looks.next = now + timer->next;
	return 0;
}

/* The scheduler's tick. */
SEC("struct_ops/guard_tick")
void BPF_PROG(guard_tick, struct task_struct *p)
{
	u32 where = bpf_get_smp_processor_id();
	struct cpu *cpu = cpu_of(where);
	u64 now = bpf_ktime_get_ns();
	struct guest *guest;
	struct task *task;

	if (!cpu || !cpu->since)
		return;
	/* The thread that dispatch() chose did not come to run. */
	cpu->chosen = 0;
	look_soon(cpu, where, now);
	/* While the vCPU is alone, the timer rarely looks at its guest. */
	if (p != bpf_get_current_task_btf())
		return;
	task = task_of(p);
	guest = task ? guest_of(task) : 0;
	if (guest && guest->full &&
	    policy_after(now, guest->grace.looked) >= LOOK_BUSY_NS)
		look_at_rcu(now);
}

SEC("struct_ops.s/guard_init")
s32 BPF_PROG(guard_init)
{
	struct timer *timer;
	s32 failed;
	u32 i;

	bpf_for(i, 0, MAX_CPUS)
	{
		if (i >= settings.cpus)
			break;
		failed = scx_bpf_create_dsq(QUEUE_CPU + i, -1);
		if (failed)
			return failed;
		timer = bpf_map_lookup_elem(&timers, &i);
		if (!timer)
			return -2; /* ENOENT */
		bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&timer->timer, timer_expired);
	}
	active = 1;
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops guard_ops = {
	.select_cpu = (void *)guard_select_cpu,
	.enqueue = (void *)guard_enqueue,
	.dequeue = (void *)guard_dequeue,
	.dispatch = (void *)guard_dispatch,
	.yield = (void *)guard_yield,
	.runnable = (void *)guard_runnable,
	.running = (void *)guard_running,
	.stopping = (void *)guard_stopping,
	.tick = (void *)guard_tick,
	.quiescent = (void *)guard_quiescent,
	.update_idle = (void *)guard_update_idle,
	.init_task = (void *)guard_init_task,
	.exit_task = (void *)guard_exit_task,
	.disable = (void *)guard_disable,
	.init = (void *)guard_init,
	.exit = (void *)guard_exit,
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms = 20000,
	.name = "reprieve_guard",
};

char LICENSE[] SEC("license") = "GPL";
