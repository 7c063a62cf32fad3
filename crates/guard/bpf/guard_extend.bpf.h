/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Extensions: whether a vCPU whose slice or rescue is over keeps its CPU, since
 * it is in a critical section.
 *
 * A vCPU that spins for another one of its VM leaves its section only after the
 * other has run. It spins:
 *
 *   for a spin lock: guard extends it as in any section. Other vCPUs of the VM
 *   queue behind it.
 *   for a mutex: this is no section. It gives its CPU to another one of its VM
 *   that was woken and waits for a CPU: the mutex may have been handed to that.
 *   for the answer to a call: it gives its CPU to any other one of its VM that
 *   waits for a CPU. If none does, guard extends it.
 *
 * A vCPU that asks KVM to run another one gives way at once, if not because it
 * released a spin lock: its other sections end first.
 *
 * Invariant: the first look after MAX_EXTEND_NS ends an extension. All of a
 * VM's together last a quarter of the time at most (policy_extend).
 */
#pragma once

/* How many vCPUs of a VM spun_for looks at. */
#define LOOK_SPUN_FOR 16

static __always_inline _Bool critical(const struct observation *seen)
{
	return seen->reader || seen->class == CLASS_READER ||
	       seen->class == CLASS_NO_PREEMPT ||
	       seen->class == CLASS_IRQS_OFF || seen->class == CLASS_SOFTIRQ ||
	       seen->class == CLASS_HARDIRQ;
}

/* For the vCPU in slot, which spins here: the thread of the vCPU that it may
 * spin for, and in the upper half where that can run; or 0. Of the vCPUs that
 * wait for a CPU and would not get too far ahead, it is the one that left its
 * own first: what the spinning vCPU asked for is older than its absence. woken:
 * only vCPUs that slept before. */
__noinline u64 spun_for(u32 vm, u32 slot, u32 here, u32 woken)
{
	struct guest *guest = bpf_map_lookup_elem(&guests, &vm);
	u32 looked = 0, i, first;
	u64 found = 0, left = 0;

	if (!guest)
		return 0;
	first = bpf_get_prandom_u32();
	bpf_for(i, 0, MAX_GUEST_CPUS)
	{
		u32 other = guest->rcu.slots[(first + i) % MAX_GUEST_CPUS];
		struct task_struct *p;
		struct vcpu *vcpu;
		struct task *task;

		if (!other || other == slot + 1)
			continue;
		if (looked++ >= LOOK_SPUN_FOR)
			break;
		other--;
		vcpu = bpf_map_lookup_elem(&vcpus, &other);
		if (!vcpu)
			continue;
		p = bpf_task_from_pid(vcpu->tid);
		if (!p)
			continue;
		task = task_of(p);
		if (task && task->slot == other + 1 && task->vm == vm &&
		    task->wait.queued && !task->turn.why &&
		    task->wait.woken >= woken &&
		    (!found || policy_after(left, task->left.at) > 0) &&
		    may_yield_to(task)) {
			u64 where = kernel_allows(p, here) ? here : task->cpu;

			found = where << 32 | vcpu->tid;
			left = task->left.at;
		}
		bpf_task_release(p);
	}
	return found;
}

/* Has another CPU run the vCPU next, which waits in that CPU's queue: soon, if
 * the thread there has had a part of its turn. Returns whether it will. */
static __always_inline _Bool yield_there(u32 where, u32 tid, u64 now)
{
	struct cpu *cpu = cpu_of(where);

	if (!cpu || cpu->wanted || cpu->why)
		return 0;
	want(cpu, tid, WHY_YIELDED);
	if (cpu->since && !cpu->runs.extends &&
	    policy_after(now, cpu->since + SLICE_NS / 2) >= 0)
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	return 1;
}

/* Whether the vCPU, which is current and spins, gives its CPU to another one
 * that can run here: that one is then task->spin.awaits. If the other one can
 * run elsewhere only, guard has it run there, and the vCPU keeps its CPU. A
 * vCPU that runs out of turn gives way to nobody. */
static __always_inline _Bool gives_way(struct task *task, u32 woken, u64 now)
{
	u32 here = bpf_get_smp_processor_id(), where;
	struct cpu *cpu = cpu_of(here);
	u64 found;

	if (!cpu || cpu->why)
		return 0;
	/* Most spin for a moment. It has to spin at two looks, or at the end.
	 */
	if (!task->spin.since)
		task->spin.since = now;
	if (policy_after(now, task->spin.since) < LOOK_EXTENDED_NS / 2 &&
	    policy_after(now, cpu->since + cpu->slice) < 0)
		return 0;
	found = spun_for(task->vm, task->slot - 1, here, woken);
	if (!found)
		return 0;
	where = found >> 32;
	if (where == here) {
		task->spin.awaits = found;
		return 1;
	}
	yield_there(where, found, now);
	return 0;
}

