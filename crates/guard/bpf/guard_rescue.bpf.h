/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Rescues: which vCPU holds up its guest's grace period, and when and where
 * guard runs it out of turn for that.
 *
 * look_at_rcu() reads which vCPUs the guest's RCU waits for, and notes them in
 * guest.grace.owes: those that have to report, those where a reader has to go
 * on, and the one where the kthread has to run. If such a vCPU waits for a CPU,
 * guard rescues it when the guest's timer expires (guard_guest_timer), or when
 * the timer of any CPU does (rescue_pending).
 *
 * Invariant: one rescued vCPU at most runs on a CPU, or waits for it. The first
 * look after POLICY_WORK_NS ends a rescue, but an extension may follow. Both
 * are charged like any run.
 */
#pragma once

/* A guest's task_struct.__state while a task is woken, until the CPU chosen for
 * it has queued it. */
#define GUEST_TASK_WAKING 0x200

#define NO_CPU (~0U)

/* Reads a word of the guest whose vCPU is current, at a host address. */
#define read_guest(to, from) \
	bpf_probe_read_user(to, sizeof(*(to)), (void *)(from))

/* Notes whether a vCPU of the VM owes. */
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

/* Whether one may owe, by the last look. */
static __always_inline _Bool may_owe(const struct guest *guest,
				     const struct vm *vm)
{
	return guest->ready && vm->ready && guest->full && guest->grace.seq;
}

/* Notes what a look has seen, under the group's lock. Several CPUs may look at
 * a guest at once, each for a vCPU that has stopped. So the look that began
 * last reads what all of them left: an older one that ends later is void. */
static __always_inline void note(struct grace *grace, struct grace *seen)
{
	if (policy_after(seen->looked, grace->looked) < 0)
		return;
	if (grace->seq && grace->seq >> 2 == seen->seq >> 2)
		seen->since = grace->since;
	/* Before the number: rescue() reads both. */
	grace->since = seen->since;
	barrier();
	*grace = *seen;
}

/* Knowledge of the guest's grace-period kthread. */
struct kthread {
	u32 cpu; /* whose vCPU has to run for it, or NO_CPU */
	u32 ready; /* it is runnable there; else the timer that wakes it is due
		    */
};

static __always_inline void look_at_kthread(const struct guest *guest, u64 seq,
					    struct kthread *kthread)
{
	u64 jiffies, due;
	u32 state, cpu;
	_Bool late;
	u8 on_rq = 0;

	if (!guest->rcu.kthread_cpu || !guest->rcu.kthread_on_rq)
		return;
	read_guest(&on_rq, guest->rcu.kthread_on_rq);
	/* Since Linux 6.12 a task that sleeps may be on the runqueue, too. A
	 * task that was woken for a vCPU without a CPU is not, until an
	 * interrupt of that vCPU puts it there. */
	if (guest->rcu.kthread_state &&
	    !read_guest(&state, guest->rcu.kthread_state))
		on_rq = state == GUEST_TASK_WAKING || (on_rq && !state);
	late = seq & 3 && guest->rcu.jiffies && guest->rcu.fqs_due &&
	       !read_guest(&jiffies, guest->rcu.jiffies) &&
	       !read_guest(&due, guest->rcu.fqs_due) &&
	       (s64)(jiffies - due) >= 0;
	if (!on_rq && !late)
		return;
	kthread->ready = on_rq;
	if (!read_guest(&cpu, guest->rcu.kthread_cpu))
		kthread->cpu = cpu;
}

/* The CPU of the leaf where a preempted reader runs next for which the grace
 * period waits, or NO_CPU. */
static __always_inline u32 blocked_cpu(const struct guest *guest,
				       const struct vm *vm,
				       const struct leaf *leaf)
{
	u64 tasks = 0, host;
	u32 cpu;

	if (!leaf->gp_tasks || !guest->rcu.task_cpu ||
	    read_guest(&tasks, leaf->gp_tasks) || !tasks)
		return NO_CPU;
	host = host_address(vm,
			    tasks - guest->rcu.node_entry + guest->rcu.task_cpu,
			    sizeof(cpu));
	if (!host || read_guest(&cpu, host))
		return NO_CPU;
	return cpu;
}

static __always_inline u64 cpu_bit(const struct leaf *leaf, u32 cpu)
{
	cpu -= leaf->first_cpu;
	return cpu < leaf->cpus && cpu < 64 ? 1ULL << cpu : 0;
}

/* Looks who holds up the grace period of the guest whose vCPU is current. Only
 * the guest's own vCPUs change what is read. So what the last look has read
 * stays true while all of them are preempted. */
