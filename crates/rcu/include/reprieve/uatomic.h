/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * liburcu's uatomic_*, and what <urcu/compiler.h>, <urcu/arch.h> and <urcu/config.h> define, on the
 * compiler's atomics. Types of up to a word. As documented there: xchg, cmpxchg, add_return and
 * sub_return are full barriers; the others order nothing by themselves.
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

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/abi.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* <urcu/config.h>, and what else programs ask about the system. */
#define CONFIG_RCU_SMP 1
#define CONFIG_RCU_TLS 1
#define CONFIG_RCU_HAVE_CLOCK_GETTIME 1
#define CONFIG_RCU_HAVE_MULTIFLAVOR 1
#define CONFIG_RCU_HAVE_FUTEX 1
#define CONFIG_HAVE_MEM_COHERENCY
#if defined(__x86_64__)
#define URCU_ARCH_X86 1
#define URCU_ARCH_AMD64 1
#define CONFIG_RCU_HAVE_FENCE 1
#elif defined(__aarch64__)
#define URCU_ARCH_AARCH64 1
#endif

/* Programs align by it what different CPUs write: pairs of lines are fetched together on x86. */
#if defined(__x86_64__)
#define CAA_CACHE_LINE_SIZE 128
#else
#define CAA_CACHE_LINE_SIZE 64
#endif
#define CAA_BITS_PER_LONG (__SIZEOF_LONG__ * 8)

#define UATOMIC_HAS_ATOMIC_BYTE
#define UATOMIC_HAS_ATOMIC_SHORT

#define caa_likely(x) __builtin_expect(!!(x), 1)
#define caa_unlikely(x) __builtin_expect(!!(x), 0)
#define cmm_barrier() __asm__ __volatile__("" : : : "memory")
#define cmm_mb() REPRIEVE_THREAD_FENCE_(__ATOMIC_SEQ_CST)
#define cmm_rmb() REPRIEVE_THREAD_FENCE_(__ATOMIC_SEQ_CST)
#define cmm_wmb() REPRIEVE_THREAD_FENCE_(__ATOMIC_SEQ_CST)
#define cmm_smp_mb() REPRIEVE_THREAD_FENCE_(__ATOMIC_SEQ_CST)
#define cmm_smp_rmb() REPRIEVE_THREAD_FENCE_(__ATOMIC_ACQUIRE)
#define cmm_smp_wmb() REPRIEVE_THREAD_FENCE_(__ATOMIC_RELEASE)
#define cmm_smp_mc() cmm_barrier()
#define cmm_smp_rmc() cmm_barrier()
#define cmm_smp_wmc() cmm_barrier()
#define cmm_smp_read_barrier_depends() cmm_barrier()
#define cmm_mc() cmm_barrier()
#define cmm_rmc() cmm_barrier()
#define cmm_wmc() cmm_barrier()
#define cmm_read_barrier_depends() cmm_barrier()
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

/* Versions of clang-format differ here. */
/* clang-format off */
#define caa_container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
/* clang-format on */
#define CAA_ARRAY_SIZE(x) (sizeof(x) / sizeof((x)[0]))
#ifndef caa_max
#define caa_max(a, b) ((a) > (b) ? (a) : (b))
#endif
#ifndef caa_min
#define caa_min(a, b) ((a) < (b) ? (a) : (b))
#endif
/* An array of a negative size if cond. C++ allows no new type inside of sizeof. */
#define CAA_BUILD_BUG_ON_ZERO(cond) (sizeof(char[1 - 2 * !!(cond)]) - 1)
#define CAA_BUILD_BUG_ON(cond) ((void)CAA_BUILD_BUG_ON_ZERO(cond))
/* Versions of clang-format differ here. */
/* clang-format off */
#define caa_is_signed_type(type) ((type) - 1 < (type)0)
/* clang-format on */
#define caa_cast_long_keep_sign(v) ((unsigned long)(v))
#define CDS_DEPRECATED(msg) __attribute__((deprecated(msg)))
#ifndef __rcu
#define __rcu
#endif
#ifdef __cplusplus
#define URCU_FORCE_CAST(type, arg) (reinterpret_cast<type>(arg))
#else
#define URCU_FORCE_CAST(type, arg) ((type)(arg))
#endif
#if defined(__GNUC__) && !defined(__clang__)
#define URCU_GCC_VERSION (__GNUC__ * 10000 + __GNUC_MINOR__ * 100 + __GNUC_PATCHLEVEL__)
#endif

