/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shares: which VM a thread belongs to, what runs is charged to whom, and what
 * place in the queue that gives. The rules are guard_policy.h's; here are the
 * locks around them.
 */
#pragma once

/* Where the vCPU competes. Virtual time of a CPU's own queue says nothing of
 * the host's. */
static __always_inline u64 part_of(const struct task *task)
{
	return task->queue ? 0 : policy_part(task->mask, task->domain);
}

/* How far behind the host's virtual time is there. */
static __always_inline u64 lag_of(const struct task *task, u64 clock)
{
	struct policy_queue at;

	if (task->queue)
		return 0;
	seen(task, &at);
	return clock - at.vtime;
}

/* Brings the VM's entitlement up to now: while it has something to run, what
 * its weight is worth as virtual time passes. */
static __always_inline void entitle(struct group *group, struct guest *guest,
				    u64 now)
{
	u64 clock = virtual_now;
	u64 passed = 0, most = 0;
	u64 weight;

	bpf_spin_lock(&group->lock);
	weight = group->group.weight;
	/* It moves on in steps. */
	if (policy_after(clock, group->clock) > 0) {
		if (group->group.runnable)
			passed = clock - group->clock;
		if (policy_after(now, group->clocked) > 0)
			most = now - group->clocked;
		group->clock = clock;
		group->clocked = now;
	}
	bpf_spin_unlock(&group->lock);
	passed = passed * weight / POLICY_WEIGHT;
	/* Beside a very light group virtual time passes much faster. */
	most *= settings.online;
	if (passed)
		add(&guest->entitled_ns, passed < most ? passed : most);
}

/* The vCPU is not runnable from now on. Returns whether it was. */
__noinline int leave(struct task *task, u64 now)
{
	u64 less = 0, tops = 0;
	struct group *group;
	struct guest *guest;
	u32 vm, top = 0;
	_Bool last;

	if (!task || !task->counted)
		return 0;
	/* It may be a vCPU of another VM by now, or of none. */
	vm = task->counted - 1;
	group = bpf_map_lookup_elem(&groups, &vm);
	guest = bpf_map_lookup_elem(&guests, &vm);
	if (!group || !guest)
		return 0;
	entitle(group, guest, now);
	bpf_spin_lock(&group->lock);
	if (task->counted != vm + 1) {
		bpf_spin_unlock(&group->lock);
		return 0;
	}
	task->counted = 0;
	policy_leave(&group->group, now);
	last = !group->group.runnable;
	if (last) {
		less = group->load;
		tops = group->tops;
		top = group->counted;
		group->load = 0;
		group->tops = 0;
		group->counted = 0;
	}
	bpf_spin_unlock(&group->lock);
	if (!last)
		return 1;
	add(&vm_load, -less);
	add(&vm_tops, -tops);
	count_vm(top, 0);
	load_changed();
	return 1;
}

/* The vCPU is runnable from now on. */
__noinline int join(struct task *task, u64 now)
{
	u64 clock = virtual_now, mask, weight, lag, tops = 0;
	struct policy_limits limit;
	struct group *group;
	struct guest *guest;
	_Bool first;
	u32 vm, top = 0;

	if (!task || !task->slot)
		return 0;
	vm = task->vm;
	if (task->counted && task->counted != vm + 1)
		leave(task, now);
	group = bpf_map_lookup_elem(&groups, &vm);
	guest = bpf_map_lookup_elem(&guests, &vm);
	if (!group || !guest)
		return 0;
	mask = part_of(task);
	weight = guest->weight;
	limits(&limit);
	lag = lag_of(task, clock);
	bpf_spin_lock(&group->lock);
	/* Who takes it out of a queue may not hold the lock of its CPU. */
	if (task->counted) {
		bpf_spin_unlock(&group->lock);
		return 0;
	}
	task->counted = vm + 1;
	policy_join(&group->group, now);
	policy_stand(&group->group, clock, mask, lag, &limit);
	first = group->group.runnable == 1;
	if (first) {
		group->group.weight = weight;
		group->clock = clock;
		group->clocked = now;
		group->load = weight;
		group->counted = top = group->top;
		group->tops = tops = top ? 0 : weight;
	}
	bpf_spin_unlock(&group->lock);
	if (!first)
		return 0;
	add(&vm_load, weight);
	add(&vm_tops, tops);
	count_vm(top, 1);
	return load_changed();
}

