/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Rescues: who holds up a guest's grace period, and a short turn for it.
 */
#pragma once

/* Whether a vCPU of the VM owes its guest something. */
static __always_inline void set_owing(u32 index, _Bool owes)
{
	u64 bit;

	barrier_var(index);
	index &= MAX_VMS - 1;
	bit = 1ULL << (index % 64);
	if (owes && !(__sync_fetch_and_or(&pending[index / 64], bit) & bit))
		add(&owing, 1);
	if (!owes && __sync_fetch_and_and(&pending[index / 64], ~bit) & bit)
		add(&owing, -1);
}

/*
 * Looks who holds up the guest's grace period. One of its vCPUs has to be
 * current. What is read changes only while one of them runs, so that the last
 * look before all are preempted stays true.
 */
static __always_inline void look(struct task *task, u64 now)
{
	struct guest *guest = guest_of(task);
	u32 index = task->vm;
	struct vm *vm = bpf_map_lookup_elem(&vms, &index);
	u64 any = 0, seq = 0, jiffies = 0, due = 0;
	u32 kthread = MAX_GUEST_CPUS, i;
	u8 on_rq = 0;

	if (!guest || !vm || !guest->ready || !vm->ready || !vm->gp_seq)
		return;
	guest->looked = now;
	if (bpf_probe_read_user(&seq, sizeof(seq), (void *)vm->gp_seq))
		return;
	if ((seq & 3) && seq >> 2 != guest->seq >> 2)
		guest->seq_since = now;
	guest->seq = seq & 3 ? seq : 0;
	if (seq & 3) {
		if (guest->kthread_cpu && guest->kthread_on_rq) {
			/* It waits for a CPU, or its timer's tick does. */
			bpf_probe_read_user(&on_rq, sizeof(on_rq),
					    (void *)guest->kthread_on_rq);
			if (!on_rq && guest->jiffies && guest->fqs_due &&
			    !bpf_probe_read_user(&jiffies, sizeof(jiffies),
						 (void *)guest->jiffies) &&
			    !bpf_probe_read_user(&due, sizeof(due),
						 (void *)guest->fqs_due))
				on_rq = (s64)(jiffies - due) >= 0;
			if (on_rq &&
			    bpf_probe_read_user(&kthread, sizeof(kthread),
						(void *)guest->kthread_cpu))
				kthread = MAX_GUEST_CPUS;
		}
	}
	for (i = 0; i < MAX_LEAVES; i++) {
		struct leaf *leaf = &guest->leaves[i];
		u64 mask = 0, tasks = 0, host;
		u32 blocked = MAX_GUEST_CPUS;

		if (i >= guest->leaves_used)
			break;
		if (seq & 3) {
			if (bpf_probe_read_user(&mask, sizeof(mask),
						(void *)leaf->qsmask))
				mask = 0;
			if (leaf->cpus < 64)
				mask &= (1ULL << (leaf->cpus & 63)) - 1;
			if (kthread - leaf->first_cpu < leaf->cpus)
				mask |= 1ULL
					<< ((kthread - leaf->first_cpu) & 63);
			if (leaf->gp_tasks && guest->task_cpu &&
			    !bpf_probe_read_user(&tasks, sizeof(tasks),
						 (void *)leaf->gp_tasks) &&
			    tasks) {
				host = host_address(
					vm, tasks - guest->node_entry, 4096);
				if (host &&
				    !bpf_probe_read_user(
					    &blocked, sizeof(blocked),
					    (void *)(host + guest->task_cpu)) &&
				    blocked - leaf->first_cpu < leaf->cpus)
					mask |= 1ULL << ((blocked -
							  leaf->first_cpu) &
							 63);
			}
		}
		guest->owes[i] = mask;
		any |= mask;
	}
	set_owing(index, !!any);
}

/* Whether the vCPU holds up its guest's grace period, by the last look. */
static __always_inline _Bool owes(const struct task *task)
{
	struct guest *guest = guest_of(task);
	struct vcpu *vcpu = vcpu_of(task);
	u32 i;

	if (!guest || !vcpu)
		return 0;
	bpf_for(i, 0, MAX_LEAVES)
	{
		u32 bit;

		if (i >= guest->leaves_used || i >= MAX_LEAVES)
			break;
		bit = vcpu->index - guest->leaves[i].first_cpu;
		if (bit < guest->leaves[i].cpus && bit < 64)
			return guest->owes[i] >> bit & 1;
	}
	return 0;
}

static __always_inline _Bool may_rescue(const struct task *task,
					struct guest *guest, u64 age, u64 now)
{
	struct group *group = group_of(task);
	struct policy_limits limit;
	enum policy_answer answer;

	if (!group)
		return 0;
	limits(&limit);
	limit.rescue_share = guest->rescue_share;
	answer = policy_rescue(&task->thread, &group->group, queue_of(task),
			       per_cpu(), age, task->left, task->ticked, now,
			       &limit);
	if (answer == POLICY_IN_DEBT)
		add(&guest->rescued.refused, 1);
	return answer == POLICY_YES;
}

