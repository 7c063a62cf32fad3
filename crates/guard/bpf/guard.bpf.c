// SPDX-License-Identifier: GPL-2.0
/*
 * guard - a scheduler for hosts of virtual machines, with regard to guests'
 * critical sections and grace periods. Who runs next and for how long is
 * guard_policy.h; this is the glue between it, sched_ext and guests' memory.
 *
 * Threads wait in the queue of a domain, for all CPUs with one last-level
 * cache, or in that of their CPU if they may run there only, ordered by virtual
 * time. A third queue holds rescued vCPUs.
 *
 * A slice ends in dispatch(), where the thread is still current: its guest's
 * memory is the program's user memory, so what the vCPU is doing can be read,
 * and it may be kept. sched_ext looks at slices on the scheduler's tick only,
 * so a timer on each CPU looks more often: for the end of a slice, of a section
 * that was extended, and for vCPUs that owe their guest a quiescent state.
 *
 * Whatever is read from a guest may be a lie. It decides who is extended and
 * rescued, within fixed bounds, and never at whose expense.
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
#include "guard_policy.h"
#include "guard_bandwidth.h"
#include "guard_state.bpf.h"
#include "guard_hints.bpf.h"
#include "guard_taskgroup.bpf.h"
#include "guard_share.bpf.h"
#include "guard_bandwidth.bpf.h"
#include "guard_look.bpf.h"
#include "guard_higher.bpf.h"
#include "guard_extend.bpf.h"
#include "guard_turn.bpf.h"
#include "guard_rescue.bpf.h"

/* Why the kernel ended the scheduler: its words. 0 while it runs. */
u64 exit_kind;
s64 exit_code;
char exit_reason[MESSAGE_LEN];
char exit_message[MESSAGE_LEN];

SEC("struct_ops/guard_select_cpu")
s32 BPF_PROG(guard_select_cpu, struct task_struct *p, s32 prev_cpu,
	     u64 wake_flags)
{
	u32 here = bpf_get_smp_processor_id();
	struct task *task = task_of(p);
	struct cpu *runs = cpu_of(here);
	_Bool idle = 0;
	u64 now;
	s32 cpu;

	/* It is parked: no idle CPU is claimed for it. */
	now = bpf_ktime_get_ns();
	if (task && !may_run(p, task, now))
		return prev_cpu;
	/* The kernel may choose this CPU, whose thread is about to sleep. Those
	 * that wait for it have their turn first: two threads that wake each
	 * other would keep it, since it asks for no other as long as one is in
	 * its local queue. A thread of a higher class may not sleep after all.
	 */
	if (wake_flags & SCX_WAKE_SYNC &&
	    (waits(here, now) || runs_higher(runs)))
		wake_flags &= ~SCX_WAKE_SYNC;
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle && task) {
		task->used = 0;
		task->why = WHY_TURN;
		place(p, task, cpu, 1, now);
		kernel_insert(p, SCX_DSQ_LOCAL, SLICE_FOR_KERNEL, 0);
		/* The thread of this CPU may go on for long after all. */
		if (wake_flags & SCX_WAKE_SYNC && cpu == (s32)here && runs &&
		    runs->turn)
			end_turn(runs, here, LOOK_EXTENDED_NS, now);
	}
	return cpu;
}

/* How long whom the CPU runs may go on until the thread, which was woken,
 * should run instead. 0: at once. */
static __always_inline u64 preempts_in(const struct task *task,
				       const struct cpu *cpu, s32 where,
				       u64 now)
{
	struct policy_limits limit;
	u64 served = cpu->served;
	u32 kind = !!task->queue;
	u64 ran;

	if (policy_after(now, cpu->turn + cpu->slice) >= 0)
		return 0;
	limits(&limit);
	if (kind == cpu->kind)
		return policy_preempts_in(&task->thread, &cpu->thread, 0, now,
					  &limit);
	ran = policy_after(now, served) > 0 ? now - served : 0;
	return policy_kind_preempts_in(
		&cpu->kinds, kind,
		policy_scaled(ran, of_kind(cpu, cpu->kind, where)),
		now - cpu->turn, &limit);
}

