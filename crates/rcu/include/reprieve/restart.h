/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Restartable lookups: traversals that a grace period sends back to their start instead of waiting
 * for them.
 *
 * A lookup is a function marked REPRIEVE_RESTARTABLE, which puts it into the section
 * `reprieve_restart`. Inside it and everything it calls: no call of functions that are not marked
 * REPRIEVE_RESTARTABLE or REPRIEVE_RESTARTABLE_INLINE, no system call, no lock, no allocation, no
 * store except to local variables and to the result; it may be abandoned after any instruction and
 * begun again. Compilers add calls of their own (memcpy for large copies): run `reprieve verify` on
 * the program, in CI. No x87 or MMX registers (long double), and no change of a rounding mode: a
 * restart does not restore them.
 *
 * Example:
 *
 *	#include <reprieve/restart.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *
 *	struct node { int key, value; struct node *next; struct reprieve_head head; };
 *	static struct node *list;
 *
 *	REPRIEVE_RESTARTABLE static uintptr_t find(const void *key, void *value)
 *	{
 *		const struct node *n;
 *
 *		for (n = reprieve_dereference(list); n; n = reprieve_dereference(n->next))
 *			if (n->key == *(const int *)key) {
 *				*(int *)value = n->value;
 *				return 1;
 *			}
 *		return 0;
 *	}
 *
 *	REPRIEVE_RESTARTABLE static const void *get(const void *key)
 *	{
 *		const struct node *n = reprieve_dereference(list);
 *
 *		while (n && n->key != *(const int *)key)
 *			n = reprieve_dereference(n->next);
 *		return n;
 *	}
 *
 *	static void node_free(struct reprieve_head *head)
 *	{
 *		free(reprieve_container_of(head, struct node, head));
 *	}
 *
 *	int main(void)
 *	{
 *		struct node *n = (struct node *)calloc(1, sizeof(*n));
 *		struct reprieve_protected held;
 *		int key = 7, value = 0;
 *
 *		n->key = key;
 *		n->value = 42;
 *		reprieve_assign_pointer(list, n);
 *		if (reprieve_lookup(find, &key, &value))
 *			printf("%d\n", value);
 *		if (reprieve_protect(get, &key, &held)) {
 *			reprieve_assign_pointer(list, (struct node *)NULL);
 *			reprieve_retire(n, &n->head, node_free, sizeof(*n), REPRIEVE_LEAF);
 *			reprieve_synchronize();	// does not wait for us, and the node stays
 *			printf("%d\n", ((const struct node *)held.node)->value);
 *			reprieve_release(&held);
 *		}
 *		reprieve_barrier();
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_RESTART_H
#define REPRIEVE_RESTART_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/reprieve.h>

/*
 * Elsewhere lookups run in plain sections. So they do for thread sanitizers, which have to see the
 * loads.
 */
#if defined(__x86_64__) && !defined(REPRIEVE_TSAN_)
#define REPRIEVE_RESTARTS_
#endif

#if defined(__has_attribute)
#if __has_attribute(no_stack_protector)
#define REPRIEVE_NO_PROTECTOR_ , no_stack_protector
#endif
#endif
#ifndef REPRIEVE_NO_PROTECTOR_
#define REPRIEVE_NO_PROTECTOR_
#endif
/* Counting for a profile calls functions, and writes. */
#if defined(__has_attribute)
#if __has_attribute(no_profile_instrument_function)
#define REPRIEVE_NO_PROFILE_ , no_profile_instrument_function
#endif
#if __has_attribute(no_sanitize_coverage)
#define REPRIEVE_NO_COVERAGE_ , no_sanitize_coverage
#endif
#endif
#ifndef REPRIEVE_NO_PROFILE_
#define REPRIEVE_NO_PROFILE_
#endif
#ifndef REPRIEVE_NO_COVERAGE_
#define REPRIEVE_NO_COVERAGE_
#endif
#ifdef __clang__
#define REPRIEVE_UNCHECKED_                                                                     \
	no_instrument_function,                                                                 \
		no_sanitize("address", "memory", "undefined", "integer", "implicit-conversion", \
			    "coverage") REPRIEVE_NO_PROTECTOR_ REPRIEVE_NO_PROFILE_
#define REPRIEVE_RESTARTABLE \
	__attribute__((section("reprieve_restart"), noinline, REPRIEVE_UNCHECKED_))
#else
#define REPRIEVE_UNCHECKED_                                                       \
	no_instrument_function, no_sanitize_address,                              \
		no_sanitize_undefined REPRIEVE_NO_PROTECTOR_ REPRIEVE_NO_PROFILE_ \
			REPRIEVE_NO_COVERAGE_
#define REPRIEVE_RESTARTABLE \
	__attribute__((section("reprieve_restart"), noinline, noclone, noipa, REPRIEVE_UNCHECKED_))
#endif

#ifdef REPRIEVE_TSAN_
#undef REPRIEVE_RESTARTABLE
#define REPRIEVE_RESTARTABLE __attribute__((noinline))
#endif

/*
 * A function for use in restartable ones, and in no others: GCC inlines no function into one that
 * is counted differently for a profile.
 */
#define REPRIEVE_RESTARTABLE_INLINE \
	static inline __attribute__((always_inline, unused, REPRIEVE_UNCHECKED_))

/* A node that this thread protects. */
struct reprieve_protected {
	const void *node;
	uintptr_t *slot;
};

#ifdef REPRIEVE_RESTARTS_

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Each program and shared object has a section and a descriptor of its own, whichever library it is
 * linked with. The linker keeps one of each group; link-time optimization may make one file of
 * several first. The abort handler does what the library's does: back to the stack pointer in the
 * thread's block, with 0 in r12.
 */
__asm__(".ifndef reprieve_image_cs\n"
	".pushsection .data.rel.reprieve_image,\"awG\",@progbits,reprieve_image_cs,comdat\n"
	".weak reprieve_image_cs\n"
	".hidden reprieve_image_cs\n"
	".hidden __start_reprieve_restart\n"
	".hidden __stop_reprieve_restart\n"
	".type reprieve_image_cs, @object\n"
	".size reprieve_image_cs, 40\n"
	".balign 32\n"
	"reprieve_image_cs:\n"
	".long 0, 0\n"
	".quad __start_reprieve_restart, 0, reprieve_image_abort\n"
	/* Not for the kernel: here the library has its self-test, and `reprieve verify` looks. */
	".quad reprieve_image_end\n"
	".popsection\n"
	".pushsection .text.reprieve_image_abort,\"axG\",@progbits,reprieve_image_cs,comdat\n"
	".byte 0x0f, 0xb9, 0x3d\n"
	".long 0x53053053\n"
	".weak reprieve_image_abort\n"
	".hidden reprieve_image_abort\n"
	".type reprieve_image_abort, @function\n"
	"reprieve_image_abort:\n"
	/* The stack pointer is wherever the section left it: nothing to unwind by. */
	".cfi_startproc\n"
	".cfi_undefined rip\n"
	"movq reprieve_thread@gottpoff(%rip), %rcx\n"
	"movq %fs:(%rcx), %rsp\n"
	"movq %fs:16(%rcx), %rbx\n"
	"movq %fs:24(%rcx), %rbp\n"
	"movq %fs:32(%rcx), %r13\n"
	"movq %fs:40(%rcx), %r14\n"
	/* With the registers by which the caller finds its frame. */
	".cfi_def_cfa rsp, 0\n"
	".cfi_offset rip, -8\n"
	"xorl %r12d, %r12d\n"
	"movq $0, %fs:(%rcx)\n"
	"cld\n"
	"jmpq *-8(%rsp)\n"
	".cfi_endproc\n"
	".size reprieve_image_abort, . - reprieve_image_abort\n"
	".popsection\n"
	/* Makes a section even if nothing is marked. */
	".pushsection reprieve_restart,\"axG\",@progbits,reprieve_image_cs,comdat\n"
	".weak reprieve_image_end\n"
	".hidden reprieve_image_end\n"
	".type reprieve_image_end, @function\n"
	"reprieve_image_end: ud2\n"
	".size reprieve_image_end, . - reprieve_image_end\n"
	".popsection\n"
	".endif\n");

extern uint64_t reprieve_image_cs[5] __attribute__((visibility("hidden")));
extern const char __start_reprieve_restart[] __attribute__((visibility("hidden")));
extern const char __stop_reprieve_restart[] __attribute__((visibility("hidden")));

/*
 * The section's length: no relocation expresses it. Once per source file that includes this, to the
 * same effect.
 */
static __attribute__((constructor(101), unused)) void reprieve_image_init_(void)
{
	reprieve_image_cs[2] = (uint64_t)(__stop_reprieve_restart - __start_reprieve_restart);
}

#ifdef __cplusplus
}
#endif

