/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the eBPF program and user space share: two arrays that both map, one
 * entry per vCPU and one per VM, and the events.
 *
 * User space writes the first part of each entry, the program the rest.
 * Addresses are addresses in the VMM's process unless the comment says guest.
 *
 * Rust gets all of this from here: structures and enums through the programs'
 * BTF (libbpf-cargo), the constants through build.rs.
 */
#ifndef REPRIEVE_WATCH_H
#define REPRIEVE_WATCH_H

#include "kernel.h"

#define MAX_VMS 1024
#define MAX_VCPUS 8192
#define MAX_PAIRS 4096
#define MAX_SEGMENTS 16
#define MAX_SPINS 16
#define BUCKETS 28
#define CANDIDATES 8
#define COMM_LEN 16
/* In place of a gp_seq, whose two lower bits are never both set. */
#define NO_SEQ (~0ULL)
/* In place of a PID. */
#define NO_PID -1
#define FILTER_BITS 65536
/* Histogram of a program's own run time (cost_steps.h): number of steps, and
 * into how many, as a power of two, each power of two of ns is divided. */
#define COST_STEPS 240
#define COST_STEP_BITS 3

/* The work of a vCPU when it was preempted. */
enum class {
	CLASS_USER,
	CLASS_KERNEL,
	CLASS_READER,
	CLASS_NO_PREEMPT,
	CLASS_SPINNING,
	CLASS_IRQS_OFF,
	CLASS_SOFTIRQ,
	CLASS_HARDIRQ,
	CLASS_IDLE,
	CLASS_UNKNOWN,
	CLASSES,
};

enum doing {
	DOING_UNSEEN,
	DOING_RUNNING,
	DOING_PREEMPTED,
	DOING_BLOCKED,
};

/* Where a vCPU's registers are while it is off its CPU. */
enum registers {
	REGISTERS_NONE,
	/* In the VMM: QEMU's CPUX86State. */
	REGISTERS_QEMU,
	/* In the VMM, but not found yet: gather candidates. */
	REGISTERS_QEMU_SEARCH,
	/* In KVM. */
	REGISTERS_KVM,
};

struct histogram {
	u64 counts[BUCKETS];
	u64 total_ns;
	u64 max_ns;
};

struct class_times {
	struct histogram off_cpu;
	u64 readers;
	u64 readers_off_cpu_ns;
};

/* Preempted vCPUs that held up late grace periods: see late.bpf.h. */
struct held {
	u64 graces; /* grace periods that were held up */
	u64 count; /* of preemptions */
	u64 total_ns;
	u64 max_ns;
};

struct vcpu {
	/* Written by user space. */
	u32 vm; /* index of the VM */
	u32 tgid; /* the VMM's process */
	enum registers registers;
	u32 index; /* the VMM's number of the vCPU */
	u64 preempt_count; /* address, or 0 */
	u64 current_task; /* address, or 0 */
	u64 env; /* address of the CPUX86State's eip */
	u64 qsmask; /* address in the guest's rcu_node, or 0 */
	u64 qsbit; /* the vCPU's there */
	u64 noticed; /* address of the gp_seq that the guest's CPU knows, or 0
		      */
	u32 tracks_user; /* user mode is quiescent there to the guest's RCU */
	u32 tid; /* its thread */

