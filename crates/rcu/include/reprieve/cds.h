/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * liburcu's names for lists: <urcu/list.h>, <urcu/rculist.h>, <urcu/hlist.h>, <urcu/rcuhlist.h>.
 *
 * Example:
 *
 *	#include <reprieve/cds.h>
 *	#include <stdio.h>
 *
 *	struct item { int value; struct cds_list_head link; };
 *	static CDS_LIST_HEAD(items);
 *
 *	int main(void)
 *	{
 *		struct item one = { 1, { 0, 0 } }, *i;
 *
 *		cds_list_add_rcu(&one.link, &items);
 *		cds_list_for_each_entry_rcu(i, &items, link)
 *			printf("%d\n", i->value);
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_CDS_H
#define REPRIEVE_CDS_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/list.h>

#define cds_list_head reprieve_list_head
#define CDS_LIST_HEAD_INIT(name) REPRIEVE_LIST_HEAD_INIT(name)
#define CDS_LIST_HEAD(name) struct cds_list_head name = CDS_LIST_HEAD_INIT(name)
#define CDS_INIT_LIST_HEAD(ptr) reprieve_list_init(ptr)
#define cds_list_add reprieve_list_add
#define cds_list_add_tail reprieve_list_add_tail
#define cds_list_del reprieve_list_del
#define cds_list_del_init reprieve_list_del_init
#define cds_list_replace reprieve_list_replace
#define cds_list_replace_init reprieve_list_replace_init
#define cds_list_move reprieve_list_move
#define cds_list_splice reprieve_list_splice
#define cds_list_empty reprieve_list_empty
#define cds_list_entry reprieve_list_entry
#define cds_list_first_entry reprieve_list_first_entry
#define cds_list_add_rcu reprieve_list_add_rcu
#define cds_list_add_tail_rcu reprieve_list_add_tail_rcu
#define cds_list_del_rcu reprieve_list_del_rcu
#define cds_list_replace_rcu reprieve_list_replace_rcu
#define cds_list_for_each reprieve_list_for_each
#define cds_list_for_each_prev reprieve_list_for_each_prev
#define cds_list_for_each_safe reprieve_list_for_each_safe
#define cds_list_for_each_prev_safe reprieve_list_for_each_prev_safe
#define cds_list_for_each_entry reprieve_list_for_each_entry
#define cds_list_for_each_entry_reverse reprieve_list_for_each_entry_reverse
#define cds_list_for_each_entry_safe reprieve_list_for_each_entry_safe
#define cds_list_for_each_entry_safe_from(pos, p, head, member)                  \
	for (p = cds_list_entry((pos)->member.next, __typeof__(*(pos)), member); \
	     &(pos)->member != (head);                                           \
	     pos = (p), p = cds_list_entry((pos)->member.next, __typeof__(*(pos)), member))
#define cds_list_for_each_rcu reprieve_list_for_each_rcu
#define cds_list_for_each_entry_rcu reprieve_list_for_each_entry_rcu

#define cds_hlist_head reprieve_hlist_head
#define cds_hlist_node reprieve_hlist_node
#define CDS_HLIST_HEAD_INIT(name) REPRIEVE_HLIST_HEAD_INIT(name)
#define CDS_HLIST_HEAD(name) struct cds_hlist_head name = CDS_HLIST_HEAD_INIT(name)
#define CDS_INIT_HLIST_HEAD(ptr) reprieve_hlist_init(ptr)
#define cds_hlist_empty reprieve_hlist_empty
#define cds_hlist_entry reprieve_hlist_entry
#define cds_hlist_entry_safe(ptr, type, member)                                        \
	__extension__({                                                                \
		__typeof__(ptr) reprieve_node_ = (ptr);                                \
		reprieve_node_ ? cds_hlist_entry(reprieve_node_, type, member) : NULL; \
	})
#define cds_hlist_add_head reprieve_hlist_add_head
#define cds_hlist_del reprieve_hlist_del
#define cds_hlist_add_head_rcu reprieve_hlist_add_head_rcu
#define cds_hlist_del_rcu reprieve_hlist_del_rcu
#define cds_hlist_for_each reprieve_hlist_for_each
#define cds_hlist_for_each_safe reprieve_hlist_for_each_safe
#define cds_hlist_for_each_rcu reprieve_hlist_for_each_rcu
#define cds_hlist_first_entry(head, type, member) cds_hlist_entry((head)->next, type, member)
#define cds_hlist_for_each_entry_2 reprieve_hlist_for_each_entry
#define cds_hlist_for_each_entry_safe_2 reprieve_hlist_for_each_entry_safe
#define cds_hlist_for_each_entry_rcu_2 reprieve_hlist_for_each_entry_rcu
/* The older forms, with the position apart from the entry. */
#define REPRIEVE_AT_(e, pos, member) ((pos) && ((e) = REPRIEVE_ENTRY_(pos, e, member), 1))
#define cds_hlist_for_each_entry(e, pos, head, member) \
	for (pos = (head)->next; REPRIEVE_AT_(e, pos, member); pos = pos->next)
#define cds_hlist_for_each_entry_safe(e, pos, n, head, member) \
	for (pos = (head)->next; REPRIEVE_AT_(e, pos, member) && (n = pos->next, 1); pos = n)
#define cds_hlist_for_each_entry_rcu(e, pos, head, member)                           \
	for (pos = reprieve_dereference((head)->next); REPRIEVE_AT_(e, pos, member); \
	     pos = reprieve_dereference(pos->next))

#endif
