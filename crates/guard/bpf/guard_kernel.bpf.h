/* SPDX-License-Identifier: GPL-2.0 */
/*
 * sched_ext as the scheduler uses it. All differences between kernels are here:
 * what was renamed is looked up under both names, by BTF, when the program is
 * loaded.
 */
#ifndef REPRIEVE_GUARD_KERNEL_BPF_H
#define REPRIEVE_GUARD_KERNEL_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#ifndef __weak
#define __weak __attribute__((weak))
#endif

#define SCX_DSQ_LOCAL ((1ULL << 63) | 2)
#define SCX_DSQ_LOCAL_ON (3ULL << 62) /* plus the CPU */
#define SCX_DSQ_GLOBAL ((1ULL << 63) | 1)
#define PF_EXITING 4
#define SCX_WAKE_SYNC 0x10ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_DEQ_SLEEP 1ULL
#define SCX_DSQ_ITER_REV (1ULL << 16)
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1
#define SCX_OPS_KEEP_BUILTIN_IDLE 1
#define SCX_OPS_ENQ_EXITING 4
#define SCX_OPS_SWITCH_PARTIAL 8

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};

struct kuid {
	u32 val;
};

struct kernfs_iattrs {
	struct kuid ia_uid;
};

struct kernfs_node {
	u64 id;
	struct kernfs_iattrs *iattr;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
	u64 serial_nr;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	s32 level;
	struct cgroup *ancestors[1];
};

/* What a cgroup is to the controller `cpu`, with CONFIG_CGROUP_SCHED. */
struct task_group {
	struct cgroup_subsys_state css;
	struct task_group *parent;
	unsigned long shares;
};

struct task_struct___grouped {
	struct task_group *sched_task_group;
};

struct scx_cgroup_init_args {
	u64 bw_period_us;
	u64 bw_quota_us;
	u64 bw_burst_us;
};

struct scx_init_task_args {
	_Bool fork;
};
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
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *mask);
	void (*update_idle)(s32 cpu, _Bool idle);
	s32 (*init_task)(struct task_struct *p,
			 struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p,
			  struct scx_exit_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	/* With CONFIG_EXT_GROUP_SCHED, the last since Linux 6.17; user space
	 * clears them elsewhere. */
	s32 (*cgroup_init)(struct cgroup *cgroup,
			   struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgroup);
	void (*cgroup_set_bandwidth)(struct cgroup *cgroup, u64 period_us,
				     u64 quota_us, u64 burst_us);
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
extern _Bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id,
				u64 flags) __ksym;
extern struct task_struct *
bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern _Bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;
extern u32 bpf_cpumask_any_distribute(const struct cpumask *mask) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

/* Linux 6.13 renamed dispatch to insert, and consume and dispatch_from_dsq to
 * move. */
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice,
			       u64 enq_flags) __ksym __weak;
extern void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice,
			     u64 enq_flags) __ksym __weak;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id,
				     u64 slice, u64 vtime,
				     u64 enq_flags) __ksym __weak;
extern void scx_bpf_dispatch_vtime(struct task_struct *p, u64 dsq_id, u64 slice,
				   u64 vtime, u64 enq_flags) __ksym __weak;
extern _Bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym __weak;
extern _Bool scx_bpf_consume(u64 dsq_id) __ksym __weak;
extern _Bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it,
			      struct task_struct *p, u64 dsq_id,
			      u64 enq_flags) __ksym __weak;
extern _Bool scx_bpf_dispatch_from_dsq(struct bpf_iter_scx_dsq *it,
				       struct task_struct *p, u64 dsq_id,
				       u64 enq_flags) __ksym __weak;
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it,
				       u64 slice) __ksym __weak;
extern void scx_bpf_dispatch_from_dsq_set_slice(struct bpf_iter_scx_dsq *it,
						u64 slice) __ksym __weak;
/* The same to queues that are ordered by virtual time, since Linux 6.13. */
extern _Bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it,
				    struct task_struct *p, u64 dsq_id,
				    u64 enq_flags) __ksym __weak;
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it,
				       u64 vtime) __ksym __weak;