__noinline int look_at_rcu(u64 now)
{
	struct task *task = task_of(bpf_get_current_task_btf());
	struct group *group = task ? group_of(task) : 0;
	struct guest *guest = task ? guest_of(task) : 0;
	u32 index = task ? task->vm : 0, i;
	struct vm *vm = bpf_map_lookup_elem(&vms, &index);
	struct kthread kthread = {.cpu = NO_CPU};
	struct grace seen = {.since = now, .looked = now};
	u64 any = 0, seq = 0;

	if (!group || !guest || !vm || !guest->ready || !vm->ready ||
	    !vm->gp_seq || read_guest(&seq, vm->gp_seq))
		return 0;
	look_at_kthread(guest, seq, &kthread);
	/* Between two grace periods, a ready kthread is about to begin the next
	 * one. Callbacks wait for that: it counts from now on. */
	if (kthread.ready)
		seq |= 1;
	seen.seq = seq & 3 ? seq : 0;
	if (kthread.ready && kthread.cpu < MAX_GUEST_CPUS)
		seen.kthread =
			guest->rcu.slots[kthread.cpu & (MAX_GUEST_CPUS - 1)];
	for (i = 0; i < MAX_LEAVES; i++) {
		struct leaf *leaf = &guest->rcu.leaves[i];
		u64 mask = 0;

		if (i >= guest->rcu.leaves_used)
			break;
		if (seq & 3 && read_guest(&mask, leaf->qsmask))
			mask = 0;
		if (leaf->cpus < 64)
			mask &= (1ULL << (leaf->cpus & 63)) - 1;
		if (seq & 3)
			mask |= cpu_bit(leaf, kthread.cpu) |
				cpu_bit(leaf, blocked_cpu(guest, vm, leaf));
		seen.owes[i] = mask;
		any |= mask;
	}
	bpf_spin_lock(&group->lock);
	note(&guest->grace, &seen);
	bpf_spin_unlock(&group->lock);
	if (any)
		set_owing(index, 1);
	return 0;
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
		if (i >= guest->rcu.leaves_used || i >= MAX_LEAVES)
			break;
		if (guest->rcu.leaves[i].qsmask == vcpu->qsmask)
			return !!(guest->grace.owes[i] & vcpu->qsbit);
	}
	return 0;
}

/* The last grace period that the guest's CPU noticed: its gp_seq, or NO_SEQ
 * where that cannot be read. The vCPU is current. */
static __always_inline u64 noticed(const struct task *task)
{
	struct vcpu *vcpu = vcpu_of(task);
	u64 seq;

	if (!vcpu || !vcpu->noticed || read_guest(&seq, vcpu->noticed))
		return NO_SEQ;
	return seq;
}

/* Whether the rescue of the current thread is over. It has run for so long, and
 * a look was just before: its purpose may change while it lasts. At a tick a
 * CPU only notices a grace period. It reports at the next one, in a rescue of
 * its own. */
__noinline int rescue_over(u64 ran)
{
	struct task *task = task_of(bpf_get_current_task_btf());
	struct guest *guest = task ? guest_of(task) : 0;
	u64 most = POLICY_WORK_NS, seq;

	if (!guest || !owes(task))
		return 1;
	if (guest->grace.kthread != task->slot) {
		most = POLICY_RESCUE_NS;
		seq = task->left.noticed == NO_SEQ ? NO_SEQ : noticed(task);
		if (seq != task->left.noticed && seq == guest->grace.seq)
			return 1;
	}
	return ran >= most;
}

/* Whether the vCPU, which waits, is rescued now for a grace period of that age.
 * Not inlined, for the verifier. */
__noinline int may_rescue(struct task *task, u64 age, u64 now)
{
	enum policy_need need = POLICY_TICK;
	enum policy_answer answer;
	struct group *group;
	struct guest *guest;

	if (!task)
		return 0;
	group = group_of(task);
	guest = guest_of(task);
	if (!group || !guest)
		return 0;
	if (guest->grace.kthread == task->slot)
		need = POLICY_WORK;
	else if (task->wait.ticked)
		need = POLICY_DUE_TICK;
	answer = policy_rescue(&task->thread, &group->group, queue_vtime(task),
			       per_cpu(), age, settings.max_hold, task->left.at,
			       need, now);
	if (answer == POLICY_IN_DEBT)
		add(&guest->did.rescued.refused, 1);
	return answer == POLICY_YES;
}

/* How well a rescue fits on the CPU. It cuts short no thread that runs out of
 * turn, and another vCPU of its VM or an extension only if need be. */
enum { FITS_NOT, FITS_BADLY, FITS };

static __always_inline u32 fits(const struct task *task, struct task_struct *p,
				u32 where)
{
	struct cpu *cpu = cpu_of(where);

	/* A CPU that is offline has no timer, nor one that runs no vCPUs. */
	if (!cpu || !cpu->looks.next || (cpu->since && cpu->why) ||
	    !kernel_allows(p, where))
		return FITS_NOT;
	/* If another vCPU is wanted there, this one might run long after the
	 * look, and its VM would get too far ahead: debt counts only what has
	 * run. */
	if (is_taken(cpu) || cpu->wanted)
		return FITS_NOT;
	if (!cpu->since || cpu->runs.extends || cpu->runs.vm == task->vm + 1)
		return FITS_BADLY;
	return FITS;
}

/* Where the vCPU, which waits, should be rescued now: on the CPU of its queue,
 * or if that does not fit, on one of two CPUs where it may run. */
