/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * liburcu's uatomic_*, barriers and helpers of <urcu/compiler.h>, on the compiler's atomics. Types of up to a word. As documented there: xchg, cmpxchg,
 * add_return and sub_return are full barriers; the others order nothing by themselves.
 *
 * Example:
 *
 *	#include <reprieve/uatomic.h>
 *	#include <stdio.h>
 *
 *	int main(void)
 *	{
 *		long counter = 40;
 *
 *		uatomic_inc(&counter);
 *		printf("%ld\n", uatomic_add_return(&counter, 1));
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_UATOMIC_H
#define REPRIEVE_UATOMIC_H

#include <stddef.h>

#define UATOMIC_HAS_ATOMIC_BYTE
#define UATOMIC_HAS_ATOMIC_SHORT

#define caa_likely(x) __builtin_expect(!!(x), 1)
#define caa_unlikely(x) __builtin_expect(!!(x), 0)
#define cmm_barrier() __asm__ __volatile__("" : : : "memory")
#define cmm_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define cmm_rmb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define cmm_wmb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define cmm_smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define cmm_smp_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define cmm_smp_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)
#define cmm_smp_mc() cmm_barrier()
#define cmm_smp_rmc() cmm_barrier()
#define cmm_smp_wmc() cmm_barrier()
#define cmm_smp_read_barrier_depends() cmm_barrier()
#if defined(__x86_64__) || defined(__i386__)
#define caa_cpu_relax() __asm__ __volatile__("pause" : : : "memory")
#else
#define caa_cpu_relax() cmm_barrier()
#endif

#define CMM_ACCESS_ONCE(x) (*(__volatile__ __typeof__(x) *)&(x))
#define CMM_LOAD_SHARED(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define _CMM_LOAD_SHARED(x) CMM_LOAD_SHARED(x)
#define CMM_STORE_SHARED(x, v)                                              \
	__extension__({                                                     \
		__typeof__(x) reprieve_stored_ = (v);                       \
		__atomic_store_n(&(x), reprieve_stored_, __ATOMIC_RELAXED); \
		reprieve_stored_;                                           \
	})
#define _CMM_STORE_SHARED(x, v) CMM_STORE_SHARED(x, v)

#define caa_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define CAA_ARRAY_SIZE(x) (sizeof(x) / sizeof((x)[0]))
#define caa_max(a, b) ((a) > (b) ? (a) : (b))
#define caa_min(a, b) ((a) < (b) ? (a) : (b))

#define REPRIEVE_AS_(addr, v) ((__typeof__(*(addr)))(v))

#define uatomic_set(addr, v) __atomic_store_n(addr, REPRIEVE_AS_(addr, v), __ATOMIC_RELAXED)
#define uatomic_read(addr) __atomic_load_n(addr, __ATOMIC_RELAXED)
#define uatomic_xchg(addr, v) __atomic_exchange_n(addr, REPRIEVE_AS_(addr, v), __ATOMIC_SEQ_CST)
#define uatomic_cmpxchg(addr, old, v)                                                       \
	__extension__({                                                                     \
		__typeof__(*(addr)) reprieve_old_ = REPRIEVE_AS_(addr, old);                \
		__atomic_compare_exchange_n(addr, &reprieve_old_, REPRIEVE_AS_(addr, v), 0, \
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);            \
		reprieve_old_;                                                              \
	})
#define uatomic_add_return(addr, v) __atomic_add_fetch(addr, (v), __ATOMIC_SEQ_CST)
#define uatomic_sub_return(addr, v) __atomic_sub_fetch(addr, (v), __ATOMIC_SEQ_CST)
#define uatomic_and(addr, mask) ((void)__atomic_and_fetch(addr, (mask), __ATOMIC_RELAXED))
#define uatomic_or(addr, mask) ((void)__atomic_or_fetch(addr, (mask), __ATOMIC_RELAXED))
#define uatomic_add(addr, v) ((void)__atomic_add_fetch(addr, (v), __ATOMIC_RELAXED))
#define uatomic_sub(addr, v) ((void)__atomic_sub_fetch(addr, (v), __ATOMIC_RELAXED))
#define uatomic_inc(addr) uatomic_add(addr, 1)
#define uatomic_dec(addr) uatomic_sub(addr, 1)

#define cmm_smp_mb__before_uatomic_and() cmm_smp_mb()
#define cmm_smp_mb__after_uatomic_and() cmm_smp_mb()
#define cmm_smp_mb__before_uatomic_or() cmm_smp_mb()
#define cmm_smp_mb__after_uatomic_or() cmm_smp_mb()
#define cmm_smp_mb__before_uatomic_add() cmm_smp_mb()
#define cmm_smp_mb__after_uatomic_add() cmm_smp_mb()
#define cmm_smp_mb__before_uatomic_sub() cmm_smp_mb()
#define cmm_smp_mb__after_uatomic_sub() cmm_smp_mb()
#define cmm_smp_mb__before_uatomic_inc() cmm_smp_mb()
#define cmm_smp_mb__after_uatomic_inc() cmm_smp_mb()
#define cmm_smp_mb__before_uatomic_dec() cmm_smp_mb()
#define cmm_smp_mb__after_uatomic_dec() cmm_smp_mb()

#endif