/* The CPU drops whom it runs for the thread, which was woken, if and as soon as
 * it should. */
static __always_inline void preempt(struct task_struct *p, struct task *task,
				    s32 where, u64 now)
{
	_Bool here = where == (s32)bpf_get_smp_processor_id();
	u64 left, less = settings.slice / 2;
	struct cpu *cpu = cpu_of(where);

	if (!cpu || !cpu->turn)
		return;
	left = preempts_in(task, cpu, where, now);
	if (left == POLICY_NEVER)
		return;
	/* A vCPU that should not run at once waits for its turn. */
	if (task->slot && left)
		return;
	if (!task->slot)
		cpu->woken = p->pid;
	/* An extension and a rescue end soon, and are looked at often. */
	if (cpu->extends || cpu->why == WHY_RESCUED)
		return;
	/* An ordinary thread that wakes another is in the middle of the host
	 * kernel's work, perhaps in a reader whose end the other waits for. */
	if (!left && here && !cpu->slot &&
	    cpu->pid == (u32)bpf_get_current_task_btf()->pid)
		left = LOOK_EXTENDED_NS;
	/* No timer can be started for another CPU. Where its own would come
	 * too late, who was woken runs at once if it has had less. */
	if (cpu->kind == !!task->queue)
		less = less * cpu->thread.weight / POLICY_WEIGHT;
	if (!here && policy_after(cpu->look, now + left) > 0 && left < less)
		left = 0;
	if (left)
		end_turn(cpu, where, left, now);
	else
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
}

/* How long a thread that comes may take to be in its queue. */
#define COMES_NS 50000

SEC("struct_ops/guard_enqueue")
void BPF_PROG(guard_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);
	u64 vtime, now;
	s32 cpu, idle = -1;
	struct cpu *runs;
	u32 lacks;

	if (!task) {
		kernel_insert(p, SCX_DSQ_GLOBAL, SLICE_FOR_KERNEL, enq_flags);
		return;
	}
	now = bpf_ktime_get_ns();
	task->used = 0;
	task->why = WHY_TURN;
	task->early = 0;
	task->changes = 0;
	__sync_lock_test_and_set(&task->parked, 0);
	lacks = keeps_limits ? lacks_budget(p, task, now) : 0;
	if (lacks) {
		parks(task, now);
		kernel_insert_vtime(p, QUEUE_PARKED + lacks - 1,
				    SLICE_FOR_KERNEL, task->waits, enq_flags);
		return;
	}
	/* The idle CPU's queue, so that no other CPU is before it. */
	if (settings.domains > 1 && p->nr_cpus_allowed > 1 &&
	    !(enq_flags & SCX_ENQ_LAST))
		idle = kernel_claim_idle(p);
	vtime = place(p, task, idle >= 0 ? idle : near(p),
		      !!(enq_flags & SCX_ENQ_WAKEUP), now);
	if (enq_flags & SCX_ENQ_LAST) {
		kernel_insert(p, SCX_DSQ_LOCAL, SLICE_FOR_KERNEL, enq_flags);
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), 0);
		return;
	}
	heads(task, vtime);
	task->queued = 1;
	if (!task->waits)
		task->waits = now;
	kernel_insert_vtime(p, queue_id(task), SLICE_FOR_KERNEL, vtime,
			    enq_flags);
	if (task->queue) {
		cpu = task->queue - 1;
		if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return;
		}
	} else {
		cpu = idle;
		if (cpu < 0) {
			/* It is in the queue only after this: a CPU may have
			 * looked there, and be idle in a moment. Full barrier:
			 * it says so first. */
			if (settings.domains > 1 &&
			    (u64)p->nr_cpus_allowed > cpus_of(task->domain) &&
			    policy_after(now, comes_anywhere) > COMES_NS / 4)
				comes_anywhere = now;
			__sync_lock_test_and_set(
				&domain_at(task->domain)->comes, now);
			cpu = kernel_claim_idle(p);
		}
		if (cpu >= 0) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return;
		}
		cpu = scx_bpf_task_cpu(p);
	}
	hints_publish(cpu);
	runs = cpu_of(cpu);
	if (runs && runs->apart && !task->queue && kernel_allows(p, cpu))
		runs->apart = 0;
	if (enq_flags & SCX_ENQ_WAKEUP)
		preempt(p, task, cpu, now);
	/* Another CPU looks at its next tick. */
	if (runs && runs->turn)
		look_for_one(runs, cpu, now);
}

