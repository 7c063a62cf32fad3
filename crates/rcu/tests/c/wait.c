/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waiting calls and others: sections, protected nodes, polling, callbacks, domains, QSBR. */
#include <reprieve/restart.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

struct node {
	int value;
	struct reprieve_head head;
};

static struct node *current;
static int step, freed, in_callback = -1;

static void reach(int wanted)
{
	while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) < wanted)
		usleep(1000);
}

static void advance(int to)
{
	__atomic_store_n(&step, to, __ATOMIC_RELEASE);
}

static void node_freed(struct reprieve_head *head)
{
	free(reprieve_container_of(head, struct node, head));
	__atomic_fetch_add(&freed, 1, __ATOMIC_RELEASE);
}

static void ask_barrier(struct reprieve_head *head)
{
	(void)head;
	in_callback = reprieve_barrier();
}

REPRIEVE_RESTARTABLE static const void *find(const void *argument)
{
	(void)argument;
	return reprieve_dereference(current);
}

static void *section(void *argument)
{
	(void)argument;
	reprieve_read_lock();
	CHECK(reprieve_read_ongoing());
	advance(1);
	reach(2);
	usleep(20000);
	advance(3);
	reprieve_read_unlock();
	return NULL;
}

static void *qsbr(void *argument)
{
	(void)argument;
	reprieve_qsbr_online();
	CHECK(reprieve_qsbr_ongoing());
	advance(11);
	reach(12);
	usleep(20000);
	advance(13);
	/*
	 * Again and again: the other side may wait for two grace periods, one of them started to be
	 * polled for.
	 */
	while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) < 14) {
		reprieve_qsbr_quiescent_state();
		usleep(1000);
	}
	reprieve_qsbr_offline();
	CHECK(!reprieve_qsbr_ongoing());
	return NULL;
}

static struct reprieve_domain *ending;

/* Callbacks of a domain use it until they have run. */
static void use_domain(struct reprieve_head *head)
{
	reach(21);
	reprieve_domain_read_lock(ending);
	reprieve_domain_read_unlock(ending);
	reprieve_domain_call(ending, head, node_freed, 0);
}

static void free_domain(void *argument)
{
	(void)argument;
	reprieve_domain_free(ending);
	advance(21);
}

static void increment(void *argument)
{
	__atomic_fetch_add((int *)argument, 1, __ATOMIC_RELEASE);
}

int main(void)
{
	pthread_t thread;
	struct node *n = (struct node *)calloc(1, sizeof(*n));
	struct reprieve_protected held, more[20];
	struct reprieve_head head;
	struct reprieve_domain *domain;
	uint64_t cookie;
	int i, deferred = 0;

	/* A grace period waits for a section. */
	CHECK(!pthread_create(&thread, NULL, section, NULL));
	reach(1);
	cookie = reprieve_start_poll();
	CHECK(!reprieve_poll(cookie));
	advance(2);
	reprieve_synchronize();
	CHECK(__atomic_load_n(&step, __ATOMIC_ACQUIRE) == 3);
	pthread_join(thread, NULL);
	reprieve_cond_synchronize(cookie);
	CHECK(reprieve_poll(cookie));

	/* Not for a protected node, which stays; many at a time. */
	n->value = 42;
	current = n;
	CHECK(reprieve_protect(find, NULL, &held) == n);
	for (i = 0; i < 20; i++)
		CHECK(reprieve_protect(find, NULL, &more[i]) == n);
	reprieve_assign_pointer(current, (struct node *)NULL);
	reprieve_release(&more[0]);
	CHECK(!reprieve_protect(find, NULL, &more[0]));
	reprieve_retire(n, &n->head, node_freed, sizeof(*n), 0);
	reprieve_synchronize_expedited();
	usleep(50000);
	CHECK(!freed && ((const struct node *)held.node)->value == 42);
	for (i = 1; i < 20; i++)
		reprieve_release(&more[i]);
	usleep(50000);
	CHECK(!freed);
	/* Nobody waits for a protected node. */
	CHECK(reprieve_barrier() == 0 && !freed);
	reprieve_release(&held);

	/* A callback may not wait for callbacks. */
	reprieve_call(&head, ask_barrier, 0);
	reprieve_defer(increment, &deferred);
	CHECK(reprieve_barrier() == 0);
	CHECK(in_callback == EDEADLK && deferred == 1);

	/* QSBR: its own domain; waiting takes an online thread offline. */
	CHECK(!pthread_create(&thread, NULL, qsbr, NULL));
	reach(11);
	reprieve_qsbr_online();
	reprieve_synchronize();
	CHECK(__atomic_load_n(&step, __ATOMIC_ACQUIRE) == 11);
	cookie = reprieve_qsbr_start_poll();
	advance(12);
	reprieve_qsbr_synchronize();
	CHECK(__atomic_load_n(&step, __ATOMIC_ACQUIRE) == 13 && reprieve_qsbr_ongoing());
	advance(14);
	pthread_join(thread, NULL);
	reprieve_qsbr_defer(increment, &deferred);
	CHECK(reprieve_qsbr_barrier() == 0 && deferred == 2);
	CHECK(reprieve_qsbr_poll(cookie));
	reprieve_qsbr_offline();

	/* Domains. */
	CHECK(!reprieve_domain_new(99, 0));
	for (i = 0; i < 4; i++) {
		domain = reprieve_domain_new((unsigned int)i, 1000);
		CHECK(domain);
		reprieve_domain_read_lock(domain);
		reprieve_synchronize();
		reprieve_domain_read_unlock(domain);
		reprieve_domain_call(domain, &head, ask_barrier, 0);
		reprieve_domain_synchronize(domain);
		CHECK(reprieve_domain_barrier(domain) == 0);
		reprieve_domain_free(domain);
	}
	CHECK(reprieve_barrier() == 0 && freed == 1);

	/* A domain that a callback frees: its own callbacks run all the same. */
	ending = reprieve_domain_new(REPRIEVE_ENGINE_RESTART, 0);
	CHECK(ending);
	n = (struct node *)calloc(1, sizeof(*n));
	reprieve_domain_call(ending, &n->head, use_domain, sizeof(*n));
	reprieve_defer(free_domain, NULL);
	CHECK(reprieve_barrier() == 0);
	while (__atomic_load_n(&freed, __ATOMIC_ACQUIRE) != 2)
		usleep(1000);
	return 0;
}