	/*
	 * Written by the program on the CPU where the vCPU's thread comes or
	 * goes, so never by two at once. While version is odd, what follows it
	 * is being changed.
	 */
	u64 version;
	u64 since;
	u64 task; /* the guest's current task: its address in the guest */
	u64 rip; /* 0 where unknown */
	u64 on_cpu_ns;
	enum doing doing;
	u32 cpu;
	enum class class;
	u32 reader;
	u32 announced; /* in a section that a program of the guest announced */
	u32 successor; /* the thread that took its CPU */
	u64 announced_count; /* of preemptions there that have ended */
	u64 announced_off_cpu_ns;
	struct class_times classes[CLASSES];
	struct histogram blocks;
	u64 kvm; /* the kernel's kvm_vcpu */
	u64 candidates[CANDIDATES];
	u32 next_candidate;
	u32 seen_coming; /* since is when it came, by the program's clock */
	u64 clock_offset; /* to that clock from the scheduler's; 0: unknown */
	u64 owed; /* number of the grace period that it owed when it was
		   * preempted, or NO_SEQ */
	u32 throttled; /* its cgroup had used up its quota (cpu.max) */
	u32 taker; /* the process that took its CPU, or 0 */
	u64 throttled_count; /* of such preemptions that have ended */
	u64 throttled_ns;
	struct histogram wakes; /* waits for a CPU after wake-ups */

	/* Written by the program on the CPU that wakes the vCPU's thread, under
	 * the lock of its run queue. Later than since: it waits for a CPU. */
	u64 woken;
};

/* How long preempted vCPUs of a VM waited for a process that took their CPU. */
struct pair {
	u32 vm; /* the VMM's process */
	u32 taker; /* the process */
};

struct taken_times {
	u64 count;
	u64 total_ns;
	char comm[COMM_LEN]; /* of the thread that was first to take one */
};

/* A range of guest RAM. */
struct segment {
	u64 physical; /* in the guest */
	u64 bytes;
	u64 host;
};

/* Code in which a CPU of the guest wants another one to run. */
enum spins_for {
	SPINS_NOT,
	SPINS_FOR_ANSWER, /* until the other has answered a call */
	SPINS_FOR_OWNER, /* while the owner of a mutex has a CPU */
	SPINS_NO_MORE, /* it wakes the one that has the spin lock now */
};

struct spin {
	u64 start; /* a kernel address */
	u32 bytes;
	enum spins_for why;
};

struct spins {
	u32 used;
	struct spin code[MAX_SPINS];
};

struct vm {
	/* Written by user space while ready is 0. */
	u32 ready;
	u32 segments_used;
	u64 gp_seq; /* address, or 0 */
	u64 direct_map; /* in the guest: where all RAM is mapped */
	u64 image; /* in the guest: where the kernel's image is mapped */
	u64 image_bytes;
	u64 image_physical;
	u32 task_pid; /* offsets in the guest's task_struct */
	u32 task_comm;
	u32 task_nesting; /* 0: its readers leave no trace */
	/* Masks of the guest's preempt_count. */
	u32 hardirq; /* with NMIs */
	u32 softirq_serving;
	u32 no_preempt;
	u32 irqs_off; /* 0 in kernels that do not count it */
	u32 task_bytes; /* of a task_struct, as far as it is read */
	struct segment segments[MAX_SEGMENTS];
	struct spins spins;
	/* Address of the region where programs of the guest announce their
	 * sections (crates/hint/include/reprieve/hint_region.h), or 0. Changed
	 * at any time. */
	u64 region;

	/* Written by the program, from any CPU. */
	u64 seq; /* the last gp_seq that was seen, or NO_SEQ */
	u64 began; /* when the grace period of began_seq was seen to begin */
	u64 began_seq;
	struct histogram graces;
	u64 unseen;
	u64 held_seq; /* number of the last one in held, or NO_SEQ */
	struct held held;
};

enum event_kind {
	EVENT_ON,
	EVENT_PREEMPTED,
	EVENT_BLOCKED,
	EVENT_GRACE_BEGAN,
	EVENT_GRACE_ENDED,
};

struct event {
	u64 time;
	u64 seq; /* grace periods only */
	u64 rip;
	enum event_kind kind;
	u32 tgid;
	u32 vcpu; /* its number; not for grace periods */
	u32 cpu;
	s32 pid; /* of the guest's task, or -1 */
	u8 class; /* enum class; CLASSES: it was not preempted before */
	u8 reader;
	u8 pad[2];
	char comm[COMM_LEN];
};

struct cost {
	u64 runs;
	u64 total_ns;
	u64 steps[COST_STEPS];
};

#endif
