/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A reader and a writer that frees what the reader has found. The argument names their mistake, if
 * any, for a sanitizer to report.
 */
#include <reprieve/restart.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct node {
	volatile int value;
	struct reprieve_head head;
};

static struct node *current;
static const char *mistake = "";

/* Orders the accesses in time, but not for a thread sanitizer: as if by chance. */
static int stage;

static void reach(int n)
{
	__atomic_store_n(&stage, n, __ATOMIC_RELAXED);
}

static void await(int n)
{
	while (__atomic_load_n(&stage, __ATOMIC_RELAXED) < n)
		sched_yield();
}

static int is(const char *name)
{
	return !strcmp(mistake, name);
}

REPRIEVE_RESTARTABLE static const void *get(const void *unused)
{
	(void)unused;
	return reprieve_dereference(current);
}

static void node_free(struct reprieve_head *head)
{
	free(reprieve_container_of(head, struct node, head));
}

static void *reader(void *unused)
{
	/* The writer is to blame, not the reader. */
	int inside = is("") || is("frees-at-once") || is("writes-in-place");
	const struct node *node;
	struct reprieve_protected held;

	if (is("read-after-release")) {
		node = (const struct node *)reprieve_protect(get, NULL, &held);
		reprieve_release(&held);
	} else {
		reprieve_read_lock();
		node = reprieve_dereference(current);
		if (!inside)
			reprieve_read_unlock();
	}
	if (is("read-before-the-free"))
		(void)node->value;
	reach(1);
	await(2);
	if (!is("read-before-the-free"))
		(void)node->value;
	if (inside)
		reprieve_read_unlock();
	return unused;
}

int main(int argc, char **argv)
{
	struct node *node = (struct node *)calloc(1, sizeof(*node));
	pthread_t thread;

	if (argc > 1)
		mistake = argv[1];
	current = node;
	if (!node || pthread_create(&thread, NULL, reader, NULL))
		abort();
	await(1);
	if (is("writes-in-place"))
		node->value = 1;
	reprieve_assign_pointer(current, (struct node *)NULL);
	if (is("") || is("writes-in-place"))
		reach(2);
	if (is("read-after-release")) {
		reprieve_retire(node, &node->head, node_free, sizeof(*node), REPRIEVE_LEAF);
		reprieve_barrier();
	} else if (is("read-beside-a-callback")) {
		reprieve_call(&node->head, node_free, sizeof(*node));
		reprieve_barrier();
	} else {
		if (!is("frees-at-once"))
			reprieve_synchronize();
		free(node);
	}
	reach(2);
	pthread_join(thread, NULL);
	return 0;
}
