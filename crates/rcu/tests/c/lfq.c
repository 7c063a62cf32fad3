/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The queue of <urcu/rculfqueue.h>, which is given the program's call_rcu, and heads of liburcu's
 * own size by way of flavor objects. FLAVOR_HEADER chooses the flavor. Headers without a flavor
 * come first. Compiles against liburcu as well.
 */
#define URCU_API_MAP
#include <urcu/rculist.h>
#include <urcu/rculfqueue.h>
#include FLAVOR_HEADER
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

enum { NODES = 4000, THREADS = 2 };

struct entry {
	long value;
	struct cds_lfq_node_rcu node;
	struct rcu_head head;
};

/* A head of a library compiled for liburcu: 16 bytes, and something behind it. */
struct small {
	void *head[2];
	long canary;
};

static struct cds_lfq_queue_rcu queue;
static long taken[THREADS], sum, freed, called, wrapped;

static void entry_free(struct rcu_head *head)
{
	free(caa_container_of(head, struct entry, head));
	uatomic_inc(&freed);
}

static void note(struct rcu_head *head)
{
	CHECK(((struct small *)(void *)head)->canary == 42);
	uatomic_inc(&called);
}

static DEFINE_RCU_FLAVOR(own_flavor);

static void small_heads(void)
{
	static struct small two[2] = {{{NULL, NULL}, 42}, {{NULL, NULL}, 42}};

	rcu_flavor.update_call_rcu((struct rcu_head *)(void *)&two[0], note);
	own_flavor.update_call_rcu((struct rcu_head *)(void *)&two[1], note);
	rcu_barrier();
	CHECK(uatomic_read(&called) == 2 && two[0].canary == 42 && two[1].canary == 42);
}

/* A program's own function in place of call_rcu. */
static void call_wrapped(struct rcu_head *head, void (*func)(struct rcu_head *head))
{
	uatomic_inc(&wrapped);
	call_rcu(head, func);
}

static void *adds(void *argument)
{
	long i;

	rcu_register_thread();
	for (i = 0; i < NODES; i++) {
		struct entry *e = (struct entry *)malloc(sizeof(*e));

		CHECK(e);
		e->value = i;
		cds_lfq_node_init_rcu(&e->node);
		rcu_read_lock();
		cds_lfq_enqueue_rcu(&queue, &e->node);
		rcu_read_unlock();
		rcu_quiescent_state();
	}
	rcu_unregister_thread();
	return argument;
}

static void *takes(void *argument)
{
	long *count = (long *)argument;

	rcu_register_thread();
	while (uatomic_read(&taken[0]) + uatomic_read(&taken[1]) < THREADS * NODES) {
		struct cds_lfq_node_rcu *node;
		struct entry *e;

		rcu_read_lock();
		node = cds_lfq_dequeue_rcu(&queue);
		rcu_read_unlock();
		if (node) {
			e = caa_container_of(node, struct entry, node);
			uatomic_add(&sum, e->value);
			uatomic_inc(count);
			call_rcu(&e->head, entry_free);
		}
		rcu_quiescent_state();
	}
	rcu_unregister_thread();
	return NULL;
}

static void emptied_and_filled(void (*call)(struct rcu_head *head, void (*func)(struct rcu_head *)))
{
	pthread_t threads[2 * THREADS];
	int i;

	taken[0] = taken[1] = sum = freed = 0;
	cds_lfq_init_rcu(&queue, call);
	for (i = 0; i < THREADS; i++) {
		CHECK(!pthread_create(&threads[2 * i], NULL, adds, NULL));
		CHECK(!pthread_create(&threads[2 * i + 1], NULL, takes, &taken[i]));
	}
	rcu_thread_offline();
	for (i = 0; i < 2 * THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	rcu_thread_online();
	CHECK(sum == (long)THREADS * NODES * (NODES - 1) / 2);
	rcu_read_lock();
	CHECK(!cds_lfq_dequeue_rcu(&queue));
	rcu_read_unlock();
	rcu_barrier();
	CHECK(uatomic_read(&freed) == THREADS * NODES && !cds_lfq_destroy_rcu(&queue));
}

int main(void)
{
	rcu_register_thread();
	small_heads();
	emptied_and_filled(call_rcu);
	emptied_and_filled(call_wrapped);
	/* Each time the queue is found empty after a node was in it, a dummy goes. */
	CHECK(uatomic_read(&wrapped) >= 1);
	rcu_unregister_thread();
	return 0;
}
