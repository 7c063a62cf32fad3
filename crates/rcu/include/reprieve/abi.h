/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the inline functions of the other headers know of the library's insides. Version 4; not for
 * programs.
 *
 * A thread's block lies at a constant distance from the thread pointer (initial-exec), so the fast
 * paths find their record with two loads and no call. A null record means: call the library (the
 * thread is not registered yet, or membarrier is missing and entering needs a fence). On other
 * architectures than x86-64 the library is always called.
 */
#ifndef REPRIEVE_ABI_H
#define REPRIEVE_ABI_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REPRIEVE_ABI_VERSION 4

/*
 * A thread's place in the registry of a domain. The low half of the word counts nested sections,
 * the high half those that have ended. snapshot: the word as the leader of a grace period found it,
 * if the leader waits for that section; else 0.
 */
struct reprieve_record {
	uint64_t word;
	uintptr_t restart;
	uint64_t restarts;
	uint64_t fallbacks;
	uintptr_t slots[8];
	uint64_t pad[21];
	uint64_t snapshot;
};

/*
 * stack: REPRIEVE_IDLE_ when a lookup may begin; what an entered attempt's abort returns to; or 0:
 * call the library. cs: address of the rseq_cs field. saved: rbx, rbp, r13, r14.
 * record: that of the default domain, null: call the library.
 * online: the record of the QSBR domain, null: call the library. What follows is the library's own.
 */
struct reprieve_thread_block {
	uintptr_t stack;
	uintptr_t cs;
	uintptr_t saved[4];
	struct reprieve_record *record;
	struct reprieve_record *online;
};

#define REPRIEVE_IDLE_ ((uintptr_t)8)

#define REPRIEVE_SECTION_ENDED_ ((uint64_t)1 << 32)

#ifdef __x86_64__
extern __thread struct reprieve_thread_block reprieve_thread
	__attribute__((tls_model("initial-exec")));
#define REPRIEVE_RECORD_() (reprieve_thread.record)
#define REPRIEVE_ONLINE_() (reprieve_thread.online)
#else
#define REPRIEVE_RECORD_() ((struct reprieve_record *)NULL)
#define REPRIEVE_ONLINE_() ((struct reprieve_record *)NULL)
#endif

#define REPRIEVE_INLINE_ static inline __attribute__((always_inline, unused))
#define REPRIEVE_LIKELY_(x) __builtin_expect(!!(x), 1)

/* Orders threads for thread sanitizers, which see no membarrier. */
#if defined(__SANITIZE_THREAD__)
#define REPRIEVE_TSAN_
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REPRIEVE_TSAN_
#endif
#endif
#ifdef REPRIEVE_TSAN_
#define REPRIEVE_RELEASES_() reprieve_annotate_release()
#define REPRIEVE_THREAD_FENCE_(order) reprieve_annotate_fence()
#else
#define REPRIEVE_RELEASES_() ((void)0)
#define REPRIEVE_THREAD_FENCE_(order) __atomic_thread_fence(order)
#endif

void reprieve_annotate_release(void);
void reprieve_annotate_fence(void);
void reprieve_read_lock_slow(void);
void reprieve_read_unlock_slow(void);
void reprieve_qsbr_quiescent_state_slow(void);
uintptr_t reprieve_restart_slow(unsigned int attempt);
void reprieve_fallback(void);
uintptr_t *reprieve_slot_slow(void);
unsigned int reprieve_abi_version(void);

#ifdef __cplusplus
}
#endif
#endif
