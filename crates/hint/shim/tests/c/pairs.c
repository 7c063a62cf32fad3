/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Prints the pairs of lock and unlock per CPU second of a mutex for which nobody waits. */
#include "check.h"
#include <time.h>

#define PAIRS 5000000

static void *sleep_on(void *unused)
{
	pause();
	return unused;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_t other;
	double begun;

	/* A program with one thread locks in another way. */
	CHECK(!pthread_create(&other, NULL, sleep_on, NULL));
	begun = now();
	for (int i = 0; i < PAIRS; i++) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
	}
	printf("%.0f\n", PAIRS / (now() - begun));
	return 0;
}
