/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A wait in which pthread_cancel ends a thread, as in the C library's own: cancellation is
 * asynchronous during the system call. In C for pthread_cleanup_push, which returns twice. Built
 * without exceptions, so that it takes the form that works at any instruction.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>

/* The system call's result. cancelled(of) runs in a thread that ends here. */
long reprieve_locks_wait(const void *word, int op, unsigned expected, const struct timespec *end,
			 void (*cancelled)(void *), void *of)
{
	int type;
	long result;

	pthread_cleanup_push(cancelled, of);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
#ifdef __x86_64__
	register const struct timespec *limit __asm__("r10") = end;
	register void *second __asm__("r8") = NULL;
	register unsigned long bits __asm__("r9") = 0xffffffff;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"((long)SYS_futex), "D"(word), "S"((long)op), "d"(expected),
			   "r"(limit), "r"(second), "r"(bits)
			 : "rcx", "r11", "memory");
#else
	(void)word, (void)op, (void)expected, (void)end;
	result = 0;
#endif
	pthread_setcanceltype(type, NULL);
	pthread_cleanup_pop(0);
	return result;
}
