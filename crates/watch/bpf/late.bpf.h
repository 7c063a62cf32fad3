/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Counts for how long preempted vCPUs hold up grace periods that are late.
 *
 * A vCPU owes a grace period a quiescent state while its bit in the guest's
 * rcu_node is set. The bit is read when the vCPU loses its CPU: when it comes
 * back, its memory is not there to be read. It cannot report meanwhile, so what
 * it owed then it owes until it is back, and so it does a grace period that
 * began while it was away. The exceptions are the idle task and, on CPUs where
 * the guest tracks it, user mode: RCU's kthread reports for a CPU that is
 * there. They are not counted.
 *
 * The beginning of a grace period is seen late, if anything, so that what is
 * counted here is no more than there was.
 */
#ifndef REPRIEVE_LATE_BPF_H
#define REPRIEVE_LATE_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "maps.bpf.h"
#include "watch.h"

/* Set before loading: the age from which on a grace period is late; 0: nothing
 * is counted. */
const volatile u64 late_ns = 0;

/* The vCPU, which is current, is preempted. Its guest's gp_seq was looked at
 * just before. */
static __always_inline void note_owed(struct vcpu *vcpu, const struct vm *vm)
{
	u64 seq, mask;

	if (!late_ns)
		return;
	vcpu->owed = NO_SEQ;
	seq = vm->seq;
	if (!vm->ready || !vcpu->qsmask || seq == NO_SEQ || !(seq & 3))
		return;
	if (!bpf_probe_read_user(&mask, sizeof(mask), (void *)vcpu->qsmask) &&
	    mask & vcpu->qsbit)
		vcpu->owed = seq >> 2;
}

/* The vCPU, which was preempted in that class, has its CPU again. */
static __always_inline void count_held(const struct vcpu *vcpu, u32 class,
				       u64 now)
{
	u64 seq, last, from, ns, max;
	struct vm *vm;

	if (!late_ns)
		return;
	vm = vm_of(vcpu);
	if (!vm || !vm->ready || !vcpu->qsmask)
		return;
	if (class == CLASS_UNKNOWN || class == CLASS_IDLE ||
	    (class == CLASS_USER && vcpu->tracks_user))
		return;
	seq = vm->seq;
	/* The age of a grace period that began before its guest was watched
	 * is unknown. */
	if (seq == NO_SEQ || !(seq & 3) || vm->began_seq >> 2 != seq >> 2)
		return;
	from = vm->began;
	if (vcpu->owed != seq >> 2 && (s64)(from - vcpu->since) < 0)
		return;
	from += late_ns;
	if ((s64)(from - vcpu->since) < 0)
		from = vcpu->since;
	if ((s64)(now - from) <= 0)
		return;
	ns = now - from;
	/* Several of its vCPUs may come back at once. */
	__sync_fetch_and_add(&vm->held.count, 1);
	__sync_fetch_and_add(&vm->held.total_ns, ns);
	max = vm->held.max_ns;
	if (ns > max)
		__sync_val_compare_and_swap(&vm->held.max_ns, max, ns);
	last = vm->held_seq;
	if (last != seq >> 2 &&
	    __sync_val_compare_and_swap(&vm->held_seq, last, seq >> 2) == last)
		__sync_fetch_and_add(&vm->held.graces, 1);
}

#endif
