/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread's line, which programs in C and in Rust write. C and C++ include it, and eBPF for the
 * words that the region has in common (hint_region.h). crates/hint/src checks that Rust has the
 * same layout.
 */
#ifndef REPRIEVE_HINT_ABI_H
#define REPRIEVE_HINT_ABI_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#ifndef __bpf__
#include <stdint.h>
#define REPRIEVE_HINT_U32 uint32_t
#define REPRIEVE_HINT_U64 uint64_t
#else
#define REPRIEVE_HINT_U32 unsigned int
#define REPRIEVE_HINT_U64 unsigned long long
#endif

/*
 * A thread's cache line. The thread alone writes it, with plain stores; everybody may read it.
 * non_preemptable, preemptable: how deep the thread is nested in either kind of critical section.
 * generation: changes when another thread takes over the line. cpu: where the thread was when it
 * last took a lock or waited for one, or (1 << 32) - 1. waited: CLOCK_MONOTONIC in ns when it last
 * looked at a lock that it waits for. slot: in a guest whose host offers a region (hint_region.h),
 * the address of the thread's slot there, which has copies of the counts; else 0. slice: where it
 * asks the kernel for a longer time slice (slice_ctrl of its rseq area), or 0.
 */
struct reprieve_hint_line {
	REPRIEVE_HINT_U32 non_preemptable;
	REPRIEVE_HINT_U32 preemptable;
	REPRIEVE_HINT_U32 generation;
	REPRIEVE_HINT_U32 cpu;
	REPRIEVE_HINT_U32 thread;
	REPRIEVE_HINT_U32 unused;
	REPRIEVE_HINT_U64 waited;
	REPRIEVE_HINT_U64 slot;
	REPRIEVE_HINT_U64 slice;
	REPRIEVE_HINT_U32 pad[4];
};

/* The states of a vCPU; what was said longer ago than STALE_NS says nothing. */
#define REPRIEVE_HINT_RUNNING 1
#define REPRIEVE_HINT_PREEMPTED 2
#define REPRIEVE_HINT_BLOCKED 3
#define REPRIEVE_HINT_STALE_NS 2000000000

#endif
