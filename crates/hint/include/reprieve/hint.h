/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Hints to the scheduler about critical sections, what it says back, and locks that use both.
 * docs/hint.md tells when to use what. Link with libreprieve.
 *
 *	reprieve_activate_non_preemptable_ecs();
 *	...                                      // others spin until this is over
 *	reprieve_deactivate_non_preemptable_ecs();
 *
 *	static struct reprieve_mutex mutex = REPRIEVE_MUTEX_INIT;
 *	reprieve_mutex_lock(&mutex);
 *	reprieve_mutex_unlock(&mutex);
 */
#ifndef REPRIEVE_HINT_H
#define REPRIEVE_HINT_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include "hint_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The calling thread's line; registers the thread at first. Never null. */
struct reprieve_hint_line *reprieve_hint_line_slow(void);

/* Asks the kernel for a longer time slice, and gives back what it granted: the next calls do it. */
void reprieve_hint_slice_request(uint64_t slice);
void reprieve_hint_slice_release(uint64_t slice);

#ifdef __x86_64__
extern __thread struct reprieve_hint_line *reprieve_hint_block
	__attribute__((tls_model("initial-exec")));
#endif

#define REPRIEVE_HINT_INLINE_ static inline __attribute__((always_inline, unused))

REPRIEVE_HINT_INLINE_ struct reprieve_hint_line *reprieve_hint_line(void)
{
#ifdef __x86_64__
	struct reprieve_hint_line *line = reprieve_hint_block;

	if (__builtin_expect(!!line, 1))
		return line;
#endif
	return reprieve_hint_line_slow();
}

/* In a guest whose host offers a region: copies the counts there. */
void reprieve_hint_tell_host(const struct reprieve_hint_line *line);

REPRIEVE_HINT_INLINE_ void reprieve_hint_told(const struct reprieve_hint_line *line)
{
	if (__builtin_expect(!!line->slot, 0))
		reprieve_hint_tell_host(line);
}

/*
 * The six calls of Kashyap, Min and Kim, "Scaling Guest Operating System Critical Sections with
 * eCS", for threads. Sections nest. Non-preemptable: others spin for this section. Preemptable:
 * others sleep for it.
 */
REPRIEVE_HINT_INLINE_ void reprieve_activate_non_preemptable_ecs(void)
{
	struct reprieve_hint_line *line = reprieve_hint_line();

	if (__builtin_expect(line->slice && !line->non_preemptable, 0))
		reprieve_hint_slice_request(line->slice);
	__atomic_store_n(&line->non_preemptable, line->non_preemptable + 1, __ATOMIC_RELAXED);
	reprieve_hint_told(line);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

REPRIEVE_HINT_INLINE_ void reprieve_deactivate_non_preemptable_ecs(void)
{
	struct reprieve_hint_line *line = reprieve_hint_line();

	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (!line->non_preemptable)
		return;
	__atomic_store_n(&line->non_preemptable, line->non_preemptable - 1, __ATOMIC_RELAXED);
	reprieve_hint_told(line);
	if (__builtin_expect(line->slice && !line->non_preemptable, 0))
		reprieve_hint_slice_release(line->slice);
}

REPRIEVE_HINT_INLINE_ void reprieve_activate_preemptable_ecs(void)
{
	struct reprieve_hint_line *line = reprieve_hint_line();

	__atomic_store_n(&line->preemptable, line->preemptable + 1, __ATOMIC_RELAXED);
	reprieve_hint_told(line);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

REPRIEVE_HINT_INLINE_ void reprieve_deactivate_preemptable_ecs(void)
{
	struct reprieve_hint_line *line = reprieve_hint_line();

	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (line->preemptable)
		__atomic_store_n(&line->preemptable, line->preemptable - 1, __ATOMIC_RELAXED);
	reprieve_hint_told(line);
}

/*
 * 1: the calling thread's non-preemptable sections ask the kernel for a longer time slice, as they
 * do by themselves where it has that; 0: they do not. `reprieve doctor` says why.
 */
int reprieve_has_time_slice_extensions(void);

/* A thread of this process. */
typedef uint64_t reprieve_thread_id;
reprieve_thread_id reprieve_current_thread(void);

/*
 * In a guest whose host offers a region: whether the vCPU where the thread gave its last hint, or
 * that vCPU, is off its CPU, although it would run; whether another vCPU runs or waits where a vCPU
 * is or was last. 1: yes, 0: no, -1: unknown.
 */
int reprieve_is_preempted(reprieve_thread_id thread);
int reprieve_is_vcpu_preempted(unsigned int vcpu);
int reprieve_is_overloaded(unsigned int cpu);

/*
 * Locks. Their memory must stay until the unlock has returned. Trylock: 1 if it took the lock. A
 * lock is unlocked by the thread that locked it.
 */
struct reprieve_mutex {
	uint64_t opaque[6];
};
struct reprieve_spin_lock {
	uint64_t opaque[6];
};
struct reprieve_rw_lock {
	uint64_t opaque[3];
};
struct reprieve_rw_semaphore {
	uint64_t opaque[3];
};

/* Versions of clang-format differ here. */
/* clang-format off */
#define REPRIEVE_MUTEX_INIT {{0}}
#define REPRIEVE_SPIN_LOCK_INIT {{0}}
#define REPRIEVE_RW_LOCK_INIT {{0}}
#define REPRIEVE_RW_SEMAPHORE_INIT {{0}}
/* clang-format on */

void reprieve_mutex_lock(struct reprieve_mutex *mutex);
int reprieve_mutex_trylock(struct reprieve_mutex *mutex);
void reprieve_mutex_unlock(struct reprieve_mutex *mutex);

void reprieve_spin_lock(struct reprieve_spin_lock *lock);
int reprieve_spin_trylock(struct reprieve_spin_lock *lock);
void reprieve_spin_unlock(struct reprieve_spin_lock *lock);

void reprieve_rw_read_lock(struct reprieve_rw_lock *lock);
int reprieve_rw_read_trylock(struct reprieve_rw_lock *lock);
void reprieve_rw_read_unlock(struct reprieve_rw_lock *lock);
void reprieve_rw_write_lock(struct reprieve_rw_lock *lock);
int reprieve_rw_write_trylock(struct reprieve_rw_lock *lock);
void reprieve_rw_write_unlock(struct reprieve_rw_lock *lock);

void reprieve_rwsem_down_read(struct reprieve_rw_semaphore *semaphore);
int reprieve_rwsem_down_read_trylock(struct reprieve_rw_semaphore *semaphore);
void reprieve_rwsem_up_read(struct reprieve_rw_semaphore *semaphore);
void reprieve_rwsem_down_write(struct reprieve_rw_semaphore *semaphore);
int reprieve_rwsem_down_write_trylock(struct reprieve_rw_semaphore *semaphore);
void reprieve_rwsem_up_write(struct reprieve_rw_semaphore *semaphore);

#ifdef __cplusplus
}
#endif
#endif