/* Has the vCPU scheduled next if it waits and that is allowed. */
static __always_inline void rescue(u32 slot, struct guest *guest, u64 age,
				   u32 here, u64 now)
{
	struct task_struct *p;
	struct task *task;
	struct cpu *cpu;
	s32 where;
	u32 *tid;

	tid = bpf_map_lookup_elem(&tids, &slot);
	if (!tid)
		return;
	p = bpf_task_from_pid(*tid);
	if (!p)
		return;
	task = task_of(p);
	if (!task || task->slot != slot + 1 || !task->queued || task->why)
		goto out;
	if (!may_run(p, task, now) || !may_rescue(task, guest, age, now))
		goto out;
	if (task->queue) {
		where = task->queue - 1;
	} else {
		where = scx_bpf_task_cpu(p);
		cpu = cpu_of(where);
		if (cpu && cpu->why && bpf_cpumask_test_cpu(here, p->cpus_ptr))
			where = here;
	}
	task->why = WHY_RESCUED;
	if (take(p, task, where, QUEUE_RESCUE + domain_of(where),
		 POLICY_RESCUE_NS)) {
		add(&guest->rescued.count, 1);
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	} else {
		task->why = WHY_TURN;
	}
out:
	bpf_task_release(p);
}

/* KVM's timer function: a tick of the guest is due. This is the best moment for
 * a rescue, since the tick comes with the vCPU. */
SEC("fentry/apic_timer_fn")
int BPF_PROG(guard_tick, struct hrtimer *timer)
{
	struct kvm_lapic *lapic =
		(void *)timer -
		bpf_core_field_offset(struct kvm_lapic, lapic_timer);
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;
	struct guest *guest;
	struct task *task;
	struct cpu *cpu;
	s32 where;
	u32 tid;

	if (!active || !BPF_CORE_READ(lapic, vcpu, ready))
		return 0;
	tid = BPF_CORE_READ(lapic, vcpu, pid, numbers[0].nr);
	if (!bpf_map_lookup_elem(&members, &tid))
		return 0;
	p = bpf_task_from_pid(tid);
	if (!p)
		return 0;
	task = task_of(p);
	if (!task || !task->slot || !task->queued || task->why)
		goto out;
	guest = guest_of(task);
	if (!guest || !(guest->policies & DOES_RESCUE))
		goto out;
	task->ticked = 1;
	add(&guest->ticks, 1);
	if (!guest->ready || !guest->seq ||
	    policy_after(now, guest->seq_since) <= 0 || !owes(task) ||
	    !may_rescue(task, guest, now - guest->seq_since, now))
		goto out;
	where = task->queue ? (s32)task->queue - 1 : scx_bpf_task_cpu(p);
	cpu = cpu_of(where);
	if (cpu && !cpu->wanted) {
		want(cpu, tid, WHY_RESCUED);
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	}
out:
	bpf_task_release(p);
	return 0;
}

/* How many vCPUs that owe one look of a CPU's timer may try to rescue, and how
 * many steps it may take to find them. Each is the look-up of a thread, and
 * there may be thousands: the next look goes on with the others. */
#define LOOK_OWING 16
#define LOOK_STEPS 128
/* Places in a pass of vCPUs, by VM, leaf and CPU of the leaf. */
#define LEAF_PLACES 64
#define VM_PLACES (LEAF_PLACES * MAX_LEAVES)

/* A CPU's pass over all vCPUs that owe. */
struct pass {
	u32 left; /* of this look's */
	u32 place; /* the next */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pass);
} passes SEC(".maps");

/* Index of the lowest bit. (clang 14 has none of its own for eBPF.) */
static __always_inline u32 lowest(u64 mask)
{
	u32 low = mask, high = mask >> 32;

	return low ? log2_u32(low & -low) : 32 + log2_u32(high & -high);
}

/* Goes on to the next VM, leaf or vCPU that owes, and rescues that. Whether the
 * look is over. */
static __always_inline _Bool rescue_next(struct pass *pass, u32 here, u64 now)
{
	u32 place = pass->place, index = place / VM_PLACES;
	u32 leaf = place / LEAF_PLACES % MAX_LEAVES;
	struct guest *guest;
	struct vm *vm;
	u64 mask;
	u32 cpu, slot;

	if (index >= MAX_VMS) {
		pass->place = 0;
		return 1;
	}
	mask = pending[index / 64] >> (index % 64);
	if (!(mask & 1)) {
		index = mask ? index + lowest(mask) : (index | 63) + 1;
		pass->place = index * VM_PLACES;
		return 0;
	}
	pass->place = (index + 1) * VM_PLACES;
	vm = bpf_map_lookup_elem(&vms, &index);
	guest = bpf_map_lookup_elem(&guests, &index);
	if (!vm || !guest)
		return 0;
	if (!guest->ready || !vm->ready || !guest->seq ||
	    !(guest->policies & DOES_RESCUE)) {
		/* It may be gone. */
		set_owing(index, 0);
		return 0;
	}
	if (policy_after(now, guest->seq_since) <= 0 ||
	    leaf >= guest->leaves_used)
		return 0;
	mask = guest->owes[leaf] >> (place % LEAF_PLACES);
	if (!mask) {
		pass->place = (place | (LEAF_PLACES - 1)) + 1;
		return 0;
	}
	place += lowest(mask);
	pass->place = place;
	if (!pass->left)
		return 1;
	pass->left--;
	pass->place = place + 1;
	cpu = guest->leaves[leaf].first_cpu + place % LEAF_PLACES;
	if (cpu >= MAX_GUEST_CPUS)
		return 0;
	slot = guest->slots[cpu];
	if (slot)
		rescue(slot - 1, guest, now - guest->seq_since, here, now);
	return 0;
}

__noinline int rescue_pending(u32 here, u64 now)
{
	u32 zero = 0, n;
	struct pass *pass = bpf_map_lookup_elem(&passes, &zero);

	if (!pass)
		return 0;
	pass->left = LOOK_OWING;
	bpf_for(n, 0, LOOK_STEPS)
	{
		if (rescue_next(pass, here, now))
			break;
	}
	return 0;
}
