/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs written for liburcu, on Reprieve: add this directory's `compat` to the include path and
 * link with -lreprieve instead of -lurcu*.
 *
 * All of liburcu's flavors are here. memb, mb, bp and signal are the default domain: one registry,
 * one grace period. qsbr has a domain of its own. Written from liburcu's documented interface; what
 * differs:
 *
 * - threads need not be registered, and a thread that exits is unregistered;
 * - struct rcu_head has 32 bytes instead of 16, and call_rcu uses all of them. A library that was
 *   compiled with liburcu's headers, and has heads of its own, must be given update_call_rcu of a
 *   flavor, which takes heads of either size, and allocates. (liburcu-cds's queue, which takes
 *   call_rcu, is replaced by `compat`: see <urcu/rculfqueue.h> there);
 * - a `struct call_rcu_data` is a name, common to all flavors: callbacks always run on a worker of
 *   the CPU that registered them, and get_call_rcu_thread gives one of the workers of the flavor's
 *   domain. So callbacks that were registered on several CPUs run at the same time, and callbacks
 *   of one CPU in no order. liburcu has one thread and one order for all, until a program asks for
 *   more threads;
 * - rcu_defer_barrier, rcu_defer_barrier_thread, rcu_defer_unregister_thread, rcu_defer_exit,
 *   call_rcu_data_free (of one that is neither null nor the default), free_all_cpu_call_rcu_data,
 *   and get_call_rcu_thread the first time, wait for all callbacks of the flavor's domain that are
 *   registered, whichever thread has registered them, and whether by call_rcu or defer_rcu. Do not
 *   call them with a lock that a callback takes, or inside a read-side section, which ends the
 *   program (qsbr: they take the thread offline meanwhile);
 * - in a callback those, and rcu_barrier, wait for nothing: what was deferred there has not run
 *   when they return. liburcu's rcu_barrier prints an error, and waits where the callback is one of
 *   another flavor;
 * - synchronize_rcu and rcu_barrier inside a read-side section end the program with a message
 *   instead of hanging, or of returning with an error message;
 * - fork handlers are the library's own; liburcu's calls for them do nothing but call what was
 *   registered with register_rculfhash_atfork.
 *
 * Example:
 *
 *	#define URCU_API_MAP
 *	#include <reprieve/urcu.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *
 *	struct node { int value; struct rcu_head head; };
 *	static struct node *current;
 *
 *	static void node_free(struct rcu_head *head)
 *	{
 *		free(caa_container_of(head, struct node, head));
 *	}
 *
 *	int main(void)
 *	{
 *		struct node *n = (struct node *)calloc(1, sizeof(*n)), *old;
 *
 *		rcu_register_thread();
 *		n->value = 42;
 *		rcu_assign_pointer(current, n);
 *		rcu_read_lock();
 *		printf("%d\n", rcu_dereference(current)->value);
 *		rcu_read_unlock();
 *		old = rcu_xchg_pointer(&current, (struct node *)NULL);
 *		call_rcu(&old->head, node_free);
 *		rcu_barrier();
 *		rcu_unregister_thread();
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_URCU_H
#define REPRIEVE_URCU_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <reprieve/list.h>
#include <reprieve/uatomic.h>

#ifdef __cplusplus
extern "C" {
#endif

#define rcu_head reprieve_head
struct call_rcu_data;

struct urcu_gp_poll_state {
	unsigned long grace_period_id;
};

#define URCU_CALL_RCU_RT (1U << 0)
#define URCU_CALL_RCU_RUNNING (1U << 1)
#define URCU_CALL_RCU_STOP (1U << 2)
#define URCU_CALL_RCU_STOPPED (1U << 3)
#define URCU_CALL_RCU_PAUSE (1U << 4)
#define URCU_CALL_RCU_PAUSED (1U << 5)

/* A library's fork handlers: liburcu-cds's hash tables stop their worker thread. */
struct urcu_atfork {
	void (*before_fork)(void *priv);
	void (*after_fork_parent)(void *priv);
	void (*after_fork_child)(void *priv);
	void *priv;
};

/*
 * A flavor as an object, laid out as in <urcu/flavor.h>, so that liburcu-cds as it is installed
 * works on this runtime. Unlike call_rcu, update_call_rcu takes heads of liburcu's own 16 bytes as
 * well as ours, and allocates.
 */
struct rcu_flavor_struct {
	void (*read_lock)(void);
	void (*read_unlock)(void);
	int (*read_ongoing)(void);
	void (*read_quiescent_state)(void);
	void (*update_call_rcu)(struct rcu_head *head, void (*func)(struct rcu_head *head));
	void (*update_synchronize_rcu)(void);
	void (*update_defer_rcu)(void (*fct)(void *p), void *p);
	void (*thread_offline)(void);
	void (*thread_online)(void);
	void (*register_thread)(void);
	void (*unregister_thread)(void);
	void (*barrier)(void);
	void (*register_rculfhash_atfork)(struct urcu_atfork *atfork);
	void (*unregister_rculfhash_atfork)(struct urcu_atfork *atfork);
};

#define DEFINE_RCU_FLAVOR(x)                      \
	const struct rcu_flavor_struct x = {      \
		rcu_read_lock,                    \
		rcu_read_unlock,                  \
		rcu_read_ongoing,                 \
		rcu_quiescent_state,              \
		REPRIEVE_URCU_(call_any_),        \
		synchronize_rcu,                  \
		defer_rcu,                        \
		rcu_thread_offline,               \
		rcu_thread_online,                \
		rcu_register_thread,              \
		rcu_unregister_thread,            \
		rcu_barrier,                      \
		urcu_register_rculfhash_atfork,   \
		urcu_unregister_rculfhash_atfork, \
	}

extern const struct rcu_flavor_struct reprieve_flavor, reprieve_qsbr_flavor;
#define urcu_memb_flavor reprieve_flavor
#define urcu_mb_flavor reprieve_flavor
#define urcu_signal_flavor reprieve_flavor
#define urcu_bp_flavor reprieve_flavor
#define urcu_qsbr_flavor reprieve_qsbr_flavor

void reprieve_register_atfork(struct urcu_atfork *atfork);
void reprieve_unregister_atfork(struct urcu_atfork *atfork);
void reprieve_before_fork(void);
void reprieve_after_fork_parent(void);
void reprieve_after_fork_child(void);

struct call_rcu_data *reprieve_helper_new(unsigned long flags, int cpu);
void reprieve_helper_free(struct call_rcu_data *helper);
void reprieve_qsbr_helper_free(struct call_rcu_data *helper);
struct call_rcu_data *reprieve_helper_default(void);
struct call_rcu_data *reprieve_helper_of_cpu(int cpu);
int reprieve_helper_set_cpu(int cpu, struct call_rcu_data *helper);
struct call_rcu_data *reprieve_helper_of_thread(void);
void reprieve_helper_set_thread(struct call_rcu_data *helper);
struct call_rcu_data *reprieve_helper_current(void);
int reprieve_helper_create_all(unsigned long flags);
void reprieve_helper_free_all(void);
void reprieve_qsbr_helper_free_all(void);
pthread_t reprieve_helper_thread(struct call_rcu_data *helper);
pthread_t reprieve_qsbr_helper_thread(struct call_rcu_data *helper);

REPRIEVE_INLINE_ void reprieve_nothing_(void)
{
}

/*
 * The functions of a flavor; `base` names the primitives it consists of.
 */
#define REPRIEVE_URCU_FLAVOR_(flavor, base)                                                        \
	REPRIEVE_INLINE_ void flavor##_init(void)                                                  \
	{                                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_exit(void)                                                  \
	{                                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_register_rculfhash_atfork(struct urcu_atfork *atfork)       \
	{                                                                                          \
		reprieve_register_atfork(atfork);                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_unregister_rculfhash_atfork(struct urcu_atfork *atfork)     \
	{                                                                                          \
		reprieve_unregister_atfork(atfork);                                                \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_read_lock(void)                                             \
	{                                                                                          \
		base##_lock_();                                                                    \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_read_unlock(void)                                           \
	{                                                                                          \
		base##_unlock_();                                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ int flavor##_read_ongoing(void)                                           \
	{                                                                                          \
		return base##_ongoing();                                                           \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_register_thread(void)                                       \
	{                                                                                          \
		base##_begin_();                                                                   \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_unregister_thread(void)                                     \
	{                                                                                          \
		base##_end_();                                                                     \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_quiescent_state(void)                                       \
	{                                                                                          \
		base##_quiescent_();                                                               \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_thread_offline(void)                                        \
	{                                                                                          \
		base##_away_();                                                                    \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_thread_online(void)                                         \
	{                                                                                          \
		base##_back_();                                                                    \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_synchronize_rcu(void)                                       \
	{                                                                                          \
		base##_synchronize();                                                              \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu(struct rcu_head *head,                             \
						void (*func)(struct rcu_head * head))              \
	{                                                                                          \
		base##_call(head, func, 0);                                                        \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_any_(struct rcu_head *head,                            \
						 void (*func)(struct rcu_head * head))             \
	{                                                                                          \
		base##_defer((void (*)(void *))(void (*)(void))func, head);                        \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_barrier(void)                                               \
	{                                                                                          \
		base##_barrier();                                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ struct urcu_gp_poll_state flavor##_start_poll_synchronize_rcu(void)       \
	{                                                                                          \
		struct urcu_gp_poll_state state;                                                   \
		state.grace_period_id = (unsigned long)base##_start_poll();                        \
		return state;                                                                      \
	}                                                                                          \
	REPRIEVE_INLINE_ bool flavor##_poll_state_synchronize_rcu(struct urcu_gp_poll_state state) \
	{                                                                                          \
		return base##_poll(state.grace_period_id) != 0;                                    \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_defer_rcu(void (*fct)(void *p), void *p)                    \
	{                                                                                          \
		base##_defer(fct, p);                                                              \
	}                                                                                          \
	REPRIEVE_INLINE_ int flavor##_defer_register_thread(void)                                  \
	{                                                                                          \
		return 0;                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_defer_unregister_thread(void)                               \
	{                                                                                          \
		base##_barrier();                                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_defer_barrier(void)                                         \
	{                                                                                          \
		base##_barrier();                                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_defer_barrier_thread(void)                                  \
	{                                                                                          \
		base##_barrier();                                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_defer_exit(void)                                            \
	{                                                                                          \
		base##_barrier();                                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ struct call_rcu_data *flavor##_create_call_rcu_data(unsigned long flags,  \
									     int cpu)              \
	{                                                                                          \
		return reprieve_helper_new(flags, cpu);                                            \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_data_free(struct call_rcu_data *crdp)              \
	{                                                                                          \
		base##_helper_free(crdp);                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ struct call_rcu_data *flavor##_get_default_call_rcu_data(void)            \
	{                                                                                          \
		return reprieve_helper_default();                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ struct call_rcu_data *flavor##_get_cpu_call_rcu_data(int cpu)             \
	{                                                                                          \
		return reprieve_helper_of_cpu(cpu);                                                \
	}                                                                                          \
	REPRIEVE_INLINE_ struct call_rcu_data *flavor##_get_thread_call_rcu_data(void)             \
	{                                                                                          \
		return reprieve_helper_of_thread();                                                \
	}                                                                                          \
	REPRIEVE_INLINE_ struct call_rcu_data *flavor##_get_call_rcu_data(void)                    \
	{                                                                                          \
		return reprieve_helper_current();                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ pthread_t flavor##_get_call_rcu_thread(struct call_rcu_data *crdp)        \
	{                                                                                          \
		return base##_helper_thread(crdp);                                                 \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_set_thread_call_rcu_data(struct call_rcu_data *crdp)        \
	{                                                                                          \
		reprieve_helper_set_thread(crdp);                                                  \
	}                                                                                          \
	REPRIEVE_INLINE_ int flavor##_set_cpu_call_rcu_data(int cpu, struct call_rcu_data *crdp)   \
	{                                                                                          \
		return reprieve_helper_set_cpu(cpu, crdp);                                         \
	}                                                                                          \
	REPRIEVE_INLINE_ int flavor##_create_all_cpu_call_rcu_data(unsigned long flags)            \
	{                                                                                          \
		return reprieve_helper_create_all(flags);                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_free_all_cpu_call_rcu_data(void)                            \
	{                                                                                          \
		base##_helper_free_all();                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_before_fork(void)                                  \
	{                                                                                          \
		reprieve_before_fork();                                                            \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_after_fork_parent(void)                            \
	{                                                                                          \
		reprieve_after_fork_parent();                                                      \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_after_fork_child(void)                             \
	{                                                                                          \
		reprieve_after_fork_child();                                                       \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_before_fork(void)                                           \
	{                                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_after_fork_parent(void)                                     \
	{                                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_after_fork_child(void)                                      \
	{                                                                                          \
	}

#define reprieve_lock_ reprieve_read_lock
#define reprieve_unlock_ reprieve_read_unlock
#define reprieve_ongoing reprieve_read_ongoing
#define reprieve_begin_ reprieve_register_thread
#define reprieve_end_ reprieve_nothing_
#define reprieve_quiescent_ reprieve_nothing_
#define reprieve_away_ reprieve_nothing_
#define reprieve_back_ reprieve_nothing_
#define reprieve_qsbr_lock_ reprieve_nothing_
#define reprieve_qsbr_unlock_ reprieve_nothing_
#define reprieve_qsbr_begin_ reprieve_qsbr_online
#define reprieve_qsbr_end_ reprieve_qsbr_offline
#define reprieve_qsbr_quiescent_ reprieve_qsbr_quiescent_state
#define reprieve_qsbr_away_ reprieve_qsbr_offline
#define reprieve_qsbr_back_ reprieve_qsbr_online

REPRIEVE_URCU_FLAVOR_(urcu_memb, reprieve)
REPRIEVE_URCU_FLAVOR_(urcu_mb, reprieve)
REPRIEVE_URCU_FLAVOR_(urcu_signal, reprieve)
REPRIEVE_URCU_FLAVOR_(urcu_bp, reprieve)
REPRIEVE_URCU_FLAVOR_(urcu_qsbr, reprieve_qsbr)

#define _urcu_memb_read_lock urcu_memb_read_lock
#define _urcu_memb_read_unlock urcu_memb_read_unlock
#define _urcu_memb_read_ongoing urcu_memb_read_ongoing
#define _urcu_mb_read_lock urcu_mb_read_lock
#define _urcu_mb_read_unlock urcu_mb_read_unlock
#define _urcu_mb_read_ongoing urcu_mb_read_ongoing
#define _urcu_signal_read_lock urcu_signal_read_lock
#define _urcu_signal_read_unlock urcu_signal_read_unlock
#define _urcu_signal_read_ongoing urcu_signal_read_ongoing
#define _urcu_bp_read_lock urcu_bp_read_lock
#define _urcu_bp_read_unlock urcu_bp_read_unlock
#define _urcu_bp_read_ongoing urcu_bp_read_ongoing
#define _urcu_qsbr_read_lock urcu_qsbr_read_lock
#define _urcu_qsbr_read_unlock urcu_qsbr_read_unlock
#define _urcu_qsbr_read_ongoing urcu_qsbr_read_ongoing
#define urcu_bp_dereference(p) rcu_dereference(p)
#define urcu_bp_set_pointer(p, v) rcu_set_pointer(p, v)
#define urcu_bp_xchg_pointer(p, v) rcu_xchg_pointer(p, v)
#define urcu_bp_cmpxchg_pointer(p, old, v) rcu_cmpxchg_pointer(p, old, v)
#define urcu_bp_dereference_sym rcu_dereference_sym
#define urcu_bp_set_pointer_sym rcu_set_pointer_sym
#define urcu_bp_xchg_pointer_sym rcu_xchg_pointer_sym
#define urcu_bp_cmpxchg_pointer_sym rcu_cmpxchg_pointer_sym
#define _urcu_qsbr_quiescent_state urcu_qsbr_quiescent_state
#define _urcu_qsbr_thread_offline urcu_qsbr_thread_offline
#define _urcu_qsbr_thread_online urcu_qsbr_thread_online

/* liburcu has these for all flavors. */
#define rcu_dereference(p) reprieve_dereference(p)
#define rcu_assign_pointer(p, v) reprieve_assign_pointer(p, v)
#define rcu_set_pointer(p, v) reprieve_assign_pointer(*(p), v)
#define rcu_xchg_pointer(p, v) uatomic_xchg(p, v)
#define rcu_cmpxchg_pointer(p, old, v) uatomic_cmpxchg(p, old, v)

/* The names of liburcu's inline and external forms: here all are inline. */
#define _rcu_dereference(p) rcu_dereference(p)
#define _rcu_assign_pointer(p, v) rcu_assign_pointer(p, v)
#define _rcu_set_pointer(p, v) rcu_set_pointer(p, v)
#define _rcu_xchg_pointer(p, v) rcu_xchg_pointer(p, v)
#define _rcu_cmpxchg_pointer(p, old, v) rcu_cmpxchg_pointer(p, old, v)

REPRIEVE_INLINE_ void *rcu_dereference_sym(void *p)
{
	return p;
}

REPRIEVE_INLINE_ void *rcu_set_pointer_sym(void **p, void *v)
{
	rcu_set_pointer(p, v);
	return v;
}

REPRIEVE_INLINE_ void *rcu_xchg_pointer_sym(void **p, void *v)
{
	return rcu_xchg_pointer(p, v);
}

REPRIEVE_INLINE_ void *rcu_cmpxchg_pointer_sym(void **p, void *old, void *v)
{
	return rcu_cmpxchg_pointer(p, old, v);
}

#ifdef __cplusplus
}
#endif
#endif

/*
 * The names without a flavor, for whoever defines URCU_API_MAP (liburcu's own headers without a
 * flavor in their names do). The flavor: RCU_MB, RCU_QSBR, RCU_BP, RCU_SIGNAL, else memb; the last
 * header of `compat` that stands for a flavor chooses it anew. Headers that stand for none choose
 * none: REPRIEVE_URCU_NO_MAP_.
 */
#if defined(URCU_API_MAP) && !defined(REPRIEVE_URCU_) && !defined(REPRIEVE_URCU_NO_MAP_)
#if defined(RCU_QSBR)
#define REPRIEVE_URCU_(name) urcu_qsbr_##name
#elif defined(RCU_BP)
#define REPRIEVE_URCU_(name) urcu_bp_##name
#elif defined(RCU_MB)
#define REPRIEVE_URCU_(name) urcu_mb_##name
#elif defined(RCU_SIGNAL)
#define REPRIEVE_URCU_(name) urcu_signal_##name
#else
#ifndef RCU_MEMBARRIER
#define RCU_MEMBARRIER
#endif
#define REPRIEVE_URCU_(name) urcu_memb_##name
#endif
#define rcu_init REPRIEVE_URCU_(init)
#define rcu_exit REPRIEVE_URCU_(exit)
#define rcu_flavor REPRIEVE_URCU_(flavor)
#define urcu_register_rculfhash_atfork REPRIEVE_URCU_(register_rculfhash_atfork)
#define urcu_unregister_rculfhash_atfork REPRIEVE_URCU_(unregister_rculfhash_atfork)
#define _rcu_read_lock REPRIEVE_URCU_(read_lock)
#define _rcu_read_unlock REPRIEVE_URCU_(read_unlock)
#define _rcu_read_ongoing REPRIEVE_URCU_(read_ongoing)
#define _rcu_quiescent_state REPRIEVE_URCU_(quiescent_state)
#define _rcu_thread_offline REPRIEVE_URCU_(thread_offline)
#define _rcu_thread_online REPRIEVE_URCU_(thread_online)
#define rcu_read_lock REPRIEVE_URCU_(read_lock)
#define rcu_read_unlock REPRIEVE_URCU_(read_unlock)
#define rcu_read_ongoing REPRIEVE_URCU_(read_ongoing)
#define rcu_register_thread REPRIEVE_URCU_(register_thread)
#define rcu_unregister_thread REPRIEVE_URCU_(unregister_thread)
#define rcu_quiescent_state REPRIEVE_URCU_(quiescent_state)
#define rcu_thread_offline REPRIEVE_URCU_(thread_offline)
#define rcu_thread_online REPRIEVE_URCU_(thread_online)
#define rcu_barrier REPRIEVE_URCU_(barrier)
#define synchronize_rcu REPRIEVE_URCU_(synchronize_rcu)
#define call_rcu REPRIEVE_URCU_(call_rcu)
#define start_poll_synchronize_rcu REPRIEVE_URCU_(start_poll_synchronize_rcu)
#define poll_state_synchronize_rcu REPRIEVE_URCU_(poll_state_synchronize_rcu)
#define defer_rcu REPRIEVE_URCU_(defer_rcu)
#define create_call_rcu_data REPRIEVE_URCU_(create_call_rcu_data)
#define call_rcu_data_free REPRIEVE_URCU_(call_rcu_data_free)
#define get_default_call_rcu_data REPRIEVE_URCU_(get_default_call_rcu_data)
#define get_cpu_call_rcu_data REPRIEVE_URCU_(get_cpu_call_rcu_data)
#define get_thread_call_rcu_data REPRIEVE_URCU_(get_thread_call_rcu_data)
#define get_call_rcu_data REPRIEVE_URCU_(get_call_rcu_data)
#define get_call_rcu_thread REPRIEVE_URCU_(get_call_rcu_thread)
#define set_thread_call_rcu_data REPRIEVE_URCU_(set_thread_call_rcu_data)
#define set_cpu_call_rcu_data REPRIEVE_URCU_(set_cpu_call_rcu_data)
#define create_all_cpu_call_rcu_data REPRIEVE_URCU_(create_all_cpu_call_rcu_data)
#define free_all_cpu_call_rcu_data REPRIEVE_URCU_(free_all_cpu_call_rcu_data)
#define call_rcu_before_fork REPRIEVE_URCU_(call_rcu_before_fork)
#define call_rcu_after_fork_parent REPRIEVE_URCU_(call_rcu_after_fork_parent)
#define call_rcu_after_fork_child REPRIEVE_URCU_(call_rcu_after_fork_child)
#define rcu_defer_register_thread REPRIEVE_URCU_(defer_register_thread)
#define rcu_defer_unregister_thread REPRIEVE_URCU_(defer_unregister_thread)
#define rcu_defer_barrier REPRIEVE_URCU_(defer_barrier)
#define rcu_defer_barrier_thread REPRIEVE_URCU_(defer_barrier_thread)
#define rcu_defer_exit REPRIEVE_URCU_(defer_exit)
#define rcu_bp_before_fork REPRIEVE_URCU_(before_fork)
#define rcu_bp_after_fork_parent REPRIEVE_URCU_(after_fork_parent)
#define rcu_bp_after_fork_child REPRIEVE_URCU_(after_fork_child)
#endif
