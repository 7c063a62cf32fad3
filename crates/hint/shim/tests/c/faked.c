/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waits until times by clocks that another library fakes, for as long as it says. */
#define _GNU_SOURCE
#include "check.h"
#include <time.h>

#define WAIT 50000000L

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;

/* The kernel's, which nobody fakes. */
static long now(void)
{
	struct timespec time;

	__asm__ volatile("syscall" ::"a"(SYS_clock_gettime), "D"(CLOCK_MONOTONIC), "S"(&time)
			 : "rcx", "r11", "memory");
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static struct timespec end(clockid_t clock)
{
	struct timespec time;

	CHECK(!clock_gettime(clock, &time));
	time.tv_nsec += WAIT;
	time.tv_sec += time.tv_nsec / 1000000000;
	time.tv_nsec %= 1000000000;
	return time;
}

static void *lock_held(void *unused)
{
	struct timespec time = end(CLOCK_REALTIME);
	long begun = now();

	CHECK(pthread_rwlock_timedwrlock(&rw, &time) == ETIMEDOUT);
	CHECK(now() - begun >= WAIT);
	return unused;
}

int main(void)
{
	const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC};
	pthread_condattr_t attributes;
	pthread_cond_t condition;
	pthread_t thread;

	for (int i = 0; i < 2; i++) {
		struct timespec time = end(clocks[i]);
		long begun = now();
		int result = 0;

		CHECK(!pthread_condattr_init(&attributes));
		CHECK(!pthread_condattr_setclock(&attributes, clocks[i]));
		CHECK(!pthread_cond_init(&condition, &attributes));
		CHECK(!pthread_mutex_lock(&mutex));
		while (!result)
			result = pthread_cond_timedwait(&condition, &mutex, &time);
		CHECK(result == ETIMEDOUT && now() - begun >= WAIT);
		CHECK(!pthread_mutex_unlock(&mutex));
		CHECK(!pthread_cond_destroy(&condition));
	}
	CHECK(!pthread_rwlock_rdlock(&rw));
	CHECK(!pthread_create(&thread, NULL, lock_held, NULL));
	CHECK(!pthread_join(thread, NULL));
	puts("waited");
	return 0;
}
