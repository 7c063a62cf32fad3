/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the scheduler and user space share, beside watch's arrays of VMs and
 * vCPUs (watch.h), whose indexes it uses: an array of what it needs to know of
 * each guest's RCU and what it did for the VM, and one of the threads of vCPUs.
 */
#ifndef REPRIEVE_GUARD_H
#define REPRIEVE_GUARD_H

/* How long a vCPU runs before the next one's turn. */
#define SLICE_NS 3000000
/* The longest time by which a slice is extended. */
#define MAX_EXTEND_NS 1000000
/* The age from which on a grace period is late: vCPUs that hold it up are
 * rescued. */
#define LATE_NS 3000000

#include "watch.h"
#include "guard_policy.h"

#define MAX_LEAVES 8
#define MAX_SPINS 16
#define MAX_GUEST_CPUS 128
#define MAX_CPUS 1024
#define MESSAGE_LEN 128

/* A leaf of the guest's rcu_node tree. */
struct leaf {
	u64 qsmask; /* address */
	u64 gp_tasks; /* address, or 0 */
	u32 first_cpu;
	u32 cpus;
};

/* Code in which a CPU of the guest spins for another one: until that has
 * answered a call, or while the owner of a mutex has a CPU. */
struct spin {
	u64 start; /* a kernel address */
	u32 bytes;
	u32 for_owner;
};

struct spins {
	u32 used;
	struct spin code[MAX_SPINS];
};

/* Where the guest keeps its RCU's state. */
struct rcu {
	u32 leaves_used;
	u32 node_entry; /* offsets in the guest's task_struct */
	u32 task_cpu;
	u64 kthread_task; /* addresses, or 0 */
	u64 kthread_cpu;
	u64 kthread_on_rq;
	u64 kthread_state;
	u64 fqs_due;
	u64 jiffies;
	struct leaf leaves[MAX_LEAVES];
	u32 slots[MAX_GUEST_CPUS]; /* index in vcpus, plus 1, by guest CPU */
};

/* The guest's grace period, by the last look. */
struct grace {
	u64 seq; /* 0: there is none */
	u64 since;
	u64 looked;
	u64 owes[MAX_LEAVES]; /* who holds it up */
	u32 kthread; /* index in vcpus, plus 1, of the one where RCU's kthread
		      * is ready to run; 0: it is not, or not known */
};

struct granted {
	u64 count;
	u64 total_ns;
	u64 max_ns;
	u64 refused;
};

/* Counts of what guard did for the VM. */
struct did {
	u64 on_cpu_ns;
	u64 avoided[CLASSES + 1]; /* the last: CLASS_ANNOUNCED */
	struct granted extended;
	struct granted rescued;
	struct granted yielded;
	u64 gave_way; /* turns that ended for the one that it spun for */
};

/* The scheduler writes grace and did, from any CPU. User space writes the
 * rest, and grace and what is about RCU only while ready is 0. */
struct guest {
	u32 ready;
	u32 weight;
	u32 full; /* 0: its policy is plain */
	struct spins spins;
	struct rcu rcu;
	struct grace grace;
	struct did did;
};

/* No class of preemptions, but of extensions: the vCPU was in no critical
 * section of its kernel, but in one that a program of the guest announced. */
enum { CLASS_ANNOUNCED = CLASSES };

/* Set before loading. */
struct settings {
	u64 max_hold; /* --max-hold */
	u64 cpus; /* also those that are off */
	u64 online;
};

#endif