__noinline u32 rescue_at(u32 tid)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	u32 where = NO_CPU, best = FITS_NOT, other, fit, try;
	struct task *task;

	if (!p)
		return NO_CPU;
	task = task_of(p);
	if (!task)
		goto out;
	other = task->cpu;
	bpf_for(try, 0, 3)
	{
		fit = fits(task, p, other);
		if (fit > best) {
			best = fit;
			where = other;
		}
		if (best == FITS)
			break;
		other = kernel_any_cpu(p);
	}
out:
	bpf_task_release(p);
	return where;
}

/* Has the vCPU, which waits and holds up its guest's grace period, scheduled
 * next if that is allowed. */
static __always_inline void rescue(struct task_struct *p, struct task *task,
				   struct guest *guest, u64 now)
{
	struct cpu *cpu;
	u32 where;

	if (!guest->ready || !guest->grace.seq ||
	    policy_after(now, guest->grace.since) <= 0 ||
	    !may_rescue(task, now - guest->grace.since, now))
		return;
	where = rescue_at(p->pid);
	cpu = where == NO_CPU ? 0 : cpu_of(where);
	if (!cpu)
		return;
	want(cpu, p->pid, WHY_RESCUED);
	scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
}

/* KVM's timer function: the guest's timer expires, mostly for a tick. A rescue
 * is best then: the tick comes as soon as the vCPU runs. */
SEC("fentry/apic_timer_fn")
int BPF_PROG(guard_guest_timer, void *timer)
{
	struct kvm_lapic *lapic =
		timer - bpf_core_field_offset(struct kvm_lapic, lapic_timer);
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;
	struct guest *guest;
	struct task *task;

	if (!active)
		return 0;
	p = bpf_task_from_pid(BPF_CORE_READ(lapic, vcpu, pid, numbers[0].nr));
	if (!p)
		return 0;
	task = task_of(p);
	guest = task ? guest_of(task) : 0;
	/* A vCPU that sleeps has no ticks, but other timers wake it. */
	if (guest && guest->full && task->counted && task->wait.queued &&
	    !task->turn.why) {
		task->wait.ticked = 1;
		if (owes(task))
			rescue(p, task, guest, now);
	}
	bpf_task_release(p);
	return 0;
}

/* How many vCPUs one look tries to rescue, and how many steps it takes to find
 * them. Each is the look-up of a thread, and there may be thousands: the next
 * look goes on with the others. */
#define LOOK_OWING 16
#define LOOK_STEPS 128
/* Places in a pass: one for each CPU of each leaf of each VM. */
#define LEAF_PLACES 64
#define VM_PLACES (LEAF_PLACES * MAX_LEAVES)

/* A CPU's pass over all vCPUs that owe. */
struct pass {
	u32 left; /* how many vCPUs this look may still try */
	u32 place; /* the next */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pass);
} passes SEC(".maps");

/* Index of the lowest bit. (clang 14 has none of its own for eBPF.) Not inlined
 * in the loop: Linux 6.18's verifier would end with an error of its own when it
 * goes back over this arithmetic. */
__noinline u32 lowest(u64 mask)
{
	u32 low = mask, high = mask >> 32;

	return low ? log2_u32(low & -low) : 32 + log2_u32(high & -high);
}

/* Rescues the vCPU in that slot, if it waits. */
static __always_inline void rescue_slot(u32 slot, struct guest *guest, u64 now)
{
	struct vcpu *vcpu = bpf_map_lookup_elem(&vcpus, &slot);
	struct task_struct *p;
	struct task *task;

	if (!vcpu)
		return;
	p = bpf_task_from_pid(vcpu->tid);
	if (!p)
		return;
	task = task_of(p);
	if (task && task->slot == slot + 1 && task->wait.queued &&
	    !task->turn.why)
		rescue(p, task, guest, now);
	bpf_task_release(p);
}

/* Goes on to the next VM, leaf or vCPU that owes, and rescues that vCPU.
 * Returns whether the look is over. */
static __always_inline _Bool rescue_next(struct pass *pass, u64 now)
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
	if (!may_owe(guest, vm)) {
		/* The VM may be gone. Only here the bit is cleared. A look
		 * notes what it saw before it sets the bit: if it set the bit
		 * before this, the second question is answered with yes. */
		set_owing(index, 0);
		if (may_owe(guest, vm))
			set_owing(index, 1);
		return 0;
	}
	if (leaf >= guest->rcu.leaves_used)
		return 0;
	mask = guest->grace.owes[leaf] >> (place % LEAF_PLACES);
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
	cpu = guest->rcu.leaves[leaf].first_cpu + place % LEAF_PLACES;
	if (cpu >= MAX_GUEST_CPUS)
		return 0;
	slot = guest->rcu.slots[cpu];
	if (slot)
		rescue_slot(slot - 1, guest, now);
	return 0;
}

/* A look at the vCPUs that owe, of all VMs. */
__noinline int rescue_pending(u64 now)
{
	u32 zero = 0, n;
	struct pass *pass = bpf_map_lookup_elem(&passes, &zero);

	if (!pass || !owing)
		return 0;
	pass->left = LOOK_OWING;
	bpf_for(n, 0, LOOK_STEPS)
	{
		if (rescue_next(pass, now))
			break;
	}
	return 0;
}
