/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Extensions: a vCPU in a section keeps its CPU until it leaves.
 */
#pragma once

static __always_inline _Bool critical(const struct observation *seen)
{
	return seen->reader || seen->class == CLASS_READER ||
	       seen->class == CLASS_NO_PREEMPT ||
	       seen->class == CLASS_IRQS_OFF || seen->class == CLASS_SOFTIRQ ||
	       seen->class == CLASS_HARDIRQ;
}

/* Whether the vCPU, which is current, is in a section that should end before
 * it loses its CPU: a critical one of its kernel's, one that a program of the
 * guest announced, or until its next quiescent point. */
static __always_inline _Bool in_section(struct task_struct *p,
					struct task *task, u32 *class,
					u32 *quiescing)
{
	struct vcpu *vcpu = vcpu_of(task);
	struct guest *guest = guest_of(task);
	struct observation seen = {};
	u32 index = task->vm;
	struct vm *vm;

	*class = CLASS_UNKNOWN;
	*quiescing = 0;
	if (!vcpu || !guest || !(guest->policies & ~DOES_RESCUE))
		return 0;
	vm = bpf_map_lookup_elem(&vms, &index);
	observe(vcpu, vm, p, &seen);
	*class = seen.class;
	if (guest->policies & DOES_EXTEND && critical(&seen))
		return 1;
	if (guest->policies & DOES_EXTEND && seen.announced) {
		*class = CLASS_ANNOUNCED;
		return 1;
	}
	if (seen.class == CLASS_USER || seen.class == CLASS_IDLE ||
	    seen.class == CLASS_UNKNOWN)
		return 0;
	if (!(guest->policies & DOES_QUIESCE) &&
	    !(guest->policies & DOES_QUIESCE_TRACKED && guest->tracks_user))
		return 0;
	/* The guest switched tasks since: that was a quiescent point. */
	if (task->extension.began && task->section_task != seen.task)
		return 0;
	if (!task->extension.began)
		task->section_task = seen.task;
	*quiescing = 1;
	return 1;
}

static __always_inline enum policy_verdict extend(struct task_struct *p,
						  struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	u64 began = task->extension.began;
	enum policy_verdict verdict;
	struct policy_limits limit;
	struct granted *granted;
	u32 class, quiescing;
	int section;

	if (!task->slot)
		return hints_extend(p, task, now);
	if (!group || !guest)
		return POLICY_GO;
	section = in_section(p, task, &class, &quiescing);
	if (!section && !began)
		return POLICY_GO;
	limits(&limit);
	bpf_spin_lock(&group->lock);
	verdict = policy_extend(&task->extension, &group->budget, section, now,
				&limit);
	bpf_spin_unlock(&group->lock);
	if (!began) {
		task->class = class;
		task->quiescing = quiescing;
	}
	granted = task->quiescing ? &guest->quiesced : &guest->extended;
	if (verdict == POLICY_REFUSED) {
		add(&granted->refused, 1);
	} else if (verdict == POLICY_STAY) {
		if (!began)
			add(&granted->count, 1);
	} else if (began) {
		grant(granted, now - began);
		if (verdict == POLICY_EXPIRED)
			add(&granted->expired, 1);
		else if (task->class <= CLASS_ANNOUNCED)
			add(&guest->avoided[task->class], 1);
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
	u64 began = task->extension.began;
	struct policy_limits limit;
	struct granted *granted;

	if (!task->slot)
		hints_end(task, slept, now);
	if (!began || !group || !guest)
		return;
	limits(&limit);
	bpf_spin_lock(&group->lock);
	policy_extend(&task->extension, &group->budget, 0, now, &limit);
	bpf_spin_unlock(&group->lock);
	granted = task->quiescing ? &guest->quiesced : &guest->extended;
	grant(granted, now - began);
	if (slept && task->class <= CLASS_ANNOUNCED)
		add(&guest->avoided[task->class], 1);
}
