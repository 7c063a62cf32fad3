/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shares: which VM (group) a thread belongs to, whom its runs are charged to,
 * and where in a queue it waits. guard_policy.h has the rules; here are the
 * locks around them. place() comes before each wait, begin() and charge() are
 * around each run.
 *
 * Invariant: a group's `runnable` is the number of tasks whose `counted` names
 * it, and both change under its lock.
 */
#pragma once

/* Sets the group's weight, under its lock. It counts in all_weight while a
 * thread of the group is runnable: returns by how much more it counts now. */
static __always_inline u64 set_weight(struct group *group, u64 weight)
{
	u64 before = group->load;

	group->group.weight = weight;
	group->load = group->group.runnable ? weight : 0;
	return group->load - before;
}

/* The thread is not runnable from now on. */
__noinline int leave(struct task *task, u64 now)
{
	struct group *group;
	u64 more = 0;
	u32 index;

	if (!task || !task->counted)
		return 0;
	/* The thread may be a vCPU of another VM by now, or of none. */
	index = task->counted - 1;
	group = bpf_map_lookup_elem(&groups, &index);
	if (!group)
		return 0;
	bpf_spin_lock(&group->lock);
	if (task->counted == index + 1) {
		task->counted = 0;
		policy_leave(&group->group, now);
		more = set_weight(group, group->group.weight);
	}
	bpf_spin_unlock(&group->lock);
	add(&all_weight, more);
	return 0;
}

/* The thread is runnable from now on. */
__noinline int join(struct task *task, u64 now)
{
	u64 clock = virtual_now, weight = POLICY_WEIGHT, more = 0, lag;
	struct group *group;
	struct guest *guest;
	u32 index, cpu;

	if (!task)
		return 0;
	index = task->slot ? task->vm : GROUP_STRAYS;
	if (task->counted && task->counted != index + 1)
		leave(task, now);
	group = bpf_map_lookup_elem(&groups, &index);
	if (!group)
		return 0;
	guest = guest_of(task);
	if (guest)
		weight = guest->weight;
	cpu = task->cpu;
	lag = policy_lag(clock, queue_vtime(task));
	bpf_spin_lock(&group->lock);
	/* A CPU that takes the thread out of a queue may not hold the lock of
	 * the thread's CPU. */
	if (!task->counted) {
		task->counted = index + 1;
		policy_join(&group->group, now);
		policy_stand(&group->group, clock, cpu, lag);
		more = set_weight(group, weight);
	}
	bpf_spin_unlock(&group->lock);
	add(&all_weight, more);
	return 0;
}

/* The vCPU ran out of turn. */
static __always_inline void borrow(struct task *task, u64 ran)
{
	struct group *group = group_of(task);

	if (!group)
		return;
	task->turn.borrowed += ran;
	add(&group->group.borrowed, ran);
}

/* The thread begins a turn, for which it waited until its debt was repaid; or
 * it is a vCPU of the VM no longer. */
static __always_inline void repay(struct task *task)
{
	struct group *group = group_of(task);

	if (!group || !task->turn.borrowed)
		return;
	add(&group->group.borrowed, -task->turn.borrowed);
	task->turn.borrowed = 0;
}

/* Finds out whether the thread is a vCPU, if that may have changed. It is
 * runnable. */
static __always_inline void resolve(struct task_struct *p, struct task *task,
				    u64 now)
{
	u64 current_generation = generation;
	struct vcpu *vcpu;
	u32 tid = p->pid;
	u32 *found, slot = 0;

	if (task->generation == current_generation)
		return;
	task->generation = current_generation;
	found = bpf_map_lookup_elem(&threads, &tid);
	if (found)
		slot = *found + 1;
	/* User space may have forgotten its VM, and found it again. */
	vcpu = vcpu_of(task);
	if (slot == task->slot && (!slot || (vcpu && vcpu->vm == task->vm)))
		return;
	leave(task, now);
	repay(task);
	task->slot = 0;
	if (!slot)
		return;
	slot--;
	vcpu = bpf_map_lookup_elem(&vcpus, &slot);
	/* Another process may have the ID of a thread that ended. */
	if (!vcpu || vcpu->tgid != (u32)p->tgid)
		return;
	task->vm = vcpu->vm;
	task->slot = slot + 1;
}

static __always_inline void begin(struct task *task, u64 now)
{
	struct group *group = group_of(task);

	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	policy_begin(&task->thread, &group->group, now);
	bpf_spin_unlock(&group->lock);
}

/* Charges the thread and its VM for what it ran. Not inlined: many places call
 * it, and the verifier would follow each. */
__noinline int charge(struct task *task, u64 now)
{
	u64 clock = virtual_now, weight = POLICY_WEIGHT, more, lag;
	struct group *group;
	struct guest *guest;
	u32 cpu;

	if (!task)
		return 0;
	group = group_of(task);
	if (!group)
		return 0;
	guest = guest_of(task);
	if (guest)
		weight = guest->weight;
	cpu = task->cpu;
	lag = policy_lag(clock, queue_vtime(task));
	bpf_spin_lock(&group->lock);
	policy_charge(&task->thread, &group->group, now);
	policy_stand(&group->group, clock, cpu, lag);
	/* A VM that never sleeps gets a new weight here. */
	more = set_weight(group, weight);
	bpf_spin_unlock(&group->lock);
	add(&all_weight, more);
	return 0;
}

/* Puts the thread into the place in the CPU's queue that it returns. woken: it
 * slept until now. */
__noinline u64 place(struct task *task, u32 where, int woken)
{
	u64 clock = virtual_now, at;
	s64 credit = POLICY_KEPT_NS;
	struct group *group;

	if (!task)
		return 0;
	group = group_of(task);
	if (!group)
		return 0;
	task->cpu = where;
	at = queue_vtime(task);
	if (!task->thread.placed)
		task->thread.vtime += at;
	task->thread.placed = 1;
	if (woken)
		credit = policy_credit(&group->group, clock, where,
				       policy_lag(clock, at));
	return policy_place(&task->thread, &group->group, at, per_cpu(),
			    credit);
}

static __always_inline _Bool may_yield_to(const struct task *task)
{
	const struct group *group = group_of(task);

	return group &&
	       policy_yield(&task->thread, &group->group, queue_vtime(task),
			    per_cpu(), settings.max_hold);
}

/* The thread begins a turn on that CPU. */
static __always_inline void start(struct task *task, struct cpu *cpu)
{
	policy_start(&cpu->vtime, &task->thread);
	repay(task);
	if (policy_after(cpu->vtime, virtual_now) > 0)
		virtual_now = cpu->vtime;
}
