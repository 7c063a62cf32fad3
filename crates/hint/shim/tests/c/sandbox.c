/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs that forbid themselves all system calls but those that the C library's locks make,
 * before their first lock: "first", or in the child of a fork: "child". "free": nobody waits for a
 * lock or a condition, so that not even futex is called.
 */
#include "check.h"
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define THREADS 3
#define ROUNDS 300

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t turns = PTHREAD_COND_INITIALIZER;
static int filtered, started, done;
static long count;

/* Longer than a waiter spins. */
static void work(void)
{
	for (volatile int i = 0; i < 100000; i++)
		;
}

static void *lock_all(void *unused)
{
	__atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&filtered, __ATOMIC_SEQ_CST))
		;
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(!pthread_mutex_lock(&mutex));
		count++;
		if (i % 10 == 0)
			work();
		CHECK(!pthread_mutex_unlock(&mutex));
		CHECK(!pthread_rwlock_rdlock(&rw));
		CHECK(!pthread_rwlock_unlock(&rw));
		CHECK(!pthread_rwlock_wrlock(&rw));
		if (i % 10 == 0)
			work();
		CHECK(!pthread_rwlock_unlock(&rw));
	}
	CHECK(!pthread_mutex_lock(&mutex));
	done++;
	CHECK(!pthread_cond_broadcast(&turns));
	/* For ever: the end of a thread is more calls. */
	for (;;)
		CHECK(!pthread_cond_wait(&turns, &mutex));
	return unused;
}

static void contend(void)
{
	const int calls[] = {SYS_futex, SYS_write, SYS_exit_group, SYS_rt_sigreturn};
	pthread_t thread;

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread, NULL, lock_all, NULL));
	while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < THREADS)
		;
	allow_only(calls, sizeof(calls) / sizeof(*calls));
	__atomic_store_n(&filtered, 1, __ATOMIC_SEQ_CST);
	CHECK(!pthread_mutex_lock(&mutex));
	while (done < THREADS)
		CHECK(!pthread_cond_wait(&turns, &mutex));
	CHECK(count == (long)THREADS * ROUNDS);
	CHECK(!pthread_mutex_unlock(&mutex));
	_exit(7);
}

static void be_alone(void)
{
	const int calls[] = {SYS_write, SYS_exit_group};

	allow_only(calls, sizeof(calls) / sizeof(*calls));
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(!pthread_mutex_lock(&mutex));
		CHECK(!pthread_cond_signal(&turns));
		CHECK(!pthread_cond_broadcast(&turns));
		CHECK(!pthread_mutex_unlock(&mutex));
		CHECK(!pthread_rwlock_wrlock(&rw));
		CHECK(!pthread_rwlock_unlock(&rw));
	}
	_exit(7);
}

int main(int argc, char **argv)
{
	int status;
	pid_t child;

	CHECK(argc == 2);
	if (!strcmp(argv[1], "first"))
		contend();
	if (!strcmp(argv[1], "free"))
		be_alone();
	/* A grandchild: what a fork takes with it comes along twice. */
	child = fork();
	if (!child) {
		child = fork();
		if (!child)
			contend();
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
		_exit(WEXITSTATUS(status));
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}
