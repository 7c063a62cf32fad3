/* SPDX-License-Identifier: GPL-2.0 */
/*
 * guard and programs with hints (crate hint). A thread in a non-preemptable
 * section, or in a read-side section of the runtime, keeps its CPU as a vCPU in
 * a critical section does: for a bounded time, which is charged. What it has
 * left for that is the thread's own, so that one that always claims takes
 * nothing from others. And while guard schedules, it says how many threads
 * wait.
 *
 * Included by guard.bpf.c after its types.
 */
#ifndef REPRIEVE_GUARD_HINTS_BPF_H
#define REPRIEVE_GUARD_HINTS_BPF_H

#include "hint.bpf.h"

/* What a thread is in. */
#define HINT_NONE 0
#define HINT_SECTION 1
#define HINT_READER 2
#define HINT_KINDS 3

/* Whether the page is served, and all threads are guard's. */
const volatile _Bool publishes = 0;

/* Of all threads, since guard was started. It outlives the program when that is
 * loaded again. */
struct with_hints {
	u64 policies; /* what is done for them: DOES_EXTEND or nothing */
	struct granted extended;
	u64 avoided[HINT_KINDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct with_hints);
} with_hints SEC(".maps");

static __always_inline struct with_hints *hints_of_all(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&with_hints, &zero);
}

/* What the thread, which is current, is in. */
static __noinline int hinted(struct task_struct *p)
{
	const struct task_struct___hint *thread = (void *)p;
	struct reprieve_hint_line line;
	const struct registration *of;
	u32 tgid = thread->tgid;
	u32 index;
	u64 base;

	struct with_hints *all = hints_of_all();

	if (!all || !(all->policies & DOES_EXTEND))
		return HINT_NONE;
	of = bpf_map_lookup_elem(&processes, &tgid);
	if (!of)
		return HINT_NONE;
	base = thread->thread.fsbase;
	if (read_line(of, base, &line, &index) && line.non_preemptable)
		return HINT_SECTION;
	return reading(of, base) ? HINT_READER : HINT_NONE;
}

/* The slice of an ordinary thread is over, or somebody wants its CPU. */
static __noinline int hints_extend(struct task_struct *p, struct task *task,
				   u64 now)
{
	u64 began = task->extension.began;
	enum policy_verdict verdict;
	struct policy_limits limit;
	struct with_hints *all = hints_of_all();
	u32 kind = hinted(p);

	if (!all || (!kind && !began))
		return POLICY_GO;
	limits(&limit);
	verdict = policy_extend(&task->extension, &task->budget, kind, now,
				&limit);
	if (verdict == POLICY_REFUSED) {
		add(&all->extended.refused, 1);
	} else if (verdict == POLICY_STAY) {
		if (!began) {
			task->class = kind;
			add(&all->extended.count, 1);
		}
	} else if (began) {
		grant(&all->extended, now - began);
		if (verdict == POLICY_EXPIRED)
			add(&all->extended.expired, 1);
		else if (task->class < HINT_KINDS)
			add(&all->avoided[task->class], 1);
	}
	return verdict;
}

/* The extension ends since the thread sleeps, or has no need of it. */
static __always_inline void hints_end(struct task *task, _Bool slept, u64 now)
{
	struct with_hints *all = hints_of_all();
	u64 began = task->extension.began;
	struct policy_limits limit;

	if (!began || !all)
		return;
	limits(&limit);
	policy_extend(&task->extension, &task->budget, 0, now, &limit);
	grant(&all->extended, now - began);
	if (slept && task->class < HINT_KINDS)
		add(&all->avoided[task->class], 1);
}

/* An ordinary thread runs and is current: whether its turn should end now. It
 * may have been extended. */
static __always_inline _Bool hints_over(struct task_struct *p,
					struct task *task, _Bool ends, u64 now)
{
	if (task->extension.began)
		return now - task->extension.began >= settings.max_extend ||
		       !hinted(p);
	return ends && hints_extend(p, task, now) != POLICY_STAY;
}

/*
 * How many threads wait, to the page: for that CPU alone, and for any of its
 * domain. The only place where they are counted while guard schedules. The
 * kernel's own count has those of the shared queue with the CPU where each ran
 * last.
 */
static __always_inline void hints_publish(u32 where)
{
	struct reprieve_hint_page *to;
	u32 domain = domain_of(where);
	u32 own, any;

	if (!publishes)
		return;
	to = the_page();
	if (!to)
		return;
	own = scx_bpf_dsq_nr_queued(QUEUE_CPU + where);
	any = scx_bpf_dsq_nr_queued(QUEUE_SHARED + domain) +
	      scx_bpf_dsq_nr_queued(QUEUE_RESCUE + domain);
	/* The page has one number for all CPUs: of many domains it has none. */
	if (settings.domains > 1) {
		own += any;
		any = 0;
	}
	/* The compiler would check one copy of it, and use another. */
	barrier_var(where);
	if (where >= REPRIEVE_HINT_CPUS)
		return;
	/* Readers have copies of these lines. */
	if (to->cpus[where].runnable != own + 1)
		to->cpus[where].runnable = own + 1;
	if (to->waiting != any)
		to->waiting = any;
}

#endif
