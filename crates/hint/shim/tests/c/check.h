/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Code that the tests' programs share. */
#pragma once
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(condition)                                                   \
	do {                                                               \
		if (!(condition)) {                                        \
			fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
			exit(1);                                           \
		}                                                          \
	} while (0)

static inline void filter_calls(const int *calls, int count, unsigned these, unsigned others)
{
	struct sock_filter lines[32] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
	struct sock_fprog filter = {.filter = lines};
	int n = 1;

	for (int i = 0; i < count; i++) {
		lines[n++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
		lines[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, these);
	}
	lines[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
	filter.len = n;
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter));
}

/* From here on the kernel ends the process at any other system call of any of its threads. */
static inline void allow_only(const int *calls, int count)
{
	filter_calls(calls, count, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
}

/* The same at that call. */
static inline void forbid(int call)
{
	filter_calls(&call, 1, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
}
