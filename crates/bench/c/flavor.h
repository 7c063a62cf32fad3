/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One flavor of liburcu: its read loops, its updates, its callbacks, its hash
 * table. The includer has included the flavor's header and defines NAME;
 * and where sections are not what costs EMPTY, AFTER, and ONLINE and OFFLINE
 * for writers.
 *
 * _LGPL_SOURCE (set by the includer) makes the read side inline. Only
 * functions of fewer than ten lines are expanded here, which the library's
 * license leaves to any code.
 */
#ifndef EMPTY
#define EMPTY() (rcu_read_lock(), rcu_read_unlock())
#define AFTER() ((void)0)
#define ONLINE() ((void)0)
#define OFFLINE() ((void)0)
#endif
#define ENTER() rcu_read_lock()
#define LEAVE() rcu_read_unlock()
#define LOAD(p) rcu_dereference(p)
#include "reader.h"

_Static_assert(sizeof(struct rcu_head) <= sizeof(((struct node *)0)->reclaim),
	       "a callback's head fits into a node");

void NAME(register)(int writer)
{
	rcu_register_thread();
	if (writer)
		OFFLINE();
}

void NAME(unregister)(void)
{
	rcu_unregister_thread();
}

void NAME(synchronize)(void)
{
	synchronize_rcu();
}

static void free_head(struct rcu_head *head)
{
	reprieve_bench_free(
		(struct node *)((char *)head - __builtin_offsetof(struct node, reclaim)));
}

void NAME(retire)(struct node *node)
{
	ONLINE();
	call_rcu((struct rcu_head *)node->reclaim, free_head);
	OFFLINE();
}

void NAME(barrier)(void)
{
	rcu_barrier();
}

/* A callback thread per CPU, instead of one for all. */
int NAME(per_cpu)(void)
{
	return create_all_cpu_call_rcu_data(0);
}

void NAME(no_per_cpu)(void)
{
	free_all_cpu_call_rcu_data();
}

struct slot {
	struct rcu_head head;
	uint64_t done;
};

static void mark(struct rcu_head *head)
{
	((struct slot *)head)->done++;
}

uint64_t NAME(slot_size)(void)
{
	return sizeof(struct slot);
}

/* Registers a callback for each of `n` slots. */
void NAME(register_slots)(struct slot *slots, uint64_t n)
{
	uint64_t i;

	ONLINE();
	for (i = 0; i < n; i++)
		call_rcu(&slots[i].head, mark);
	OFFLINE();
}

/* How many slots were not called exactly once. */
uint64_t NAME(check_slots)(const struct slot *slots, uint64_t n)
{
	uint64_t i, bad = 0;

	for (i = 0; i < n; i++)
		bad += slots[i].done != 1;
	return bad;
}

#include "lfht.h"
#include "functions.h"
