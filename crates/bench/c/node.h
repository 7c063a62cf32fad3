/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What src/table.rs calls Node, and the keys that every subject looks up:
 * the same generator and the same order on both sides.
 */
#ifndef REPRIEVE_BENCH_NODE_H
#define REPRIEVE_BENCH_NODE_H

#include <stdint.h>

struct node {
	struct node *next;
	uint64_t key;
	uint64_t value;
	void *ledger;
	uintptr_t reclaim[4];
};

/* The part of a table that readers use. */
struct chains {
	struct node **heads;
	uint64_t head_mask;
	uint64_t key_mask;
};

/* The loops of a read side, as src/peer/c.rs finds them. Null: it does not have that. */
struct loops {
	void (*empty)(uint64_t n);
	uint64_t (*lookups)(const struct chains *chains, uint64_t *seed, uint64_t n);
	uint64_t (*gets)(const struct chains *chains, uint64_t n);
};

static inline uint64_t next_seed(uint64_t seed)
{
	return seed * 6364136223846793005ull + 1;
}

static inline uint64_t value_of(uint64_t key)
{
	return key * 3 + 1;
}

/* src/hash.rs has the same. */
static inline uint64_t hash_of(uint64_t key)
{
	uint64_t hash = key * 0x9e3779b97f4a7c15ull;

	return hash ^ hash >> 32;
}

/* src/table.rs: poisons, accounts, frees. */
void reprieve_bench_free(struct node *node);

#endif
