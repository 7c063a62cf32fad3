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
#define UATOMIC_HAS_ATOMIC_INT
#define UATOMIC_HAS_ATOMIC_LLONG

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
#define caa_container_of_check_null(ptr, type, member)                                      \
	__extension__({                                                                     \
		const __typeof__(((type *)NULL)->member) *reprieve_member_ = (ptr);         \
		reprieve_member_ ? caa_container_of(reprieve_member_, type, member) : NULL; \
	})
#define __CAA_COMBINE_TOKENS(a, b) a##b
#define CAA_COMBINE_TOKENS(a, b) __CAA_COMBINE_TOKENS(a, b)
#define cmm_cast_volatile(ptr) ((volatile __typeof__(ptr))(ptr))
#ifdef __cplusplus
#define urcu_static_assert(predicate, message, name) static_assert(predicate, message)
#else
#define urcu_static_assert(predicate, message, name) _Static_assert(predicate, message)
#endif

/* Compares addresses; the compiler learns nothing of one from the other. */
static inline __attribute__((unused)) int cmm_ptr_eq(const void *a, const void *b)
{
	__asm__("" : "+r"(a));
	__asm__("" : "+r"(b));
	return a == b;
}
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
#else
#define REPRIEVE_FENCE_() REPRIEVE_THREAD_FENCE_(__ATOMIC_SEQ_CST)
#endif

/* Memory orders of liburcu 0.15. The last one is sequentially consistent and a full barrier. */
enum cmm_memorder {
	CMM_RELAXED = __ATOMIC_RELAXED,
	CMM_CONSUME = __ATOMIC_CONSUME,
	CMM_ACQUIRE = __ATOMIC_ACQUIRE,
	CMM_RELEASE = __ATOMIC_RELEASE,
	CMM_ACQ_REL = __ATOMIC_ACQ_REL,
	CMM_SEQ_CST = __ATOMIC_SEQ_CST,
	CMM_SEQ_CST_FENCE
};
#define cmm_to_c11(mo) ((int)(mo) == (int)CMM_SEQ_CST_FENCE ? __ATOMIC_SEQ_CST : (int)(mo))
#define cmm_seq_cst_fence_after_atomic(mo) \
	((int)(mo) == (int)CMM_SEQ_CST_FENCE ? cmm_smp_mb() : (void)0)
#define cmm_emit_legacy_smp_mb() ((void)0)

