/* SPDX-License-Identifier: GPL-2.0 */
/* Histograms of durations, and of the program's own run time. */
#ifndef REPRIEVE_COUNT_BPF_H
#define REPRIEVE_COUNT_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "cost_steps.h"
#include "maps.bpf.h"
#include "watch.h"

static __always_inline u32 bucket(u64 ns)
{
	u64 us = ns / 1000;
	u32 n;

	if (us >= 1ULL << (BUCKETS - 1))
		return BUCKETS - 1;
	n = log2_u32(us);
	barrier_var(n);
	return n < BUCKETS ? n : BUCKETS - 1;
}

/* Only one CPU at a time counts in a vCPU's histograms. */
static __always_inline void count(struct histogram *histogram, u64 ns)
{
	histogram->counts[bucket(ns)]++;
	histogram->total_ns += ns;
	if (ns > histogram->max_ns)
		histogram->max_ns = ns;
}

static __always_inline void account(u64 began)
{
	struct cost *cost;
	u32 zero = 0;
	u64 ns = bpf_ktime_get_ns() - began;
	u32 step = cost_step(ns);

	cost = bpf_map_lookup_elem(&costs, &zero);
	if (!cost)
		return;
	cost->runs++;
	cost->total_ns += ns;
	barrier_var(step);
	if (step >= COST_STEPS)
		step = COST_STEPS - 1;
	cost->steps[step]++;
}

#endif
