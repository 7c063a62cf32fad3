/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tells contention for a CPU from a used-up quota, and counts which process
 * took the CPUs of preempted vCPUs.
 *
 * The taker is the thread that runs next. A later thread on that CPU, while the
 * vCPU still waits, counts for the first one.
 */
#ifndef REPRIEVE_TAKEN_BPF_H
#define REPRIEVE_TAKEN_BPF_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "maps.bpf.h"
#include "watch.h"

enum { BPF_MAP_TYPE_LRU_HASH = 9, BPF_NOEXIST = 1 };

/* Have the layouts of the map's keys and values in the program's BTF, and so in
 * Rust. */
const struct pair *pair_layout;
const struct taken_times *taken_layout;

/* The least recently used pair gives way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_PAIRS);
	__type(key, struct pair);
	__type(value, struct taken_times);
} taken_by SEC(".maps");

/* The thread leaves its CPU because its cgroup, or one above, has used up its
 * quota. The scheduler throttles before it switches. */
static __always_inline _Bool is_throttled(struct task_struct *thread)
{
	if (!bpf_core_field_exists(thread->se.cfs_rq->throttle_count))
		return 0;
	return BPF_CORE_READ(thread, se.cfs_rq, throttle_count) > 0;
}

/* The vCPU is preempted; next gets its CPU. */
static __always_inline void note_taker(struct vcpu *vcpu,
				       struct task_struct *next)
{
	struct pair pair = {.vm = vcpu->tgid, .taker = next->tgid};
	struct taken_times taken = {};

	/* The idle thread takes no CPU from anybody. */
	vcpu->taker = vcpu->throttled ? 0 : pair.taker;
	if (!vcpu->taker || bpf_map_lookup_elem(&taken_by, &pair))
		return;
	bpf_probe_read_kernel_str(taken.comm, sizeof(taken.comm), next->comm);
	bpf_map_update_elem(&taken_by, &pair, &taken, BPF_NOEXIST);
}

/* The vCPU, which was preempted, has a CPU again. */
static __always_inline void count_taken(struct vcpu *vcpu, u64 away)
{
	struct pair pair = {.vm = vcpu->tgid, .taker = vcpu->taker};
	struct taken_times *taken;

	if (vcpu->throttled) {
		vcpu->throttled_count++;
		vcpu->throttled_ns += away;
	}
	if (!vcpu->taker)
		return;
	taken = bpf_map_lookup_elem(&taken_by, &pair);
	if (!taken)
		return;
	/* Several of its vCPUs may come back at once. */
	__sync_fetch_and_add(&taken->count, 1);
	__sync_fetch_and_add(&taken->total_ns, away);
}

#endif
