/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Whose turn it is on a CPU: the thread that runs goes on, or another is taken
 * out of its queue.
 */
#pragma once

/* How many of the shared queue are looked at for one that ran here last. */
#define LOOK_AHEAD 8

/* How long any rescue may be. */
static __always_inline u64 longest_rescue(void)
{
	struct policy_limits limit;

	limits(&limit);
	return policy_rescue_ns(POLICY_WORK, &limit);
}

/* The thread had its CPU for ns, perhaps out of turn. A thread of a higher
 * class may take the CPU meanwhile: then what it had it for goes on. */
static __always_inline void count_favour(struct task *task, u64 ns)
{
	struct guest *guest = guest_of(task);

	if (guest && task->why) {
		grant(task->why == WHY_RESCUED ? &guest->rescued
					       : &guest->yielded,
		      ns);
		borrow(task, ns);
	}
}

/* The thread, which runs still, is charged for what it ran. */
static __always_inline void count_run(struct task *task, u64 now)
{
	struct guest *guest = guest_of(task);
	struct group *group = group_of(task);
	u64 ran = charge(task, now);

	if (guest && group) {
		add(&guest->on_cpu_ns, ran);
		entitle(group, guest, now);
	}
}

/* What others see of the thread that the CPU runs. */
static __always_inline void show_thread(struct cpu *cpu,
					const struct task *task)
{
	cpu->thread = task->thread;
	cpu->thread.weight = weight(task);
}

/* The turn of the vCPU ends in a section, since it spins there. */
static __always_inline void gave_way(const struct task *task)
{
	struct guest *guest = guest_of(task);

	if (guest)
		add(&guest->gave_way, 1);
}

/* The thread that ran last on this CPU keeps it for ns. */
static __always_inline void keep(struct task_struct *p, struct task *task,
				 struct cpu *cpu, u32 where, u64 ns, u64 now)
{
	struct guest *guest;

	cpu->chosen = 0;
	if (task->extension.began) {
		/* While it was alone, the look was far away. */
		look_in(cpu, where, LOOK_EXTENDED_NS, now);
		kernel_set_slice(p, ns);
		cpu->extends = 1;
		return; /* the turn goes on */
	}
	kernel_set_slice(p, cpu->limited ? ns : SLICE_FOR_KERNEL);
	guest = guest_of(task);
	/* As what it was: a rescue, or a turn. */
	if (guest && task->why)
		add(&guest->on_cpu_ns, charge(task, now));
	/* It may have been changed since this dispatch began. */
	if (policy_after(now, cpu->turn) > 0)
		count_favour(task, now - cpu->turn);
	task->why = WHY_TURN;
	task->used = 0;
	cpu->turn = now;
	cpu->slice = ns;
	cpu->why = WHY_TURN;
	cpu->extends = 0;
	look_soon(cpu, where, now);
}

/* This CPU takes the thread, at which the iterator is; early says that it is
 * not the first of its queue. */
static __always_inline _Bool take_here(struct bpf_iter_scx_dsq *it,
				       struct task_struct *p, struct task *task,
				       u32 early)
{
	task->early = early;
	if (kernel_move(it, p, SCX_DSQ_LOCAL, SLICE_FOR_KERNEL))
		return 1;
	task->early = 0;
	return 0;
}

/* Takes the next thread of the domain's queue; of those whose turn is near, one
 * that ran here last. */