/* AVX-512 registers are lost in calls, too. */
#ifdef __AVX512F__
#define REPRIEVE_LOST_AVX512_                                                                    \
	, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24",       \
		"xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2", \
		"k3", "k4", "k5", "k6", "k7"
#else
#define REPRIEVE_LOST_AVX512_
#endif
/* And the general registers of APX. */
#if defined(__APX_F__) || defined(__EGPR__)
#define REPRIEVE_LOST_APX_                                                                    \
	, "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", \
		"r28", "r29", "r30", "r31"
#else
#define REPRIEVE_LOST_APX_
#endif

/*
 * Calls a piece of the section that arms and goes on to the function. `thread` is the thread's
 * block, in r12; an abort returns as well, with null there. The block has the stack pointer to go
 * back to, and four registers; the others are given up. Steps over the red zone and aligns the
 * stack. The frame's address is there so that the compiler finds the frame by rbp, and with it
 * debuggers and profilers that look from inside.
 */
#define REPRIEVE_ATTEMPT_(function, a, b, thread, cs, value, piece)                               \
	__asm__ volatile("movq %%rsp, %%r14\n\t"                                                  \
			 "leaq -128(%%rsp), %%rsp\n\t"                                            \
			 "andq $-16, %%rsp\n\t"                                                   \
			 "movq %%rsp, (%%r12)\n\t"                                                \
			 "movq %%rbx, 16(%%r12)\n\t"                                              \
			 "movq %%rbp, 24(%%r12)\n\t"                                              \
			 "movq %%r13, 32(%%r12)\n\t"                                              \
			 "movq %%r14, 40(%%r12)\n\t"                                              \
			 "call reprieve_attempt_%=\n\t"                                           \
			 "movq %%r14, %%rsp\n\t"                                                  \
			 ".pushsection reprieve_restart,\"ax?\",@progbits\n\t"                    \
			 ".type reprieve_attempt_%=, @function\n"                                 \
			 "reprieve_attempt_%=:\n\t"                                               \
			 "leaq reprieve_image_cs(%%rip), %%rax\n\t"                               \
			 "movq %%rax, (%%rdx)\n\t" piece                                          \
			 ".size reprieve_attempt_%=, . - reprieve_attempt_%=\n\t"                 \
			 ".popsection"                                                            \
			 : "=a"(value), "+r"(thread), "+D"(a), "+S"(b), "+d"(cs)                  \
			 : [body] "i"(function), "r"(__builtin_frame_address(0))                  \
			 : "rcx", "r8", "r9", "r10", "r11", "r14", "r15", "xmm0", "xmm1", "xmm2", \
			   "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
			   "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory",                 \
			   "cc" REPRIEVE_LOST_AVX512_ REPRIEVE_LOST_APX_)