SEC("struct_ops/guard_update_idle")
void BPF_PROG(guard_update_idle, s32 where, _Bool idle)
{
	struct cpu *cpu = cpu_of(where);
	u64 comes = domain_at(domain_of(where))->comes;
	u64 now = bpf_ktime_get_ns();

	if (!cpu)
		return;
	/* It takes threads of other domains, too. */
	if (settings.domains > 1 && policy_after(comes_anywhere, comes) > 0)
		comes = comes_anywhere;
	cpu->idle = idle;
	if (!idle) {
		look_for_claimed(cpu, where, now);
		return;
	}
	if (policy_after(now, comes) >= COMES_NS)
		return;
	scx_bpf_kick_cpu(where, SCX_KICK_IDLE);
	/* The kernel tells once that it is idle: again when it must be there.
	 */
	if (looks_after(cpu, COMES_NS, now))
		look_in(cpu, where, COMES_NS, now);
}

/* The thread leaves its queue: since Linux 7.1 also because it gets a CPU. */
SEC("struct_ops/guard_dequeue")
void BPF_PROG(guard_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (task)
		task->queued = 0;
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

/* A vCPU that spins asks KVM, and KVM asks here, to run the one that it waits
 * for. Queues may not be changed here: dispatch() follows. */
SEC("struct_ops/guard_yield")
_Bool BPF_PROG(guard_yield, struct task_struct *from, struct task_struct *to)
{
	u32 here = bpf_get_smp_processor_id(), there;
	struct cpu *cpu = cpu_of(here);
	struct task *waits = task_of(from), *task;
	struct policy_limits limit;
	struct group *group;
	struct guest *guest;

	if (!waits || !cpu)
		return 0;
	if (to) {
		task = task_of(to);
		if (!task || !task->queued || !task->slot || !waits->slot ||
		    task->vm != waits->vm)
			return 0;
		group = group_of(task);
		guest = guest_of(task);
		if (!group || !guest)
			return 0;
		limits(&limit);
		if (!may_yield_to(task, group, &limit)) {
			add(&guest->yielded.refused, 1);
			return 0;
		}
		there = task->queue ? task->queue - 1 : here;
		if (!kernel_allows(to, there))
			return 0;
		if (there == here)
			want(cpu, to->pid, WHY_YIELDED);
		else if (!yield_there(there, to->pid, bpf_ktime_get_ns()))
			return 0;
	}
	cpu->yields = 1;
	kernel_set_slice(from, 0);
	return 1;
}

SEC("struct_ops/guard_runnable")
void BPF_PROG(guard_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);
	u64 now;

	if (!task)
		return;
	now = bpf_ktime_get_ns();
	/* As what it was: the change may be that of its cgroup. */
	if (task->changes)
		count_run(task, now);
	__sync_lock_test_and_set(&task->runnable, 1);
	count_in(p, task, now);
	if (task->changes)
		begin(task, now);
	else if (!task->slot)
		weigh(task, now, 0);
}

/* The thread is not runnable any more. */
static __always_inline void not_runnable(struct task *task)
{
	falls_asleep(task);
	__sync_lock_test_and_set(&task->runnable, 0);
	count_out(task, bpf_ktime_get_ns());
}