/* The vCPU's VM, which holds the group from now on, is in this outermost one.
 */
static __noinline int move_vm(struct task *task, u32 top)
{
	struct group *group = group_of(task);
	u64 tops_before = 0, tops = 0;
	u32 before, counted = 0;
	_Bool runs;

	if (!group)
		return release_taskgroup(top);
	bpf_spin_lock(&group->lock);
	before = group->top;
	group->top = top;
	runs = group->group.runnable > 0;
	if (runs) {
		counted = group->counted;
		tops_before = group->tops;
		tops = top ? 0 : group->load;
		group->counted = top;
		group->tops = tops;
	}
	bpf_spin_unlock(&group->lock);
	if (runs) {
		add(&vm_tops, tops - tops_before);
		count_vm(top, 1);
		count_vm(counted, 0);
		load_changed();
	}
	return release_taskgroup(before);
}

/* The thread is a vCPU of its VM from now on. */
static __always_inline void attach(struct task *task)
{
	struct group *group = group_of(task);

	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	group->members++;
	bpf_spin_unlock(&group->lock);
}

/* And is none any more: with the last one, nobody holds the VM's task group. */
static __noinline int detach(struct task *task)
{
	struct group *group = group_of(task);
	u32 top = 0;

	if (!group)
		return 0;
	bpf_spin_lock(&group->lock);
	if (group->members && !--group->members) {
		top = group->top;
		group->top = 0;
	}
	bpf_spin_unlock(&group->lock);
	return release_taskgroup(top);
}

/* The thread's task group, or its VM's, is that at the address. */
static __noinline int regroup(struct task *task, u64 address)
{
	u32 taskgroup = hold_taskgroup(address, !!task->slot), zero = 0;
	struct chain *chain = bpf_map_lookup_elem(&chains, &zero);
	u32 before = task->taskgroup;

	/* For lack of room perhaps: it is tried again. */
	task->grouped = chain && chain->whole ? taskgroup_key(address) : 0;
	if (task->slot) {
		move_vm(task, taskgroup);
		taskgroup = 0;
	}
	count_thread(task, 0);
	task->taskgroup = taskgroup;
	return release_taskgroup(before);
}

/* Finds out which it is, if that has changed. */
static __always_inline void find_group(struct task_struct *p, struct task *task)
{
	struct task_struct___grouped *grouped = (void *)p;
	u64 address;

	if (!bpf_core_field_exists(grouped->sched_task_group))
		return;
	address = (u64)BPF_CORE_READ(grouped, sched_task_group);
	if (taskgroup_key(address) != task->grouped)
		regroup(task, address);
}

/* The vCPU ran out of its turn. */
static __always_inline void borrow(struct task *task, u64 ran)
{
	struct group *group = group_of(task);

	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	policy_borrow(&task->borrowed, &group->group, ran);
	bpf_spin_unlock(&group->lock);
}

/* It has its turn, or is a vCPU no longer. */
static __always_inline void repay(struct task *task)
{
	struct group *group = group_of(task);

	if (!group || !task->borrowed)
		return;
	bpf_spin_lock(&group->lock);
	policy_repay(&task->borrowed, &group->group);
	bpf_spin_unlock(&group->lock);
}

/* Finds out whether the thread is a vCPU, if that may have changed. It is
 * runnable. */
static __always_inline void resolve(struct task_struct *p, struct task *task,
				    u64 now)
{
	u64 current_generation = generation;
	struct vcpu *vcpu;
	u32 tid = p->pid;
	u32 *found;
	u32 slot = 0;

	if (task->generation == current_generation)
		return;
	task->generation = current_generation;
	found = bpf_map_lookup_elem(&members, &tid);
	if (found)
		slot = *found;
	/* Its VM may have been left and followed again meanwhile. */
	vcpu = vcpu_of(task);
	if (slot == task->slot && (!slot || (vcpu && vcpu->vm == task->vm)))
		return;
	leave(task, now);
	repay(task);
	detach(task);
	task->slot = 0;
	task->grouped = 0;
	if (!slot)
		return;
	slot--;
	vcpu = bpf_map_lookup_elem(&vcpus, &slot);
	/* Another process may have got the ID of a thread that ended. */
	if (!vcpu || vcpu->tgid != (u32)p->tgid)
		return;
	count_thread(task, 0);
	task->thread.weight = POLICY_WEIGHT;
	task->vm = vcpu->vm;
	task->slot = slot + 1;
	attach(task);
}

