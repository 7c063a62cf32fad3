/* SPDX-License-Identifier: GPL-2.0 */
/*
 * sched_ext as the scheduler uses it, of Linux 7.1 and newer. All differences
 * between kernels are here.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define SCX_DSQ_LOCAL ((1ULL << 63) | 2)
#define SCX_DSQ_LOCAL_ON (3ULL << 62) /* plus the CPU */
#define SCX_DSQ_GLOBAL ((1ULL << 63) | 1)
#define SCX_WAKE_SYNC 0x10ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_DEQ_SLEEP 1ULL
#define SCX_DSQ_ITER_REV (1ULL << 16)
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1
#define SCX_OPS_KEEP_BUILTIN_IDLE 1
/* The kernel schedules all threads but those of the policy SCHED_EXT. */
#define SCX_OPS_SWITCH_PARTIAL 8

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	const char *reason;
	char *msg;
};

struct scx_init_task_args;
struct scx_exit_task_args;

#pragma clang attribute pop

/* libbpf matches the members by name with the kernel's. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dequeue)(struct task_struct *p, u64 deq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*tick)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, _Bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	_Bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*update_idle)(s32 cpu, _Bool idle);
	s32 (*init_task)(struct task_struct *p,
			 struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p,
			  struct scx_exit_task_args *args);
	void (*disable)(struct task_struct *p);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *ei);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

struct bpf_iter_num {
	u64 __opaque[1];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

/* Makes the compiler describe the type, which it would only declare. */
const struct cpumask cpumask_layout = {};

extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu,
				  u64 wake_flags, _Bool *is_idle) __ksym;
extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed,
				 u64 flags) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id,
				u64 flags) __ksym;
extern struct task_struct *
bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
/* The first of the queue, which may leave it any moment. */
extern struct task_struct *scx_bpf_dsq_peek(u64 dsq_id) __ksym;
extern _Bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;
extern u32 bpf_cpumask_any_distribute(const struct cpumask *mask) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice,
			       u64 enq_flags) __ksym;
extern _Bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;
extern _Bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it,
			      struct task_struct *p, u64 dsq_id,
			      u64 enq_flags) __ksym;
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it,
				       u64 slice) __ksym;
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};
extern _Bool __scx_bpf_dsq_insert_vtime(
	struct task_struct *p,
	struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
extern _Bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym;
/* From everywhere, since Linux 7.1. */
extern void scx_bpf_dsq_reenq(u64 dsq_id, u64 flags) __ksym;

/* Whether the thread may run on the CPU, and one where it may. */
static __always_inline _Bool kernel_allows(struct task_struct *p, u32 cpu)
{
	_Bool allows;

	bpf_rcu_read_lock();
	allows = bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
	bpf_rcu_read_unlock();
	return allows;
}

static __always_inline u32 kernel_any_cpu(struct task_struct *p)
{
	u32 cpu;

	bpf_rcu_read_lock();
	cpu = bpf_cpumask_any_distribute(p->cpus_ptr);
	bpf_rcu_read_unlock();
	return cpu;
}