SEC("struct_ops/guard_quiescent")
void BPF_PROG(guard_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	/* Its turn or its rescue goes on where only its mask or its priority
	 * changes. If it runs it goes on running: what a change takes is its
	 * own time, and it may change them all the time. */
	task->changes = task->stops && !(deq_flags & SCX_DEQ_SLEEP);
	task->stops = 0;
	if (deq_flags & SCX_DEQ_SLEEP) {
		task->why = WHY_TURN;
		task->used = 0;
		task->waits = 0;
	}
	/* Before Linux 7.1, dequeue() says nothing of a change of class. */
	task->queued = 0;
	if (!task->changes)
		not_runnable(task);
}

SEC("struct_ops/guard_running")
void BPF_PROG(guard_running, struct task_struct *p)
{
	/* Not always this CPU: another one may change a thread that runs. */
	u32 where = scx_bpf_task_cpu(p);
	struct cpu *cpu = cpu_of(where);
	struct task *task = task_of(p);
	u64 now, from;
	_Bool goes_on;

	if (!task || !cpu)
		return;
	now = bpf_ktime_get_ns();
	goes_on = task->changes;
	from = goes_on ? task->left : now;
	task->changes = 0;
	task->stops = 0;
	if (goes_on)
		count_run(task, now);
	count_in(p, task, now);
	/* It comes back from a higher class while it runs. */
	if (task->unplaced)
		place_thread(p->pid, 0, now);
	task->queued = 0;
	task->waits = 0;
	task->ticked = 0;
	task->two_at = 0;
	task->awaits = 0;
	task->spins_since = 0;
	if (task->why != WHY_RESCUED)
		no_longer_spins(task);
	begin(task, now);
	if (!task->why && !task->used)
		start(task, cpu, now);
	task->early = 0;
	cpu->why = task->why;
	cpu->yields = 0;
	show_thread(cpu, task);
	cpu->pid = p->pid;
	cpu->slot = task->slot;
	cpu->kind = !!task->queue;
	task->home = p->nr_cpus_allowed == 1 ? where + 1 : 0;
	cpu->extends = 0;
	cpu->watched = does(task, DOES_EXTEND | DOES_RESCUE);
	/* Who comes back after a higher class goes on with its turn, as after a
	 * change of its CPUs or its priority. One whose turn was over comes
	 * back from an extension. */
	cpu->slice = policy_left(task->used ? task->length : turn_length(where),
				 task->used, OVERDUE_SLICE_NS);
	cpu->limited = 0;
	if (keeps_limits) {
		u64 left;

		if (task->why == WHY_RESCUED)
			cpu->slice = longest_rescue();
		left = cpu->slice;
		cpu->slice = take_budget(p, task, left, now);
		cpu->limited = !!task->took;
		if (cpu->limited)
			task->took = from;
		/* Not more for one that is changed again and again. */
		if (!cpu->slice)
			cpu->slice = left < OVERDUE_SLICE_NS ? left
							     : OVERDUE_SLICE_NS;
		/* A change gives nothing back that a kick has taken. */
		if (cpu->limited && (!goes_on || p->scx.slice > cpu->slice))
			kernel_set_slice(p, cpu->slice);
	}
	cpu->turn = from;
	cpu->enqueues = 0;
	cpu->chosen = 0;
	cpu->served = from;
	look_as_before(cpu, where, now);
	/* Most ordinary threads sleep before their slice ends, and leave the
	 * CPU to a vCPU, for which a look is an exit: their tick brings it
	 * near. */
	if (cpu->slot || cpu->limited)
		look_soon(cpu, where, now);
	hints_publish(where);
}