/* It was counted before, and still is what it was. */
static __always_inline void count_again(struct task *task, u64 now)
{
	if (task->slot) {
		join(task, now);
		return;
	}
	count_thread(task, task->own);
}

/* Returns whether it was counted. */
static __always_inline int count_out(struct task *task, u64 now)
{
	return leave(task, now) | count_thread(task, 0);
}

/* Whether it should be counted. */
static __always_inline _Bool counts(struct task *task)
{
	return __sync_fetch_and_add(&task->runnable, 0) &&
	       !__sync_fetch_and_add(&task->parked, 0);
}

/* As it is: from a CPU that need not have the lock of the thread's, which may
 * sleep by now or have ended. Who changes that sees this, or is seen here. */
static __always_inline void count_remotely(struct task *task, u64 now)
{
	_Bool runnable;
	u32 try;

	bpf_for(try, 0, CHANGE_TRIES)
	{
		runnable = counts(task);
		if (runnable)
			count_again(task, now);
		else
			count_out(task, now);
		if (counts(task) == runnable)
			break;
	}
}

/* The thread is runnable, from now on or still. */
static __always_inline void count_in(struct task_struct *p, struct task *task,
				     u64 now)
{
	resolve(p, task, now);
	find_group(p, task);
	count_again(task, now);
}

static __always_inline void begin(struct task *task, u64 now)
{
	struct group *group = group_of(task);

	if (group) {
		bpf_spin_lock(&group->lock);
		policy_begin(&task->thread, &group->group, now);
		bpf_spin_unlock(&group->lock);
	} else {
		weigh(task, now, 0);
		policy_begin(&task->thread, 0, now);
	}
}

/* The thread is charged for what it ran. Not inlined: it is called from many
 * places, and the verifier would follow each. */
__noinline u64 charge(struct task *task, u64 now)
{
	u64 clock = virtual_now, mask, ran, weight, more = 0, lag, tops = 0;
	struct policy_limits limit;
	struct group *group;
	struct guest *guest;
	u32 top;

	if (!task)
		return 0;
	group = group_of(task);
	guest = guest_of(task);
	if (group && guest) {
		mask = part_of(task);
		weight = guest->weight;
		limits(&limit);
		limit.rescue_share = guest->rescue_share;
		lag = lag_of(task, clock);
		bpf_spin_lock(&group->lock);
		ran = policy_charge(&task->thread, &group->group, 0, now);
		policy_stand(&group->group, clock, mask, lag, &limit);
		/* A VM that never sleeps gets a new weight here. */
		if (group->group.weight != weight && group->group.runnable) {
			group->group.weight = weight;
			more = weight - group->load;
			group->load = weight;
			tops = group->counted ? 0 : more;
			group->tops += tops;
		}
		top = group->counted;
		bpf_spin_unlock(&group->lock);
		if (more) {
			add(&vm_load, more);
			add(&vm_tops, tops);
			load_changed();
		}
		reweigh(top, now);
		policy_spend(&task->thread, ran, task->why == WHY_RESCUED,
			     &limit);
	} else {
		ran = charge_thread(task, now);
	}
	return ran;
}

/* The weight of the thread in place of its VM's, for those who look at it
 * without the lock. */
static __always_inline u64 weight(const struct task *task)
{
	struct group *group = group_of(task);

	return policy_weight(&task->thread, group ? &group->group : 0);
}

/* The number of CPUs that serve the domain's queue. */
static __always_inline u64 cpus_of(u32 domain)
{
	u64 cpus = cpus_of_domain[domain & (MAX_DOMAINS - 1)];

	if (!cpus)
		cpus = settings.cpus;
	return cpus ? cpus : 1;
}

/* How many wait in the queue, in hundredths. */
static __always_inline u64 crowd(u64 queue)
{
	s32 waiting = scx_bpf_dsq_nr_queued(queue);

	return (waiting > 0 ? waiting : 0) * POLICY_WEIGHT;
}

/* A key of those CPUs of the domain where the thread may run; 0: all of them,
 * or none. */
