/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Readers that end in every way there is, and readers that do not: who is waited for, and who is
 * reported.
 */
#include <reprieve/stall.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

/* Sanitizers do not allow for threads that end without a word. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static int entered, leave, reports, forgotten;
static uint32_t sleeper_id;

static void hook(const struct reprieve_stall *stall, void *argument)
{
	size_t i;

	CHECK(argument == &reports && stall->count && strstr(stall->text, "grace period"));
	for (i = 0; i < stall->count; i++) {
		const struct reprieve_laggard *laggard = &stall->laggards[i];

		CHECK(laggard->waiting_ns <= stall->waiting_ns);
		if (laggard->state == REPRIEVE_READER_FORGOTTEN) {
			__atomic_fetch_add(&forgotten, 1, __ATOMIC_RELAXED);
			continue;
		}
		CHECK(laggard->thread == sleeper_id);
	}
	__atomic_fetch_add(&reports, 1, __ATOMIC_RELEASE);
}

static void *exits(void *argument)
{
	reprieve_read_lock();
	if (argument)
		pthread_exit(NULL);
	return NULL;
}

static void *cancelled(void *argument)
{
	reprieve_read_lock();
	reprieve_read_lock();
	__atomic_store_n(&entered, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return argument;
}

static void *dies(void *argument)
{
	reprieve_read_lock();
	syscall(SYS_exit, 0);
	return argument;
}

static void *sleeps(void *argument)
{
	sleeper_id = (uint32_t)syscall(SYS_gettid);
	reprieve_read_lock();
	__atomic_store_n(&entered, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&leave, __ATOMIC_ACQUIRE))
		usleep(1000);
	reprieve_read_unlock();
	return argument;
}

/* Cancelled while it leads a grace period, and looks into /proc for the reader it waits for. */
static void *leads(void *argument)
{
	reprieve_synchronize();
	pthread_testcancel();
	CHECK(!"cancelled");
	return argument;
}

static pthread_t start(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, run, argument));
	return thread;
}

static void await(const int *flag)
{
	while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
		usleep(1000);
}

static void await_more(const int *count, int before)
{
	while (__atomic_load_n(count, __ATOMIC_ACQUIRE) == before)
		usleep(1000);
}

int main(void)
{
	struct reprieve_stats stats;
	pthread_t thread, leader;
	void *result;
	uint64_t cookie;
	int i, before;

	reprieve_on_stall(NULL, hook, &reports);
	/* No report but of the dead, however long a busy machine takes. */
	reprieve_set_stall_timeout(NULL, 86400000);
	/* The threads clean up after themselves. */
	for (i = 0; i < 20; i++) {
		pthread_join(start(exits, i % 2 ? &thread : NULL), NULL);
		reprieve_synchronize();
	}
	thread = start(cancelled, NULL);
	await(&entered);
	CHECK(!pthread_cancel(thread) && !pthread_join(thread, NULL));
	reprieve_synchronize();
	CHECK(!reports && !reprieve_forget_dead_threads(NULL));
	/* This one does not. */
	if (!SANITIZED) {
		pthread_join(start(dies, NULL), NULL);
		reprieve_synchronize();
		CHECK(forgotten == 1 && reports == 1);
		reports = 0;
	}
	reprieve_set_stall_timeout(NULL, 20);
	entered = 0;
	thread = start(sleeps, NULL);
	await(&entered);
	cookie = reprieve_start_poll();
	await(&reports);
	CHECK(reprieve_stalled(NULL, 20, NULL, NULL) &&
	      !reprieve_stalled(NULL, 3600000, hook, NULL));
	CHECK(!reprieve_poll(cookie));
	__atomic_store_n(&leave, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	while (!reprieve_poll(cookie))
		usleep(1000);
	entered = leave = 0;
	thread = start(sleeps, NULL);
	await(&entered);
	before = __atomic_load_n(&reports, __ATOMIC_ACQUIRE);
	leader = start(leads, NULL);
	await_more(&reports, before);
	CHECK(!pthread_cancel(leader));
	await_more(&reports, __atomic_load_n(&reports, __ATOMIC_ACQUIRE));
	__atomic_store_n(&leave, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	CHECK(!pthread_join(leader, &result) && result == PTHREAD_CANCELED);
	reprieve_synchronize();
	reprieve_on_stall(NULL, NULL, NULL);
	reprieve_set_stall_timeout(NULL, 0);
	reprieve_get_stats(&stats);
	CHECK(stats.stalls >= 1);
	return 0;
}
