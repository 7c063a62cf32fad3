/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Callbacks are registered while the program has no memory: none is lost, and nothing ends the
 * program. The allocator is the program's own, in front of the C library's.
 */
#include <reprieve/reprieve.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define NODES 5000

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static int exhausted;
static long refused, ran;
static struct reprieve_head heads[3][NODES];

static int refuse(void)
{
	if (!__atomic_load_n(&exhausted, __ATOMIC_RELAXED))
		return 0;
	__atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t size)
{
	return refuse() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return refuse() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	return refuse() ? NULL : __libc_realloc(old, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	if (refuse())
		return ENOMEM;
	*memory = __libc_memalign(alignment, size);
	return *memory ? 0 : ENOMEM;
}

static void note(struct reprieve_head *head)
{
	(void)head;
	__atomic_add_fetch(&ran, 1, __ATOMIC_RELAXED);
}

int main(void)
{
	int i, round;

	/* The first round is the first use of the library. Behind it there are workers. */
	for (round = 0; round < 3; round++) {
		__atomic_store_n(&exhausted, 1, __ATOMIC_RELAXED);
		for (i = 0; i < NODES; i++) {
			if (i % 2)
				reprieve_call(&heads[round][i], note, 1 << 10);
			else
				reprieve_retire(&heads[round][i], &heads[round][i], note, 1 << 10,
						0);
			if (i % 1000 == 0)
				reprieve_synchronize();
		}
		__atomic_store_n(&exhausted, 0, __ATOMIC_RELAXED);
		CHECK(round || refused);
		CHECK(!reprieve_barrier());
		CHECK(ran == (round + 1) * NODES);
	}
	return 0;
}
