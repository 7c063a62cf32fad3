/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Who runs next on a CPU (pick): the thread that runs goes on, or another is
 * taken out of a queue. The order: an extension, a vCPU that is wanted out of
 * turn, an overdue thread, another queue that is behind, the least virtual time
 * here, any queue.
 *
 * Invariant: no CPU runs two threads out of turn in a row, and a CPU that has
 * nothing to run looks into every queue.
 */
#pragma once

static __always_inline struct granted *granted_for(struct guest *guest, u32 why)
{
	return why == WHY_RESCUED ? &guest->did.rescued : &guest->did.yielded;
}

/* Counts the ns that the thread ran, if out of turn. If a thread of another
 * class takes the CPU meanwhile, the run goes on afterwards. */
static __always_inline void count_out_of_turn(struct task *task, u64 ns)
{
	struct guest *guest = guest_of(task);

	if (guest && task->turn.why) {
		grant(granted_for(guest, task->turn.why), ns);
		borrow(task, ns);
	}
}

/* How many other queues a CPU looks at, by chance. */
#define LOOK_ELSEWHERE 2
/* If no thread there may run here, the CPU looks again after so long. */
#define LOOK_ELSEWHERE_NS 20000000ULL

/* The virtual time and the weight of the first thread that waits in the CPU's
 * queue. */
static __always_inline _Bool first_of(u32 where, u64 *vtime, u64 *its_weight)
{
	struct task_struct *p;
	struct task *task;

	bpf_rcu_read_lock();
	p = scx_bpf_dsq_peek(QUEUE_CPU + where);
	task = p ? task_of(p) : 0;
	if (task) {
		*vtime = task->thread.vtime;
		*its_weight = weight(task);
	}
	bpf_rcu_read_unlock();
	return !!task;
}

/* The CPU of another queue that is so far behind that its first thread should
 * run here; else this CPU. */
__noinline u32 behind(u32 where, u64 now)
{
	u64 here = 0, here_weight = 0, there = 0, there_weight = 0;
	struct task *task = task_of(bpf_get_current_task_btf());
	struct cpu *cpu = cpu_of(where);
	_Bool waiting;
	u64 running;
	u32 i;

	if (settings.cpus < 2 || !cpu ||
	    policy_after(now, cpu->looks.elsewhere) < 0)
		return where;
	waiting = first_of(where, &here, &here_weight);
	if (!waiting && !cpu->since)
		return where;
	/* The thread that runs may have another turn. */
	if (cpu->since && task) {
		running = task->thread.vtime;
		if (policy_after(now, task->thread.began) > 0)
			running += policy_scaled(now - task->thread.began,
						 weight(task));
		if (!waiting || policy_after(running, here) < 0) {
			here = running;
			here_weight = weight(task);
		}
	}
	bpf_for(i, 0, LOOK_ELSEWHERE)
	{
		u32 other =
			where + 1 + bpf_get_prandom_u32() % (settings.cpus - 1);

		if (other >= settings.cpus)
			other -= settings.cpus;
		if (first_of(other, &there, &there_weight) &&
		    policy_behind(there, there_weight, here, here_weight,
				  per_cpu()))
			return other;
	}
	return where;
}

/* Takes a thread of any other queue. */
__noinline int take_anywhere(u32 where)
{
	u32 other = where, i;

	bpf_for(i, 1, MAX_CPUS)
	{
		if (i >= settings.cpus)
			break;
		if (++other >= settings.cpus)
			other = 0;
		if (scx_bpf_dsq_nr_queued(QUEUE_CPU + other) > 0 &&
		    scx_bpf_dsq_move_to_local(QUEUE_CPU + other))
			return 1;
	}
	return 0;
}

/* A thread that waits for so long runs next, whatever its virtual time: threads
 * that come later may hold back one of little weight. The kernel would end
 * guard after 20 s. */
#define OVERDUE_NS 8000000000LL
#define LOOK_OVERDUE_NS 200000000ULL
/* How many threads of a queue take_overdue looks at, from its end. */
#define LOOK_OVERDUE 1024

/* Takes a thread that waits for too long in this CPU's queue. */
__noinline int take_overdue(u32 where, u64 now)
{
	struct cpu *cpu = cpu_of(where);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	struct task *task;
	int taken = 0;
	u32 n;

	if (!cpu || policy_after(now, cpu->looks.overdue) < 0)
		return 0;
	cpu->looks.overdue = now + LOOK_OVERDUE_NS;
	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_CPU + where, SCX_DSQ_ITER_REV)) {
		bpf_for(n, 0, LOOK_OVERDUE)
		{
			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			task = task_of(p);
			if (!task || !task->wait.since ||
			    policy_after(now, task->wait.since) < OVERDUE_NS)
				continue;
			/* The thread's lead is forgiven. */
			if (policy_after(task->thread.vtime, cpu->vtime) > 0)
				task->thread.vtime = cpu->vtime;
			scx_bpf_dsq_move_set_slice(&it, SLICE_FOR_KERNEL);
			taken = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
			cpu->looks.overdue = now; /* there may be more */
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return taken;
}

/* Takes the vCPU that is wanted out of turn on this CPU, if it waits still, and
 * may run here. */
__noinline int take_wanted(u32 where)
{
	struct cpu *cpu = cpu_of(where);
	u64 wanted = cpu ? cpu->wanted : 0;
	u32 tid = wanted, why = wanted >> 32;
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	_Bool taken = 0;
	struct guest *guest;
	struct task *task;

	if (!cpu || !tid)
		return 0;
	cpu->wanted = 0;
	p = bpf_task_from_pid(tid);
	if (!p)
		return 0;
	task = task_of(p);
	guest = task && task->wait.queued ? guest_of(task) : 0;
	/* Another CPU may have taken it out of turn already. */
	if (!guest || __sync_val_compare_and_swap(&task->turn.why, WHY_TURN,
						  why) != WHY_TURN)
		goto out;
	bpf_rcu_read_lock();
	/* If the thread joins a queue anew from here on, perhaps with another
	 * mask, the kernel refuses. */
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_CPU + task->cpu, 0) &&
	    bpf_cpumask_test_cpu(where, p->cpus_ptr)) {
		scx_bpf_dsq_move_set_slice(&it, why == WHY_RESCUED
							? POLICY_WORK_NS
							: SLICE_FOR_KERNEL);
		taken = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	if (taken)
		add(&granted_for(guest, why)->count, 1);
	else
		task->turn.why = WHY_TURN;
out:
	bpf_task_release(p);
	return taken;
}

