/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Walks along liburcu's rculist and rcuhlist, and updates of them, once per
 * flavor. src/item.rs has the items, with links of the same layout, so that
 * Rust's own lists do the same work with the same memory.
 */
#include <urcu/rcuhlist.h>
#include <urcu/rculist.h>

struct item {
	struct cds_list_head links;
	struct cds_hlist_node chain;
	uint64_t key;
	uint64_t value;
	void *ledger;
	struct rcu_head reclaim;
};

_Static_assert(sizeof(struct cds_hlist_node) == 2 * sizeof(void *) &&
		       sizeof(struct rcu_head) <= 4 * sizeof(uintptr_t),
	       "an item is laid out as in Rust");

/* src/item.rs: poisons, accounts, frees. */
void reprieve_bench_free_item(struct item *item);

uint64_t NAME(list_walks)(struct cds_list_head *head, uint64_t sum, uint64_t n)
{
	uint64_t bad = 0;

	while (n--) {
		struct item *item;
		uint64_t seen = 0;

		ENTER();
		cds_list_for_each_entry_rcu(item, head, links) seen += item->value;
		LEAVE();
		bad += seen != sum;
	}
	AFTER();
	return bad;
}

uint64_t NAME(hlist_walks)(struct cds_hlist_head *head, uint64_t sum, uint64_t n)
{
	uint64_t bad = 0;

	while (n--) {
		struct item *item;
		uint64_t seen = 0;

		ENTER();
		cds_hlist_for_each_entry_rcu_2(item, head, chain) seen += item->value;
		LEAVE();
		/* An item that is taken out and put in front may be missed; none is seen twice. */
		bad += seen > sum;
	}
	AFTER();
	return bad;
}

static void free_item(struct rcu_head *head)
{
	reprieve_bench_free_item(
		(struct item *)((char *)head - __builtin_offsetof(struct item, reclaim)));
}

static void retire_item(struct item *item)
{
	ONLINE();
	call_rcu(&item->reclaim, free_item);
	OFFLINE();
}

void NAME(list_replace)(struct item *old, struct item *with)
{
	cds_list_replace_rcu(&old->links, &with->links);
	retire_item(old);
}

/* An rcuhlist has no replacement: the new item goes to the front. */
void NAME(hlist_replace)(struct cds_hlist_head *head, struct item *old, struct item *with)
{
	cds_hlist_del_rcu(&old->chain);
	cds_hlist_add_head_rcu(&with->chain, head);
	retire_item(old);
}
