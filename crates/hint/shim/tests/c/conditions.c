/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The C library's conditions laid out otherwise than the one's of this machine may be: a second
 * library of that name, which the shim finds first.
 */
#include <pthread.h>
#include <string.h>

/* glibc's pthread_condattr_t: whether it is shared, and twice the clock. */
#define FLAGS 3

int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
	int flags = 0;

	if (attributes)
		memcpy(&flags, attributes, sizeof(flags));
	flags &= FLAGS;
	memset(condition, 0, sizeof(*condition));
	memcpy((char *)condition + AT, &flags, sizeof(flags));
	return 0;
}
