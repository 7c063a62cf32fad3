/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waiting for a condition is a cancellation point, in all its forms and with all mutexes. */
#define _GNU_SOURCE
#include "check.h"
#include <time.h>

#define ROUNDS 300

static pthread_mutex_t mutex;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int waits, items, ended, form, cancelled;
static pthread_t taker;

static int wait_once(void)
{
	struct timespec end;

	clock_gettime(form == 1 ? CLOCK_REALTIME : CLOCK_MONOTONIC, &end);
	end.tv_sec += 10000;
	if (form == 1)
		return pthread_cond_timedwait(&condition, &mutex, &end);
	if (form == 2)
		return pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &end);
	return pthread_cond_wait(&condition, &mutex);
}

static void end_wait(void *unused)
{
	(void)unused;
	ended++;
	/* The thread holds the mutex. */
	CHECK(!pthread_mutex_unlock(&mutex));
}

static void *wait_for_item(void *unused)
{
	CHECK(!pthread_mutex_lock(&mutex));
	pthread_cleanup_push(end_wait, NULL);
	waits++;
	while (!items)
		CHECK(!wait_once());
	items--;
	waits--;
	taker = pthread_self();
	pthread_cleanup_pop(1);
	return unused;
}

static pthread_t start(void *(*function)(void *), int waiters)
{
	pthread_t thread;
	int now = 0;

	CHECK(!pthread_create(&thread, NULL, function, NULL));
	while (now < waiters) {
		CHECK(!pthread_mutex_lock(&mutex));
		now = waits;
		CHECK(!pthread_mutex_unlock(&mutex));
	}
	return thread;
}

static void one_that_waits(void)
{
	void *result;
	pthread_t thread = start(wait_for_item, 1);

	/* Most likely it sleeps by then. */
	usleep(2000);
	ended = 0;
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && ended == 1);
	cancelled++;
	/* The mutex is free, and nobody is left in the condition. */
	CHECK(!pthread_mutex_trylock(&mutex));
	CHECK(!pthread_mutex_unlock(&mutex));
	CHECK(!pthread_cond_destroy(&condition));
	condition = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	waits = 0;
}

/* A waiter of two is cancelled while the other's signal comes: the signal is not lost. */
static void one_of_two(void)
{
	void *result;
	pthread_t first = start(wait_for_item, 1), second = start(wait_for_item, 2);

	taker = pthread_self();
	CHECK(!pthread_mutex_lock(&mutex));
	items = 1;
	CHECK(!pthread_mutex_unlock(&mutex));
	CHECK(!pthread_cond_signal(&condition));
	CHECK(!pthread_cancel(first));
	CHECK(!pthread_join(first, &result));
	CHECK(!pthread_mutex_lock(&mutex));
	/* The result does not tell: it may have taken the item, and been cancelled after that. */
	if (pthread_equal(taker, first)) {
		items = 1;
		CHECK(!pthread_cond_signal(&condition));
	}
	CHECK(!pthread_mutex_unlock(&mutex));
	CHECK(!pthread_join(second, &result));
	CHECK(result != PTHREAD_CANCELED && !items);
	cancelled++;
	waits = 0;
}

static void *wait_undisturbed(void *unused)
{
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL));
	wait_for_item(NULL);
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL));
	pthread_testcancel();
	CHECK(!"cancelled");
	return unused;
}

static void one_that_forbids_it(void)
{
	void *result;
	pthread_t thread = start(wait_undisturbed, 1);

	CHECK(!pthread_cancel(thread));
	usleep(2000);
	CHECK(!pthread_mutex_lock(&mutex));
	CHECK(waits == 1);
	items = 1;
	CHECK(!pthread_cond_signal(&condition));
	CHECK(!pthread_mutex_unlock(&mutex));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && !waits);
	cancelled++;
}

int main(void)
{
	const int kinds[] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ADAPTIVE_NP,
			     PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK};
	pthread_mutexattr_t attributes;

	for (int kind = 0; kind < 4; kind++) {
		CHECK(!pthread_mutexattr_init(&attributes));
		CHECK(!pthread_mutexattr_settype(&attributes, kinds[kind]));
		CHECK(!pthread_mutex_init(&mutex, &attributes));
		for (form = 0; form < 3; form++) {
			one_that_waits();
			one_that_forbids_it();
			for (int i = 0; i < ROUNDS / 12; i++)
				one_of_two();
		}
		CHECK(!pthread_mutex_destroy(&mutex));
	}
	printf("%d cancelled\n", cancelled);
	return 0;
}
