/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Whose turn it is on a CPU: the thread that runs goes on, or another is taken
 * out of its queue.
 */
#pragma once

/* How many of the shared queue are looked at for one that ran here last. */
#define LOOK_AHEAD 8

/* The thread had its CPU out of turn, and has it no longer for that reason. */
static __always_inline void end_favour(struct task *task, u64 ns)
{
	struct guest *guest = guest_of(task);

	if (guest && task->why)
		grant(task->why == WHY_RESCUED ? &guest->rescued
					       : &guest->yielded,
		      ns);
	task->why = WHY_TURN;
}

/* The thread that ran last on this CPU keeps it for ns. */
static __always_inline void keep(struct task_struct *p, struct task *task,
				 struct cpu *cpu, u32 where, u64 ns, u64 now)
{
	if (task->extension.began) {
		/* While it was alone, the look was far away. */
		look_in(cpu, where, LOOK_EXTENDED_NS, now);
		kernel_set_slice(p, ns);
		cpu->extends = 1;
		return; /* the turn goes on */
	}
	kernel_set_slice(p, cpu->limited ? ns : SLICE_FOR_KERNEL);
	end_favour(task, now - cpu->turn);
	task->used = 0;
	cpu->turn = now;
	cpu->slice = ns;
	cpu->why = WHY_TURN;
	cpu->extends = 0;
	look_soon(cpu, where, now);
}

/* Takes the next thread of the shared queue; of those whose turn is near, one
 * that ran here last. */
static __always_inline _Bool take_shared(u32 where, u64 now)
{
	struct policy_thread first = {};
	struct bpf_iter_scx_dsq it;
	struct policy_limits limit;
	struct task_struct *p;
	_Bool taken = 0;
	u32 n = 0;

	park_spent(QUEUE_SHARED, now);
	if (scx_bpf_dsq_nr_queued(QUEUE_SHARED) < 2)
		return kernel_take(QUEUE_SHARED);
	limits(&limit);
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_SHARED, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it)) && n < LOOK_AHEAD) {
			struct task *task = task_of(p);

			if (!task)
				break;
			if (!n++) {
				first = task->thread;
				first.weight = weight(task);
			}
			if (!policy_prefers(&task->thread, weight(task), &first,
					    first.weight, per_cpu(), &limit))
				break;
			if (scx_bpf_task_cpu(p) == (s32)where &&
			    may_run(p, task, now)) {
				task->early = n > 1;
				taken = kernel_move(&it, p, SCX_DSQ_LOCAL,
						    SLICE_FOR_KERNEL);
				if (!taken)
					task->early = 0;
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return taken || kernel_take(QUEUE_SHARED);
}

/* Takes the thread out of its queue. */
static __always_inline _Bool take(struct task_struct *p, struct task *task,
				  u64 to, u64 ns)
{
	struct bpf_iter_scx_dsq it;
	_Bool moved = 0;

	if (!bpf_iter_scx_dsq_new(&it, queue_id(task), 0))
		moved = kernel_move(&it, p, to, ns);
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

/* Takes the thread that somebody wants to run on this CPU next, if it waits
 * still. */
static __always_inline _Bool take_wanted(struct cpu *cpu, u32 where, u64 now)
{
	u64 wanted = cpu->wanted;
	u32 tid = wanted, why = wanted >> 32;
	struct granted *granted;
	struct task_struct *p;
	_Bool taken = 0;
	struct guest *guest;
	struct task *task;

	if (!tid)
		return 0;
	cpu->wanted = 0;
	p = bpf_task_from_pid(tid);
	if (!p)
		return 0;
	task = task_of(p);
	if (!task || !task->queued || task->why ||
	    !bpf_cpumask_test_cpu(where, p->cpus_ptr) ||
	    (task->queue && task->queue != where + 1) || !may_run(p, task, now))
		goto out;
	guest = guest_of(task);
	if (!guest)
		goto out;
	task->why = why;
	granted = why == WHY_RESCUED ? &guest->rescued : &guest->yielded;
	if (take(p, task, SCX_DSQ_LOCAL,
		 why == WHY_RESCUED ? POLICY_RESCUE_NS : SLICE_FOR_KERNEL)) {
		add(&granted->count, 1);
		taken = 1;
	} else {
		task->why = WHY_TURN;
	}
out:
	bpf_task_release(p);
	return taken;
}

/* How many of the kind that runs on the CPU it has, in hundredths. */
static __always_inline u64 of_kind(u32 kind, u32 where)
{
	s32 waiting =
		scx_bpf_dsq_nr_queued(kind ? QUEUE_CPU + where : QUEUE_SHARED);
	u64 count = (waiting > 0 ? waiting : 0) * POLICY_WEIGHT;

	if (!kind && settings.cpus)
		count /= settings.cpus;
	return count + POLICY_WEIGHT;
}

/* What the thread that runs on this CPU has run is counted for its kind. */
static __always_inline void serve(struct cpu *cpu, u32 where, u64 now)
{
	struct policy_limits limit;

	if (policy_after(now, cpu->served) <= 0)
		return;
	limits(&limit);
	policy_served(&cpu->kinds, cpu->kind, now - cpu->served,
		      of_kind(cpu->kind, where), &limit);
	cpu->served = now;
}

static __always_inline void pick(struct task_struct *prev, struct cpu *cpu,
				 u32 where, u64 now)
{
	struct task *task = 0;
	_Bool yields = cpu->yields;
	u64 ns = settings.slice;
	u32 kind;

	cpu->yields = 0;
	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		task = task_of(prev);
	/* With core scheduling, a sibling may choose for this CPU. */
	if (task && prev == bpf_get_current_task_btf()) {
		serve(cpu, where, now);
		if (yields || !waits(where)) {
			end_extension(task, 0, now);
		} else if (extend(prev, task, now) == POLICY_STAY) {
			keep(prev, task, cpu, where, settings.max_extend, now);
			return;
		} else if (task->awaits && !cpu->why && !cpu->wanted) {
			want(cpu, task->awaits, WHY_YIELDED);
		}
	}
	/* Every second turn at most is out of turn. */
	if (!cpu->why &&
	    (take_wanted(cpu, where, now) || kernel_take(QUEUE_RESCUE)))
		return;
	park_spent(QUEUE_CPU + where, now);
	kind = policy_kind(&cpu->kinds);
	if (kind && kernel_take(QUEUE_CPU + where))
		return;
	if (take_shared(where, now))
		return;
	/* Again, since one may have come while the CPU's lock was dropped. */
	if (kernel_take(QUEUE_CPU + where))
		return;
	if (kernel_take(QUEUE_RESCUE))
		return;
	if (!task)
		return;
	if (keeps_limits) {
		settle(task, now);
		ns = take_budget(prev, task, ns, now);
		cpu->limited = !!task->took;
	}
	/* Without budget it is enqueued, and parked there. */
	if (ns)
		keep(prev, task, cpu, where, ns, now);
	else {
		kernel_set_slice(prev, 0);
		/* One that exits is not enqueued: the kernel puts it where this
		 * CPU does not look unless it is asked to. */
		scx_bpf_kick_cpu(where, 0);
	}
}
