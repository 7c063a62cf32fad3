/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Grace periods that wait too long: reports of the readers they wait for, and readers that died.
 *
 * A domain of null is the default one, in every function.
 *
 * Example:
 *
 *	#include <reprieve/reprieve.h>
 *	#include <reprieve/stall.h>
 *	#include <stdio.h>
 *	#include <unistd.h>
 *
 *	static void report(const struct reprieve_stall *stall, void *argument)
 *	{
 *		puts(stall->text);
 *		__atomic_fetch_add((int *)argument, (int)stall->count, __ATOMIC_RELEASE);
 *	}
 *
 *	int main(void)
 *	{
 *		int laggards = 0;
 *		uint64_t cookie;
 *
 *		reprieve_set_stall_timeout(NULL, 50);
 *		reprieve_on_stall(NULL, report, &laggards);
 *		reprieve_read_lock();
 *		cookie = reprieve_start_poll();	// it waits for us
 *		while (!__atomic_load_n(&laggards, __ATOMIC_ACQUIRE))
 *			usleep(1000);
 *		reprieve_read_unlock();
 *		while (!reprieve_poll(cookie))
 *			usleep(1000);
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_STALL_H
#define REPRIEVE_STALL_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/reprieve.h>

#ifdef __cplusplus
extern "C" {
#endif

enum reprieve_reader_state {
	REPRIEVE_READER_UNKNOWN,
	REPRIEVE_READER_RUNNING, /* on a CPU */
	REPRIEVE_READER_PREEMPTED, /* could run, and has no CPU */
	REPRIEVE_READER_BLOCKED, /* waits in the kernel */
	REPRIEVE_READER_STOPPED, /* by a signal or a debugger */
	REPRIEVE_READER_DEAD, /* exists no more, and is waited for */
	REPRIEVE_READER_FORGOTTEN, /* exists no more, and is not waited for any more */
};

struct reprieve_laggard {
	uint64_t waiting_ns; /* time in its section, at least */
	uint64_t ran_ns; /* CPU time used of that */
	const char *name;
	uint32_t thread; /* as gettid() gives it */
	uint32_t state; /* enum reprieve_reader_state */
	int32_t cpu; /* where it runs or ran last; -1: not known */
	int32_t call; /* the system call in which it is blocked; -1: none, or not known */
};

struct reprieve_stall {
	uint64_t waiting_ns; /* the longest of the laggards' */
	const struct reprieve_laggard *laggards; /* the longest wait first */
	size_t count;
	const char *text; /* all of it to read, in lines */
};

/* The report, and all that it points to, is valid during the call. */
typedef void reprieve_stall_hook(const struct reprieve_stall *stall, void *argument);

/*
 * Readers that hold up a grace period for longer are reported. Milliseconds; 0: none are. At first
 * 10,000.
 */
void reprieve_set_stall_timeout(const struct reprieve_domain *domain, uint64_t timeout_ms);

/*
 * Reports go to the hook; null: to standard error, as at first. It is called by the thread that
 * waits for the grace period: it must not wait for grace periods or callbacks of the domain, nor
 * for a lock that somebody may hold who does.
 */
void reprieve_on_stall(const struct reprieve_domain *domain, reprieve_stall_hook *hook,
		       void *argument);

/*
 * Calls the hook with whom the grace period in progress waits for, if it has for longer than that.
 * 1 if it was called, else 0.
 */
int reprieve_stalled(const struct reprieve_domain *domain, uint64_t longer_than_ms,
		     reprieve_stall_hook *hook, void *argument);

/* Whether grace periods go on without readers whose threads are dead (at first, yes). */
void reprieve_set_forget_dead(const struct reprieve_domain *domain, int forget);

/* Gives up what dead threads left: sections, protected nodes, places. How many there were. */
size_t reprieve_forget_dead_threads(const struct reprieve_domain *domain);

#ifdef __cplusplus
}
#endif
#endif
