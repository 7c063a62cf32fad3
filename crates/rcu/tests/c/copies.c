/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Shared objects with a copy of the library each (-DPLUGIN), opened for all to see
 * (RTLD_GLOBAL), beside a program that has one as well. All read and free at the same time.
 */
#include <reprieve/restart.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define ROUNDS 2000
#define COPIES 16

struct node {
	uint64_t value;
	struct reprieve_head head;
};

static struct node *current;
static long freed;

static void node_free(struct reprieve_head *head)
{
	struct node *node = reprieve_container_of(head, struct node, head);

	node->value = 0;
	free(node);
	__atomic_add_fetch(&freed, 1, __ATOMIC_RELAXED);
}

static void replace(void)
{
	struct node *fresh = (struct node *)malloc(sizeof(*fresh)), *old = current;

	CHECK(fresh);
	fresh->value = 42;
	reprieve_assign_pointer(current, fresh);
	if (old)
		reprieve_retire(old, &old->head, node_free, sizeof(*old), 0);
}

REPRIEVE_RESTARTABLE static uintptr_t look(const void *argument, void *result)
{
	(void)argument;
	*(uint64_t *)result = reprieve_dereference(current)->value;
	return 1;
}

REPRIEVE_RESTARTABLE static const void *get(const void *argument)
{
	(void)argument;
	return reprieve_dereference(current);
}

static void *reader(void *argument)
{
	struct reprieve_protected held;
	uint64_t value;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		CHECK(reprieve_lookup(look, NULL, &value) && value == 42);
		CHECK(reprieve_protect(get, NULL, &held));
		CHECK(!reprieve_read_ongoing());
		reprieve_read_lock();
		CHECK(reprieve_read_ongoing());
		CHECK(reprieve_dereference(current)->value == 42);
		CHECK(((const struct node *)held.node)->value == 42);
		reprieve_read_unlock();
		reprieve_release(&held);
	}
	return argument;
}

/* The address of this copy's block. */
void *use(void);
void *use(void)
{
	pthread_t thread;
	int i;

	replace();
	CHECK(!pthread_create(&thread, NULL, reader, NULL));
	for (i = 0; i < ROUNDS; i++) {
		replace();
		if (i % 16 == 0)
			reprieve_synchronize();
	}
	CHECK(!pthread_join(thread, NULL));
	CHECK(!reprieve_barrier() && freed == ROUNDS);
	free(current);
	return reprieve_thread_();
}

#ifndef PLUGIN
int main(int argc, char **argv)
{
	void *blocks[COPIES] = {use()};
	int i, j;

	CHECK(argc <= COPIES);
	for (i = 1; i < argc; i++) {
		void *plugin = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL);
		void *symbol;

		if (!plugin)
			fprintf(stderr, "%s\n", dlerror());
		CHECK(plugin);
		symbol = dlsym(plugin, "use");
		CHECK(symbol);
		blocks[i] = ((void *(*)(void))symbol)();
		for (j = 0; j < i; j++)
			CHECK(blocks[i] != blocks[j] || !blocks[i]);
	}
	return 0;
}
#endif
