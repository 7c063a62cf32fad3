/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RCU whose grace periods do not wait for preempted readers.
 *
 * Readers follow pointers without locks. A writer replaces a pointer, and frees what it led to
 * after a grace period, when no reader can still be looking at it. Three ways to read:
 *
 * - a plain section (reprieve_read_lock): grace periods wait for it;
 * - a restartable lookup (reprieve_lookup in restart.h): no grace period waits for it; it copies a
 *   value out;
 * - a protected node (reprieve_protect in restart.h): may be held for any time, and keeps alive
 *   only itself.
 *
 * Threads register themselves at first use and unregister when they exit. Everything here works on
 * the default domain unless its name says otherwise. Link with -lreprieve (pkg-config reprieve).
 *
 * A program that loads the library by dlopen: fork handlers (pthread_atfork) that were registered
 * before must not call it. If there were 32 thread-specific keys by then, a thread calls
 * reprieve_register_thread before its signal handlers read.
 *
 * Example:
 *
 *	#include <reprieve/reprieve.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *
 *	struct config { int limit; struct reprieve_head head; };
 *	static struct config *current;
 *
 *	static void config_free(struct reprieve_head *head)
 *	{
 *		free(reprieve_container_of(head, struct config, head));
 *	}
 *
 *	static void config_set(int limit)	// one writer at a time
 *	{
 *		struct config *fresh = (struct config *)calloc(1, sizeof(*fresh)), *old = current;
 *
 *		fresh->limit = limit;
 *		reprieve_assign_pointer(current, fresh);
 *		if (old)
 *			reprieve_call(&old->head, config_free, sizeof(*old));
 *	}
 *
 *	int main(void)
 *	{
 *		config_set(1);
 *		config_set(2);
 *		reprieve_read_lock();
 *		printf("%d\n", reprieve_dereference(current)->limit);
 *		reprieve_read_unlock();
 *		reprieve_barrier();
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_REPRIEVE_H
#define REPRIEVE_REPRIEVE_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Read-side sections: nestable, wait-free, allowed in signal handlers. A load, an addition and a
 * store each; no fence.
 */
REPRIEVE_INLINE_ void reprieve_read_lock(void)
{
	struct reprieve_record *record = REPRIEVE_RECORD_();
	uint64_t word = 0;

	if (REPRIEVE_LIKELY_(record))
		word = __atomic_load_n(&record->word, __ATOMIC_RELAXED);
	/* The library stops a program that nests 2^31 sections. */
	if (REPRIEVE_LIKELY_(record && (uint32_t)word < INT32_MAX)) {
		__atomic_store_n(&record->word, word + 1, __ATOMIC_RELEASE);
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
	} else {
		reprieve_read_lock_slow();
	}
}

REPRIEVE_INLINE_ void reprieve_read_unlock(void)
{
	struct reprieve_record *record = REPRIEVE_RECORD_();

	REPRIEVE_RELEASES_();
	if (REPRIEVE_LIKELY_(record)) {
		uint64_t word = __atomic_load_n(&record->word, __ATOMIC_RELAXED);

		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		/* A branch, so that the next section waits for one addition only. */
		if (REPRIEVE_LIKELY_((uint32_t)word == 1))
			__atomic_store_n(&record->word, word + (REPRIEVE_SECTION_ENDED_ - 1),
					 __ATOMIC_RELEASE);
		else if (REPRIEVE_LIKELY_((uint32_t)word))
			__atomic_store_n(&record->word, word - 1, __ATOMIC_RELEASE);
		else
			/* An unlock too many: the library ends the program. */
			reprieve_read_unlock_slow();
	} else {
		reprieve_read_unlock_slow();
	}
}

/* Whether this thread is inside a section. */
int reprieve_read_ongoing(void);

/* Registers this thread now instead of at its first section. */
void reprieve_register_thread(void);

/*
 * Publishing and following pointers. What was written before reprieve_assign_pointer is seen by
 * whoever gets the pointer from reprieve_dereference.
 */
#define reprieve_dereference(p) __atomic_load_n(&(p), __ATOMIC_ACQUIRE)
#ifdef __cplusplus
#define reprieve_assign_pointer(p, value) \
	__atomic_store_n(&(p), (__typeof__(p))(value), __ATOMIC_RELEASE)
#else
#define reprieve_assign_pointer(p, value) __atomic_store_n(&(p), (value), __ATOMIC_RELEASE)
#endif

/* Versions of clang-format differ here. */
/* clang-format off */
#define reprieve_container_of(pointer, type, member) \
	((type *)((char *)(pointer) - offsetof(type, member)))
/* clang-format on */

/*
 * The part of a node that a waiting callback needs. Need not be initialized.
 */
struct reprieve_head {
	struct reprieve_head *next;
	void (*function)(struct reprieve_head *head);
	uintptr_t node;
	uint32_t units;
	uint32_t flags;
};

typedef void reprieve_function(struct reprieve_head *head);

/*
 * Waits until every section and lookup that is running now has ended. Not inside a section: that
 * ends the program. The second one hurries.
 */
void reprieve_synchronize(void);
void reprieve_synchronize_expedited(void);

/*
 * Has function(head) called on a worker thread once every section and lookup that is running now
 * has ended. Returns at once, unless more waits than the cap allows (64 MiB, 1,048,576 callbacks):
 * then it may take some milliseconds. Needs no memory. Allowed in sections and callbacks, not in
 * signal handlers.
 * bytes: what the callback will free, for the cap; 0 if unknown.
 */
void reprieve_call(struct reprieve_head *head, reprieve_function *function, size_t bytes);

/*
 * The callback does nothing but free memory (no lock, nothing of this library): any thread that
 * registers may run it when much waits.
 */
#define REPRIEVE_LEAF 1u

/*
 * Like reprieve_call, and waits moreover until no thread protects the node. Every node that
 * reprieve_protect can find is freed this way, and only so. node: the address that the lookup
 * returns. flags: 0 or REPRIEVE_LEAF.
 */
void reprieve_retire(const void *node, struct reprieve_head *head, reprieve_function *function,
		     size_t bytes, unsigned int flags);

/* Calls function(argument) after a grace period. Allocates. */
void reprieve_defer(void (*function)(void *argument), void *argument);

/*
 * Waits until every callback registered before has run, except those of reprieve_retire whose node
 * a thread protects: what they use must stay until the node is let go. Not inside a section. 0, or
 * EDEADLK in a callback, which would wait for itself.
 */
int reprieve_barrier(void);

/*
 * Polling. reprieve_cookie names the next full grace period; reprieve_start_poll has it run in the
 * background as well; reprieve_poll tells whether it is over; reprieve_cond_synchronize waits for
 * it if it is not. A cookie is a number and does not know whose it is: those of
 * reprieve_qsbr_start_poll mean nothing here.
 */
uint64_t reprieve_cookie(void);
uint64_t reprieve_start_poll(void);
int reprieve_poll(uint64_t cookie);
void reprieve_cond_synchronize(uint64_t cookie);

/*
 * 1 if lookups restart on this system, 0 if they run in plain sections; *why, unless why is null,
 * is a string that says why.
 */
int reprieve_restartable(const char **why);

struct reprieve_stats {
	uint64_t grace_periods;
	uint64_t waiting; /* callbacks */
	uint64_t waiting_bytes;
	uint64_t run; /* callbacks */
	uint64_t over_cap; /* registrations that found the cap exceeded */
	uint64_t helped; /* times a registering thread made a grace period, ran callbacks */
	uint64_t restarts; /* lookups sent back to their start */
	uint64_t fallbacks; /* lookups run in a plain section */
	uint64_t threads; /* registered */
	uint64_t stalls; /* reports made: stall.h */
	uint64_t forgotten; /* dead readers */
	uint64_t
		visits; /* grace periods that woke a thread on each CPU, where the membarrier spins */
};

void reprieve_get_stats(struct reprieve_stats *stats);

/*
 * Domains: readers, grace periods and callbacks that know nothing of other domains'. Plain sections
 * only.
 *
 * A domain is freed when no thread is in a section of it, its own callbacks apart, which may use it
 * until they have run. Inside a section of the domain that ends the program. It waits for the
 * callbacks; in a callback, of whatever domain, it returns at once, and a thread of the library
 * waits instead.
 */
struct reprieve_domain;

enum reprieve_engine {
	REPRIEVE_ENGINE_RESTART, /* one membarrier; plain sections are polled */
	REPRIEVE_ENGINE_POLL, /* ask at once, everywhere (rcu-poll) */
	REPRIEVE_ENGINE_LTIMER, /* look on each tick, batch (rcu-ltimer) */
	REPRIEVE_ENGINE_SCHED, /* a token goes round (rcu-sched) */
};

/* tick_us: microseconds, for the last two. Null: unknown engine, or 1023 domains exist. */
struct reprieve_domain *reprieve_domain_new(unsigned int engine, unsigned int tick_us);
void reprieve_domain_free(struct reprieve_domain *domain);
void reprieve_domain_read_lock(const struct reprieve_domain *domain);
void reprieve_domain_read_unlock(const struct reprieve_domain *domain);
void reprieve_domain_synchronize(const struct reprieve_domain *domain);
void reprieve_domain_call(const struct reprieve_domain *domain, struct reprieve_head *head,
			  reprieve_function *function, size_t bytes);
int reprieve_domain_barrier(const struct reprieve_domain *domain);

/*
 * Threads that announce quiescent states, in a domain of their own. An online thread is inside a
 * section all the time except at its quiescent states, so reading costs nothing, and no grace
 * period ends while it announces none. What waits here takes the thread offline meanwhile.
 * A thread that runs a callback is online meanwhile.
 */
void reprieve_qsbr_online(void);
void reprieve_qsbr_offline(void);
int reprieve_qsbr_ongoing(void);
void reprieve_qsbr_synchronize(void);
void reprieve_qsbr_call(struct reprieve_head *head, reprieve_function *function, size_t bytes);
void reprieve_qsbr_defer(void (*function)(void *argument), void *argument);
int reprieve_qsbr_barrier(void);
uint64_t reprieve_qsbr_start_poll(void);
int reprieve_qsbr_poll(uint64_t cookie);

/*
 * This thread holds no references. Two loads, unless a grace period waits for this thread.
 *
 * Why it may do nothing: a quiescent state that is left out only makes the section longer, which is
 * always safe. And no grace period waits for ever: its leader stores the snapshot of each section
 * that it waits for, and reads the word until the high half differs from the snapshot's. If the
 * high half differs already, the snapshot is of an earlier section, and nobody waits for this one.
 *
 * Order: the library's store of the word releases, and its compiler barriers keep later loads
 * behind it. Without the store there is nothing to order.
 */
REPRIEVE_INLINE_ void reprieve_qsbr_quiescent_state(void)
{
	struct reprieve_record *record = REPRIEVE_ONLINE_();

	REPRIEVE_RELEASES_();
	if (REPRIEVE_LIKELY_(record)) {
		uint64_t snapshot = __atomic_load_n(&record->snapshot, __ATOMIC_RELAXED);

		if (REPRIEVE_LIKELY_(!snapshot))
			return;
		if ((snapshot ^ __atomic_load_n(&record->word, __ATOMIC_RELAXED)) >=
		    REPRIEVE_SECTION_ENDED_)
			return;
	}
	reprieve_qsbr_quiescent_state_slow();
}

#ifdef __cplusplus
}
#endif
#endif
