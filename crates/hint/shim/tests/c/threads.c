/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * More threads than have a place for their hints, at the same time and one after the other, in a
 * program that the kernel ends if it asks for a thread (`tgkill`).
 */
#include "check.h"
#include <limits.h>

#define THREADS 4200

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all = PTHREAD_COND_INITIALIZER;
static int here, gone;

static void *come(void *unused)
{
	CHECK(!pthread_mutex_lock(&mutex));
	here++;
	while (!gone)
		CHECK(!pthread_cond_wait(&all, &mutex));
	here--;
	CHECK(!pthread_mutex_unlock(&mutex));
	return unused;
}

int main(void)
{
	static pthread_t threads[THREADS];
	pthread_attr_t attributes;
	int started = 0;

	forbid(SYS_tgkill);
	CHECK(!pthread_attr_init(&attributes));
	CHECK(!pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
	/* Where there may not be so many, fewer do. */
	while (started < THREADS && !pthread_create(&threads[started], &attributes, come, NULL))
		started++;
	CHECK(!pthread_mutex_lock(&mutex));
	gone = 1;
	CHECK(!pthread_cond_broadcast(&all));
	CHECK(!pthread_mutex_unlock(&mutex));
	for (int i = 0; i < started; i++)
		CHECK(!pthread_join(threads[i], NULL));
	for (int i = 0; i < THREADS; i++) {
		CHECK(!pthread_create(&threads[0], &attributes, come, NULL));
		CHECK(!pthread_join(threads[0], NULL));
	}
	CHECK(!here);
	puts("came and went");
	return 0;
}