__noinline u64 mask_key(u32 tid, u32 domain)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	u64 key = 0xcbf29ce484222325ULL ^ domain;
	_Bool some = 0, lacks = 0;
	const void *bits;
	u32 i;

	if (!p)
		return 0;
	bits = &p->cpus_mask;
	domain &= MAX_DOMAINS - 1;
	bpf_for(i, 0, MAX_CPUS / 64)
	{
		u64 all = cpus_in_domain[domain][i & (MAX_CPUS / 64 - 1)];
		u64 word = 0;

		if (64 * i >= settings.cpus ||
		    (u64)p->nr_cpus_allowed >= settings.cpus)
			break;
		bpf_probe_read_kernel(&word, sizeof(word), bits + 8 * i);
		word &= all;
		some = some || word;
		lacks = lacks || word != all;
		key = (key ^ word) * 0x100000001b3ULL;
	}
	bpf_task_release(p);
	return some && lacks ? key | 1 : 0;
}

/* The virtual time of those CPUs of the domain where the thread may run: the
 * latest at which another one started that is not bound there, in its turn, or
 * the queue's if there is a CPU on which none did for long. */
__noinline u64 vtime_here(u32 tid, u32 domain, u64 now)
{
	u64 vtime = domain_at(domain)->queue.vtime, least = 0, started;
	struct task_struct *p = bpf_task_from_pid(tid);
	_Bool some = 0;
	struct cpu *cpu;
	u64 word = 0;
	u32 i;

	if (!p)
		return vtime;
	bpf_for(i, 0, MAX_CPUS)
	{
		if (i >= settings.cpus)
			break;
		if (i % 64 == 0) {
			word = 0;
			bpf_probe_read_kernel(&word, sizeof(word),
					      (void *)&p->cpus_mask + i / 8);
			word &= cpus_in_domain[domain & (MAX_DOMAINS - 1)]
					      [i / 64 & (MAX_CPUS / 64 - 1)];
		}
		if (!(word >> i % 64 & 1))
			continue;
		cpu = cpu_of(i);
		if (!cpu)
			goto out;
		started = cpu->started;
		/* One that is alone does not start again for long. */
		if (cpu->turn && !cpu->kind && !cpu->why && cpu->pid != tid) {
			started = cpu->thread.vtime;
		} else if (!cpu->turn && !cpu->idle) {
			/* A thread of a higher class has it: time stands still
			 * there. */
			if (!cpu->started_at)
				continue;
		} else if (policy_after(now, cpu->started_at) >
			   (s64)(cpu->turn ? POLICY_MASK_IDLE_NS
					   : SLICE_FOR_KERNEL)) {
			goto out;
		}
		if (!some || policy_after(started, least) > 0)
			least = started;
		some = 1;
	}
	if (some && policy_after(least, vtime) < 0)
		vtime = least;
out:
	bpf_task_release(p);
	return vtime;
}

static __always_inline struct mask *mask_of(const struct task *task)
{
	u64 key = task->mask;

	return key ? bpf_map_lookup_elem(&masks, &key) : 0;
}

/* The thread is moved on as others of its mask were. Whoever made the mask anew
 * since then knows nothing of before. */
static __always_inline void move_on(struct task *task, const struct mask *mask)
{
	if (task->mask_since != mask->since) {
		task->mask_since = mask->since;
		task->moved = mask->mask.moved;
	}
	policy_mask_move(&mask->mask, &task->thread, &task->moved);
}

/* The mask whose key the thread has now. moves: since now. */
static __always_inline void enter_mask(struct task_struct *p, struct task *task,
				       int woken, int moves, u64 now)
{
	struct domain *domain = domain_at(task->domain);
	struct mask *mask = mask_of(task);
	u64 key = task->mask, here = 0;
	struct policy_limits limit;

	if (!key)
		return;
	if (!mask || moves || policy_mask_idle(&mask->mask, now) ||
	    (woken && policy_after(now, mask->looked) > (s64)settings.slice)) {
		here = vtime_here(p->pid, task->domain, now);
		if (mask) {
			mask->here = here;
			mask->looked = now;
		}
	}
	if (!mask) {
		struct mask fresh = {.since = now, .here = here, .looked = now};

		policy_mask_begin(&fresh.mask, here, domain->forgot, now);
		bpf_map_update_elem(&masks, &key, &fresh, BPF_NOEXIST);
		mask = mask_of(task);
		if (!mask)
			return;
	}
	limits(&limit);
	policy_mask_advance(&mask->mask, &domain->queue, here, &domain->forgot,
			    now, &limit);
	move_on(task, mask);
}

