/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shares: which VM a thread belongs to, what runs is charged to whom, and what
 * place in the queue that gives. The rules are guard_policy.h's; here are the
 * locks around them.
 */
#pragma once

/* The vCPU is runnable from now on. */
static __always_inline void join(struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	struct policy_limits limit;
	u64 clock = virtual_now;
	u64 weight, more = 0;

	/* Who takes it out of a queue may not hold the lock of its CPU. */
	if (!group || !guest ||
	    __sync_val_compare_and_swap(&task->counted, 0, 1))
		return;
	weight = guest->weight;
	limits(&limit);
	bpf_spin_lock(&group->lock);
	policy_join(&group->group, now);
	policy_stand(&group->group, clock, &limit);
	if (group->group.runnable == 1) {
		group->group.weight = weight;
		group->clock = clock;
		group->load = weight;
		more = weight;
	}
	bpf_spin_unlock(&group->lock);
	if (more)
		add(&load, more);
}

/* The same for an ordinary thread. */
static __always_inline void load_thread(struct task *task, u32 weight)
{
	u32 before = __sync_lock_test_and_set(&task->load, weight);

	if (weight != before)
		add(&load, (u64)weight - before);
}

/* Brings the VM's entitlement up to now: while it has something to run, what
 * its weight is worth as virtual time passes. */
static __always_inline void entitle(struct group *group, struct guest *guest)
{
	u64 clock = virtual_now;
	u64 passed = 0;
	u64 weight;

	bpf_spin_lock(&group->lock);
	weight = group->group.weight;
	if (group->group.runnable && policy_after(clock, group->clock) > 0)
		passed = clock - group->clock;
	group->clock = clock;
	bpf_spin_unlock(&group->lock);
	if (passed)
		add(&guest->entitled_ns, passed * weight / POLICY_WEIGHT);
}

static __always_inline void leave(struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	u64 less = 0;

	if (!group || !guest ||
	    !__sync_val_compare_and_swap(&task->counted, 1, 0))
		return;
	entitle(group, guest);
	bpf_spin_lock(&group->lock);
	policy_leave(&group->group, now);
	if (!group->group.runnable) {
		less = group->load;
		group->load = 0;
	}
	bpf_spin_unlock(&group->lock);
	if (less)
		add(&load, -less);
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
	if (slot == task->slot)
		return;
	leave(task, now);
	repay(task);
	task->slot = 0;
	if (!slot)
		return;
	slot--;
	vcpu = bpf_map_lookup_elem(&vcpus, &slot);
	/* Another process may have got the ID of a thread that ended. */
	if (!vcpu || vcpu->tgid != (u32)p->tgid)
		return;
	load_thread(task, 0);
	task->vm = vcpu->vm;
	task->slot = slot + 1;
}

/* It was counted before, and still is what it was. */
static __always_inline void count_again(struct task *task, u64 now)
{
	if (task->slot)
		join(task, now);
	else
		load_thread(task, task->thread.weight);
}

/* The thread is runnable, from now on or still. */
static __always_inline void count_in(struct task_struct *p, struct task *task,
				     u64 now)
{
	resolve(p, task, now);
	count_again(task, now);
}

static __always_inline void count_out(struct task *task, u64 now)
{
	if (task->slot)
		leave(task, now);
	load_thread(task, 0);
}

static __always_inline void begin(struct task *task, u64 now)
{
	struct group *group = group_of(task);

	if (group) {
		bpf_spin_lock(&group->lock);
		policy_begin(&task->thread, &group->group, now);
		bpf_spin_unlock(&group->lock);
	} else {
		policy_begin(&task->thread, 0, now);
	}
}

