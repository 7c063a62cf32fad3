/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CPU limits of cgroups (cpu.max). Under sched_ext they are the scheduler's to
 * keep, and this one keeps none: user space refuses them, and is told here, by
 * kernels that tell, that one has changed.
 */
#ifndef REPRIEVE_GUARD_BANDWIDTH_BPF_H
#define REPRIEVE_GUARD_BANDWIDTH_BPF_H

#include "guard_kernel.bpf.h"

/* How often limits were changed. */
u64 limits_changed;

SEC("struct_ops/guard_set_bandwidth")
void BPF_PROG(guard_set_bandwidth, struct cgroup *cgroup, u64 period_us,
	      u64 quota_us, u64 burst_us)
{
	__sync_fetch_and_add(&limits_changed, 1);
}

#endif
