/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The steps of histograms as a library, for their tests in user space. */
typedef unsigned int u32;
typedef unsigned long long u64;
/* watch.h's. */
#define COST_STEP_BITS 3
#include "cost_steps.h"

u32 watch_cost_step(u64 ns)
{
	return cost_step(ns);
}