/* The time stamp counter, or nanoseconds where user mode has none at hand. */
#define HAS_CAA_GET_CYCLES
typedef uint64_t caa_cycles_t;

static inline __attribute__((unused)) caa_cycles_t caa_get_cycles(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	struct timespec now;

	if (clock_gettime(CLOCK_MONOTONIC, &now))
		return (caa_cycles_t)-1;
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
#endif
}
#ifdef __x86_64__
#define rdtscll(val) ((void)((val) = __builtin_ia32_rdtsc()))
#endif

#define REPRIEVE_AS_(addr, v) ((__typeof__(*(addr)))(v))

/*
 * Makes an operation a full barrier. On x86 its instruction is one. Elsewhere "sequentially
 * consistent" is less: on aarch64 a later load may pass its store, and a cmpxchg that fails orders
 * nothing that came before it.
 */
#if defined(__x86_64__) || defined(__i386__)
#define REPRIEVE_FENCE_() ((void)0)
#define REPRIEVE_FENCED_(addr, operation) (operation)
#else
#define REPRIEVE_FENCE_() REPRIEVE_THREAD_FENCE_(__ATOMIC_SEQ_CST)
#define REPRIEVE_FENCED_(addr, operation)          \
	__extension__({                            \
		__typeof__(*(addr)) reprieve_new_; \
		REPRIEVE_FENCE_();                 \
		reprieve_new_ = (operation);       \
		REPRIEVE_FENCE_();                 \
		reprieve_new_;                     \
	})
#endif

#define uatomic_set(addr, v) __atomic_store_n(addr, REPRIEVE_AS_(addr, v), __ATOMIC_RELAXED)
#define uatomic_read(addr) __atomic_load_n(addr, __ATOMIC_RELAXED)
#define uatomic_xchg(addr, v) \
	REPRIEVE_FENCED_(addr, __atomic_exchange_n(addr, REPRIEVE_AS_(addr, v), __ATOMIC_SEQ_CST))
#define uatomic_cmpxchg(addr, old, v)                                                       \
	__extension__({                                                                     \
		__typeof__(*(addr)) reprieve_old_ = REPRIEVE_AS_(addr, old);                \
		REPRIEVE_FENCE_();                                                          \
		__atomic_compare_exchange_n(addr, &reprieve_old_, REPRIEVE_AS_(addr, v), 0, \
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);            \
		REPRIEVE_FENCE_();                                                          \
		reprieve_old_;                                                              \
	})
#define uatomic_add_return(addr, v) \
	REPRIEVE_FENCED_(addr, __atomic_add_fetch(addr, (v), __ATOMIC_SEQ_CST))
#define uatomic_sub_return(addr, v) \
	REPRIEVE_FENCED_(addr, __atomic_sub_fetch(addr, (v), __ATOMIC_SEQ_CST))
#define uatomic_and(addr, mask) ((void)__atomic_and_fetch(addr, (mask), __ATOMIC_RELAXED))
#define uatomic_or(addr, mask) ((void)__atomic_or_fetch(addr, (mask), __ATOMIC_RELAXED))
#define uatomic_add(addr, v) ((void)__atomic_add_fetch(addr, (v), __ATOMIC_RELAXED))
#define uatomic_sub(addr, v) ((void)__atomic_sub_fetch(addr, (v), __ATOMIC_RELAXED))
#define uatomic_inc(addr) uatomic_add(addr, 1)
#define uatomic_dec(addr) uatomic_sub(addr, 1)

#define _uatomic_set(addr, v) uatomic_set(addr, v)
#define _uatomic_xchg(addr, v) uatomic_xchg(addr, v)
#define _uatomic_cmpxchg(addr, old, v) uatomic_cmpxchg(addr, old, v)
#define _uatomic_add_return(addr, v) uatomic_add_return(addr, v)
#define _uatomic_and(addr, mask) uatomic_and(addr, mask)
#define _uatomic_or(addr, mask) uatomic_or(addr, mask)
#define _uatomic_add(addr, v) uatomic_add(addr, v)
#define _uatomic_inc(addr) uatomic_inc(addr)
#define _uatomic_dec(addr) uatomic_dec(addr)

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