SEC("struct_ops/guard_stopping")
void BPF_PROG(guard_stopping, struct task_struct *p, _Bool runnable)
{
	u32 where = scx_bpf_task_cpu(p);
	struct cpu *cpu = cpu_of(where);
	struct task *task = task_of(p);
	struct guest *guest;
	struct group *group;
	u64 now, ran;

	if (!task || !cpu)
		return;
	now = bpf_ktime_get_ns();
	ran = charge(task, now);
	if (keeps_limits)
		settle(task, now);
	task->overdue = 0;
	serve(where, now);
	/* What is left, after its end, is not part of it. */
	if (!task->used || task->used + cpu->slice < task->length)
		task->length = task->used + cpu->slice;
	task->used = cpu->turn ? task->used + now - cpu->turn : 0;
	guest = guest_of(task);
	group = group_of(task);
	end_extension(task, !runnable, now);
	if (guest && group) {
		add(&guest->on_cpu_ns, ran);
		entitle(group, guest, now);
		if (guest->policies & DOES_RESCUE &&
		    p == bpf_get_current_task_btf()) {
			if (guest->spun_for == task->slot)
				guest->spun_for = 0;
			look(now, !runnable);
			task->noticed = noticed(task);
		}
	}
	count_favour(task, now - cpu->turn);
	if (!runnable)
		hints_publish(where);
	task->left = now;
	task->stops = !runnable;
	cpu->turn = 0;
	cpu->slot = 0;
	cpu->pid = 0;
	if (runnable && !cpu->chosen)
		look_for_higher(cpu, where, now);
}

SEC("struct_ops/guard_set_weight")
void BPF_PROG(guard_set_weight, struct task_struct *p, u32 weight)
{
	struct task *task = task_of(p);

	if (task)
		task->own = weight;
}

SEC("struct_ops/guard_set_cpumask")
void BPF_PROG(guard_set_cpumask, struct task_struct *p,
	      const struct cpumask *mask)
{
	struct task *task = task_of(p);

	if (task)
		task->masked = 1;
}

/* The thread leaves for another class, perhaps for a moment. */
SEC("struct_ops/guard_disable")
void BPF_PROG(guard_disable, struct task_struct *p)
{
	struct task *task = task_of(p);
	struct policy_queue at;
	struct mask *mask;

	if (!task)
		return;
	if (task->changes)
		not_runnable(task);
	task->changes = 0;
	/* Who ends is disabled first. */
	if (p->flags & PF_EXITING)
		return;
	task->left_class = 1;
	if (task->unplaced)
		return;
	mask = mask_of(task);
	if (mask)
		move_on(task, mask);
	seen(task, &at);
	task->thread.vtime -= at.vtime;
	task->unplaced = 1;
}

SEC("struct_ops/guard_enable")
void BPF_PROG(guard_enable, struct task_struct *p)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	task->own = p->scx.weight;
	task->thread.weight = task->slot ? POLICY_WEIGHT : task->own;
	if (!task->left_class)
		born(p, task);
	task->left_class = 0;
	task->queue = 0;
	task->domain = 0;
	task->mask = 0;
	task->masked = 1;
	task->generation = ~0ULL;
}

SEC("struct_ops.s/guard_init_task")
s32 BPF_PROG(guard_init_task, struct task_struct *p,
	     struct scx_init_task_args *args)
{
	struct task *task = bpf_task_storage_get(
		&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!task)
		return -12; /* ENOMEM */
	if (args->fork)
		task->parent = bpf_get_current_task_btf()->pid;
	return 0;
}

SEC("struct_ops/guard_exit_task")
void BPF_PROG(guard_exit_task, struct task_struct *p,
	      struct scx_exit_task_args *args)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	bequeath(p, task);
	__sync_lock_test_and_set(&task->runnable, 0);
	count_out(task, bpf_ktime_get_ns());
	repay(task);
	detach(task);
	task->slot = 0;
	release_taskgroup(task->taskgroup);
	task->taskgroup = 0;
}

