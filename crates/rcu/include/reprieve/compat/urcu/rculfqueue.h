/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * <urcu/rculfqueue.h>: a queue of any number of writers and readers, without locks. Written from
 * liburcu-cds's documented interface, since that library's own copy has the heads of 16 bytes that
 * it was compiled with, and calls the program's call_rcu with them.
 *
 * The queue is a list from `head` to `tail`, and never empty: a node of its own, the dummy, stands
 * in it when no other does. A dummy that becomes the first is taken out, and freed after a grace
 * period; a new one is added before the last node is taken.
 *
 * Enqueue and dequeue are called in read-side sections: a node that another thread still looks at
 * is neither freed nor added again meanwhile, so a pointer that is compared and exchanged is what
 * it was when it was read.
 *
 * `tail` is the last node, or one before it, since who adds a node links it first; everybody who
 * meets such a `tail` moves it on. A node is taken out when `tail` is behind it, never before: a
 * grace period would not wait for those who find it there later.
 */
#ifndef REPRIEVE_COMPAT_URCU_RCULFQUEUE_H
#define REPRIEVE_COMPAT_URCU_RCULFQUEUE_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <reprieve/compat/flavorless.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cds_lfq_node_rcu {
	struct cds_lfq_node_rcu *next;
	int dummy;
};

struct cds_lfq_queue_rcu {
	struct cds_lfq_node_rcu *head, *tail;
	void (*queue_call_rcu)(struct rcu_head *head, void (*func)(struct rcu_head *head));
};

struct reprieve_lfq_dummy_ {
	struct cds_lfq_node_rcu node;
	struct rcu_head head;
};

REPRIEVE_INLINE_ void cds_lfq_node_init_rcu(struct cds_lfq_node_rcu *node)
{
	node->next = NULL;
	node->dummy = 0;
}

REPRIEVE_INLINE_ struct cds_lfq_node_rcu *reprieve_lfq_dummy_new_(void)
{
	struct reprieve_lfq_dummy_ *dummy =
		(struct reprieve_lfq_dummy_ *)malloc(sizeof(struct reprieve_lfq_dummy_));

	if (!dummy)
		abort();
	dummy->node.next = NULL;
	dummy->node.dummy = 1;
	return &dummy->node;
}

REPRIEVE_INLINE_ void reprieve_lfq_dummy_free_(struct rcu_head *head)
{
	free(caa_container_of(head, struct reprieve_lfq_dummy_, head));
}

REPRIEVE_INLINE_ void cds_lfq_init_rcu(struct cds_lfq_queue_rcu *q,
				       void queue_call_rcu(struct rcu_head *head,
							   void (*func)(struct rcu_head *head)))
{
	q->head = q->tail = reprieve_lfq_dummy_new_();
	q->queue_call_rcu = queue_call_rcu;
}

/* 0, or -EPERM if the queue is not empty. Nobody else uses it. */
REPRIEVE_INLINE_ int cds_lfq_destroy_rcu(struct cds_lfq_queue_rcu *q)
{
	struct cds_lfq_node_rcu *head = q->head;

	if (!head->dummy || head->next)
		return -EPERM;
	free(caa_container_of(head, struct reprieve_lfq_dummy_, node));
	return 0;
}

/* In a read-side section. */
REPRIEVE_INLINE_ void cds_lfq_enqueue_rcu(struct cds_lfq_queue_rcu *q,
					  struct cds_lfq_node_rcu *node)
{
	struct cds_lfq_node_rcu *tail, *next;

	do {
		tail = rcu_dereference(q->tail);
		next = uatomic_cmpxchg(&tail->next, NULL, node);
		uatomic_cmpxchg(&q->tail, tail, next ? next : node);
	} while (next);
}

/* The first node, or NULL. In a read-side section; the node may be freed, or added again, after a
 * grace period. */
REPRIEVE_INLINE_ struct cds_lfq_node_rcu *cds_lfq_dequeue_rcu(struct cds_lfq_queue_rcu *q)
{
	struct cds_lfq_node_rcu *head, *next;

	for (;;) {
		head = rcu_dereference(q->head);
		next = rcu_dereference(head->next);
		if (!next) {
			if (head->dummy)
				return NULL;
			cds_lfq_enqueue_rcu(q, reprieve_lfq_dummy_new_());
			continue;
		}
		if (rcu_dereference(q->tail) == head)
			uatomic_cmpxchg(&q->tail, head, next);
		if (uatomic_cmpxchg(&q->head, head, next) != head)
			continue;
		if (!head->dummy)
			return head;
		q->queue_call_rcu(&caa_container_of(head, struct reprieve_lfq_dummy_, node)->head,
				  reprieve_lfq_dummy_free_);
	}
}

#define _cds_lfq_node_init_rcu cds_lfq_node_init_rcu
#define _cds_lfq_init_rcu cds_lfq_init_rcu
#define _cds_lfq_destroy_rcu cds_lfq_destroy_rcu
#define _cds_lfq_enqueue_rcu cds_lfq_enqueue_rcu
#define _cds_lfq_dequeue_rcu cds_lfq_dequeue_rcu

#ifdef __cplusplus
}
#endif
#endif
