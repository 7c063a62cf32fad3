/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Locks that are taken in one way and released in another: by the program, by a plugin (its file is
 * the argument), by functions found by name in the C library. Also right without the shim.
 */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <string.h>
#include <time.h>

typedef int (*on_mutex)(pthread_mutex_t *);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int turn;

static void *take_turns(void *of)
{
	int me = !!of;

	for (int i = 0; i < 1000; i++) {
		CHECK(!pthread_mutex_lock(&mutex));
		while (turn != me)
			CHECK(!pthread_cond_wait(&condition, &mutex));
		turn = !me;
		CHECK(!pthread_cond_signal(&condition));
		CHECK(!pthread_mutex_unlock(&mutex));
	}
	return NULL;
}

static void check(on_mutex lock, on_mutex unlock)
{
	CHECK(lock && unlock);
	CHECK(!lock(&mutex));
	CHECK(pthread_mutex_trylock(&mutex) == EBUSY);
	CHECK(!pthread_mutex_unlock(&mutex));
	CHECK(!pthread_mutex_lock(&mutex));
	CHECK(!unlock(&mutex));
	CHECK(!pthread_mutex_trylock(&mutex));
	CHECK(!pthread_mutex_unlock(&mutex));
}

static void check_handle(void *handle, const char *lock, const char *unlock)
{
	check((on_mutex)dlsym(handle, lock), (on_mutex)dlsym(handle, unlock));
}

int main(int argc, char **argv)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	struct timespec over = {0};
	pthread_t thread;

	CHECK(argc == 2);
	CHECK(!pthread_create(&thread, NULL, take_turns, NULL));
	take_turns(&thread);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!pthread_mutex_lock(&mutex));
	CHECK(pthread_cond_timedwait(&condition, &mutex, &over) == ETIMEDOUT);
	/* A debugger shows the owner. */
	CHECK(mutex.__data.__owner == (int)syscall(SYS_gettid));
	CHECK(!pthread_mutex_unlock(&mutex));

	check_handle(libc, "pthread_mutex_lock", "pthread_mutex_unlock");
	check_handle(RTLD_DEFAULT, "pthread_mutex_lock", "pthread_mutex_unlock");
	check_handle(RTLD_NEXT, "pthread_mutex_lock", "pthread_mutex_unlock");
	check((on_mutex)dlvsym(libc, "pthread_mutex_lock", "GLIBC_2.2.5"),
	      (on_mutex)dlvsym(libc, "pthread_mutex_unlock", "GLIBC_2.2.5"));
	check_handle(dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND), "lock", "unlock");
	/* A missing function stays missing, and the rest is found. */
	CHECK(!dlsym(libc, "pthread_no_such_function"));
	CHECK(dlsym(libc, "puts") == dlsym(RTLD_DEFAULT, "puts"));
	puts("one lock");
	return 0;
}
