/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program whose allocator takes a lock, as jemalloc does: the first one of the process, and
 * before it can allocate. It holds the lock during a fork. A lock's function that allocates would
 * come here again, and wait for itself: the program is killed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM (1 << 24)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Alignas(64) unsigned char memory[ROOM];
static size_t used;
static __thread int in_lock;

static void begin(void)
{
	if (in_lock)
		__builtin_trap();
	in_lock = 1;
	pthread_mutex_lock(&mutex);
	in_lock = 0;
}

static void end(void)
{
	in_lock = 1;
	pthread_mutex_unlock(&mutex);
	in_lock = 0;
}

/* A block is preceded by its size. Without a byte of it left, the program is killed. */
static void *take(size_t alignment, size_t size)
{
	size_t at;

	if (alignment < 64)
		alignment = 64;
	begin();
	at = (used + sizeof(size) + alignment - 1) / alignment * alignment;
	if (size > ROOM || at + size > ROOM)
		__builtin_trap();
	used = at + size;
	end();
	memcpy(memory + at - sizeof(size), &size, sizeof(size));
	return memory + at;
}

void *malloc(size_t size)
{
	return take(1, size);
}

void free(void *block)
{
	(void)block;
}

void *calloc(size_t count, size_t size)
{
	if (size && count > ROOM / size)
		__builtin_trap();
	/* Nothing is given out twice. */
	return take(1, count * size);
}

void *realloc(void *block, size_t size)
{
	void *larger = take(1, size);
	size_t before;

	if (!block)
		return larger;
	memcpy(&before, (unsigned char *)block - sizeof(before), sizeof(before));
	return memcpy(larger, block, before < size ? before : size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
	*block = take(alignment, size);
	return 0;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return take(alignment, size);
}

static void *wait_and_lock(void *other)
{
	pthread_mutex_lock(other);
	pthread_mutex_unlock(other);
	return NULL;
}

int main(void)
{
	pthread_mutex_t other = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	pthread_t thread;
	pid_t child;
	int status;

	if (pthread_atfork(begin, end, end) || pthread_create(&thread, NULL, wait_and_lock, &other))
		return 1;
	pthread_cond_signal(&condition);
	pthread_join(thread, NULL);
	pthread_cond_destroy(&condition);
	pthread_mutex_destroy(&other);
	child = fork();
	if (!child) {
		free(malloc(1));
		_exit(!fork() ? !malloc(1) : 0);
	}
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	puts("allocated");
	return 0;
}