#define REPRIEVE_ATTEMPT_LOOKUP_(f, a, b, thread, cs, value) \
	REPRIEVE_ATTEMPT_(f, a, b, thread, cs, value, "jmp %P[body]\n\t")
/* The store to the slot is the last act inside. */
#define REPRIEVE_ATTEMPT_PROTECT_(f, a, b, thread, cs, value) \
	REPRIEVE_ATTEMPT_(f, a, b, thread, cs, value,         \
			  "pushq %%rsi\n\t"                   \
			  "xorl %%esi, %%esi\n\t"             \
			  "call %P[body]\n\t"                 \
			  "popq %%rsi\n\t"                    \
			  "movq %%rax, (%%rsi)\n\t"           \
			  "ret\n\t")

/*
 * The address itself, as the library's own lookups use it: stores to one cache line that follow
 * each other retire in pairs, but one at a time if they are addressed by way of fs. Pure, so that
 * a loop computes it once.
 */
REPRIEVE_INLINE_ struct reprieve_thread_block *reprieve_thread_(void)
{
	struct reprieve_thread_block *thread;

	__asm__("movq reprieve_thread@gottpoff(%%rip), %0\n\t"
		"addq %%fs:0, %0"
		: "=r"(thread)
		:
		: "cc");
	return thread;
}

