/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every read side against one writer that poisons what it frees: nobody may see poison. Then
 * signals, fork, and a thread that exits inside.
 */
#include <reprieve/restart.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define GOOD 0x600d600d600d600dull
#define POISON 0xdeaddeaddeaddeadull

#ifdef __x86_64__
extern const char reprieve_image_end[] __attribute__((visibility("hidden")));
#endif

struct node {
	uint64_t value, copy[3];
	struct reprieve_head head;
};

struct copied {
	uint64_t value, copy[3];
};

static struct node *current;
static int stop;
static uint64_t lookups;

REPRIEVE_RESTARTABLE static uintptr_t read_node(const void *argument, void *result)
{
	const struct node *n = reprieve_dereference(*(struct node *const *)argument);
	struct copied *out = (struct copied *)result;

	if (!n)
		return 0;
	out->value = n->value;
	out->copy[0] = n->copy[0];
	out->copy[1] = n->copy[1];
	out->copy[2] = n->copy[2];
	return 1;
}

REPRIEVE_RESTARTABLE static const void *find_node(const void *argument)
{
	return reprieve_dereference(*(struct node *const *)argument);
}

static void node_free(struct reprieve_head *head)
{
	struct node *n = reprieve_container_of(head, struct node, head);

	n->value = n->copy[0] = n->copy[1] = n->copy[2] = POISON;
	free(n);
}

static struct node *node_new(void)
{
	struct node *n = (struct node *)malloc(sizeof(*n));

	CHECK(n);
	n->value = n->copy[0] = n->copy[1] = n->copy[2] = GOOD;
	return n;
}

static void look(void)
{
	struct reprieve_protected held;
	struct copied c;

	reprieve_read_lock();
	reprieve_read_lock();
	CHECK(reprieve_dereference(current)->value == GOOD);
	reprieve_read_unlock();
	CHECK(reprieve_dereference(current)->copy[2] == GOOD);
	reprieve_read_unlock();

	CHECK(reprieve_lookup(read_node, &current, &c));
	CHECK(c.value == GOOD && c.copy[0] == GOOD && c.copy[1] == GOOD && c.copy[2] == GOOD);

	CHECK(reprieve_protect(find_node, &current, &held));
	CHECK(((const struct node *)held.node)->value == GOOD);
	sched_yield();
	CHECK(((const struct node *)held.node)->copy[2] == GOOD);
	reprieve_release(&held);
	__atomic_fetch_add(&lookups, 1, __ATOMIC_RELAXED);
}

static void *reader(void *argument)
{
	(void)argument;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		look();
	return NULL;
}

static void *leaver(void *argument)
{
	struct reprieve_protected held;

	(void)argument;
	reprieve_read_lock();
	reprieve_protect(find_node, &current, &held);
	return NULL; /* Both end with the thread. */
}

static void handler(int number)
{
	(void)number;
	look();
}

static void replace(int how)
{
	struct node *old = current;

	reprieve_assign_pointer(current, node_new());
	/*
	 * Protected nodes are freed by reprieve_retire alone; the grace period is for the other
	 * readers here.
	 */
	if (how % 64 == 0)
		reprieve_synchronize();
	reprieve_retire(old, &old->head, node_free, sizeof(*old), how & 1 ? REPRIEVE_LEAF : 0);
}

int main(void)
{
	enum { READERS = 4 };
	pthread_t threads[READERS], leaving;
	struct reprieve_stats stats;
	struct sigaction action;
	struct timespec start, now;
	const char *why;
	int i, status, restartable = reprieve_restartable(&why);
	pid_t child;

	CHECK(reprieve_abi_version() == REPRIEVE_ABI_VERSION);
#ifdef REPRIEVE_RESTARTS_
	/* No other function can pass for the self-test. */
	CHECK(reprieve_image_cs[4] == (uintptr_t)reprieve_image_end);
#else
	restartable = 0;
#endif
	CHECK(!reprieve_read_ongoing());
	current = node_new();
	look();
	CHECK(!reprieve_read_ongoing());
	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	sigaction(SIGUSR1, &action, NULL);
	for (i = 0; i < READERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, reader, NULL));
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (i = 0;; i++) {
		replace(i);
		if (i % 32 == 0)
			pthread_kill(threads[i / 32 % READERS], SIGUSR1);
		if (i % 128 == 0) {
			CHECK(!pthread_create(&leaving, NULL, leaver, NULL));
			pthread_join(leaving, NULL);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >
			    700 &&
		    __atomic_load_n(&lookups, __ATOMIC_RELAXED) > 100)
			break;
	}
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* Usable at once: the parent's other readers are forgotten. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		look();
		replace(0);
		CHECK(reprieve_barrier() == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (i = 0; i < READERS; i++)
		pthread_join(threads[i], NULL);
	CHECK(reprieve_barrier() == 0);
	reprieve_get_stats(&stats);
	CHECK(stats.waiting == 0 && stats.run > 0 && stats.grace_periods > 0);
	/* A system that restarts must not run everything in plain sections. */
	CHECK(!restartable || stats.fallbacks < lookups);
	/* A self-test that was not conclusive is run again by later lookups. */
	CHECK(reprieve_restartable(NULL) || stats.restarts == 0);
	printf("%s: %llu looks, %llu grace periods, %llu restarts, %llu in plain sections\n", why,
	       (unsigned long long)lookups, (unsigned long long)stats.grace_periods,
	       (unsigned long long)stats.restarts, (unsigned long long)stats.fallbacks);
	free(current);
	return 0;
}