__noinline int take_shared(u32 domain, u32 where, u64 now)
{
	u64 queue = QUEUE_SHARED + domain;
	struct policy_thread first = {};
	struct bpf_iter_scx_dsq it;
	struct policy_limits limit;
	struct task_struct *p;
	_Bool taken = 0;
	u32 n = 0, some = 0;

	park_spent(queue, now);
	if (scx_bpf_dsq_nr_queued(queue) < 2)
		return kernel_take(queue);
	limits(&limit);
	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it)) && n < LOOK_AHEAD) {
			struct task *task = task_of(p);

			if (!task)
				break;
			n++;
			if (!kernel_admits(p, where))
				continue;
			if (!some) {
				first = task->thread;
				first.weight = weight(task);
				some = n;
			}
			if (!policy_prefers(&task->thread, weight(task), &first,
					    first.weight, per_cpu(), &limit))
				break;
			if (scx_bpf_task_cpu(p) == (s32)where &&
			    may_run(p, task, now)) {
				taken = take_here(&it, p, task, n > some);
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return taken || kernel_take(queue);
}

/* How many of the other domains are looked at, by chance. */
#define LOOK_ELSEWHERE 2
/* If nobody there may run here, not again for so long. */
#define LOOK_ELSEWHERE_NS 20000000ULL

/* Another domain whose threads are so far behind that one of them should run
 * here, or this CPU's own. */
__noinline u32 behind(u32 where, u64 now)
{
	u32 own = domain_of(where), i;
	struct policy_limits limit;
	struct policy_thread here;
	struct cpu *cpu = cpu_of(where);

	if (settings.domains < 2 || !cpu ||
	    policy_after(now, cpu->elsewhere) < 0)
		return own;
	if (scx_bpf_dsq_nr_queued(QUEUE_SHARED + own) > 0) {
		here.vtime = domain_at(own)->queue.first;
		here.weight = domain_at(own)->weight;
	} else if (cpu->turn && !cpu->kind) {
		here = cpu->thread;
		if (policy_after(now, here.began) > 0)
			here.vtime +=
				policy_scaled(now - here.began, here.weight);
	} else {
		return own;
	}
	limits(&limit);
	bpf_for(i, 0, LOOK_ELSEWHERE)
	{
		struct policy_thread there = {};
		u32 other = own + 1 +
			    bpf_get_prandom_u32() % (settings.domains - 1);

		if (other >= settings.domains)
			other -= settings.domains;
		if (scx_bpf_dsq_nr_queued(QUEUE_SHARED + other) <= 0)
			continue;
		there.vtime = domain_at(other)->queue.first;
		if (policy_behind(&there, domain_at(other)->weight, &here,
				  here.weight, per_cpu(), &limit))
			return other;
	}
	return own;
}

/* Takes a thread of any other domain. */
__noinline int take_anywhere(u32 where, u64 now)
{
	u32 domain = domain_of(where), i;

	bpf_for(i, 1, MAX_DOMAINS)
	{
		if (i >= settings.domains)
			break;
		if (++domain >= settings.domains)
			domain = 0;
		park_spent(QUEUE_SHARED + domain, now);
		if ((scx_bpf_dsq_nr_queued(QUEUE_RESCUE + domain) > 0 &&
		     kernel_take(QUEUE_RESCUE + domain)) ||
		    (scx_bpf_dsq_nr_queued(QUEUE_SHARED + domain) > 0 &&
		     kernel_take(QUEUE_SHARED + domain)))
			return 1;
	}
	return 0;
}

/* Whether one waits that this CPU, which is idle, could run. */
__noinline int waits_anywhere(u32 where, u64 now)
{
	u32 domain;

	if (waits(where, now))
		return 1;
	bpf_for(domain, 0, MAX_DOMAINS)
	{
		if (domain >= settings.domains)
			break;
		if (scx_bpf_dsq_nr_queued(QUEUE_SHARED + domain) > 0 ||
		    scx_bpf_dsq_nr_queued(QUEUE_RESCUE + domain) > 0)
			return 1;
	}
	return 0;
}

/* The first that waits in the queue and may run on the CPU; those before it may
 * run elsewhere only. */
#define FIRST_NONE 0 /* there is none */
#define FIRST_FOUND 1
/* It is far behind others. Most that wait are about where the queue is, as its
 * virtual time is where the CPU may run them. */
#define FIRST_UNKNOWN 2
/* How many are looked at for it. */
#define LOOK_FIRST 64

static __always_inline u32 first_of(u64 queue, u32 where,
				    const struct policy_queue *at,
				    struct policy_thread *first)
{
	struct bpf_iter_scx_dsq it;
	u32 found = FIRST_NONE, n;
	struct task_struct *p;
	struct task *task;

	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		bpf_for(n, 0, LOOK_FIRST + 1)
		{
			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			if (n == LOOK_FIRST) {
				first->vtime = at->vtime;
				found = FIRST_UNKNOWN;
				break;
			}
			task = task_of(p);
			if (task && kernel_admits(p, where)) {
				*first = task->thread;
				first->weight = weight(task);
				found = FIRST_FOUND;
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return found;
}

/* Who waits for so long is taken, whatever is due: threads that came later may
 * hold back one of little weight. The kernel would end guard after 20 s. */
#define OVERDUE_NS 8000000000LL
#define LOOK_OVERDUE_NS 200000000ULL
#define LOOK_OVERDUE_MOST_NS (OVERDUE_NS / 2)
/* How many of a queue are looked at for that, from either end. */
#define LOOK_OVERDUE 1024

/* Takes a thread that waits for too long, of those near one end of the queue.
 */
__noinline int take_overdue_from(u64 queue, u32 where, u64 flags, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct policy_queue at;
	struct task_struct *p;
	struct task *task;
	_Bool taken = 0;
	u32 n = 0;

	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, queue, flags)) {
		bpf_for(n, 0, LOOK_OVERDUE)
		{
			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			task = task_of(p);
			if (!task || !task->waits ||
			    policy_after(now, task->waits) < OVERDUE_NS ||
			    !kernel_admits(p, where))
				continue;
			/* Whose cgroup has no budget whenever it is looked for
			 * would wait for ever. */
			if (!may_run(p, task, now))
				task->overdue = 1;
			/* What it is ahead by is forgiven. */
			seen(task, &at);
			if (policy_after(task->thread.vtime, at.vtime) > 0)
				task->thread.vtime = at.vtime;
			taken = take_here(&it, p, task, 1);
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return taken;
}

/* Takes a thread that waits for too long. It is among the last of its queue, or
 * it lacks a lot there and may run on few CPUs, which others keep from it:
 * those of its domain perhaps a higher class. */
__noinline int take_overdue(u32 which, u32 where, u64 now)
{
	u32 domain = domain_of(where);
	struct cpu *cpu = cpu_of(where);
	u64 pause = LOOK_OVERDUE_NS, queue;

	if (!cpu || which >= LOOKS_FOR ||
	    (which == LOOKS_ELSEWHERE && settings.domains < 2))
		return 0;
	if (policy_after(now, cpu->overdue[which]) < 0)
		return 0;
	/* Each CPU of a domain looks: some threads may run on few of them. */
	if (which != LOOKS_BOUND)
		pause *= 1 + cpus_of(domain) / 8;
	if (pause > LOOK_OVERDUE_MOST_NS)
		pause = LOOK_OVERDUE_MOST_NS;
	/* Within as long, it has looked at all others. */
	if (which == LOOKS_ELSEWHERE &&
	    pause > LOOK_OVERDUE_MOST_NS / settings.domains)
		pause = LOOK_OVERDUE_MOST_NS / settings.domains;
	cpu->overdue[which] = now + pause;
	if (which == LOOKS_ELSEWHERE) {
		cpu->overdue_domain++;
		if (cpu->overdue_domain % settings.domains == domain)
			cpu->overdue_domain++;
		domain = cpu->overdue_domain % settings.domains;
	}
	queue = which == LOOKS_BOUND ? QUEUE_CPU + where
				     : QUEUE_SHARED + domain;
	if (!take_overdue_from(queue, where, SCX_DSQ_ITER_REV, now) &&
	    (scx_bpf_dsq_nr_queued(queue) <= LOOK_OVERDUE ||
	     !take_overdue_from(queue, where, 0, now)))
		return 0;
	cpu->overdue[which] = now; /* there may be more */
	return 1;
}

/* Whether a thread of the kind waits for this CPU. */
static __always_inline _Bool others_wait(const struct cpu *cpu, u32 where,
					 u32 kind, u64 now)
{
	if (kind)
		return scx_bpf_dsq_nr_queued(QUEUE_CPU + where) > 0;
	return share(cpu, where, now);
}

/* Whether the current thread, whose turn is over and was charged, has another
 * one on this CPU. */
__noinline int again(u32 where, u64 now)
{
	u64 mine = QUEUE_SHARED + domain_of(where);
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *task = task_of(p);
	struct cpu *cpu = cpu_of(where);
	struct policy_thread first = {};
	struct policy_queue at;
	struct group *group;
	u32 waits;

	if (!task || !cpu)
		return 0;
	/* It has another queue from now on. */
	if ((p->nr_cpus_allowed == 1) != cpu->kind)
		return 0;
	if (cpu->kind)
		mine = QUEUE_CPU + where;
	/* It may come from another domain, or have other CPUs. */
	enter(p, task, task->queue, cpu->kind ? task->domain : domain_of(where),
	      0, now, &at);
	group = group_of(task);
	policy_stays(&task->thread, group ? &group->group : 0, &at, per_cpu(),
		     inherits(task));
	cpu->thread.vtime = task->thread.vtime;
	waits = first_of(mine, where, &at, &first);
	if (!policy_again(&task->thread, waits, first.vtime, &cpu->kinds,
			  cpu->kind, others_wait(cpu, where, !cpu->kind, now)))
		return 0;
	waits = waits == FIRST_FOUND;
	policy_repeat(queue_of(task), &task->thread, waits, first.vtime);
	if (settings.domains > 1 && waits && !cpu->kind)
		domain_at(domain_of(where))->weight = first.weight;
	return 1;
}

/* Takes the thread out of its queue, for the CPU where, if it may run there. */
static __always_inline _Bool take(struct task_struct *p, struct task *task,
				  u32 where, u64 to, u64 ns)
{
	struct bpf_iter_scx_dsq it;
	_Bool moved = 0;

	bpf_rcu_read_lock();
	/* Who is queued again from here on, with other CPUs, is refused. */
	if (!bpf_iter_scx_dsq_new(&it, queue_id(task), 0) &&
	    kernel_admits(p, where))
		moved = kernel_move(&it, p, to, ns);
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return moved;
}

/* Whether the thread waits for its turn, in a queue that the CPU takes from. */
static __always_inline _Bool waits_for(struct task_struct *p, struct task *task,
				       u32 where, u64 now)
{
	return task->queued && !task->why &&
	       (!task->queue || task->queue == where + 1) &&
	       may_run(p, task, now);
}

/* Takes the vCPU that somebody wants to run on this CPU next, if it waits
 * still. */
__noinline int take_wanted(u32 where, u64 now)
{
	struct cpu *cpu = cpu_of(where);
	u64 wanted = cpu ? cpu->wanted : 0;
	u32 tid = wanted, why = wanted >> 32;
	struct granted *granted;
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
	if (!task || !waits_for(p, task, where, now))
		goto out;
	guest = guest_of(task);
	if (!guest)
		goto out;
	if (!favour(task, why))
		goto out;
	granted = why == WHY_RESCUED ? &guest->rescued : &guest->yielded;
	if (take(p, task, where, SCX_DSQ_LOCAL,
		 why == WHY_RESCUED ? longest_rescue() : SLICE_FOR_KERNEL)) {
		add(&granted->count, 1);
		taken = 1;
	} else {
		task->why = WHY_TURN;
	}
out:
	bpf_task_release(p);
	return taken;
}

/* Takes the thread that was woken on this CPU, if it waits still and may run
 * before others. One that ran elsewhere since has had its turn. */
__noinline int take_woken(u32 where, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct policy_thread first = {};
	struct policy_limits limit;
	struct policy_queue at;
	struct task_struct *p;
	struct task *task;
	struct cpu *cpu = cpu_of(where);
	u32 tid = cpu ? cpu->woken : 0;
	_Bool taken = 0;
	u32 kind;

	if (!cpu || !tid)
		return 0;
	cpu->woken = 0;
	p = bpf_task_from_pid(tid);
	if (!p)
		return 0;
	task = task_of(p);
	if (!task || !waits_for(p, task, where, now))
		goto out;
	kind = !!task->queue;
	limits(&limit);
	seen(task, &at);
	if (!first_of(queue_id(task), where, &at, &first))
		goto out;
	if (!bpf_iter_scx_dsq_new(&it, queue_id(task), 0)) {
		if (scx_bpf_task_cpu(p) == (s32)where &&
		    policy_may_lead(&task->thread, &first, &cpu->kinds, kind,
				    others_wait(cpu, where, !kind, now),
				    &limit)) {
			taken = take_here(&it, p, task,
					  first.vtime != task->thread.vtime);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
out:
	bpf_task_release(p);
	return taken;
}

#define SURVEY_NS LOOK_ELSEWHERE_NS
#define SURVEY_ONE 65536

/* How many CPUs' worth of this one a thread in its domain's queue competes for,
 * on the average, in parts of SURVEY_ONE: those bound elsewhere, for none of
 * it; those bound to a few CPUs, for more of it than others. */
__noinline int survey(u32 where, u64 now)
{
	u32 domain = domain_of(where), may, n;
	u64 cpus = cpus_of(domain), sum, looked;
	struct cpu *cpu = cpu_of(where);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	s32 waiting;

	if (!cpu)
		return 0;
	waiting = scx_bpf_dsq_nr_queued(QUEUE_SHARED + domain);
	if (waiting <= 0)
		return 0;
	/* In memory: the verifier would tell each value from the others. */
	cpu->survey_sum = 0;
	cpu->survey_looked = 0;
	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_SHARED + domain, 0)) {
		bpf_for(n, 0, LOOK_FIRST)
		{
			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			cpu->survey_looked++;
			may = kernel_pins(p) ? 1 : p->nr_cpus_allowed;
			if (may && kernel_admits(p, where))
				cpu->survey_sum +=
					SURVEY_ONE / (may < cpus ? may : cpus);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	sum = cpu->survey_sum;
	looked = cpu->survey_looked;
	if (!looked)
		return 0;
	/* The first are those that lag, of few masks perhaps. Of the others
	 * nothing is known. */
	if (looked < (u64)waiting) {
		sum += (waiting - looked) * (SURVEY_ONE / cpus);
		looked = waiting;
	}
	cpu->competes = sum / looked;
	cpu->surveyed = now + SURVEY_NS;
	if (!sum)
		cpu->apart = now + LOOK_ELSEWHERE_NS;
	return 0;
}

static __always_inline void survey_if_due(const struct cpu *cpu, u32 where,
					  u64 now)
{
	if (policy_after(now, cpu->surveyed) >= 0)
		survey(where, now);
}

/* How many of the kind that runs on the CPU it has, in hundredths. */
static __always_inline u64 of_kind(const struct cpu *cpu, u32 kind, u32 where)
{
	u64 count = kind ? crowd(QUEUE_CPU + where)
			 : crowd(QUEUE_SHARED + domain_of(where)) *
				    cpu->competes / SURVEY_ONE;

	return count + POLICY_WEIGHT;
}

/* How long a turn is on the CPU now. */
__noinline u64 turn_length(u32 where)
{
	struct cpu *cpu = cpu_of(where);
	struct policy_limits limit;

	if (!cpu)
		return settings.slice;
	limits(&limit);
	return policy_turn(of_kind(cpu, 0, where) + crowd(QUEUE_CPU + where),
			   &limit);
}

/* What the thread that runs on this CPU has run is counted for its kind. */
__noinline int serve(u32 where, u64 now)
{
	struct cpu *cpu = cpu_of(where);
	struct policy_limits limit;

	if (!cpu || policy_after(now, cpu->served) <= 0)
		return 0;
	limits(&limit);
	policy_served(&cpu->kinds, cpu->kind, now - cpu->served,
		      of_kind(cpu, cpu->kind, where), &limit);
	cpu->served = now;
	return 0;
}

/* The thread that ran last on this CPU has another turn, if it has budget. */
static __always_inline _Bool repeat(struct task_struct *prev, struct task *task,
				    struct cpu *cpu, u32 where, u64 now)
{
	u64 ns = turn_length(where);

	if (keeps_limits) {
		settle(task, now);
		ns = take_budget(prev, task, ns, now);
		cpu->limited = !!task->took;
	}
	if (!ns)
		return 0;
	/* Its first turn since it was bound to this CPU is over. */
	if (!task->queue && prev->nr_cpus_allowed == 1 &&
	    task->home == where + 1) {
		place_thread(prev->pid, 0, now);
		cpu->kind = !!task->queue;
	}
	keep(prev, task, cpu, where, ns, now);
	/* It was no part of its queue. */
	task->early = 1;
	start(task, cpu, now);
	task->early = 0;
	return 1;
}

static __always_inline void pick(struct task_struct *prev, struct cpu *cpu,
				 u32 where, u64 now)
{
	struct task *task = 0;
	_Bool yields = cpu->yields, ran = 0, may_repeat;
	u32 own = domain_of(where), other;
	u32 kind;

	cpu->yields = 0;
	survey_if_due(cpu, where, now);
	other = behind(where, now);
	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		task = task_of(prev);
	/* With core scheduling, a sibling may choose for this CPU. */
	if (task && prev == bpf_get_current_task_btf()) {
		serve(where, now);
		ran = 1;
		if (yields || (other == own && !waits(where, now))) {
			end_extension(task, 0, now);
		} else if (extend_current(now) == POLICY_STAY) {
			keep(prev, task, cpu, where, settings.max_extend, now);
			return;
		} else if (task->awaits) {
			gave_way(task);
			if (!cpu->why && !cpu->wanted)
				want(cpu, task->awaits, WHY_YIELDED);
		}
	}
	/* Every second turn at most is one of a vCPU out of turn. */
	if (!cpu->why &&
	    ((cpu->wanted >> 32 == WHY_RESCUED && take_wanted(where, now)) ||
	     kernel_take(QUEUE_RESCUE + own)))
		return;
	if (take_woken(where, now) || (!cpu->why && take_wanted(where, now)))
		return;
	park_spent(QUEUE_CPU + where, now);
	if (take_overdue(LOOKS_BOUND, where, now) ||
	    take_overdue(LOOKS_SHARED, where, now) ||
	    take_overdue(LOOKS_ELSEWHERE, where, now))
		return;
	if (ran) {
		count_run(task, now);
		show_thread(cpu, task);
	}
	kind = policy_kind(&cpu->kinds) &&
	       scx_bpf_dsq_nr_queued(QUEUE_CPU + where) > 0;
	if (other != own && !kind) {
		if (take_shared(other, where, now))
			return;
		/* They may run there only. */
		cpu->elsewhere = now + LOOK_ELSEWHERE_NS;
		other = own;
	}
	may_repeat =
		ran && !yields && !cpu->why && !task->awaits && other == own;
	if (may_repeat) {
		park_spent(QUEUE_SHARED + own, now);
		if (again(where, now) && repeat(prev, task, cpu, where, now))
			return;
	}
	if (kind && kernel_take(QUEUE_CPU + where))
		return;
	if (other != own && take_shared(other, where, now))
		return;
	if (take_shared(own, where, now))
		return;
	/* They may run elsewhere only. */
	if (scx_bpf_dsq_nr_queued(QUEUE_SHARED + own) > 0) {
		cpu->apart = now + LOOK_ELSEWHERE_NS;
		/* It gave way to those, and has its own queue's turns again. */
		if (may_repeat && cpu->kind && again(where, now) &&
		    repeat(prev, task, cpu, where, now))
			return;
	}
	/* Again, since one may have come while the CPU's lock was dropped. */
	if (kernel_take(QUEUE_CPU + where))
		return;
	if (kernel_take(QUEUE_RESCUE + own))
		return;
	if (!task) {
		if (settings.domains > 1)
			take_anywhere(where, now);
		return;
	}
	if (repeat(prev, task, cpu, where, now))
		return;
	/* Without budget it is enqueued, and parked there, or has its turn
	 * again if it exits. This CPU looks for that only if it is asked to. */
	kernel_set_slice(prev, 0);
	scx_bpf_kick_cpu(where, 0);
}
