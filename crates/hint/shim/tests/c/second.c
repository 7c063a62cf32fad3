/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A second library that is preloaded, as sanitizers and libfaketime are: it passes a wait on to the
 * function of a version, and locks in functions that the shim may call before it knows itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *next(const char *name, const char *version)
{
	void *found;

	pthread_mutex_lock(&mutex);
	found = version ? dlvsym(RTLD_NEXT, name, version) : dlsym(RTLD_NEXT, name);
	pthread_mutex_unlock(&mutex);
	if (!found)
		__builtin_trap();
	return found;
}

#define PASS_ON(name, version, parameters, arguments)                    \
	int name parameters                                              \
	{                                                                \
		static int(*found) parameters;                           \
		if (!found)                                              \
			found = (int(*) parameters)next(#name, version); \
		return found arguments;                                  \
	}

PASS_ON(pthread_cond_wait, "GLIBC_2.3.2", (pthread_cond_t * c, pthread_mutex_t *m), (c, m))
PASS_ON(pthread_cond_timedwait, "GLIBC_2.3.2",
	(pthread_cond_t * c, pthread_mutex_t *m, const struct timespec *end), (c, m, end))
PASS_ON(pthread_cond_signal, "GLIBC_2.3.2", (pthread_cond_t * c), (c))
PASS_ON(pthread_cond_init, "GLIBC_2.3.2", (pthread_cond_t * c, const pthread_condattr_t *a), (c, a))
PASS_ON(pthread_mutex_init, NULL, (pthread_mutex_t * m, const pthread_mutexattr_t *a), (m, a))
PASS_ON(pthread_rwlock_wrlock, NULL, (pthread_rwlock_t * l), (l))
