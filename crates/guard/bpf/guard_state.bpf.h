/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What guard knows of threads, VMs and CPUs, and where it is kept.
 */
#pragma once

#define QUEUE_SHARED 0x1000ULL /* plus the domain */
#define QUEUE_RESCUE 0x1800ULL /* plus the domain */
#define QUEUE_CPU 0x2000ULL /* plus the CPU */
#define QUEUE_PARKED 0x3000ULL /* plus the limit whose budget is used up */

/* Why a thread has its turn. */
#define WHY_TURN 0
#define WHY_RESCUED 1 /* it holds up a grace period */
#define WHY_YIELDED 2 /* another vCPU of its VM waits for it */

enum {
	BPF_NOEXIST = 1,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

struct bpf_spin_lock {
	u32 val;
};

const volatile struct settings settings;
/* A domain is the CPUs that have a queue in common: those with the same
 * last-level cache, unless the user says otherwise. */
const volatile u16 domain_of_cpu[MAX_CPUS];
const volatile u16 cpus_of_domain[MAX_DOMAINS];
const volatile u64 cpus_in_domain[MAX_DOMAINS][MAX_CPUS / 64];

/* How many threads that ended are known. */
#define MAX_ANCESTORS 4096

/* Timers end turns. Where one fails, the kernel does. */
#define SLICE_FOR_KERNEL (8 * settings.slice)

/* Timers run while this is set. */
u64 active;
/* A timer has run since the scheduler was attached. (Not static: clang would
 * make it a byte, and its BTF invalid.) */
u32 timers_run;
/* Changes whenever threads of vCPUs come or go. */
u64 generation;
/* A bit per VM that has a vCPU that owes. */
u64 pending[MAX_VMS / 64];
/* How many such VMs there are. */
static u64 owing;
/* Have the layouts in the program's BTF, and so in Rust. */
const struct guest *guest_layout;

struct group {
	struct bpf_spin_lock lock;
	struct policy_group group;
	struct policy_budget budget;
	/* Virtual time up to which its entitlement is known, and when that was.
	 */
	u64 clock;
	u64 clocked;
	u64 load; /* its part of vm_load */
	u64 tops; /* and of vm_tops, if it is in no task group */
	u32 top; /* the outermost task group that it is in, 0: none */
	u32 counted; /* that in which it is counted, while it is runnable */
	u32 members; /* threads that are vCPUs of it */
	u32 pad;
};

/* Groups that are nested more deeply count as the one at this level. */
#define MAX_LEVELS 8

/* What a thread that runs has taken of a budget. */
struct taken {
	u64 ns;
	u64 budget; /* index in budgets, plus 1 */
};

struct task {
	struct policy_thread thread;
	struct policy_extension extension;
	struct policy_budget budget; /* of a thread that is no vCPU */
	u64 generation; /* of the membership below */
	u64 task_group; /* the address of its cgroup's, of that generation */
	u64 runnable; /* as the kernel says */
	u64 grouped; /* the key of that whose entry it has */
	u64 counts; /* its weight in a task group, as it is counted there, and
		     * in the upper half which */
	/* When it was charged last, what the integrals of the weights were in
	 * its task group and in those above, and that of vm_beside. */
	u64 sums[MAX_LEVELS];
	u64 beside_sum;
	u64 whole; /* of its task group, on the host: the last turn's mean */
	u64 limits_generation;
	u64 took; /* when it took what it runs on */
	u64 used; /* of its turn, before a higher class took its CPU */
	u64 length; /* of that turn */
	struct taken taken[MAX_NESTED_LIMITS];
	u32 limits[MAX_NESTED_LIMITS]; /* indexes in budgets */
	u32 limited; /* how many */
	u32 overdue; /* it runs without budget, for it waited too long */
	u64 left; /* when it last left its CPU */
	u64 waits; /* since when, in its queue or parked */
	u64 spins_since; /* it was found spinning at each look since, or 0 */
	u64 borrowed; /* what it ran out of turn since its last turn */
	u64 inherited; /* run time of threads that it started, and that ended */
	u64 noticed; /* the gp_seq that its guest's CPU knew when it left */
	struct policy_ticks ticks;
	u64 two_at; /* when it should run, to have two ticks, or 0 */
	u64 later; /* when it is to be rescued, 0: now; while that is asked */
	u32 need; /* what for, then: enum policy_need */
	u64 gave_at; /* when its rescue ended for the one that it spun for */
	u64 section_task; /* the guest's task at the start of the extension */
	u32 slot; /* index in vcpus, plus 1; 0: no vCPU */
	u32 vm;
	u32 counted; /* among the runnable vCPUs of this VM, plus 1 */
	u32 parked; /* it waits for budget, and is not counted */
	u32 own; /* its weight by its niceness, if it is no vCPU */
	u32 taskgroup; /* index in taskgroups, plus 1 */
	u32 queue; /* 0: its domain's, else the CPU plus 1 */
	u32 home; /* it ran on this CPU, plus 1, while it was bound to it */
	u32 domain;
	u32 queued;
	u32 why;
	u32 ticked; /* its guest's tick was due while it waited */
	u32 early; /* it was taken before the first of its queue */
	u32 class; /* at the start of the extension; of no vCPU: its hint */
	u32 quiescing; /* what kind of extension it is */
	u32 awaits; /* it spins, and this thread of its VM waits for a CPU */
	u32 parent; /* the thread that started it, 0: before guard */
	u32 unplaced; /* its virtual time counts from its queue's */
	u32 masked; /* its CPUs may have changed */
	u32 left_class; /* and so it is unplaced */
	u32 fresh; /* it was started, and came to no queue yet */
	u32 stops; /* it left its CPU, and its queue if it had one */
	u32 changes; /* only since its mask or its priority changes */
	u64 mask; /* the key of its CPUs, 0: all of its queue's, or one */
	u64 moved; /* as policy_mask's when it was moved last */
	u64 mask_since; /* the mask of which that is */
};

/* Where a CPU looks for threads that wait too long: in the queue of its domain,
 * in its own, and in one of another domain. */
enum looks_for { LOOKS_SHARED, LOOKS_BOUND, LOOKS_ELSEWHERE, LOOKS_FOR };

/* What a CPU does. Written there, also read elsewhere. */
struct cpu {
	struct policy_thread thread; /* a copy, of whom it runs */
	struct policy_kinds kinds;
	struct policy_queue queue;
	u64 turn; /* since when it runs, 0: nobody */
	u64 slice; /* how long it may */
	u64 look; /* when its timer looks next */
	u64 due; /* when it has to look for a rescue, 0: not at a set time */
	u64 served; /* up to when who runs is in kinds */
	/* Virtual time of the last that is not bound to it, and when it began.
	 */
	u64 started;
	u64 started_at;
	u64 elsewhere; /* when it looks at other domains again */
	u64 apart; /* those in its domain's queue may not run here, until then
		    */
	u64 competes; /* as survey() says */
	u64 surveyed; /* when it looks at that again */
	u64 survey_sum; /* meanwhile */
	u64 survey_looked;
	u64 overdue[LOOKS_FOR]; /* when it looks there again */
	u32 pid;
	u32 slot;
	u32 why; /* also of the last, while nobody runs */
	u32 yields; /* who runs gives up its CPU */
	u32 limited; /* who runs has a budget: the slice */
	u32 kind; /* of who runs: 1 if it comes from this CPU's queue */
	u32 extends; /* who runs is in an extension */
	u32 watched; /* what who runs does may end its turn */
	u32 idle;
	u64 wanted; /* a thread to run next, and why in the upper half */
	u32 woken; /* a thread that was woken, and may run out of its turn */
	u32 chosen; /* another is chosen than who runs */
	u32 overdue_domain; /* the other domain that it looked at last */
	u32 pad;
	u64 brought; /* when the next look was, before a higher class came. 0:
		      * as it is */
	u64 enqueues; /* when threads that only this CPU could run are enqueued
		       * again, unless one has run. 0: none were seen */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
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

/* Threads of vCPUs: index in vcpus, plus 1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VCPUS);
	__type(key, u32);
	__type(value, u32);
} members SEC(".maps");

/* The other way round. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPUS);
	__type(key, u32);
	__type(value, u32);
} tids SEC(".maps");

/* Who started threads that have ended. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ANCESTORS);
	__type(key, u32);
	__type(value, u32);
} ancestors SEC(".maps");

#define MAX_MASKS 4096

struct mask {
	struct policy_mask mask;
	u64 since; /* when it was made: the map forgets the oldest */
	u64 here; /* virtual time of its CPUs, at the time of the look */
	u64 looked;
};

/* Of threads that may run on a part of a domain's CPUs, by a hash of it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_MASKS);
	__type(key, u64);
	__type(value, struct mask);
} masks SEC(".maps");

struct domain {
	struct policy_queue queue;
	u64 weight; /* of the thread that was the first last */
	u64 forgot; /* when what masks lack was forgotten */
	u64 comes; /* when a thread came for which no CPU was idle */
	u64 pad[11]; /* two lines of a processor's cache */
};

