/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The read loops, once per flavor: N operations per call, so that what is
 * measured is the flavor and not the way into C. The includer defines
 *
 *   NAME(x)      the function's name
 *   ENTER()      what begins a read-side section
 *   LEAVE()      what ends it
 *   LOAD(p)      a load of a published pointer
 *   EMPTY()      the operation of the empty loop
 *   AFTER()      what a thread does after each call
 */
#include "node.h"

static inline __attribute__((always_inline)) uint64_t find(struct node **head, uint64_t key)
{
	struct node *node = LOAD(*head);

	while (node) {
		if (node->key == key)
			return node->value;
		node = LOAD(node->next);
	}
	return 0;
}

static void NAME(empty)(uint64_t n)
{
	while (n--) {
		EMPTY();
		__asm__ volatile("");
	}
}

/* Returns how many lookups did not find the value that belongs to the key. */
static uint64_t NAME(lookups)(const struct chains *chains, uint64_t *seed, uint64_t n)
{
	uint64_t s = *seed, bad = 0;

	while (n--) {
		uint64_t key, value;

		s = next_seed(s);
		key = (s >> 33) & chains->key_mask;
		ENTER();
		value = find(&chains->heads[key & chains->head_mask], key);
		LEAVE();
		bad += value != value_of(key);
	}
	*seed = s;
	AFTER();
	return bad;
}

/* Reads the first node of the first chain. */
static uint64_t NAME(gets)(const struct chains *chains, uint64_t n)
{
	uint64_t bad = 0;

	while (n--) {
		struct node *node;

		ENTER();
		node = LOAD(chains->heads[0]);
		bad += node->value != value_of(node->key);
		LEAVE();
	}
	AFTER();
	return bad;
}

const struct loops NAME(loops) = {
	.empty = NAME(empty),
	.lookups = NAME(lookups),
	.gets = NAME(gets),
};
