/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/ref.h>: counted references. A count that would overflow is not taken. */
#ifndef REPRIEVE_COMPAT_URCU_REF_H
#define REPRIEVE_COMPAT_URCU_REF_H

#include <assert.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <reprieve/uatomic.h>

struct urcu_ref {
	long refcount;
};

static inline __attribute__((unused)) void urcu_ref_set(struct urcu_ref *ref, long val)
{
	uatomic_set(&ref->refcount, val);
}

static inline __attribute__((unused)) void urcu_ref_init(struct urcu_ref *ref)
{
	urcu_ref_set(ref, 1);
}

/* Adds 1 unless the count is LONG_MAX, or 0 if `alive`. Whether it did. */
static inline __attribute__((unused)) bool reprieve_ref_add_(struct urcu_ref *ref, bool alive)
{
	long count = uatomic_read(&ref->refcount);

	do {
		if (count == LONG_MAX || (alive && count == 0))
			return false;
	} while (!__atomic_compare_exchange_n(&ref->refcount, &count, count + 1, 0,
					      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	return true;
}

static inline __attribute__((unused, warn_unused_result)) bool
urcu_ref_get_safe(struct urcu_ref *ref)
{
	return reprieve_ref_add_(ref, false);
}

static inline __attribute__((unused)) void urcu_ref_get(struct urcu_ref *ref)
{
	if (!urcu_ref_get_safe(ref))
		abort();
}

static inline __attribute__((unused)) bool urcu_ref_get_unless_zero(struct urcu_ref *ref)
{
	return reprieve_ref_add_(ref, true);
}

static inline __attribute__((unused)) void urcu_ref_put(struct urcu_ref *ref,
							void (*release)(struct urcu_ref *))
{
	long left = uatomic_sub_return(&ref->refcount, 1);

	assert(left >= 0);
	if (left == 0)
		release(ref);
}

#endif