static struct domain domains[MAX_DOMAINS];
/* When a thread came last for which no CPU was idle, roughly: written rarely,
 * since all CPUs read it. */
static u64 comes_anywhere;
/* Virtual time: that of the domain that is furthest. */
static u64 virtual_now;
/* The weight of all VMs that are runnable, of the outermost task groups that
 * they are in, and of other threads and outermost groups. */
static u64 vm_load;
static u64 vm_tops;
static u64 rest_load;
/* policy_beside(). */
static struct policy_sum vm_beside;
/* What all of that makes for each CPU. */
u64 load_per_cpu;

/* The weight that competes for one CPU. Not inlined: the verifier looks at more
 * where it sees where the number comes from. */
__noinline u64 per_cpu(void)
{
	return load_per_cpu;
}

static __always_inline void limits(struct policy_limits *out)
{
	out->slice = settings.slice;
	out->max_extend = settings.max_extend;
	out->max_hold = settings.max_hold;
	out->late = settings.late;
	out->late_most = settings.late_most;
	out->rescue_share = POLICY_WEIGHT;
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
	u32 vm = task->vm;

	return task->slot ? bpf_map_lookup_elem(&groups, &vm) : 0;
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

/* Whether that is done for the thread's VM. */
static __always_inline _Bool does(const struct task *task, u32 policy)
{
	struct guest *guest = guest_of(task);

	return guest && guest->policies & policy;
}

static __always_inline u32 domain_of(u32 cpu)
{
	barrier_var(cpu);
	return domain_of_cpu[cpu & (MAX_CPUS - 1)];
}

static __always_inline struct domain *domain_at(u32 domain)
{
	barrier_var(domain);
	return &domains[domain & (MAX_DOMAINS - 1)];
}

static __always_inline struct policy_queue *queue_of(const struct task *task)
{
	struct cpu *cpu;

	if (!task->queue)
		return &domain_at(task->domain)->queue;
	cpu = cpu_of(task->queue - 1);
	return cpu ? &cpu->queue : &domain_at(task->domain)->queue;
}

/* The thread's queue as it is for those that may run on the same CPUs. */
static __always_inline void seen(const struct task *task,
				 struct policy_queue *out)
{
	const struct policy_queue *queue = queue_of(task);
	u64 key = task->mask;
	struct mask *mask = key ? bpf_map_lookup_elem(&masks, &key) : 0;

	if (mask)
		policy_mask_view(&mask->mask, queue, out);
	else
		*out = *queue;
}

static __always_inline u64 queue_id(const struct task *task)
{
	return task->queue ? QUEUE_CPU + task->queue - 1
			   : QUEUE_SHARED + task->domain;
}

/* The thread, which waits, is to run out of its turn. 0: another CPU has it run
 * so already. */
static __always_inline _Bool favour(struct task *task, u32 why)
{
	return __sync_val_compare_and_swap(&task->why, WHY_TURN, why) ==
	       WHY_TURN;
}

static __always_inline void want(struct cpu *cpu, u32 tid, u32 why)
{
	cpu->wanted = (u64)why << 32 | tid;
}

/* Counters are of many CPUs; the largest may lose a race. */
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

/* Whether threads wait in the domain's queue, of which one may run here as far
 * as is known. */
static __always_inline _Bool share(const struct cpu *cpu, u32 where, u64 now)
{
	return policy_after(now, cpu->apart) >= 0 &&
	       scx_bpf_dsq_nr_queued(QUEUE_SHARED + domain_of(where)) > 0;
}

static __always_inline _Bool waits_in_queues(const struct cpu *cpu, u32 where,
					     u64 now)
{
	return share(cpu, where, now) ||
	       scx_bpf_dsq_nr_queued(QUEUE_CPU + where) > 0 ||
	       scx_bpf_dsq_nr_queued(QUEUE_RESCUE + domain_of(where)) > 0;
}

/* Whom a higher class has preempted waits in the CPU's local queue. Not
 * inlined: the verifier would follow each place where it is asked. */
__noinline int waits(u32 where, u64 now)
{
	struct cpu *cpu = cpu_of(where);

	return !cpu || scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | where) > 0 ||
	       waits_in_queues(cpu, where, now);
}
