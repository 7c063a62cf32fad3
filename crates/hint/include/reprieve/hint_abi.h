/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that a program, the scheduler's eBPF programs and `reprieve hint serve` share. C, C++ and
 * eBPF include it; crates/hint/src checks that Rust has the same layout. Version 1.
 *
 * From a thread to its line, for an eBPF program in the thread's own context: the program
 * registered struct reprieve_hint_hello (below). The word at (thread pointer + block) is the
 * address of the thread's line, or 0 before the thread's first hint. A line lies in
 * [table, table + lines * 64), at a multiple of 64 from its start; its index is its place there.
 * Line 0 is of the threads for which there is none: they all write it, so it says nothing. Anything
 * else is a lie, and means: no hint. The thread pointer is task->thread.fsbase on x86-64.
 *
 * The runtime's read-side word is a hint by itself: if reader is not 0, the word at (thread pointer
 * + reader) is the address of the thread's reprieve_record (abi.h), whose first 32 bits are the
 * nesting of read-side sections. Readers pay nothing for it.
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
#define REPRIEVE_HINT_S64 int64_t
#else
#define REPRIEVE_HINT_U32 unsigned int
#define REPRIEVE_HINT_U64 unsigned long long
#define REPRIEVE_HINT_S64 long long
#endif

#define REPRIEVE_HINT_VERSION 1
/* "rhint" and the version. */
#define REPRIEVE_HINT_MAGIC 1953392754

/*
 * A thread's cache line. The thread alone writes it, with plain stores; everybody may read it.
 * non_preemptable, preemptable: how deep the thread is nested in either kind of critical section.
 * generation: changes when another thread takes over the line. cpu: where the thread was when it
 * last took a lock or waited for one, or (1 << 32) - 1. waited: CLOCK_MONOTONIC in ns when it last
 * looked at a lock that it waits for. nodes: the locks' own. slot: in a guest whose host offers a
 * region (hint_region.h), the address of the thread's slot there, which has copies of the counts;
 * else 0. slice: where it asks the kernel for a longer time slice (slice_ctrl of its rseq area), or
 * 0.
 */
struct reprieve_hint_line {
	REPRIEVE_HINT_U32 non_preemptable;
	REPRIEVE_HINT_U32 preemptable;
	REPRIEVE_HINT_U32 generation;
	REPRIEVE_HINT_U32 cpu;
	REPRIEVE_HINT_U32 thread;
	REPRIEVE_HINT_U32 nodes;
	REPRIEVE_HINT_U64 waited;
	REPRIEVE_HINT_U64 slot;
	REPRIEVE_HINT_U64 slice;
	REPRIEVE_HINT_U32 pad[4];
};

/* Lines per process. */
#define REPRIEVE_HINT_LINES 4096

/*
 * What a process sends to the socket of `reprieve hint serve`. The answer is struct
 * reprieve_hint_welcome with a descriptor (SCM_RIGHTS) of the page, for mmap(PROT_READ): an eBPF
 * map, or a memfd that is sealed against shrinking. The registration ends when the connection does.
 */
struct reprieve_hint_hello {
	REPRIEVE_HINT_U32 magic;
	REPRIEVE_HINT_U32 version;
	REPRIEVE_HINT_S64 block;
	REPRIEVE_HINT_S64 reader;
	REPRIEVE_HINT_U64 table;
	REPRIEVE_HINT_U32 lines;
	REPRIEVE_HINT_U32 pad;
};

/*
 * key: the process's place in the page is where "keys" has it. A process without a place waits for
 * one: the server gives places, and takes them away, as long as the connection lasts.
 */
struct reprieve_hint_welcome {
	REPRIEVE_HINT_U32 magic;
	REPRIEVE_HINT_U32 version;
	REPRIEVE_HINT_U32 pad[2];
	REPRIEVE_HINT_U64 key;
};

/* The scheduler's answers. */
#define REPRIEVE_HINT_RUNNING 1
#define REPRIEVE_HINT_PREEMPTED 2
#define REPRIEVE_HINT_BLOCKED 3
#define REPRIEVE_HINT_STATE_BITS 2

#define REPRIEVE_HINT_CPUS 1024
#define REPRIEVE_HINT_PROCESSES 64

/* runnable: threads on the CPU's queue, the running one among them; 0: not known. Under a scheduler
 * that has a queue for several CPUs, those in it are in the page's "waiting". */
struct reprieve_hint_cpu {
	REPRIEVE_HINT_U32 runnable;
	REPRIEVE_HINT_U32 pad[15];
};

/*
 * state: generation of the line << REPRIEVE_HINT_STATE_BITS | one of the states above. If the
 * generation is not the line's, the thread has not left its CPU since it took the line: it runs.
 */
struct reprieve_hint_thread {
	REPRIEVE_HINT_U32 state;
	REPRIEVE_HINT_U32 pad[3];
};

/*
 * The page. beat: CLOCK_MONOTONIC in ns, written several times a second; a page whose beat is older
 * than REPRIEVE_HINT_STALE_NS says nothing. waiting: threads that wait for whichever CPU is free
 * first.
 */
struct reprieve_hint_page {
	REPRIEVE_HINT_U32 magic;
	REPRIEVE_HINT_U32 version;
	REPRIEVE_HINT_U64 beat;
	REPRIEVE_HINT_U32 waiting;
	REPRIEVE_HINT_U32 pad[11];
	REPRIEVE_HINT_U64 keys[REPRIEVE_HINT_PROCESSES];
	struct reprieve_hint_cpu cpus[REPRIEVE_HINT_CPUS];
	struct reprieve_hint_thread threads[REPRIEVE_HINT_PROCESSES * REPRIEVE_HINT_LINES];
};

#define REPRIEVE_HINT_STALE_NS 2000000000

#endif
