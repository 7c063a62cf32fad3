/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the scheduler and user space share beside watch's arrays of VMs and
 * vCPUs (watch.h). `guests` has the index of a VM: what the scheduler needs to
 * know of the guest's RCU, and what it did for the VM.
 */
#pragma once

/* How long a turn lasts where few compete for a CPU. */
#define SLICE_NS 3000000
/* How long an extension of a slice lasts at most. */
#define MAX_EXTEND_NS 1000000
/* The age from which on a grace period is late: guard rescues who holds it up.
 */
#define LATE_NS 3000000

#include "watch.h"
#include "guard_policy.h"

#define MAX_LEAVES 8
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

/* Where the guest keeps its RCU's state. Its kthread begins and ends grace
 * periods, and forces quiescent states when jiffies reaches fqs_due. */
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

/* The guest's grace period, as look_at_rcu() last read it. */
struct grace {
	u64 seq; /* its number; 0: none is in progress or about to begin */
	u64 since; /* when it began, or the kthread became ready for that */
	u64 looked;
	u64 owes[MAX_LEAVES]; /* who holds it up, by leaf */
	u32 kthread; /* where the kthread is ready to run, index in vcpus, plus
		      * 1; 0: nowhere, or not known */
};

struct granted {
	u64 count;
	u64 total_ns;
	u64 max_ns;
	u64 refused;
};

/* Counts of what guard did for the VM. */
struct did {
	u64 avoided[CLASSES + 1]; /* the last: CLASS_ANNOUNCED */
	struct granted extended;
	struct granted rescued;
	struct granted yielded;
	u64 gave_way; /* turns that ended for another vCPU that it spun for */
};

/* The scheduler writes grace and did, from any CPU. User space writes the rest,
 * but rcu and grace only while ready is 0. */
struct guest {
	u32 ready;
	u32 weight;
	u32 full; /* 0: its policy is plain */
	struct rcu rcu;
	struct grace grace;
	struct did did;
};

/* The class of an extension in a section that a program of the guest announced.
 * Preemptions have no such class. */
enum { CLASS_ANNOUNCED = CLASSES };

/* Set before loading. */
struct settings {
	u64 max_hold; /* --max-hold */
	u64 cpus; /* also those that are off */
	u64 online;
};
