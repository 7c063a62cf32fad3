/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs written for liburcu, on Reprieve: add this directory's `compat` to the include path and link with -lreprieve instead of -lurcu*.
 *
 * All of liburcu's flavors are here. memb, mb, bp and signal are the default domain: one registry, one grace period. qsbr has a domain of its
 * own. Written from liburcu's documented interface; what differs:
 *
 * - threads need not be registered, and a thread that exits is unregistered;
 * - struct rcu_head has 32 bytes instead of 16;
 * - a `struct call_rcu_data` is a name: callbacks always run on a worker of the CPU that registered them;
 * - synchronize_rcu inside a read-side section ends the program with a message instead of hanging;
 * - fork handlers are the library's own; liburcu's calls for them do nothing.
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

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
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

struct call_rcu_data *reprieve_helper_new(unsigned long flags, int cpu);
void reprieve_helper_free(struct call_rcu_data *helper);
struct call_rcu_data *reprieve_helper_default(void);
struct call_rcu_data *reprieve_helper_of_cpu(int cpu);
int reprieve_helper_set_cpu(int cpu, struct call_rcu_data *helper);
struct call_rcu_data *reprieve_helper_of_thread(void);
void reprieve_helper_set_thread(struct call_rcu_data *helper);
struct call_rcu_data *reprieve_helper_current(void);
int reprieve_helper_create_all(unsigned long flags);
void reprieve_helper_free_all(void);
pthread_t reprieve_helper_thread(struct call_rcu_data *helper);

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
		base##_barrier();                                                                  \
		reprieve_helper_free(crdp);                                                        \
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
		return reprieve_helper_thread(crdp);                                               \
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
		base##_barrier();                                                                  \
		reprieve_helper_free_all();                                                        \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_before_fork(void)                                  \
	{                                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_after_fork_parent(void)                            \
	{                                                                                          \
	}                                                                                          \
	REPRIEVE_INLINE_ void flavor##_call_rcu_after_fork_child(void)                             \
	{                                                                                          \
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

/* liburcu has these for all flavors. */
#define rcu_dereference(p) reprieve_dereference(p)
#define rcu_assign_pointer(p, v) reprieve_assign_pointer(p, v)
#define rcu_set_pointer(p, v) reprieve_assign_pointer(*(p), v)
#define rcu_xchg_pointer(p, v) uatomic_xchg(p, v)
#define rcu_cmpxchg_pointer(p, old, v) uatomic_cmpxchg(p, old, v)

#ifdef __cplusplus
}
#endif
#endif

/*
 * The names without a flavor, for whoever defines URCU_API_MAP (liburcu's own headers without a flavor in their names do). The flavor: RCU_MB,
 * RCU_QSBR, RCU_BP, RCU_SIGNAL, else memb.
 */
#if defined(URCU_API_MAP) && !defined(REPRIEVE_URCU_MAPPED)
#define REPRIEVE_URCU_MAPPED
#if defined(RCU_QSBR)
#define REPRIEVE_URCU_(name) urcu_qsbr_##name
#elif defined(RCU_BP)
#define REPRIEVE_URCU_(name) urcu_bp_##name
#elif defined(RCU_MB)
#define REPRIEVE_URCU_(name) urcu_mb_##name
#elif defined(RCU_SIGNAL)
#define REPRIEVE_URCU_(name) urcu_signal_##name
#else
#define REPRIEVE_URCU_(name) urcu_memb_##name
#endif
#define rcu_init REPRIEVE_URCU_(init)
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
