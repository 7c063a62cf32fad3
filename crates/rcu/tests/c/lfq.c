/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * liburcu-cds's RCU queue, as it is installed, which allocates nodes with heads of liburcu's own
 * size and is given the function call_rcu. FLAVOR_HEADER chooses the flavor; _LGPL_SOURCE compiles
 * the queue into the program. Compiles against liburcu as well.
 */
#define URCU_API_MAP
#include FLAVOR_HEADER
#include <stdio.h>
#include <stdlib.h>
#include <urcu/rculfqueue.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

enum { NODES = 2000 };

struct entry {
	long value;
	struct cds_lfq_node_rcu node;
	struct rcu_head head;
};

/* What a library compiled for liburcu has: 16 bytes for the head, and something behind it. */
struct small {
	void *head[2];
	long canary;
};

typedef void call_function(struct rcu_head *head, void (*func)(struct rcu_head *head));

static long freed, called;

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
	call_function *function = call_rcu;

	function((struct rcu_head *)(void *)&two[0], note);
	own_flavor.update_call_rcu((struct rcu_head *)(void *)&two[1], note);
	rcu_barrier();
	CHECK(uatomic_read(&called) == 2 && two[0].canary == 42 && two[1].canary == 42);
}

int main(void)
{
	struct cds_lfq_queue_rcu queue;
	struct cds_lfq_node_rcu *node;
	long i;

	rcu_register_thread();
	small_heads();
	cds_lfq_init_rcu(&queue, call_rcu);
	for (i = 0; i < NODES; i++) {
		struct entry *e = (struct entry *)malloc(sizeof(*e));

		CHECK(e);
		e->value = i;
		cds_lfq_node_init_rcu(&e->node);
		rcu_read_lock();
		cds_lfq_enqueue_rcu(&queue, &e->node);
		/* Emptied again and again: each time a dummy node goes, through call_rcu. */
		node = cds_lfq_dequeue_rcu(&queue);
		rcu_read_unlock();
		CHECK(node && caa_container_of(node, struct entry, node)->value == i);
		call_rcu(&caa_container_of(node, struct entry, node)->head, entry_free);
		rcu_quiescent_state();
	}
	rcu_read_lock();
	CHECK(!cds_lfq_dequeue_rcu(&queue));
	rcu_read_unlock();
	rcu_barrier();
	CHECK(uatomic_read(&freed) == NODES && !cds_lfq_destroy_rcu(&queue));
	rcu_unregister_thread();
	return 0;
}