/* The thread competes in that queue from now on (0: the domain's, else a CPU's,
 * plus 1), which is for it as to says; woken: it slept until now. */
static __always_inline void enter(struct task_struct *p, struct task *task,
				  u32 queue, u32 domain, int woken, u64 now,
				  struct policy_queue *to)
{
	_Bool moves = queue != task->queue;
	struct mask *mask = mask_of(task);
	struct policy_queue from;
	u64 key = task->mask;

	if (moves || task->masked || domain != task->domain) {
		task->masked = 0;
		key = queue ? 0 : mask_key(p->pid, domain);
		moves = moves || key != task->mask;
	}
	if (moves && mask)
		move_on(task, mask);
	seen(task, &from);
	/* Domains have one virtual time, as far as threads can move. */
	task->domain = domain;
	task->queue = queue;
	if (moves)
		task->mask_since = 0;
	task->mask = key;
	enter_mask(p, task, woken, moves, now);
	seen(task, to);
	mask = woken || moves ? mask_of(task) : 0;
	if (mask)
		policy_mask_woken(to, mask->here);
	if (task->unplaced)
		task->thread.vtime += to->vtime;
	else if (moves)
		policy_move(&task->thread, &from, to);
	task->unplaced = 0;
}

/* What the thread inherited, for it to pay. */
static __always_inline u64 inherits(struct task *task)
{
	return task->inherited ? __sync_lock_test_and_set(&task->inherited, 0)
			       : 0;
}

/* Where the thread stands in its queue: its CPU's, if it may run there only,
 * else that of the domain of the CPU near, one where it may run. The first turn
 * on a CPU to which it was bound is one of the domain's queue: there it pays
 * for what it had on others. */
static __always_inline u64 place(struct task_struct *p, struct task *task,
				 s32 near, int woken, u64 now)
{
	u32 own = scx_bpf_task_cpu(p) + 1;
	u32 queue = p->nr_cpus_allowed == 1 && task->home == own ? own : 0;
	struct group *group = group_of(task);
	_Bool fresh = task->fresh;
	struct policy_limits limit;
	struct policy_queue at;
	struct cpu *cpu;
	s64 credit;

	task->fresh = 0;
	/* Not where others of that queue wait: the credit is theirs. */
	cpu = queue && task->queue != queue ? cpu_of(own - 1) : 0;
	if (cpu && scx_bpf_dsq_nr_queued(QUEUE_CPU + own - 1) <= 0)
		policy_settles(&cpu->kinds, 1);
	limits(&limit);
	enter(p, task, queue, queue ? task->domain : domain_of(near), woken,
	      now, &at);
	credit = policy_credit(group ? &group->group : 0, &at, part_of(task),
			       queue ? 0 : virtual_now - at.vtime, !queue,
			       woken, task->thread.weight, &limit);
	if ((woken || fresh) && !queue && !group)
		credit = credit_in(task, credit);
	return policy_place(&task->thread, group ? &group->group : 0, &at,
			    per_cpu(), credit, inherits(task));
}

static __always_inline _Bool may_yield_to(const struct task *task,
					  const struct group *group,
					  const struct policy_limits *limit)
{
	struct policy_queue at;

	seen(task, &at);
	return policy_yield(&task->thread, &group->group, &at, per_cpu(),
			    limit) == POLICY_YES;
}

/* How far up the line of those who started each other a debt is passed on. */
#define MAX_GENERATIONS 8

/* The thread of that ID, or if it has ended who started it, and so on. 0: none
 * that is known. */
__noinline u32 living(u32 pid)
{
	struct task_struct *p;
	struct task *task;
	_Bool ends;
	u32 i, *before, next;

	bpf_for(i, 0, MAX_GENERATIONS)
	{
		next = 0;
		p = pid ? bpf_task_from_pid(pid) : 0;
		if (p) {
			task = task_of(p);
			/* It may be a zombie for long. */
			ends = p->flags & PF_EXITING;
			if (ends && task)
				next = task->parent;
			bpf_task_release(p);
			if (!ends)
				return pid;
		}
		before = next ? 0 : bpf_map_lookup_elem(&ancestors, &pid);
		if (before)
			next = *before;
		if (!next)
			return 0;
		pid = next;
	}
	return 0;
}