/* The slice on the CPU now. */
static __always_inline u64 turn_length(u32 where)
{
	s32 waiting = scx_bpf_dsq_nr_queued(QUEUE_CPU + where);

	return policy_turn(1 + (waiting > 0 ? waiting : 0));
}

/* The thread that ran last on this CPU, and was charged, has another turn. */
static __always_inline void repeat(struct task_struct *prev, struct task *task,
				   struct cpu *cpu, u32 where, u64 now)
{
	task->cpu = where;
	cpu->chosen = 0;
	scx_bpf_task_set_slice(prev, SLICE_FOR_KERNEL);
	/* The run until now still counts as out of turn. cpu->since may have
	 * been set since this dispatch began. */
	if (policy_after(now, cpu->since) > 0)
		count_out_of_turn(task, now - cpu->since);
	task->turn.why = WHY_TURN;
	task->turn.used = 0;
	cpu->since = now;
	cpu->slice = turn_length(where);
	cpu->why = WHY_TURN;
	cpu->runs.extends = 0;
	look_soon(cpu, where, now);
	start(task, cpu);
}

/* Whether the current thread, whose turn is over and was charged, has another
 * one on this CPU. */
__noinline int again(u32 where)
{
	struct task *task = task_of(bpf_get_current_task_btf());
	struct group *group = task ? group_of(task) : 0;
	struct cpu *cpu = cpu_of(where);
	u64 first = 0, its_weight = 0;
	int waits;

	if (!task || !group || !cpu)
		return 0;
	policy_stays(&task->thread, &group->group, cpu->vtime, per_cpu());
	waits = first_of(where, &first, &its_weight);
	return policy_again(&task->thread, waits, first);
}

/* Whether the current thread keeps the CPU for an extension. asked: another
 * thread is to have the CPU. */
static __always_inline _Bool goes_on(struct task_struct *prev,
				     struct task *task, struct cpu *cpu,
				     u32 where, _Bool asked, u64 now)
{
	struct guest *guest = guest_of(task);

	if (!asked) {
		end_extension(task, 0, now);
	} else if (extend_current(now) == POLICY_STAY) {
		cpu->chosen = 0;
		cpu->runs.extends = 1;
		scx_bpf_task_set_slice(prev, SLICE_FOR_KERNEL);
		/* While the thread was alone, the next look was far away. */
		look_in(cpu, where, LOOK_EXTENDED_NS, now);
		return 1;
	} else if (task->spin.awaits && guest) {
		add(&guest->did.gave_way, 1);
		if (!cpu->why && !cpu->wanted)
			want(cpu, task->spin.awaits, WHY_YIELDED);
	}
	return 0;
}

/* Takes a thread of the other CPU's queue, which is behind. */
static __always_inline _Bool take_behind(struct cpu *cpu, u32 where, u32 other,
					 u64 now)
{
	_Bool taken =
		other != where && scx_bpf_dsq_move_to_local(QUEUE_CPU + other);

	/* The queue's threads may run there only. */
	if (other != where && !taken)
		cpu->looks.elsewhere = now + LOOK_ELSEWHERE_NS;
	return taken;
}

/* Chooses what the CPU runs next. */
static __always_inline void pick(struct task_struct *prev, struct cpu *cpu,
				 u32 where, u64 now)
{
	_Bool yields = cpu->runs.yields, ran, stays;
	struct task *task = 0;
	u32 other;

	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		task = task_of(prev);
	/* With core scheduling, a sibling may choose for this CPU. */
	ran = task && prev == bpf_get_current_task_btf();
	other = behind(where, now);
	stays = ran && goes_on(prev, task, cpu, where,
			       yields || other != where || waits(where), now);
	cpu->runs.yields = 0;
	if (stays)
		return;
	if (!cpu->why && take_wanted(where))
		return;
	if (ran)
		charge(task, now);
	if (take_overdue(where, now) || take_behind(cpu, where, other, now))
		return;
	/* A thread that ran out of turn may have a turn now. */
	stays = ran && !yields && !task->spin.awaits && again(where);
	if (!stays && scx_bpf_dsq_move_to_local(QUEUE_CPU + where))
		return;
	if (task)
		repeat(prev, task, cpu, where, now);
	else
		take_anywhere(where);
}