/* Whether the vCPU's guest runs the kthread there, which takes some 0.1 ms.
 * Most guests charge a thread for the time that its vCPU has no CPU. The
 * kthread would then wait behind all other threads of its vCPU for the next
 * grace period. */
static __always_inline _Bool runs_kthread(const struct guest *guest,
					  const struct observation *seen)
{
	return guest->ready && guest->rcu.kthread_task &&
	       seen->task_host == guest->rcu.kthread_task;
}

/* Whether the vCPU, which is current, is in a section that should end before it
 * loses its CPU: a critical one of its kernel, one that a program of the guest
 * announced, or the kthread. Also sets task->spin. */
static __always_inline _Bool in_section(struct task_struct *p,
					struct task *task, u32 *class, u64 now)
{
	struct vcpu *vcpu = vcpu_of(task);
	struct guest *guest = guest_of(task);
	struct cpu *cpu = cpu_of(bpf_get_smp_processor_id());
	struct observation seen = {};
	u32 index = task->vm;
	struct vm *vm;

	*class = CLASS_UNKNOWN;
	task->spin.awaits = 0;
	if (!vcpu || !guest || !guest->full)
		return 0;
	vm = bpf_map_lookup_elem(&vms, &index);
	observe(vcpu, vm, p, &seen);
	*class = seen.class;
	if (cpu && cpu->runs.yields && seen.spins != SPINS_NO_MORE)
		return 0;
	/* For a mutex the vCPU spins only while the owner runs, or is about to
	 * run. If the vCPU went on, it would lose its CPU as the owner: guests
	 * do not tell who has a mutex. */
	if (spins(&seen))
		return !gives_way(task, seen.spins == SPINS_FOR_OWNER, now) &&
		       seen.spins != SPINS_FOR_OWNER;
	task->spin.since = 0;
	if (critical(&seen))
		return 1;
	if (seen.announced) {
		*class = CLASS_ANNOUNCED;
		return 1;
	}
	return seen.class != CLASS_USER && seen.class != CLASS_IDLE &&
	       seen.class != CLASS_UNKNOWN && runs_kthread(guest, &seen);
}

/* The same of the current thread. The verifier looks at a function with
 * external linkage once for each program that calls it, not for each call and
 * state. */
__noinline int current_in_section(u64 now)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task *task = task_of(p);
	u32 class;

	return task && in_section(p, task, &class, now);
}

/* Whether the current thread keeps its CPU beyond its turn: enum
 * policy_verdict. */
__noinline int extend_current(u64 now)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct cpu *cpu = cpu_of(bpf_get_smp_processor_id());
	struct task *task = task_of(p);
	enum policy_verdict verdict;
	struct granted *granted;
	u32 class;
	struct group *group;
	struct guest *guest;
	int section;
	u64 began;

	if (!task || !cpu)
		return POLICY_GO;
	began = task->extended;
	group = group_of(task);
	guest = guest_of(task);
	if (!group || !guest)
		return POLICY_GO;
	section = in_section(p, task, &class, now);
	if (!section && !began)
		return POLICY_GO;
	bpf_spin_lock(&group->lock);
	verdict = policy_extend(&task->extended, &group->budget, section, now);
	bpf_spin_unlock(&group->lock);
	if (!began)
		task->class = class;
	granted = &guest->did.extended;
	if (verdict == POLICY_REFUSED) {
		add(&granted->refused, 1);
	} else if (verdict == POLICY_STAY) {
		if (!began)
			add(&granted->count, 1);
	} else if (began) {
		grant(granted, now - began);
		/* A vCPU may give way before its section ends. */
		if (verdict != POLICY_EXPIRED && !task->spin.awaits &&
		    !cpu->runs.yields && task->class <= CLASS_ANNOUNCED)
			add(&guest->did.avoided[task->class], 1);
	}
	return verdict;
}

/* The extension ends because the thread sleeps or a higher class takes its CPU.
 */
static __always_inline void end_extension(struct task *task, _Bool slept,
					  u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	u64 began = task->extended;

	if (!began || !group || !guest)
		return;
	bpf_spin_lock(&group->lock);
	policy_extend(&task->extended, &group->budget, 0, now);
	bpf_spin_unlock(&group->lock);
	grant(&guest->did.extended, now - began);
	if (slept && task->class <= CLASS_ANNOUNCED)
		add(&guest->did.avoided[task->class], 1);
}
