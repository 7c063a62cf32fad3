/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The paper's five list calls, and its call_rcu with an argument. */
#include <reprieve/classic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

struct element {
	int value;
	struct list_head list;
	struct rcu_head rcu;
};

static LIST_HEAD(elements);
static int stop, freed;

static void element_free(void *argument)
{
	struct element *e = (struct element *)argument;

	e->value = -1;
	free(e);
	__atomic_fetch_add(&freed, 1, __ATOMIC_RELAXED);
}

static int sum(void)
{
	struct list_head *p;
	int total = 0;

	rcu_read_lock();
	list_for_each_rcu(p, &elements)
	{
		CHECK(list_entry(p, struct element, list)->value > 0);
		total += list_entry(p, struct element, list)->value;
	}
	rcu_read_unlock();
	return total;
}

static void *reader(void *argument)
{
	(void)argument;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		CHECK(sum() >= 0);
	return NULL;
}

int main(void)
{
	struct list_head *p, *n;
	struct element *e;
	pthread_t thread;
	int turn, i;

	CHECK(!pthread_create(&thread, NULL, reader, NULL));
	for (turn = 0; turn < 200; turn++) {
		for (i = 1; i <= 10; i++) {
			e = (struct element *)calloc(1, sizeof(*e));
			CHECK(e);
			e->value = i;
			INIT_RCU_HEAD(&e->rcu);
			if (i & 1)
				list_add_rcu(&e->list, &elements);
			else
				list_add_rcu_tail(&e->list, &elements);
		}
		CHECK(sum() == 55);
		CHECK(list_entry(elements.next, struct element, list)->value == 9);
		CHECK(list_entry(elements.prev, struct element, list)->value == 10);
		list_for_each_safe_rcu(p, n, &elements)
		{
			e = list_entry(p, struct element, list);
			list_del_rcu(p);
			if (e->value & 1) {
				call_rcu(&e->rcu, element_free, e);
			} else {
				synchronize_kernel();
				element_free(e);
			}
		}
		CHECK(list_empty(&elements));
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	CHECK(reprieve_barrier() == 0 && freed == 2000);
	return 0;
}
