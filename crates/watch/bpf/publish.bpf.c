// SPDX-License-Identifier: GPL-2.0
/*
 * publish - tells programs what the scheduler does to their threads, and counts
 * what happens to their critical sections.
 *
 * The page (crates/hint/include/reprieve/hint_abi.h) is one element of an array
 * map that user space maps. At a context switch away from a registered
 * process's thread that thread is still current, so its line is the program's
 * user memory: which line is its own, it tells there, and is believed as far as
 * it concerns its own process's part of the page. The next thread's memory is
 * not mapped yet, so where its line is was noted when it last left its CPU.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "hint.bpf.h"

#define MAX_THREADS 65536
#define TASK_DEAD_BIT 0x80

/*
 * An element of the page's threads, and what to write there but the state. key:
 * of the process that the slot belonged to. A thread may outlive its process's
 * registration, and the slot may be another's by then.
 */
struct place {
	u32 index;
	u32 generation;
	u64 key;
};

/* An order of user space to write to the page, which it can only read. */
struct order {
	u64 key;
	u32 slot;
	u32 pad;
};

/* Counts of registered processes' threads. */
struct counts {
	u64 switches;
	u64 preempted;
	u64 in_non_preemptable;
	u64 in_preemptable;
	u64 in_reader;
};

/* Registered processes. 0: nothing is looked up. */
u32 registered;
/* Have the layouts of maps in the program's BTF, and so in Rust. */
const struct registration *registration_layout;
const struct counts *counts_layout;
const struct order *order_layout;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, u32); /* thread */
	__type(value, struct place);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* Whether it is still a place of its process. */
static __always_inline _Bool is_own(const struct reprieve_hint_page *to,
				    const struct place *place)
{
	u32 slot = place->index / REPRIEVE_HINT_LINES;

	return slot < REPRIEVE_HINT_PROCESSES && to->keys[slot] == place->key;
}

static __always_inline void set_state(struct reprieve_hint_page *to,
				      const struct place *place, u32 state)
{
	u32 index = place->index;

	if (index < REPRIEVE_HINT_PROCESSES * REPRIEVE_HINT_LINES &&
	    is_own(to, place))
		to->threads[index].state =
			place->generation << REPRIEVE_HINT_STATE_BITS | state;
}

/*
 * For the CPU whose queue the thread is on. By way of the thread: the queues'
 * symbol is not in every kernel's table.
 */
static __always_inline void
set_runnable(struct reprieve_hint_page *to,
	     const struct task_struct___hint *thread)
{
	const struct rq *rq;
	u32 cpu;

	if (!bpf_core_field_exists(thread->se.cfs_rq))
		return;
	rq = thread->se.cfs_rq->rq;
	cpu = rq->cpu;
	if (cpu < REPRIEVE_HINT_CPUS)
		to->cpus[cpu].runnable = rq->nr_running;
}

static __always_inline void count(const struct reprieve_hint_line *line,
				  u32 readers, _Bool preempted)
{
	u32 zero = 0;
	struct counts *to = bpf_map_lookup_elem(&counts, &zero);

	if (!to)
		return;
	to->switches++;
	if (!preempted)
		return;
	to->preempted++;
	to->in_non_preemptable += line->non_preemptable != 0;
	to->in_preemptable += line->preemptable != 0;
	to->in_reader += readers != 0;
}

static __always_inline void leave(struct reprieve_hint_page *to,
				  struct task_struct___hint *thread,
				  _Bool preempted, _Bool dead)
{
	u32 tid = thread->pid, tgid = thread->tgid, slot;
	struct reprieve_hint_line line = {};
	struct registration *of;
	struct place place = {};
	u64 base;

	if (dead) {
		bpf_map_delete_elem(&places, &tid);
		return;
	}
	of = bpf_map_lookup_elem(&processes, &tgid);
	if (!of)
		return;
	base = thread->thread.fsbase;
	/* A thread without a line may read all the same. */
	if (!read_line(of, base, &line, &place.index)) {
		count(&line, reading(of, base), preempted);
		return;
	}
	count(&line, reading(of, base), preempted);
	slot = of->slot;
	if (slot >= REPRIEVE_HINT_PROCESSES)
		return;
	place.index += slot * REPRIEVE_HINT_LINES;
	place.generation = line.generation;
	place.key = to->keys[slot];
	/* The slot gets another key only after its process has been removed: if
	 * the process is still there, the key is its own. */
	of = bpf_map_lookup_elem(&processes, &tgid);
	if (!of || of->slot != slot)
		return;
	bpf_map_update_elem(&places, &tid, &place, 0);
	set_state(to, &place,
		  preempted ? REPRIEVE_HINT_PREEMPTED : REPRIEVE_HINT_BLOCKED);
}

