/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Readers of HP-BRCU, after the published algorithm (Kim, Jung, Kang, "Expediting Hazard Pointers
 * with Bounded RCU Critical Sections", SPAA 2024). src/peer/brcu.rs has the writer.
 *
 * A traversal is one section of an epoch, in which it publishes a checkpoint every few nodes, in
 * one of two hazard pointers in turn. A signal sends a section of an older epoch back to its
 * checkpoint.
 */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include "node.h"

/* Nodes between two checkpoints. */
#define PERIOD 64

struct brcu_reader {
	/* The epoch of the section that runs, times two, plus 1; 0 outside. */
	uint64_t status;
	struct node *shields[2];
	const uint64_t *epoch;
	/* Which shield has the checkpoint, or -1. */
	volatile int current;
	/* Whether a signal may jump. */
	volatile sig_atomic_t armed;
	sigjmp_buf back;
};

static __thread struct brcu_reader *reader;

const unsigned long reprieve_bench_brcu_size = sizeof(struct brcu_reader);

static void on_signal(int number)
{
	struct brcu_reader *r = reader;

	(void)number;
	/* It may be late: the section that it was for is over. */
	if (r && r->armed && r->status >> 1 != __atomic_load_n(r->epoch, __ATOMIC_ACQUIRE)) {
		r->armed = 0;
		siglongjmp(r->back, 1);
	}
}

/* For the process. Handlers leave by a jump: the signal must not stay blocked. */
int reprieve_bench_brcu_handle(int number)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = on_signal;
	action.sa_flags = SA_NODEFER | SA_RESTART;
	return sigaction(number, &action, NULL);
}

void reprieve_bench_brcu_attach(struct brcu_reader *r)
{
	reader = r;
}

static struct node *load(struct node *const *link)
{
	return __atomic_load_n(link, __ATOMIC_ACQUIRE);
}

static struct node *unmarked(struct node *node)
{
	return (struct node *)((uintptr_t)node & ~(uintptr_t)1);
}

static uint64_t find(struct brcu_reader *r, struct node *const *head, uint64_t key)
{
	struct node *node;
	uint64_t epoch, value = 0;
	unsigned int left = PERIOD;

	r->current = -1;
	/* Signals come back here. */
	(void)sigsetjmp(r->back, 0);
	do {
		epoch = __atomic_load_n(r->epoch, __ATOMIC_ACQUIRE);
		__atomic_store_n(&r->status, epoch << 1 | 1, __ATOMIC_SEQ_CST);
	} while (__atomic_load_n(r->epoch, __ATOMIC_SEQ_CST) != epoch);
	r->armed = 1;
	__asm__ volatile("" ::: "memory");
	node = load(head);
	if (r->current >= 0) {
		struct node *next = load(&r->shields[r->current]->next);

		/* A marked node was unlinked: its link leads anywhere. */
		if (!((uintptr_t)next & 1))
			node = next;
	}
	while (node) {
		if (node->key == key) {
			value = node->value;
			break;
		}
		if (!--left) {
			int other = r->current == 0;

			__atomic_store_n(&r->shields[other], node, __ATOMIC_RELEASE);
			r->current = other;
			left = PERIOD;
		}
		node = unmarked(load(&node->next));
	}
	__asm__ volatile("" ::: "memory");
	r->armed = 0;
	__atomic_store_n(&r->status, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&r->shields[0], NULL, __ATOMIC_RELEASE);
	__atomic_store_n(&r->shields[1], NULL, __ATOMIC_RELEASE);
	return value;
}

/* Returns how many lookups did not find the value that belongs to the key. */
uint64_t reprieve_bench_brcu_lookups(struct brcu_reader *r, const struct chains *chains,
				     uint64_t *seed, uint64_t n)
{
	uint64_t bad = 0;

	while (n--) {
		uint64_t key;

		*seed = next_seed(*seed);
		key = (*seed >> 33) & chains->key_mask;
		bad += find(r, &chains->heads[key & chains->head_mask], key) != value_of(key);
	}
	return bad;
}