static __always_inline u64 charge(struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	struct policy_limits limit;
	u64 clock = virtual_now;
	u64 ran, weight, more = 0;

	if (group && guest) {
		weight = guest->weight;
		limits(&limit);
		limit.rescue_share = guest->rescue_share;
		bpf_spin_lock(&group->lock);
		ran = policy_charge(&task->thread, &group->group, now);
		policy_stand(&group->group, clock, &limit);
		/* A VM that never sleeps gets a new weight here. */
		if (group->group.weight != weight && group->group.runnable) {
			group->group.weight = weight;
			more = weight - group->load;
			group->load = weight;
		}
		bpf_spin_unlock(&group->lock);
		if (more)
			add(&load, more);
		policy_spend(&task->thread, ran, task->why == WHY_RESCUED,
			     &limit);
	} else {
		ran = policy_charge(&task->thread, 0, now);
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

/* The weight that competes for one CPU. */
static __always_inline u64 per_cpu(void)
{
	return load / (settings.online ? settings.online : 1);
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

/* The thread's queue, as it is where the thread may run. Who may run on some of
 * its CPUs only competes there, and virtual time may pass more slowly there. */
static __always_inline void seen(struct task_struct *p, const struct task *task,
				 s32 near, struct policy_queue *out)
{
	struct cpu *one, *other;
	u64 vtime = 0;

	*out = *queue_of(task);
	if (task->queue || (u64)p->nr_cpus_allowed >= cpus_of(task->domain))
		return;
	/* A CPU that ran nobody for long has an old time: the later of two. */
	one = cpu_of(near);
	other = cpu_of(bpf_cpumask_any_distribute(p->cpus_ptr));
	if (one)
		vtime = one->started;
	if (other && (!vtime || policy_after(other->started, vtime) > 0))
		vtime = other->started;
	if (vtime && policy_after(vtime, out->vtime) < 0) {
		out->first -= out->vtime - vtime;
		out->vtime = vtime;
	}
}

/* Where the thread stands in its queue: its CPU's, if it may run there only,
 * else that of the domain of the CPU near, one where it may run. */
static __always_inline u64 place(struct task_struct *p, struct task *task,
				 s32 near, int woken)
{
	struct policy_queue to, *from = queue_of(task);
	struct group *group = group_of(task);
	struct policy_limits now;
	u32 queue = p->nr_cpus_allowed == 1 ? scx_bpf_task_cpu(p) + 1 : 0;
	_Bool moves = queue != task->queue;

	limits(&now);
	/* Domains have one virtual time, as far as threads can move. */
	if (!queue)
		task->domain = domain_of(near);
	task->queue = queue;
	seen(p, task, near, &to);
	if (task->unplaced)
		task->thread.vtime += to.vtime;
	else if (moves)
		policy_move(&task->thread, from, &to);
	task->unplaced = 0;
	return policy_place(&task->thread, group ? &group->group : 0, &to,
			    per_cpu(),
			    policy_credit(group ? &group->group : 0, &to,
					  virtual_now, !queue, woken, &now),
			    __sync_lock_test_and_set(&task->inherited, 0));
}

/* The thread was started, by one that runs or before guard. It has a place when
 * it comes to a queue. */
static __always_inline void born(struct task_struct *p, struct task *task)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct task *parent = task_of(current);
	struct policy_limits limit;
	struct group *group;

	task->thread.vtime = 0;
	task->unplaced = 1;
	if (!parent || task->parent != (u32)current->pid)
		return;
	group = group_of(parent);
	limits(&limit);
	task->thread.vtime =
		policy_born(&parent->thread, group ? &group->group : 0,
			    queue_of(parent), bpf_ktime_get_ns(), &limit);
}

/* How far up the line of those who started each other a debt is passed on. */
#define MAX_GENERATIONS 8

/* The thread ends: who started it owes what it ran too much. If that has ended,
 * it is who started that. */
static __always_inline void bequeath(struct task_struct *ends,
				     const struct task *task)
{
	u32 parent = task->parent, pid = ends->pid, i;
	struct policy_limits limit;
	struct task_struct *p = 0;
	struct task *heir;
	u32 *before;
	u64 ns = 0;

	if (!parent)
		return;
	bpf_map_update_elem(&ancestors, &pid, &parent, 0);
	limits(&limit);
	if (!task->slot && !task->unplaced)
		ns = policy_bequeath(&task->thread, queue_of(task), &limit);
	if (!ns)
		return;
	bpf_for(i, 0, MAX_GENERATIONS)
	{
		p = bpf_task_from_pid(parent);
		if (p)
			break;
		before = bpf_map_lookup_elem(&ancestors, &parent);
		if (!before)
			return;
		parent = *before;
	}
	if (!p)
		return;
	heir = task_of(p);
	if (heir)
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
static __always_inline void start(struct task *task, struct cpu *cpu)
{
	struct policy_queue *queue = queue_of(task);

	policy_start(queue, &task->thread, task->early);
	repay(task);
	if (task->queue)
		return;
	cpu->started = task->thread.vtime;
	if (policy_after(queue->vtime, virtual_now) > 0)
		virtual_now = queue->vtime;
	if (settings.domains > 1 && !task->early)
		domain_at(task->domain)->weight = weight(task);
}
