/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Intrusive lists that readers traverse while one writer at a time changes them.
 *
 * reprieve_list: circular, linked both ways. reprieve_hlist: the head is one pointer, for hash
 * tables. Functions whose names end in _rcu may run while readers traverse: an element is complete
 * before it can be reached, and keeps its way on when it is taken out; it is freed after a grace
 * period. The others are for writers and for lists without readers.
 *
 * Example:
 *
 *	#include <reprieve/list.h>
 *	#include <stdio.h>
 *
 *	struct item { int value; struct reprieve_list_head link; };
 *	static struct reprieve_list_head items = REPRIEVE_LIST_HEAD_INIT(items);
 *
 *	int main(void)
 *	{
 *		struct item one = { 1, { 0, 0 } }, two = { 2, { 0, 0 } }, *i;
 *
 *		reprieve_list_add_rcu(&one.link, &items);
 *		reprieve_list_add_tail_rcu(&two.link, &items);
 *		reprieve_read_lock();
 *		reprieve_list_for_each_entry_rcu(i, &items, link)
 *			printf("%d\n", i->value);
 *		reprieve_read_unlock();
 *		reprieve_list_del_rcu(&one.link);
 *		reprieve_synchronize();	// now nobody looks at it
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_LIST_H
#define REPRIEVE_LIST_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/reprieve.h>

struct reprieve_list_head {
	struct reprieve_list_head *next, *prev;
};

/* Versions of clang-format differ here. */
/* clang-format off */
#define REPRIEVE_LIST_HEAD_INIT(name) {&(name), &(name)}
/* clang-format on */

REPRIEVE_INLINE_ void reprieve_list_init(struct reprieve_list_head *head)
{
	head->next = head->prev = head;
}

REPRIEVE_INLINE_ int reprieve_list_empty(const struct reprieve_list_head *head)
{
	return __atomic_load_n(&head->next, __ATOMIC_RELAXED) == head;
}

/* Complete first, then reachable. */
REPRIEVE_INLINE_ void reprieve_list_insert_(struct reprieve_list_head *element,
					    struct reprieve_list_head *prev,
					    struct reprieve_list_head *next)
{
	element->next = next;
	element->prev = prev;
	/* Atomic: scans look whether it is null. */
	__atomic_store_n(&next->prev, element, __ATOMIC_RELAXED);
	__atomic_store_n(&prev->next, element, __ATOMIC_RELEASE);
}

REPRIEVE_INLINE_ void reprieve_list_add_rcu(struct reprieve_list_head *element,
					    struct reprieve_list_head *head)
{
	reprieve_list_insert_(element, head, head->next);
}

REPRIEVE_INLINE_ void reprieve_list_add_tail_rcu(struct reprieve_list_head *element,
						 struct reprieve_list_head *head)
{
	reprieve_list_insert_(element, head->prev, head);
}

/* The element keeps its next pointer: a reader that stands on it goes on. */
REPRIEVE_INLINE_ void reprieve_list_del_rcu(struct reprieve_list_head *element)
{
	__atomic_store_n(&element->next->prev, element->prev, __ATOMIC_RELAXED);
	__atomic_store_n(&element->prev->next, element->next, __ATOMIC_RELEASE);
}

REPRIEVE_INLINE_ void reprieve_list_replace_rcu(struct reprieve_list_head *old,
						struct reprieve_list_head *fresh)
{
	fresh->next = old->next;
	fresh->prev = old->prev;
	__atomic_store_n(&fresh->prev->next, fresh, __ATOMIC_RELEASE);
	__atomic_store_n(&fresh->next->prev, fresh, __ATOMIC_RELAXED);
}

#define reprieve_list_add reprieve_list_add_rcu
#define reprieve_list_add_tail reprieve_list_add_tail_rcu
#define reprieve_list_del reprieve_list_del_rcu
#define reprieve_list_replace reprieve_list_replace_rcu

REPRIEVE_INLINE_ void reprieve_list_del_init(struct reprieve_list_head *element)
{
	reprieve_list_del(element);
	reprieve_list_init(element);
}

REPRIEVE_INLINE_ void reprieve_list_replace_init(struct reprieve_list_head *old,
						 struct reprieve_list_head *fresh)
{
	reprieve_list_replace(old, fresh);
	reprieve_list_init(old);
}

REPRIEVE_INLINE_ void reprieve_list_move(struct reprieve_list_head *element,
					 struct reprieve_list_head *head)
{
	reprieve_list_del(element);
	reprieve_list_add(element, head);
}

/* Puts all elements of `from` at the beginning of the list. `from` is to be initialized anew. */
REPRIEVE_INLINE_ void reprieve_list_splice(struct reprieve_list_head *from,
					   struct reprieve_list_head *head)
{
	struct reprieve_list_head *first = from->next, *last = from->prev;

	if (first == from)
		return;
	first->prev = head;
	last->next = head->next;
	head->next->prev = last;
	head->next = first;
}

#define reprieve_list_entry(pointer, type, member) reprieve_container_of(pointer, type, member)
#define reprieve_list_first_entry(head, type, member) \
	reprieve_list_entry((head)->next, type, member)
#define REPRIEVE_ENTRY_(pointer, like, member) \
	reprieve_container_of(pointer, __typeof__(*(like)), member)

#define reprieve_list_for_each(p, head) for (p = (head)->next; p != (head); p = p->next)
#define reprieve_list_for_each_prev(p, head) for (p = (head)->prev; p != (head); p = p->prev)
#define reprieve_list_for_each_safe(p, n, head) \
	for (p = (head)->next, n = p->next; p != (head); p = n, n = p->next)
#define reprieve_list_for_each_prev_safe(p, n, head) \
	for (p = (head)->prev, n = p->prev; p != (head); p = n, n = p->prev)
#define reprieve_list_for_each_entry(e, head, member)                            \
	for (e = REPRIEVE_ENTRY_((head)->next, e, member); &e->member != (head); \
	     e = REPRIEVE_ENTRY_(e->member.next, e, member))
#define reprieve_list_for_each_entry_reverse(e, head, member)                    \
	for (e = REPRIEVE_ENTRY_((head)->prev, e, member); &e->member != (head); \
	     e = REPRIEVE_ENTRY_(e->member.prev, e, member))
#define reprieve_list_for_each_entry_safe(e, n, head, member) \
	for (e = REPRIEVE_ENTRY_((head)->next, e, member),    \
	    n = REPRIEVE_ENTRY_(e->member.next, e, member);   \
	     &e->member != (head); e = n, n = REPRIEVE_ENTRY_(e->member.next, e, member))

#define reprieve_list_for_each_rcu(p, head) \
	for (p = reprieve_dereference((head)->next); p != (head); p = reprieve_dereference(p->next))
#define reprieve_list_for_each_entry_rcu(e, head, member)                        \
	for (e = REPRIEVE_ENTRY_(reprieve_dereference((head)->next), e, member); \
	     &e->member != (head);                                               \
	     e = REPRIEVE_ENTRY_(reprieve_dereference(e->member.next), e, member))

struct reprieve_hlist_node {
	struct reprieve_hlist_node *next, **link; /* link: the pointer that leads here */
};

struct reprieve_hlist_head {
	struct reprieve_hlist_node *next;
};

/* Versions of clang-format differ here. */
/* clang-format off */
#define REPRIEVE_HLIST_HEAD_INIT(name) {NULL}
/* clang-format on */

REPRIEVE_INLINE_ void reprieve_hlist_init(struct reprieve_hlist_head *head)
{
	head->next = NULL;
}

REPRIEVE_INLINE_ int reprieve_hlist_empty(const struct reprieve_hlist_head *head)
{
	return !__atomic_load_n(&head->next, __ATOMIC_RELAXED);
}

REPRIEVE_INLINE_ void reprieve_hlist_add_head_rcu(struct reprieve_hlist_node *element,
						  struct reprieve_hlist_head *head)
{
	element->next = head->next;
	element->link = &head->next;
	if (element->next)
		element->next->link = &element->next;
	__atomic_store_n(&head->next, element, __ATOMIC_RELEASE);
}

REPRIEVE_INLINE_ void reprieve_hlist_del_rcu(struct reprieve_hlist_node *element)
{
	if (element->next)
		element->next->link = element->link;
	__atomic_store_n(element->link, element->next, __ATOMIC_RELEASE);
}

#define reprieve_hlist_add_head reprieve_hlist_add_head_rcu
#define reprieve_hlist_del reprieve_hlist_del_rcu

#define reprieve_hlist_entry(pointer, type, member) reprieve_container_of(pointer, type, member)
#define REPRIEVE_HENTRY_(pointer, like, member)                                        \
	__extension__({                                                                \
		struct reprieve_hlist_node *reprieve_node_ = (pointer);                \
		reprieve_node_ ? REPRIEVE_ENTRY_(reprieve_node_, like, member) : NULL; \
	})

#define reprieve_hlist_for_each(p, head) for (p = (head)->next; p; p = p->next)
#define reprieve_hlist_for_each_safe(p, n, head) \
	for (p = (head)->next; p && (n = p->next, 1); p = n)
#define reprieve_hlist_for_each_entry(e, head, member)         \
	for (e = REPRIEVE_HENTRY_((head)->next, e, member); e; \
	     e = REPRIEVE_HENTRY_(e->member.next, e, member))
#define reprieve_hlist_for_each_entry_safe(e, n, head, member) \
	for (e = REPRIEVE_HENTRY_((head)->next, e, member);    \
	     e && (n = REPRIEVE_HENTRY_(e->member.next, e, member), 1); e = n)
#define reprieve_hlist_for_each_rcu(p, head) \
	for (p = reprieve_dereference((head)->next); p; p = reprieve_dereference(p->next))
#define reprieve_hlist_for_each_entry_rcu(e, head, member)                           \
	for (e = REPRIEVE_HENTRY_(reprieve_dereference((head)->next), e, member); e; \
	     e = REPRIEVE_HENTRY_(reprieve_dereference(e->member.next), e, member))

#endif