/* The server wakes up several times a second, so there are switches as long as
 * it lives. */
#define BEAT_NS 100000000

static __always_inline void beat(struct reprieve_hint_page *to)
{
	u64 now = bpf_ktime_get_ns();

	if (now - to->beat > BEAT_NS)
		to->beat = now;
}

/*
 * The page's head; and if there is such a slot, that it belongs to a process
 * with that key, of whose threads nothing is known.
 */
SEC("syscall")
int publish_order(struct order *order)
{
	struct reprieve_hint_page *to = the_page();
	u32 slot = order->slot, i;

	if (!to)
		return 1;
	to->version = REPRIEVE_HINT_VERSION;
	to->magic = REPRIEVE_HINT_MAGIC;
	to->beat = bpf_ktime_get_ns();
	if (slot >= REPRIEVE_HINT_PROCESSES)
		return 0;
	for (i = 0; i < REPRIEVE_HINT_LINES; i++) {
		u32 at = slot * REPRIEVE_HINT_LINES + i;

		if (at < REPRIEVE_HINT_PROCESSES * REPRIEVE_HINT_LINES)
			to->threads[at].state = 0;
	}
	to->keys[slot] = order->key;
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(publish_switch, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next, unsigned int prev_state)
{
	struct reprieve_hint_page *to = the_page();
	struct task_struct___hint *next_thread = (void *)next;
	struct place *place;
	u32 tid;

	if (!to)
		return 0;
	beat(to);
	if (!registered)
		return 0;
	set_runnable(to, next_thread);
	leave(to, (void *)prev, preempt || !prev_state,
	      prev_state & TASK_DEAD_BIT);
	tid = next_thread->pid;
	place = bpf_map_lookup_elem(&places, &tid);
	if (place)
		set_state(to, place, REPRIEVE_HINT_RUNNING);
	return 0;
}

/* A thread that is woken while it is about to sleep never left its CPU. */
static __always_inline _Bool is_blocked(const struct reprieve_hint_page *to,
					const struct place *place)
{
	u32 index = place->index;

	if (index >= REPRIEVE_HINT_PROCESSES * REPRIEVE_HINT_LINES)
		return 0;
	return (to->threads[index].state &
		((1 << REPRIEVE_HINT_STATE_BITS) - 1)) == REPRIEVE_HINT_BLOCKED;
}

static __always_inline void awake(struct task_struct___hint *thread)
{
	struct reprieve_hint_page *to = the_page();
	u32 tid = thread->pid;
	struct place *place;

	if (!to || !registered)
		return;
	set_runnable(to, thread);
	place = bpf_map_lookup_elem(&places, &tid);
	if (place && is_blocked(to, place))
		set_state(to, place, REPRIEVE_HINT_PREEMPTED);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(publish_wakeup, struct task_struct *thread)
{
	awake((void *)thread);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(publish_wakeup_new, struct task_struct *thread)
{
	awake((void *)thread);
	return 0;
}

/*
 * What a process has said of its memory is no longer true with another program,
 * perhaps with more rights, or of another process that gets its ID. Its
 * connection may be open still.
 */
static __always_inline void forget(struct task_struct___hint *thread)
{
	u32 tgid = thread->tgid;

	bpf_map_delete_elem(&processes, &tgid);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(publish_exec, struct task_struct *thread)
{
	forget((void *)thread);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(publish_exit, struct task_struct *thread)
{
	struct task_struct___hint *exits = (void *)thread;

	if (exits->signal->live.counter == 0)
		forget(exits);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