SEC("struct_ops.s/guard_init")
s32 BPF_PROG(guard_init)
{
	s32 failed;
	u32 i;

	bpf_for(i, 0, MAX_LIMITS)
	{
		if (!keeps_limits)
			break;
		failed = scx_bpf_create_dsq(QUEUE_PARKED + i, -1);
		if (failed)
			return failed;
	}
	bpf_for(i, 0, MAX_DOMAINS)
	{
		if (i >= settings.domains)
			break;
		failed = scx_bpf_create_dsq(QUEUE_SHARED + i, -1);
		if (failed)
			return failed;
		failed = scx_bpf_create_dsq(QUEUE_RESCUE + i, -1);
		if (failed)
			return failed;
	}
	bpf_for(i, 0, MAX_CPUS)
	{
		if (i >= settings.cpus)
			break;
		failed = scx_bpf_create_dsq(QUEUE_CPU + i, -1);
		if (failed)
			return failed;
	}
	return 0;
}

SEC("struct_ops/guard_exit")
void BPF_PROG(guard_exit, struct scx_exit_info *ei)
{
	const char *reason = ei->reason;
	const char *message = ei->msg;

	active = 0;
	exit_code = ei->exit_code;
	bpf_probe_read_kernel_str(exit_reason, MESSAGE_LEN, reason);
	bpf_probe_read_kernel_str(exit_message, MESSAGE_LEN, message);
	barrier();
	exit_kind = ei->kind;
}

/* A vCPU runs here and is current: whether its turn should end now. */
static __always_inline _Bool over(struct cpu *cpu, struct task *task, u32 where,
				  u64 now)
{
	u64 ran = now - cpu->turn;
	_Bool due, section;

	if (task->extension.began)
		due = now - task->extension.began >= settings.max_extend;
	else if (cpu->why == WHY_RESCUED)
		due = rescue_over(task->used + ran) ||
		      (cpu->limited && ran >= cpu->slice);
	else
		due = ran >= cpu->slice && (cpu->limited || waits(where, now));
	if (due)
		return 1;
	if (!task->extension.began && !waits(where, now))
		return 0;
	section = current_in_section(now);
	return task->awaits || (task->extension.began && !section);
}

static int timer_expired(void *map, u32 *key, struct timer *timer)
{
	u32 where = bpf_get_smp_processor_id();
	struct task_struct *p = bpf_get_current_task_btf();
	struct cpu *cpu = cpu_of(where);
	u64 now = bpf_ktime_get_ns();
	u64 next, parked;

	if (!active || !cpu)
		return 0;
	if (!timers_run)
		timers_run = 1;
	/* Kept there: the verifier would follow each value to the end. */
	timer->next = settings.look_alone;
	if (!cpu->turn && timer->next > LOOK_IDLE_NS)
		timer->next = LOOK_IDLE_NS;
	/* Near, while it is decided: a tick in between starts no timer. */
	cpu->look = now;
	cpu->brought = 0;
	if (cpu->turn) {
		_Bool ends = 0;

		survey_if_due(cpu, where, now);
		if (cpu->limited || waits(where, now))
			timer->next = until(cpu, now);
		if (cpu->slot && cpu->pid == (u32)p->pid) {
			struct task *task = task_of(p);

			if (task && task->slot) {
				if (does(task, DOES_RESCUE))
					look(now, 0);
				ends = over(cpu, task, where, now);
				/* Another one is to be rescued instead. */
				if (task->awaits && cpu->why == WHY_RESCUED)
					look(now, 0);
				/* Begun here, it is looked at in time. */
				if (ends && !task->awaits &&
				    cpu->why != WHY_RESCUED &&
				    !task->extension.began)
					ends = extend_current(now) !=
					       POLICY_STAY;
				cpu->extends = !!task->extension.began;
				if (cpu->extends || task->spins_since == now ||
				    cpu->why == WHY_RESCUED)
					timer->next = LOOK_EXTENDED_NS;
			}
		} else {
			struct task *task = 0;

			ends = now - cpu->turn >= cpu->slice &&
			       (cpu->limited || waits(where, now));
			if (cpu->pid == (u32)p->pid)
				task = task_of(p);
			if (task && !task->slot) {
				ends = hints_over(p, task, ends, now);
				cpu->extends = !!task->extension.began;
				if (cpu->extends)
					timer->next = LOOK_EXTENDED_NS;
			}
		}
		/* It runs alone here, and others wait for longer elsewhere. */
		if (!ends && settings.domains > 1 && !waits(where, now) &&
		    now - cpu->turn >= cpu->slice)
			ends = behind(where, now) != domain_of(where);
		if (ends)
			scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	} else if (waits_anywhere(where, now)) {
		/* Only if it is idle: one may have come as it went idle. */
		scx_bpf_kick_cpu(where, SCX_KICK_IDLE);
		if (runs_higher(cpu))
			wake_another(where);
	}
	look_at_local(cpu, timer, now);
	cpu->due = 0;
	rescue_pending(now);
	unpark(now);
	next = timer->next;
	if (cpu->due && cpu->turn) {
		s64 due = policy_after(cpu->due, bpf_ktime_get_ns());

		if (due < (s64)next)
			next = due > 0 ? due : 1;
	}
	parked = unpark_in(where, now);
	if (parked < next)
		next = parked;
	/* Who is parked on an idle machine waits for no other event. */
	if (keeps_limits && limits_used && next > LOOK_LIMITED_NS)
		next = LOOK_LIMITED_NS;
	/* One may have been woken meanwhile, and have shortened the turn. */
	if (cpu->turn && cpu->woken) {
		u64 left = until(cpu, now);

		if (left < next)
			next = left;
		/* Another CPU has taken it: no more looks for that. */
		if (policy_after(now, cpu->turn + cpu->slice) >= 0 &&
		    !waits(where, now))
			cpu->woken = 0;
	}
	account(now);
	bpf_timer_start(&timer->timer, next, BPF_F_TIMER_CPU_PIN);
	cpu->look = now + next;
	return 0;
}

