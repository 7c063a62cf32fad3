/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * This project's read sides by its C headers: the plain section in the loops of
 * all flavors, the others in the same loops with a lookup for each section.
 */
#include <reprieve/restart.h>

#define NAME(x) reprieve_bench_plain_##x
#define ENTER() reprieve_read_lock()
#define LEAVE() reprieve_read_unlock()
#define LOAD(p) reprieve_dereference(p)
#define EMPTY() (reprieve_read_lock(), reprieve_read_unlock())
#define AFTER() ((void)0)
#include "reader.h"

struct wanted {
	struct node **head;
	uint64_t key;
};

REPRIEVE_RESTARTABLE static uintptr_t nothing(const void *argument, void *result)
{
	(void)argument;
	(void)result;
	return 0;
}

/* The value of a key, 0 if it is not there. */
REPRIEVE_RESTARTABLE static uintptr_t value(const void *argument, void *result)
{
	const struct wanted *wanted = argument;
	uint64_t key = wanted->key;
	const struct node *node = reprieve_dereference(*wanted->head);

	(void)result;
	while (node) {
		if (node->key == key)
			return node->value;
		node = reprieve_dereference(node->next);
	}
	return 0;
}

/* The node of a key. */
REPRIEVE_RESTARTABLE static const void *located(const void *argument)
{
	const struct wanted *wanted = argument;
	uint64_t key = wanted->key;
	const struct node *node = reprieve_dereference(*wanted->head);

	while (node && node->key != key)
		node = reprieve_dereference(node->next);
	return node;
}

/* The first node's value, 0 if it does not belong to its key. */
REPRIEVE_RESTARTABLE static uintptr_t first_value(const void *argument, void *result)
{
	struct node *const *head = argument;
	const struct node *node = reprieve_dereference(*head);

	(void)result;
	return node->value == value_of(node->key) ? node->value : 0;
}

/* The first node. */
REPRIEVE_RESTARTABLE static const void *first(const void *argument)
{
	struct node *const *head = argument;

	return reprieve_dereference(*head);
}

static inline __attribute__((always_inline)) struct wanted want(const struct chains *chains,
								uint64_t seed)
{
	uint64_t key = (seed >> 33) & chains->key_mask;

	return (struct wanted){&chains->heads[key & chains->head_mask], key};
}

static void restart_empty(uint64_t n)
{
	while (n--)
		reprieve_lookup(nothing, NULL, NULL);
}

static uint64_t restart_lookups(const struct chains *chains, uint64_t *seed, uint64_t n)
{
	uint64_t s = *seed, bad = 0;

	while (n--) {
		struct wanted wanted;

		s = next_seed(s);
		wanted = want(chains, s);
		bad += reprieve_lookup(value, &wanted, NULL) != value_of(wanted.key);
	}
	*seed = s;
	return bad;
}

static uint64_t restart_gets(const struct chains *chains, uint64_t n)
{
	uint64_t bad = 0;

	while (n--)
		bad += reprieve_lookup(first_value, chains->heads, NULL) == 0;
	return bad;
}

static uint64_t protect_lookups(const struct chains *chains, uint64_t *seed, uint64_t n)
{
	uint64_t s = *seed, bad = 0;

	while (n--) {
		struct reprieve_protected held;
		struct wanted wanted;
		const struct node *node;

		s = next_seed(s);
		wanted = want(chains, s);
		node = reprieve_protect(located, &wanted, &held);
		bad += !node || node->value != value_of(wanted.key);
		if (node)
			reprieve_release(&held);
	}
	*seed = s;
	return bad;
}

static uint64_t protect_gets(const struct chains *chains, uint64_t n)
{
	uint64_t bad = 0;

	while (n--) {
		struct reprieve_protected held;
		const struct node *node = reprieve_protect(first, chains->heads, &held);

		bad += node->value != value_of(node->key);
		reprieve_release(&held);
	}
	return bad;
}

const struct loops reprieve_bench_restart_loops = {
	.empty = restart_empty,
	.lookups = restart_lookups,
	.gets = restart_gets,
};

const struct loops reprieve_bench_protect_loops = {
	.lookups = protect_lookups,
	.gets = protect_gets,
};