/* Whether a lookup may begin at once: then the block has the address of rseq_cs. */
REPRIEVE_INLINE_ int reprieve_idle_(const struct reprieve_thread_block *thread)
{
	return *(const volatile uintptr_t *)&thread->stack == REPRIEVE_IDLE_;
}

REPRIEVE_INLINE_ uintptr_t reprieve_cs_(const struct reprieve_thread_block *thread)
{
	return *(const volatile uintptr_t *)&thread->cs;
}

REPRIEVE_INLINE_ struct reprieve_record *reprieve_record_(struct reprieve_thread_block *thread)
{
	return thread->record;
}

/*
 * Ends an attempt that was not aborted. The address of rseq_cs is loaded again so that the attempt
 * need not keep it in a register.
 */
REPRIEVE_INLINE_ void reprieve_leave_(struct reprieve_thread_block *thread)
{
	*(volatile uintptr_t *)reprieve_cs_(thread) = 0;
	*(volatile uintptr_t *)&thread->stack = REPRIEVE_IDLE_;
}

/* Gives an attempt the thread's block; null afterwards if the attempt was aborted. */
#define REPRIEVE_BLOCK_(name) register struct reprieve_thread_block *name __asm__("r12")

/*
 * An attempt, and out of the innermost loop if it was not aborted. For the two macros below, with
 * their variables.
 */
#define REPRIEVE_TRY_(ATTEMPT_, function, b, cs)                                               \
	{                                                                                      \
		REPRIEVE_BLOCK_(reprieve_block_) = reprieve_thread_found_;                     \
		const void *reprieve_a_ = reprieve_argument_;                                  \
		void *reprieve_b_ = (b);                                                       \
		uintptr_t reprieve_armed_ = (cs);                                              \
		ATTEMPT_(function, reprieve_a_, reprieve_b_, reprieve_block_, reprieve_armed_, \
			 reprieve_value_);                                                     \
		if (REPRIEVE_LIKELY_(reprieve_block_)) {                                       \
			reprieve_leave_(reprieve_block_);                                      \
			break;                                                                 \
		}                                                                              \
	}

/*
 * The first attempt has code of its own, which needs no counter; then as often as the library says;
 * then `fallback`, in a plain section.
 */
#define REPRIEVE_ATTEMPTS_(ATTEMPT_, function, b, fallback)                                        \
	do {                                                                                       \
		unsigned int reprieve_attempt_ = 0;                                                \
		if (REPRIEVE_LIKELY_(reprieve_idle_(reprieve_thread_found_))) {                    \
			REPRIEVE_TRY_(ATTEMPT_, function, b, reprieve_cs_(reprieve_thread_found_)) \
			reprieve_attempt_ = 1;                                                     \
		}                                                                                  \
		for (;;) {                                                                         \
			uintptr_t reprieve_found_ = reprieve_restart_slow(reprieve_attempt_++);    \
			if (!reprieve_found_) {                                                    \
				reprieve_fallback();                                               \
				fallback;                                                          \
				reprieve_read_unlock();                                            \
				break;                                                             \
			}                                                                          \
			REPRIEVE_TRY_(ATTEMPT_, function, b, reprieve_found_)                      \
		}                                                                                  \
	} while (0)

