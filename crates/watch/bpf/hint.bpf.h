/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What eBPF programs know of programs with hints: who registered, and how to
 * read the line of a thread that is current, and the word of the runtime's
 * readers (crates/hint/include/reprieve/hint_abi.h). Whatever is read there is
 * the program's own word, and may be a lie.
 */
#ifndef REPRIEVE_HINT_BPF_H
#define REPRIEVE_HINT_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "../../hint/include/reprieve/hint_abi.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct thread_struct___hint {
	unsigned long fsbase;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live; /* threads */
};

struct task_struct___hint {
	s32 pid;
	s32 tgid;
	struct signal_struct *signal;
	struct sched_entity se;
	struct thread_struct___hint thread;
};

#pragma clang attribute pop

/* The registration of a process. slot: its place in the page. */
struct registration {
	s64 block;
	s64 reader;
	u64 table;
	u32 lines;
	u32 slot;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * REPRIEVE_HINT_PROCESSES);
	__type(key, u32); /* process */
	__type(value, struct registration);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct reprieve_hint_page));
} page SEC(".maps");

static __always_inline struct reprieve_hint_page *the_page(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&page, &zero);
}

/* The line of the thread, which is current, and its place in the table. A
 * thread that has none, or shares the first one, or lies, has no sections. */
static __always_inline _Bool read_line(const struct registration *of, u64 base,
				       struct reprieve_hint_line *line,
				       u32 *index)
{
	u64 at = 0, offset;

	bpf_probe_read_user(&at, sizeof(at), (void *)(base + of->block));
	offset = at - of->table;
	if (!at || !offset || offset % sizeof(*line) ||
	    offset / sizeof(*line) >= of->lines ||
	    of->lines > REPRIEVE_HINT_LINES ||
	    bpf_probe_read_user(line, sizeof(*line), (void *)at)) {
		__builtin_memset(line, 0, sizeof(*line));
		return 0;
	}
	*index = offset / sizeof(*line);
	return 1;
}

/* The nesting of the runtime's read-side sections. */
static __always_inline u32 reading(const struct registration *of, u64 base)
{
	u64 record = 0;
	u32 nesting = 0;

	if (!of->reader)
		return 0;
	if (bpf_probe_read_user(&record, sizeof(record),
				(void *)(base + of->reader)) ||
	    !record)
		return 0;
	bpf_probe_read_user(&nesting, sizeof(nesting), (void *)record);
	return nesting;
}

#endif