/* What the thread of that ID inherited, as far as a new one pays it. */
__noinline u64 pays(u32 pid)
{
	struct task_struct *p = pid ? bpf_task_from_pid(pid) : 0;
	struct policy_limits limit;
	struct task *task;
	u64 owed = 0, paid;

	if (!p)
		return 0;
	limits(&limit);
	task = task_of(p);
	if (task)
		owed = inherits(task);
	paid = policy_owed(owed, &limit);
	if (task && owed > paid)
		add(&task->inherited, owed - paid);
	bpf_task_release(p);
	return paid;
}

/* The thread was started, by one that runs or before guard. It has a place when
 * it comes to a queue. */
static __always_inline void born(struct task_struct *p, struct task *task)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct task *parent = task_of(current);
	struct policy_limits limit;
	struct policy_queue at;
	struct group *group;
	u64 owed;

	task->thread.vtime = 0;
	task->unplaced = 1;
	task->fresh = 1;
	if (!parent || task->parent != (u32)current->pid)
		return;
	group = group_of(parent);
	limits(&limit);
	/* The parent pays for itself, but who is before it may sleep. */
	owed = pays(living(parent->parent));
	seen(parent, &at);
	task->thread.vtime =
		policy_born(&parent->thread, group ? &group->group : 0, &at,
			    bpf_ktime_get_ns(), owed, &limit);
}

static __always_inline u32 user_of(struct task_struct *p)
{
	return BPF_CORE_READ(p, cred, uid.val);
}

/* The thread ends: who started it owes what it ran too much. If that has ended,
 * it is who started that. Root's daemons owe nothing that users' threads ran,
 * which ssh or cron had started, and whose line has ended. */
static __always_inline void bequeath(struct task_struct *ends,
				     const struct task *task)
{
	u32 pid = ends->pid, heirs = task->parent ? living(task->parent) : 0;
	struct policy_limits limit;
	struct policy_queue at;
	struct task_struct *p;
	struct task *heir;
	u64 ns;

	if (!heirs)
		return;
	/* Not its parent, which may have ended: lines would become long. */
	bpf_map_update_elem(&ancestors, &pid, &heirs, 0);
	if (task->slot || task->unplaced)
		return;
	limits(&limit);
	seen(task, &at);
	ns = policy_bequeath(&task->thread, &at, &limit);
	p = ns ? bpf_task_from_pid(heirs) : 0;
	if (!p)
		return;
	heir = task_of(p);
	if (heir && (user_of(p) || !user_of(ends)))
		add(&heir->inherited, ns);
	bpf_task_release(p);
}

/* A CPU near the one where the thread ran last, where it may run. */
static __always_inline s32 near(struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);

	if (settings.domains > 1 && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		cpu = bpf_cpumask_any_distribute(p->cpus_ptr);
	return cpu;
}

/* As place(), not inlined: Linux 6.18's verifier would look at more than it is
 * allowed to. */
__noinline u64 place_thread(u32 tid, int woken, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task *task;
	u64 vtime = 0;
	s32 cpu;

	if (!p)
		return 0;
	task = task_of(p);
	if (task) {
		cpu = scx_bpf_task_cpu(p);
		if (settings.domains > 1 && !kernel_allows(p, cpu))
			cpu = kernel_any_cpu(p);
		vtime = place(p, task, cpu, woken, now);
	}
	bpf_task_release(p);
	return vtime;
}

/* The thread comes to its queue. What an empty queue was at last says nothing
 * of how far behind it is. */
static __always_inline void heads(const struct task *task, u64 vtime)
{
	struct policy_queue *queue = queue_of(task);

	if (settings.domains > 1 && !task->queue &&
	    scx_bpf_dsq_nr_queued(queue_id(task)) <= 0 &&
	    policy_after(vtime, queue->first) > 0)
		queue->first = vtime;
}

/* The thread starts in its turn, on that CPU. */
static __always_inline void start(struct task *task, struct cpu *cpu, u64 now)
{
	struct policy_queue *queue = queue_of(task);
	struct mask *mask = mask_of(task);

	policy_start(queue, &task->thread, task->early);
	if (mask)
		policy_mask_start(&mask->mask, &task->thread, now);
	repay(task);
	if (task->queue)
		return;
	cpu->started = task->thread.vtime;
	cpu->started_at = now;
	if (policy_after(queue->vtime, virtual_now) > 0)
		virtual_now = queue->vtime;
	if (settings.domains > 1 && !task->early)
		domain_at(task->domain)->weight = weight(task);
}