#else
#define REPRIEVE_ATTEMPTS_(ATTEMPT_, function, b, fallback) \
	do {                                                \
		reprieve_fallback();                        \
		fallback;                                   \
		reprieve_read_unlock();                     \
	} while (0)

REPRIEVE_INLINE_ struct reprieve_thread_block *reprieve_thread_(void)
{
	return NULL;
}

REPRIEVE_INLINE_ struct reprieve_record *reprieve_record_(struct reprieve_thread_block *thread)
{
	(void)thread;
	return NULL;
}
#endif

REPRIEVE_INLINE_ uintptr_t *reprieve_slot_(struct reprieve_thread_block *thread)
{
	struct reprieve_record *record = reprieve_record_(thread);

	if (REPRIEVE_LIKELY_(record && __atomic_load_n(&record->slots[0], __ATOMIC_RELAXED) == 0))
		return &record->slots[0];
	return reprieve_slot_slow();
}

/*
 * uintptr_t reprieve_lookup(function, const void *argument, void *result)
 *
 * Returns function(argument, result), run in a restartable section, or in a plain one where that
 * does not work or after 16 restarts. function: the name of a REPRIEVE_RESTARTABLE function of this
 * program or shared object (static or hidden), uintptr_t f(const void *, void *). Allowed in signal
 * handlers, and from constructors of priority 102 and higher of the same program or shared object
 * on: before its constructor of priority 101 a lookup would not restart.
 */
#define reprieve_lookup(function, argument, result)                                              \
	__extension__({                                                                          \
		const void *reprieve_argument_ = (argument);                                     \
		void *reprieve_result_ = (result);                                               \
		struct reprieve_thread_block *const reprieve_thread_found_ = reprieve_thread_(); \
		uintptr_t reprieve_value_;                                                       \
		(void)reprieve_thread_found_;                                                    \
		REPRIEVE_ATTEMPTS_(REPRIEVE_ATTEMPT_LOOKUP_, function, reprieve_result_,         \
				   reprieve_value_ =                                             \
					   function(reprieve_argument_, reprieve_result_));      \
		reprieve_value_;                                                                 \
	})

/*
 * const void *reprieve_protect(function, const void *argument, struct reprieve_protected *held)
 *
 * Returns the node that function(argument) finds, const void *f(const void *), or null. The node
 * stays alive until reprieve_release(held), which this thread calls unless it got null; grace
 * periods do not wait for that. Such nodes are freed with reprieve_retire only.
 */
#define reprieve_protect(function, argument, held)                                               \
	__extension__({                                                                          \
		const void *reprieve_argument_ = (argument);                                     \
		struct reprieve_protected *reprieve_held_ = (held);                              \
		struct reprieve_thread_block *const reprieve_thread_found_ = reprieve_thread_(); \
		uintptr_t *const reprieve_slot_found_ = reprieve_slot_(reprieve_thread_found_);  \
		uintptr_t reprieve_value_;                                                       \
		/* In a plain section the slot is filled before the section ends, too. */        \
		REPRIEVE_ATTEMPTS_(REPRIEVE_ATTEMPT_PROTECT_, function, reprieve_slot_found_,    \
				   (reprieve_value_ = (uintptr_t)function(reprieve_argument_),   \
				    __atomic_store_n(reprieve_slot_found_, reprieve_value_,      \
						     __ATOMIC_RELEASE)));                        \
		reprieve_held_->node = (const void *)reprieve_value_;                            \
		reprieve_held_->slot = reprieve_slot_found_;                                     \
		reprieve_held_->node;                                                            \
	})

/*
 * Lets the node go. Not after the last round of the thread's destructors for keys, which ends its
 * protections: the slot may be another thread's then, and mostly has another node.
 */
REPRIEVE_INLINE_ void reprieve_release(struct reprieve_protected *held)
{
	REPRIEVE_RELEASES_();
	if (__atomic_load_n(held->slot, __ATOMIC_RELAXED) == (uintptr_t)held->node)
		__atomic_store_n(held->slot, (uintptr_t)0, __ATOMIC_RELEASE);
	held->node = NULL;
}

#endif
