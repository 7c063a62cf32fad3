/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A plugin that is loaded so that it prefers its own libraries' functions. */
#include <pthread.h>

int lock(pthread_mutex_t *mutex)
{
	return pthread_mutex_lock(mutex);
}

int unlock(pthread_mutex_t *mutex)
{
	return pthread_mutex_unlock(mutex);
}
