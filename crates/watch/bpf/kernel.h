/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the programs know of the host's kernel: the few fields that they read,
 * whose offsets libbpf takes from the running kernel's BTF, and constants of
 * the kernel's stable interface.
 */
#ifndef REPRIEVE_KERNEL_H
#define REPRIEVE_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

/* Names that libbpf's headers expect. */
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef s32 __s32;
typedef u64 __u64;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_RB_NO_WAKEUP = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

/* With CONFIG_SCHED_INFO. */
struct sched_info {
	unsigned long long last_arrival;
};

struct cpumask {
	unsigned long bits[1];
};

/* With CONFIG_SCHED_CLASS_EXT. */
struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
};

struct rq {
	unsigned int nr_running;
	int cpu;
};

struct cfs_rq {
	struct rq *rq;
	/* Throttles of its cgroup and those above: CONFIG_CFS_BANDWIDTH. */
	int throttle_count;
};

/* With CONFIG_FAIR_GROUP_SCHED. */
struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct cred {
	struct {
		u32 val;
	} uid;
};

struct task_struct {
	const struct cred *cred;
	s32 pid;
	s32 tgid;
	u32 flags;
	s32 nr_cpus_allowed;
	unsigned short migration_disabled; /* With CONFIG_SMP. */
	const struct cpumask *cpus_ptr;
	struct cpumask cpus_mask;
	struct sched_entity se;
	struct sched_ext_entity scx;
	struct sched_info sched_info;
	char comm[16];
	/* With CONFIG_PREEMPT_NOTIFIERS, which KVM selects. */
	struct hlist_head preempt_notifiers;
};

/* The registers of a thread when it entered the kernel (x86-64). */
struct pt_regs {
	unsigned long bp;
};

struct preempt_notifier {
	struct hlist_node link;
};

/* Until Linux 7.1. */
struct kvm_vcpu_arch {
	unsigned long regs[17];
	u32 regs_avail;
	_Bool preempted_in_kernel;
};

struct upid {
	s32 nr;
};

struct pid {
	struct upid numbers[1];
};

struct kvm_vcpu {
	struct preempt_notifier preempt_notifier;
	struct pid *pid;
	struct kvm_vcpu_arch arch;
};

/* Since then. (libbpf ignores what follows three underscores.) */
struct kvm_vcpu_arch___rip {
	unsigned long rip;
	unsigned long regs_avail[1];
};

struct kvm_vcpu___rip {
	struct kvm_vcpu_arch___rip arch;
};

/* A guest's timer, which ticks. */
struct kvm_timer {
	u32 timer_mode; /* what matters is where the structure lies */
};

struct kvm_lapic {
	struct kvm_timer lapic_timer;
	struct kvm_vcpu *vcpu;
};

/* AMD's state save area, where the processor leaves a guest's registers. */
struct vmcb_save_area {
	u8 cpl;
	u64 rflags;
	u64 rip;
};

struct vmcb {
	struct vmcb_save_area save;
};

struct vcpu_svm {
	struct kvm_vcpu vcpu;
	struct vmcb *vmcb;
};

#pragma clang attribute pop

#endif
