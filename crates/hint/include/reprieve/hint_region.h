/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The region: memory that programs inside a guest share with the guest's host (docs/hint.md, "In
 * guests"). To the host it is a file; the guest has it as the memory of a device of QEMU's,
 * ivshmem-plain, which needs no driver: PCI 1af4:1110, file resource2_wc (or resource2). Hosts,
 * guests, C and eBPF programs use this layout; crates/hint/src/region checks that Rust has the
 * same. Version 1.
 *
 * Programs of the guest write slots, the host everything else. A guest can write all of it: the
 * host believes nothing that it reads here but the hints, and those only as far as a lie costs the
 * guest its own time.
 */
#ifndef REPRIEVE_HINT_REGION_H
#define REPRIEVE_HINT_REGION_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include "hint_abi.h"

#define REPRIEVE_REGION_VERSION 1
/* "rreg". */
#define REPRIEVE_REGION_MAGIC 1734701682

/* The file's size. A PCI device's memory has a power of two. */
#define REPRIEVE_REGION_BYTES 1048576
#define REPRIEVE_REGION_VCPUS 1024
#define REPRIEVE_REGION_SLOTS 8192
/*
 * A thread's slot is one of this many from (its number in the kernel % SLOTS) on. Those that were
 * taken once never become free, so a search ends at a free one.
 */
#define REPRIEVE_REGION_PROBES 4

/*
 * A vCPU, by the guest's number of the CPU. state: REPRIEVE_HINT_RUNNING, _PREEMPTED or _BLOCKED;
 * 0: not known. runnable: the vCPU itself, and others that run or wait on the host's CPU where it
 * is or was last; 0: not known.
 */
struct reprieve_region_vcpu {
	REPRIEVE_HINT_U32 state;
	REPRIEVE_HINT_U32 runnable;
};

/*
 * A thread of the guest. thread: its number (gettid) in the guest's first PID namespace, which is
 * what the host finds in the guest's task; 0: free. The counts are copies of those in the thread's
 * line (hint_abi.h): how deep it is nested in either kind of critical section. The thread alone
 * writes them, with plain stores.
 */
struct reprieve_region_slot {
	REPRIEVE_HINT_U32 thread;
	REPRIEVE_HINT_U32 non_preemptable;
	REPRIEVE_HINT_U32 preemptable;
	REPRIEVE_HINT_U32 pad[13];
};

/*
 * beat: changes several times a second while the host serves the region. What it says is worth
 * nothing when the beat has not changed for REPRIEVE_HINT_STALE_NS of the guest's time.
 */
struct reprieve_region {
	REPRIEVE_HINT_U32 magic;
	REPRIEVE_HINT_U32 version;
	REPRIEVE_HINT_U64 beat;
	REPRIEVE_HINT_U32 pad[12];
	struct reprieve_region_vcpu vcpus[REPRIEVE_REGION_VCPUS];
	REPRIEVE_HINT_U32 unused[129008];
	struct reprieve_region_slot slots[REPRIEVE_REGION_SLOTS];
};

#endif
