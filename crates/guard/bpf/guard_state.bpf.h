/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What guard knows of threads, VMs and CPUs, and where it is kept.
 *
 * Invariant: a CPU's entry is written on that CPU or under its runqueue's lock,
 * but for `wanted`, which any CPU may set. A group is written under its lock,
 * but for `borrowed`, which is changed atomically.
 */
#pragma once

#define QUEUE_CPU 0x2000ULL /* plus the CPU: by virtual time */

/* Why a thread runs: 0 in its turn, else out of turn. */
#define WHY_TURN 0
#define WHY_RESCUED 1 /* it holds up a grace period */
#define WHY_YIELDED 2 /* another vCPU of its VM waits for it */

enum {
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

struct bpf_spin_lock {
	u32 val;
};

const volatile struct settings settings;

/* Timers end turns. Where a timer fails, the kernel ends the turn. */
#define SLICE_FOR_KERNEL (8 * SLICE_NS)

/* Timers run while this is set. */
u64 active;
/* Changes whenever threads of vCPUs come or go. */
u64 generation;
/* A bit per VM of which a vCPU owes: the guest's grace period waits for it. */
u64 pending[MAX_VMS / 64];
/* How many such VMs there are. */
static u64 owing;
/* The policy's clock: the virtual time of the queue that is furthest. */
static u64 virtual_now;
/* The weight of all VMs that are runnable. */
static u64 all_weight;
/* When a thread last joined a queue while no CPU was idle. */
static u64 last_came;

struct group {
	struct bpf_spin_lock lock;
	u32 pad;
	struct policy_group group;
	struct policy_budget budget;
	u64 load; /* its part of all_weight */
};

/* All threads of SCHED_EXT that are no vCPUs have one group of the normal
 * weight: any user may give their threads that policy. */
#define GROUP_STRAYS MAX_VMS

/* A thread's turn, or run out of turn. While it waits: the last one. */
struct turn {
	u64 used; /* run time of it before another class took its CPU */
	u64 length; /* if it is interrupted: how long it may last in all */
	u64 borrowed; /* what it ran out of turn since its last turn */
	u32 why;
};

/* A thread's wait for a CPU. */
struct wait {
	u64 since; /* 0: it does not wait */
	u32 queued; /* it is in the queue of a CPU */
	u32 woken; /* it slept before */
	u32 ticked; /* its guest's timer expired meanwhile */
};

struct task {
	struct policy_thread thread;
	u64 extended; /* since when its slice is extended, or 0 */
	struct turn turn;
	struct wait wait;
	struct {
		u64 since; /* since when each look found it spinning, or 0 */
		u32 awaits; /* the thread of its VM that gets its CPU, or 0 */
	} spin;
	struct {
		u64 at; /* when it last left its CPU */
		u64 noticed; /* the gp_seq that its guest's CPU knew then */
	} left;
	u64 generation; /* the `generation` for which slot and vm were found */
	u32 slot; /* index in vcpus, plus 1; 0: no vCPU */
	u32 vm;
	u32 counted; /* index in groups, plus 1, of the group that counts it */
	u32 cpu; /* in whose queue it waits, or where it runs */
	u32 class; /* its enum class when the extension began */
};

/* When a CPU's timer expires next, and when the CPU looks again. */
struct looks {
	u64 next;
	u64 elsewhere; /* at other CPUs' queues */
	u64 overdue; /* for threads that wait too long */
	/* Threads in its local queue are enqueued again then, unless one has
	 * run. 0: none was seen. */
	u64 local;
};

/* The thread that a CPU runs. */
struct runs {
	u32 pid;
	u32 vm; /* of a vCPU, plus 1; 0: it is none, or none runs */
	u32 yields; /* it gives up its CPU */
	u32 extends; /* it is in an extension */
};

/* The state of a CPU. */
struct cpu {
	u64 vtime; /* of its queue: the largest of threads that began a turn */
	u64 since; /* when the thread here got the CPU or another turn; 0: none
		    * runs */
	u64 slice; /* how long it may run from then on */
	u32 why; /* why it runs, or the last one did; WHY_TURN if idle */
	struct runs runs;
	struct looks looks;
	u64 wanted; /* the thread to run next out of turn, and why in the upper
		     * half; or 0 */
	u32 idle;
	u32 chosen; /* dispatch() chose another thread than the one that runs */
};

/* Have the layouts in the program's BTF, and so in Rust. */
const struct guest *guest_layout;
const struct group *group_layout;

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS + 1);
	__type(key, u32);
	__type(value, struct group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct guest);
} guests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* The weight that competes for one CPU. Not inlined: the verifier looks at more
 * where it sees where the number comes from. */
__noinline u64 per_cpu(void)
{
	u64 all = all_weight;

	/* Another CPU may have brought the sum below 0 for a moment. */
	if ((s64)all < 0)
		all = 0;
	return all / (settings.online ? settings.online : 1);
}

static __always_inline struct task *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

static __always_inline struct cpu *cpu_of(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct group *group_of(const struct task *task)
{
	u32 group = task->slot ? task->vm : GROUP_STRAYS;

	return bpf_map_lookup_elem(&groups, &group);
}

static __always_inline struct guest *guest_of(const struct task *task)
{
	u32 vm = task->vm;

	return task->slot ? bpf_map_lookup_elem(&guests, &vm) : 0;
}

static __always_inline struct vcpu *vcpu_of(const struct task *task)
{
	u32 index = task->slot - 1;

	return task->slot ? bpf_map_lookup_elem(&vcpus, &index) : 0;
}

/* Whether the thread is a vCPU of a VM with the policy full. */
static __always_inline _Bool has_full(const struct task *task)
{
	struct guest *guest = guest_of(task);

	return guest && guest->full;
}

/* The virtual time of the queue where the thread competes. */
static __always_inline u64 queue_vtime(const struct task *task)
{
	struct cpu *cpu = cpu_of(task->cpu);

	return cpu ? cpu->vtime : 0;
}

/* The weight of one of a VM's vCPUs, for those who read it without the lock. */
static __always_inline u64 weight(const struct task *task)
{
	struct group *group = group_of(task);

	return group ? policy_weight(&group->group) : POLICY_WEIGHT;
}

static __always_inline void want(struct cpu *cpu, u32 tid, u32 why)
{
	cpu->wanted = (u64)why << 32 | tid;
}

/* Many CPUs add to a counter. Of two that write max_ns, one may be lost. */
static __always_inline void add(u64 *counter, u64 value)
{
	__sync_fetch_and_add(counter, value);
}

static __always_inline void grant(struct granted *granted, u64 ns)
{
	add(&granted->total_ns, ns);
	if (ns > granted->max_ns)
		granted->max_ns = ns;
}

/* Whether a thread waits for the CPU: in its local queue, where another class
 * preempted it; in its own queue; or in any, if it is wanted. Not inlined: the
 * verifier would follow each place where it is asked. */
__noinline int waits(u32 where)
{
	struct cpu *cpu = cpu_of(where);

	return scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | where) > 0 ||
	       scx_bpf_dsq_nr_queued(QUEUE_CPU + where) > 0 ||
	       (cpu && cpu->wanted);
}