/* From Linux 6.19 on with its arguments in a structure. */
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};
extern _Bool __scx_bpf_dsq_insert_vtime(
	struct task_struct *p,
	struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
/* Since Linux 6.18; before, the field was written. */
extern _Bool scx_bpf_task_set_slice(struct task_struct *p,
				    u64 slice) __ksym __weak;
/* Since Linux 7.1 from everywhere. */
extern void scx_bpf_dsq_reenq(u64 dsq_id, u64 flags) __ksym __weak;

static __always_inline void kernel_insert(struct task_struct *p, u64 queue,
					  u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, queue, slice, flags);
	else
		scx_bpf_dispatch(p, queue, slice, flags);
}

static __always_inline void kernel_insert_vtime(struct task_struct *p,
						u64 queue, u64 slice, u64 vtime,
						u64 flags)
{
	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = queue,
			.slice = slice,
			.vtime = vtime,
			.enq_flags = flags,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime)) {
		scx_bpf_dsq_insert_vtime(p, queue, slice, vtime, flags);
	} else {
		scx_bpf_dispatch_vtime(p, queue, slice, vtime, flags);
	}
}

static __always_inline _Bool kernel_take(u64 queue)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local))
		return scx_bpf_dsq_move_to_local(queue);
	return scx_bpf_consume(queue);
}

static __always_inline _Bool kernel_move(struct bpf_iter_scx_dsq *it,
					 struct task_struct *p, u64 queue,
					 u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move)) {
		scx_bpf_dsq_move_set_slice(it, slice);
		return scx_bpf_dsq_move(it, p, queue, 0);
	}
	scx_bpf_dispatch_from_dsq_set_slice(it, slice);
	return scx_bpf_dispatch_from_dsq(it, p, queue, 0);
}

static __always_inline _Bool kernel_move_vtime(struct bpf_iter_scx_dsq *it,
					       struct task_struct *p, u64 queue,
					       u64 slice, u64 vtime)
{
	if (!bpf_ksym_exists(scx_bpf_dsq_move_vtime))
		return 0;
	scx_bpf_dsq_move_set_slice(it, slice);
	scx_bpf_dsq_move_set_vtime(it, vtime);
	return scx_bpf_dsq_move_vtime(it, p, queue, 0);
}

/* Whether the thread may not migrate now: it lost its CPU inside a seccomp
 * filter, for example. Up to Linux 6.18, cpus_ptr says so a moment after it is
 * enqueued. Such a thread is enqueued before Linux 6.14 too, and later where
 * the scheduler asks for it. (Of the current thread a count of one may be its
 * own, since Linux 6.18 without CONFIG_PREEMPT_RCU: then an idle CPU is woken
 * in vain.) */
static __always_inline _Bool kernel_pins(struct task_struct *p)
{
	u32 disabled = 0;

	if (bpf_core_field_exists(p->migration_disabled))
		disabled = p->migration_disabled;
	/* The kernel disables it for whoever runs this program. */
	return disabled > 1 || (disabled && p != bpf_get_current_task_btf());
}

/* Whether the thread may run on the CPU. Within an RCU reader. */
static __always_inline _Bool kernel_admits(struct task_struct *p, u32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       (!kernel_pins(p) || scx_bpf_task_cpu(p) == (s32)cpu);
}

/* An idle CPU where it may run, which is busy from now on; or negative. */
static __always_inline s32 kernel_claim_idle(struct task_struct *p)
{
	s32 cpu;

	if (!kernel_pins(p))
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	cpu = scx_bpf_task_cpu(p);
	return scx_bpf_test_and_clear_cpu_idle(cpu) ? cpu : -1;
}

/*
 * Whether the thread may run on the CPU, and one where it may. A timer's
 * function never sleeps, but kernels before 7.0 take it for a part of the
 * program that started it, which may: what it calls locks for itself.
 */
static __always_inline _Bool kernel_allows(struct task_struct *p, u32 cpu)
{
	_Bool allows;

	bpf_rcu_read_lock();
	allows = kernel_admits(p, cpu);
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

static __always_inline void kernel_set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

/* Whether the kernel can enqueue the threads in a CPU's local queue again. */
static __always_inline _Bool kernel_enqueues_local(void)
{
	return bpf_ksym_exists(scx_bpf_dsq_reenq);
}

/* Has it do so for this CPU, soon. */
static __always_inline void kernel_enqueue_local(void)
{
	if (bpf_ksym_exists(scx_bpf_dsq_reenq))
		scx_bpf_dsq_reenq(SCX_DSQ_LOCAL, 0);
}

#endif
