/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The names of "Using Read-Copy-Update Techniques for System V IPC in the Linux 2.5 Kernel"
 * (FREENIX 2003, figures 4 and 5).
 *
 * Not together with urcu.h in one source file: the two papers' call_rcu take different arguments.
 *
 * Example:
 *
 *	#include <reprieve/classic.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *
 *	struct element { int value; struct list_head list; struct rcu_head rcu; };
 *	static LIST_HEAD(elements);
 *
 *	int main(void)
 *	{
 *		struct element *e = (struct element *)calloc(1, sizeof(*e));
 *		struct list_head *p;
 *
 *		e->value = 42;
 *		list_add_rcu(&e->list, &elements);
 *		rcu_read_lock();
 *		list_for_each_rcu(p, &elements)
 *			printf("%d\n", list_entry(p, struct element, list)->value);
 *		rcu_read_unlock();
 *		list_del_rcu(&e->list);
 *		call_rcu(&e->rcu, free, e);
 *		synchronize_kernel();
 *		reprieve_barrier();
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_CLASSIC_H
#define REPRIEVE_CLASSIC_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/list.h>

#define rcu_read_lock reprieve_read_lock
#define rcu_read_unlock reprieve_read_unlock
#define synchronize_kernel reprieve_synchronize

struct rcu_head {
	struct reprieve_head head;
	void (*func)(void *arg);
	void *arg;
};

/* Versions of clang-format differ here. */
/* clang-format off */
#define RCU_HEAD_INIT(head) {{0}}
/* clang-format on */
#define INIT_RCU_HEAD(head) ((void)(head))

static inline __attribute__((unused)) void reprieve_classic_run_(struct reprieve_head *head)
{
	struct rcu_head *rcu = (struct rcu_head *)(void *)head;

	rcu->func(rcu->arg);
}

/* Has func(arg) called after a grace period. */
REPRIEVE_INLINE_ void call_rcu(struct rcu_head *head, void (*func)(void *arg), void *arg)
{
	head->func = func;
	head->arg = arg;
	reprieve_call(&head->head, reprieve_classic_run_, 0);
}

#define list_head reprieve_list_head
#define LIST_HEAD_INIT REPRIEVE_LIST_HEAD_INIT
#define LIST_HEAD(name) struct list_head name = LIST_HEAD_INIT(name)
#define INIT_LIST_HEAD reprieve_list_init
#define list_entry reprieve_list_entry
#define list_empty reprieve_list_empty
#define list_add_rcu reprieve_list_add_rcu
#define list_add_rcu_tail reprieve_list_add_tail_rcu
#define list_del_rcu reprieve_list_del_rcu
#define list_for_each_rcu(p, head) reprieve_list_for_each_rcu(p, head)
#define list_for_each_safe_rcu(p, n, head)                                              \
	for (p = reprieve_dereference((head)->next), n = reprieve_dereference(p->next); \
	     p != (head); p = n, n = reprieve_dereference(p->next))

#endif
