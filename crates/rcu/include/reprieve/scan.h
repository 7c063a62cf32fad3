/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Scans of reprieve_list lists that hold no grace period up, however long they take. The caller may
 * block between two steps.
 *
 * A scan protects the element that it has handed out last, and one before. Elements are freed with
 * reprieve_retire, which gets the address of their links as the node, after reprieve_scan_del.
 *
 * Example:
 *
 *	#include <reprieve/scan.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *
 *	struct item { int value; struct reprieve_list_head link; struct reprieve_head head; };
 *	static struct reprieve_list_head items = REPRIEVE_LIST_HEAD_INIT(items);
 *
 *	static void item_free(struct reprieve_head *head)
 *	{
 *		free(reprieve_container_of(head, struct item, head));
 *	}
 *
 *	int main(void)
 *	{
 *		struct reprieve_scan scan = REPRIEVE_SCAN_INIT(&items);
 *		struct item *i = (struct item *)calloc(1, sizeof(*i));
 *
 *		reprieve_list_add_rcu(&i->link, &items);
 *		while ((i = reprieve_scan_next_entry(&scan, struct item, link))) {
 *			reprieve_scan_del(&i->link);
 *			reprieve_retire(&i->link, &i->head, item_free, sizeof(*i), REPRIEVE_LEAF);
 *			printf("%d\n", i->value);	// it stays until the next step
 *		}
 *		reprieve_barrier();
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_SCAN_H
#define REPRIEVE_SCAN_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/list.h>
#include <reprieve/restart.h>

struct reprieve_scan {
	struct reprieve_list_head *list;
	/* The element handed out last, and one before that was not taken out when it was left. */
	struct reprieve_protected newest, base;
	/* How often both had been taken out, and the scan began again: elements may come twice. */
	unsigned long restarts;
};

/* clang-format off */
#define REPRIEVE_SCAN_INIT(list) {(list), {NULL, NULL}, {NULL, NULL}, 0}
/* clang-format on */

/*
 * Takes an element out, and marks it by a null `prev`: its `next` may lead anywhere from then on.
 * Called under the lock of the list's writers, which is held until then.
 */
REPRIEVE_INLINE_ void reprieve_scan_del(struct reprieve_list_head *element)
{
	reprieve_list_del_rcu(element);
	__atomic_store_n(&element->prev, (struct reprieve_list_head *)NULL, __ATOMIC_RELEASE);
}

struct reprieve_scan_step_ {
	const struct reprieve_list_head *list, *from;
};

/*
 * The element behind `from`, the list itself at its end, or null if `from` was taken out. The mark
 * is looked for inside the section in which `next` is followed.
 */
__attribute__((unused)) REPRIEVE_RESTARTABLE static const void *
reprieve_scan_step_(const void *argument)
{
	const struct reprieve_scan_step_ *step = (const struct reprieve_scan_step_ *)argument;

	if (!step->from)
		return reprieve_dereference(step->list->next);
	if (!reprieve_dereference(step->from->prev))
		return NULL;
	return reprieve_dereference(step->from->next);
}

/* Lets go what the scan protects. Not needed after its last step. */
REPRIEVE_INLINE_ void reprieve_scan_end(struct reprieve_scan *scan)
{
	if (scan->newest.node)
		reprieve_release(&scan->newest);
	if (scan->base.node)
		reprieve_release(&scan->base);
}

/* The next element, which stays until the next step, or null at the end. By the same thread. */
REPRIEVE_INLINE_ struct reprieve_list_head *reprieve_scan_next(struct reprieve_scan *scan)
{
	for (;;) {
		const void *from = scan->newest.node ? scan->newest.node : scan->base.node;
		struct reprieve_scan_step_ step = {scan->list,
						   (const struct reprieve_list_head *)from};
		struct reprieve_protected next;
		const void *node = reprieve_protect(reprieve_scan_step_, &step, &next);

		if (node == scan->list) {
			reprieve_release(&next);
			reprieve_scan_end(scan);
			return NULL;
		}
		if (node) {
			if (scan->newest.node) {
				if (scan->base.node)
					reprieve_release(&scan->base);
				scan->base = scan->newest;
			}
			scan->newest = next;
			return (struct reprieve_list_head *)(uintptr_t)node;
		}
		if (scan->newest.node) {
			reprieve_release(&scan->newest);
		} else {
			reprieve_release(&scan->base);
		}
		scan->restarts += !scan->newest.node && !scan->base.node;
	}
}

#define reprieve_scan_next_entry(scan, type, member)                                           \
	__extension__({                                                                        \
		struct reprieve_list_head *reprieve_found_link_ = reprieve_scan_next(scan);    \
		reprieve_found_link_ ? reprieve_list_entry(reprieve_found_link_, type, member) \
				     : (type *)NULL;                                           \
	})

#endif