/* The order is an optional last argument: this takes it, else the first. */
#define REPRIEVE_ORDER_(standard, ...) REPRIEVE_FIRST_OF_(0, ##__VA_ARGS__, standard, )
#define REPRIEVE_FIRST_OF_(zero, first, ...) first
#define REPRIEVE_LAST_ORDER_(standard, ...) \
	REPRIEVE_SECOND_OF_(0, ##__VA_ARGS__, standard, standard, )
#define REPRIEVE_SECOND_OF_(zero, first, second, ...) second

#define REPRIEVE_ORDERED_(addr, mo, operation)                                     \
	__extension__({                                                            \
		__typeof__(*(addr)) reprieve_new_;                                 \
		(int)(mo) == (int)CMM_SEQ_CST_FENCE ? REPRIEVE_FENCE_() : (void)0; \
		reprieve_new_ = (operation);                                       \
		(int)(mo) == (int)CMM_SEQ_CST_FENCE ? REPRIEVE_FENCE_() : (void)0; \
		reprieve_new_;                                                     \
	})

#define uatomic_load_mo(addr, mo)                                                          \
	__extension__({                                                                    \
		__typeof__(*(addr)) reprieve_old_ = __atomic_load_n(addr, cmm_to_c11(mo)); \
		cmm_seq_cst_fence_after_atomic(mo);                                        \
		reprieve_old_;                                                             \
	})
#define uatomic_store_mo(addr, v, mo)                                          \
	__extension__({                                                        \
		__atomic_store_n(addr, REPRIEVE_AS_(addr, v), cmm_to_c11(mo)); \
		cmm_seq_cst_fence_after_atomic(mo);                            \
	})
#define uatomic_xchg_mo(addr, v, mo) \
	REPRIEVE_ORDERED_(addr, mo,  \
			  __atomic_exchange_n(addr, REPRIEVE_AS_(addr, v), cmm_to_c11(mo)))
#define uatomic_cmpxchg_mo(addr, old, v, success, failure)                                      \
	__extension__({                                                                         \
		__typeof__(*(addr)) reprieve_expected_ = REPRIEVE_AS_(addr, old);               \
		REPRIEVE_ORDERED_(addr, success,                                                \
				  (__atomic_compare_exchange_n(                                 \
					   addr, &reprieve_expected_, REPRIEVE_AS_(addr, v), 0, \
					   cmm_to_c11(success), cmm_to_c11(failure)),           \
				   reprieve_expected_));                                        \
	})
#define uatomic_add_return_mo(addr, v, mo) \
	REPRIEVE_ORDERED_(addr, mo, __atomic_add_fetch(addr, (v), cmm_to_c11(mo)))
#define uatomic_sub_return_mo(addr, v, mo) \
	REPRIEVE_ORDERED_(addr, mo, __atomic_sub_fetch(addr, (v), cmm_to_c11(mo)))
#define uatomic_and_mo(addr, mask, mo) \
	((void)REPRIEVE_ORDERED_(addr, mo, __atomic_and_fetch(addr, (mask), cmm_to_c11(mo))))
#define uatomic_or_mo(addr, mask, mo) \
	((void)REPRIEVE_ORDERED_(addr, mo, __atomic_or_fetch(addr, (mask), cmm_to_c11(mo))))
#define uatomic_add_mo(addr, v, mo) ((void)uatomic_add_return_mo(addr, v, mo))
#define uatomic_sub_mo(addr, v, mo) ((void)uatomic_sub_return_mo(addr, v, mo))
#define uatomic_inc_mo(addr, mo) uatomic_add_mo(addr, 1, mo)
#define uatomic_dec_mo(addr, mo) uatomic_sub_mo(addr, 1, mo)

#define uatomic_load(addr, ...) uatomic_load_mo(addr, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_store(addr, v, ...) \
	uatomic_store_mo(addr, v, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_read(addr, ...) uatomic_load_mo(addr, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_set(addr, v, ...) \
	uatomic_store_mo(addr, v, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_xchg(addr, v, ...) \
	uatomic_xchg_mo(addr, v, REPRIEVE_ORDER_(CMM_SEQ_CST_FENCE, ##__VA_ARGS__))
/* Two orders, for success and failure, or none. */
#define uatomic_cmpxchg(addr, old, v, ...)                                                  \
	uatomic_cmpxchg_mo(addr, old, v, REPRIEVE_ORDER_(CMM_SEQ_CST_FENCE, ##__VA_ARGS__), \
			   REPRIEVE_LAST_ORDER_(CMM_SEQ_CST_FENCE, ##__VA_ARGS__))
#define uatomic_add_return(addr, v, ...) \
	uatomic_add_return_mo(addr, v, REPRIEVE_ORDER_(CMM_SEQ_CST_FENCE, ##__VA_ARGS__))
#define uatomic_sub_return(addr, v, ...) \
	uatomic_sub_return_mo(addr, v, REPRIEVE_ORDER_(CMM_SEQ_CST_FENCE, ##__VA_ARGS__))
#define uatomic_and(addr, mask, ...) \
	uatomic_and_mo(addr, mask, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_or(addr, mask, ...) \
	uatomic_or_mo(addr, mask, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_add(addr, v, ...) \
	uatomic_add_mo(addr, v, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_sub(addr, v, ...) \
	uatomic_sub_mo(addr, v, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_inc(addr, ...) uatomic_inc_mo(addr, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))
#define uatomic_dec(addr, ...) uatomic_dec_mo(addr, REPRIEVE_ORDER_(CMM_RELAXED, ##__VA_ARGS__))

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