/* The scheduler's tick. */
SEC("struct_ops/guard_ticks")
void BPF_PROG(guard_ticks, struct task_struct *p)
{
	u32 where = bpf_get_smp_processor_id();
	struct cpu *cpu = cpu_of(where);
	u64 now = bpf_ktime_get_ns();
	struct guest *guest;
	struct task *task;

	if (!cpu || !cpu->turn)
		return;
	/* Whom it had chosen before is gone. */
	cpu->chosen = 0;
	survey_if_due(cpu, where, now);
	look_soon(cpu, where, now);
	/* While it is alone, its timer rarely looks whom its guest waits for.
	 */
	if (p != bpf_get_current_task_btf())
		return;
	task = task_of(p);
	guest = task ? guest_of(task) : 0;
	if (guest && guest->policies & DOES_RESCUE &&
	    policy_after(now, guest->looked) >= LOOK_BUSY_NS)
		look(now, 0);
}

/* Runs once on each CPU. */
SEC("syscall")
int guard_start_timer(void *context)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct timer *timer = bpf_map_lookup_elem(&timers, &cpu);

	if (!timer)
		return -1;
	bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, timer_expired);
	return bpf_timer_start(&timer->timer, LOOK_BUSY_NS,
			       BPF_F_TIMER_CPU_PIN);
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
	.tick = (void *)guard_ticks,
	.quiescent = (void *)guard_quiescent,
	.set_weight = (void *)guard_set_weight,
	.set_cpumask = (void *)guard_set_cpumask,
	.update_idle = (void *)guard_update_idle,
	.init_task = (void *)guard_init_task,
	.exit_task = (void *)guard_exit_task,
	.enable = (void *)guard_enable,
	.disable = (void *)guard_disable,
	.cgroup_init = (void *)guard_cgroup_init,
	.cgroup_exit = (void *)guard_cgroup_exit,
	.cgroup_set_bandwidth = (void *)guard_set_bandwidth,
	.init = (void *)guard_init,
	.exit = (void *)guard_exit,
	/* Threads that exit would wait in the CPU's local queue otherwise, and
	 * as long as one is there, the kernel asks for no other. */
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_EXITING,
	.timeout_ms = 20000,
	.name = "reprieve_guard",
};

char LICENSE[] SEC("license") = "GPL";
