/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * liburcu's hash table (rculfhash), once per flavor: keys and values of 64 bits,
 * the hash function that every map of the benchmark has, resizing by itself.
 */
#include <stdlib.h>
#include <urcu/rculfhash.h>

struct entry {
	struct cds_lfht_node node;
	uint64_t key;
	uint64_t value;
	struct rcu_head head;
};

static int entry_has(struct cds_lfht_node *node, const void *key)
{
	return caa_container_of(node, struct entry, node)->key == *(const uint64_t *)key;
}

static void free_entry(struct rcu_head *head)
{
	struct entry *entry = caa_container_of(head, struct entry, head);

	/* A reader that comes later sees a poisoned node. */
	*(volatile uint64_t *)&entry->value = 0;
	free(entry);
}

struct cds_lfht *NAME(lfht_new)(void)
{
	return cds_lfht_new(16, 1, 0, CDS_LFHT_AUTO_RESIZE | CDS_LFHT_ACCOUNTING, NULL);
}

uint64_t NAME(lfht_lookups)(struct cds_lfht *ht, uint64_t *seed, uint64_t key_mask, uint64_t n)
{
	uint64_t s = *seed, bad = 0;

	while (n--) {
		struct cds_lfht_iter iter;
		struct cds_lfht_node *node;
		uint64_t key, value = 0;

		s = next_seed(s);
		key = (s >> 33) & key_mask;
		ENTER();
		cds_lfht_lookup(ht, hash_of(key), entry_has, &key, &iter);
		node = cds_lfht_iter_get_node(&iter);
		if (node)
			value = caa_container_of(node, struct entry, node)->value;
		LEAVE();
		bad += value != value_of(key);
	}
	*seed = s;
	AFTER();
	return bad;
}

/* Inserts the key or replaces its value. Whether the key is new; -1 without memory. */
int NAME(lfht_insert)(struct cds_lfht *ht, uint64_t key)
{
	struct entry *entry = malloc(sizeof(*entry));
	struct cds_lfht_node *old;

	if (!entry)
		return -1;
	cds_lfht_node_init(&entry->node);
	entry->key = key;
	entry->value = value_of(key);
	ONLINE();
	ENTER();
	old = cds_lfht_add_replace(ht, hash_of(key), entry_has, &key, &entry->node);
	LEAVE();
	if (old)
		call_rcu(&caa_container_of(old, struct entry, node)->head, free_entry);
	OFFLINE();
	return !old;
}

/* Whether the key was there. */
int NAME(lfht_remove)(struct cds_lfht *ht, uint64_t key)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;
	int gone;

	ONLINE();
	ENTER();
	cds_lfht_lookup(ht, hash_of(key), entry_has, &key, &iter);
	node = cds_lfht_iter_get_node(&iter);
	gone = node && cds_lfht_del(ht, node) == 0;
	LEAVE();
	if (gone)
		call_rcu(&caa_container_of(node, struct entry, node)->head, free_entry);
	OFFLINE();
	return gone;
}

/*
 * The calling thread is registered, and offline; there are no others. Whether the table could be
 * destroyed.
 */
int NAME(lfht_free)(struct cds_lfht *ht)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;
	int failed;

	ONLINE();
	ENTER();
	cds_lfht_for_each(ht, &iter, node)
	{
		if (cds_lfht_del(ht, node) == 0)
			call_rcu(&caa_container_of(node, struct entry, node)->head, free_entry);
	}
	LEAVE();
	OFFLINE();
	rcu_barrier();
	failed = cds_lfht_destroy(ht, NULL);
	return !failed;
}
