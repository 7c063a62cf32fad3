// SPDX-License-Identifier: GPL-2.0
/*
 * guard - a scheduler for hosts of virtual machines, under which a preempted
 * vCPU holds nothing up. Who runs next and for how long is guard_policy.h; this
 * is the glue between it, sched_ext and the guests' memory.
 *
 * Threads wait in one queue for all CPUs, or in that of their CPU if they may
 * run there only, ordered by virtual time. A third queue holds rescued vCPUs.
 *
 * A slice ends in dispatch(), where the thread is still current: its guest's
 * memory is the program's user memory, so what the vCPU is doing can be read,
 * and it may be kept. sched_ext looks at slices on the scheduler's tick only,
 * so a timer on each CPU looks more often: for the end of a slice, of a section
 * that was extended, and for vCPUs that owe their guest a quiescent state.
 *
 * Whatever is read from a guest may be a lie. It decides who is extended and
 * rescued, never for how long or at whose expense.
 */
#define REPRIEVE_GUARD
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "watch.h"
#include "maps.bpf.h"
#include "count.bpf.h"
#include "observation.bpf.h"
#include "registers.bpf.h"
#include "classify.bpf.h"
#include "guard_kernel.bpf.h"
#include "guard_bandwidth.bpf.h"
#include "guard.h"
#include "guard_policy.h"

#define QUEUE_SHARED 0x1000ULL
#define QUEUE_RESCUE 0x1001ULL
#define QUEUE_CPU 0x2000ULL /* plus the CPU */

/* How often a CPU's timer looks: in an extension, while others wait, else. */
#define LOOK_EXTENDED_NS 100000
#define LOOK_BUSY_NS 500000
#define LOOK_ALONE_NS 2000000
#define LOOK_IDLE_NS 20000000

/* How many of the shared queue are looked at for one that ran here last. */
#define LOOK_AHEAD 8

/* Why a thread has its turn. */
#define WHY_TURN 0
#define WHY_RESCUED 1 /* it holds up a grace period */
#define WHY_YIELDED 2 /* another vCPU of its VM waits for it */

#define CLOCK_MONOTONIC 1
#define BPF_F_TIMER_CPU_PIN 2

enum {
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

struct bpf_spin_lock {
	u32 val;
};

struct bpf_timer {
	u64 __opaque[2];
} __attribute__((aligned(8)));

const volatile struct settings settings;

/* Why the kernel ended the scheduler: its words. 0 while it runs. */
u64 exit_kind;
s64 exit_code;
char exit_reason[MESSAGE_LEN];
char exit_message[MESSAGE_LEN];
/* Timers run while this is set. */
u64 active;
/* Changes whenever threads of vCPUs come or go. */
u64 generation;
/* A bit per VM that has a vCPU that owes. */
u64 pending[MAX_VMS / 64];
/* Have the layouts in the program's BTF, and so in Rust. */
const struct guest *guest_layout;

struct group {
	struct bpf_spin_lock lock;
	struct policy_group group;
	struct policy_budget budget;
	u64 clock; /* virtual time up to which its entitlement is known */
	u64 load; /* its part of the load */
};

struct task {
	struct policy_thread thread;
	struct policy_extension extension;
	struct policy_budget budget; /* of a thread that is no vCPU */
	u64 generation; /* of the membership below */
	u64 left; /* when it last left its CPU */
	u64 section_task; /* the guest's task at the start of the extension */
	u32 slot; /* index in vcpus, plus 1; 0: no vCPU */
	u32 vm;
	u32 counted; /* among the runnable vCPUs of its VM */
	u32 load; /* its part of the load */
	u32 queue; /* 0: shared, else the CPU plus 1 */
	u32 queued;
	u32 why;
	u32 ticked; /* its guest's tick was due while it waited */
	u32 class; /* at the start of the extension; of no vCPU: its hint */
	u32 quiescing; /* what kind of extension it is */
};

/* What a CPU does. Written there, also read elsewhere. */
struct cpu {
	struct policy_thread thread; /* a copy, of whom it runs */
	struct policy_kinds kinds;
	struct policy_queue queue;
	u64 turn; /* since when it runs, 0: nobody */
	u64 slice; /* how long it may */
	u64 looked;
	u32 pid;
	u32 slot;
	u32 why; /* also of the last, while nobody runs */
	u32 yields; /* who runs gives up its CPU */
	u64 wanted; /* a thread to run next, and why in the upper half */
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

struct timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

static struct policy_queue shared;
/* The weight of all threads and VMs that are runnable. */
static u64 load;

static __always_inline void limits(struct policy_limits *out)
{
	out->slice = settings.slice;
	out->max_extend = settings.max_extend;
	out->max_hold = settings.max_hold;
	out->late = settings.late;
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

static __always_inline struct policy_queue *queue_of(const struct task *task)
{
	struct cpu *cpu;

	if (!task->queue)
		return &shared;
	cpu = cpu_of(task->queue - 1);
	return cpu ? &cpu->queue : &shared;
}

static __always_inline u64 queue_id(const struct task *task)
{
	return task->queue ? QUEUE_CPU + task->queue - 1 : QUEUE_SHARED;
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

#include "guard_hints.bpf.h"

/* The vCPU is runnable from now on. */
static __always_inline void join(struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	struct policy_limits limit;
	u64 clock = shared.vtime;
	u64 weight, more = 0;

	if (!group || !guest || task->counted)
		return;
	task->counted = 1;
	weight = guest->weight;
	limits(&limit);
	bpf_spin_lock(&group->lock);
	policy_join(&group->group, now);
	policy_stand(&group->group, clock, &limit);
	if (group->group.runnable == 1) {
		group->group.weight = weight;
		group->clock = clock;
		group->load = weight;
		more = weight;
	}
	bpf_spin_unlock(&group->lock);
	if (more)
		add(&load, more);
}

/* The same for an ordinary thread. */
static __always_inline void load_thread(struct task *task, u32 weight)
{
	if (weight != task->load)
		add(&load, (u64)weight - task->load);
	task->load = weight;
}

/* Brings the VM's entitlement up to now: while it has something to run, what
 * its weight is worth as virtual time passes. */
static __always_inline void entitle(struct group *group, struct guest *guest)
{
	u64 clock = shared.vtime;
	u64 passed = 0;
	u64 weight;

	bpf_spin_lock(&group->lock);
	weight = group->group.weight;
	if (group->group.runnable && policy_after(clock, group->clock) > 0)
		passed = clock - group->clock;
	group->clock = clock;
	bpf_spin_unlock(&group->lock);
	if (passed)
		add(&guest->entitled_ns, passed * weight / POLICY_WEIGHT);
}

static __always_inline void leave(struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	u64 less = 0;

	if (!group || !guest || !task->counted)
		return;
	entitle(group, guest);
	task->counted = 0;
	bpf_spin_lock(&group->lock);
	policy_leave(&group->group, now);
	if (!group->group.runnable) {
		less = group->load;
		group->load = 0;
	}
	bpf_spin_unlock(&group->lock);
	if (less)
		add(&load, -less);
}

/* Finds out whether the thread is a vCPU, if that may have changed. It is
 * runnable. */
static __always_inline void resolve(struct task_struct *p, struct task *task,
				    u64 now)
{
	u64 current_generation = generation;
	struct vcpu *vcpu;
	u32 tid = p->pid;
	u32 *found;
	u32 slot = 0;

	if (task->generation == current_generation)
		return;
	task->generation = current_generation;
	found = bpf_map_lookup_elem(&members, &tid);
	if (found)
		slot = *found;
	if (slot == task->slot)
		return;
	leave(task, now);
	task->slot = 0;
	if (!slot)
		return;
	slot--;
	vcpu = bpf_map_lookup_elem(&vcpus, &slot);
	/* Another process may have got the ID of a thread that ended. */
	if (!vcpu || vcpu->tgid != (u32)p->tgid)
		return;
	load_thread(task, 0);
	task->vm = vcpu->vm;
	task->slot = slot + 1;
}

/* The thread is runnable, from now on or still. */
static __always_inline void count_in(struct task_struct *p, struct task *task,
				     u64 now)
{
	resolve(p, task, now);
	if (task->slot)
		join(task, now);
	else
		load_thread(task, task->thread.weight);
}

static __always_inline void count_out(struct task *task, u64 now)
{
	if (task->slot)
		leave(task, now);
	load_thread(task, 0);
}

static __always_inline void begin(struct task *task, u64 now)
{
	struct group *group = group_of(task);

	if (group) {
		bpf_spin_lock(&group->lock);
		policy_begin(&task->thread, &group->group, now);
		bpf_spin_unlock(&group->lock);
	} else {
		policy_begin(&task->thread, 0, now);
	}
}

static __always_inline u64 charge(struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct policy_limits limit;
	u64 clock = shared.vtime;
	u64 ran;

	if (group) {
		limits(&limit);
		bpf_spin_lock(&group->lock);
		ran = policy_charge(&task->thread, &group->group, now);
		policy_stand(&group->group, clock, &limit);
		bpf_spin_unlock(&group->lock);
	} else {
		ran = policy_charge(&task->thread, 0, now);
	}
	return ran;
}

/* The weight of the thread in place of its VM's, for those who look at it
 * without the lock. */
static __always_inline u64 weight(const struct task *task)
{
	struct group *group = group_of(task);

	return policy_weight(&task->thread, group ? &group->group : 0);
}

static __always_inline u64 place(struct task_struct *p, struct task *task,
				 int woken)
{
	struct policy_limits now;
	struct policy_queue *to, *from = queue_of(task);
	struct group *group = group_of(task);
	u32 queue = p->nr_cpus_allowed == 1 ? scx_bpf_task_cpu(p) + 1 : 0;
	u64 per_cpu = load / (settings.cpus ? settings.cpus : 1);

	limits(&now);
	if (queue != task->queue) {
		task->queue = queue;
		to = queue_of(task);
		policy_move(&task->thread, from, to);
	} else {
		to = from;
	}
	return policy_place(&task->thread, group ? &group->group : 0, to,
			    per_cpu,
			    policy_credit(group ? &group->group : 0, to,
					  to == &shared, woken, &now));
}

static __always_inline _Bool waits(u32 cpu)
{
	return scx_bpf_dsq_nr_queued(QUEUE_SHARED) > 0 ||
	       scx_bpf_dsq_nr_queued(QUEUE_CPU + cpu) > 0 ||
	       scx_bpf_dsq_nr_queued(QUEUE_RESCUE) > 0;
}

/*
 * Looks who holds up the guest's grace period. One of its vCPUs has to be
 * current. What is read changes only while one of them runs, so that the last
 * look before all are preempted stays true.
 */
static __always_inline void look(struct task *task, u64 now)
{
	struct guest *guest = guest_of(task);
	u32 index = task->vm;
	struct vm *vm = bpf_map_lookup_elem(&vms, &index);
	u64 any = 0, seq = 0, jiffies = 0, due = 0;
	u32 kthread = MAX_GUEST_CPUS, i;
	u8 on_rq = 0;

	if (!guest || !vm || !guest->ready || !vm->ready || !vm->gp_seq)
		return;
	guest->looked = now;
	if (bpf_probe_read_user(&seq, sizeof(seq), (void *)vm->gp_seq))
		return;
	if ((seq & 3) && seq >> 2 != guest->seq >> 2)
		guest->seq_since = now;
	guest->seq = seq & 3 ? seq : 0;
	if (seq & 3) {
		if (guest->kthread_cpu && guest->kthread_on_rq) {
			/* It waits for a CPU, or its timer's tick does. */
			bpf_probe_read_user(&on_rq, sizeof(on_rq),
					    (void *)guest->kthread_on_rq);
			if (!on_rq && guest->jiffies && guest->fqs_due &&
			    !bpf_probe_read_user(&jiffies, sizeof(jiffies),
						 (void *)guest->jiffies) &&
			    !bpf_probe_read_user(&due, sizeof(due),
						 (void *)guest->fqs_due))
				on_rq = (s64)(jiffies - due) >= 0;
			if (on_rq &&
			    bpf_probe_read_user(&kthread, sizeof(kthread),
						(void *)guest->kthread_cpu))
				kthread = MAX_GUEST_CPUS;
		}
	}
	for (i = 0; i < MAX_LEAVES; i++) {
		struct leaf *leaf = &guest->leaves[i];
		u64 mask = 0, tasks = 0, host;
		u32 blocked = MAX_GUEST_CPUS;

		if (i >= guest->leaves_used)
			break;
		if (seq & 3) {
			if (bpf_probe_read_user(&mask, sizeof(mask),
						(void *)leaf->qsmask))
				mask = 0;
			if (leaf->cpus < 64)
				mask &= (1ULL << (leaf->cpus & 63)) - 1;
			if (kthread - leaf->first_cpu < leaf->cpus)
				mask |= 1ULL
					<< ((kthread - leaf->first_cpu) & 63);
			if (leaf->gp_tasks && guest->task_cpu &&
			    !bpf_probe_read_user(&tasks, sizeof(tasks),
						 (void *)leaf->gp_tasks) &&
			    tasks) {
				host = host_address(
					vm, tasks - guest->node_entry, 4096);
				if (host &&
				    !bpf_probe_read_user(
					    &blocked, sizeof(blocked),
					    (void *)(host + guest->task_cpu)) &&
				    blocked - leaf->first_cpu < leaf->cpus)
					mask |= 1ULL << ((blocked -
							  leaf->first_cpu) &
							 63);
			}
		}
		guest->owes[i] = mask;
		any |= mask;
	}
	barrier_var(index);
	index &= MAX_VMS - 1;
	if (any)
		__sync_fetch_and_or(&pending[index / 64], 1ULL << (index % 64));
	else
		__sync_fetch_and_and(&pending[index / 64],
				     ~(1ULL << (index % 64)));
}

static __always_inline _Bool critical(const struct observation *seen)
{
	return seen->reader || seen->class == CLASS_READER ||
	       seen->class == CLASS_NO_PREEMPT ||
	       seen->class == CLASS_IRQS_OFF || seen->class == CLASS_SOFTIRQ ||
	       seen->class == CLASS_HARDIRQ;
}

/* Whether the vCPU, which is current, is in a section that should end before
 * it loses its CPU: a critical one, or until its next quiescent point. */
static __always_inline _Bool in_section(struct task_struct *p,
					struct task *task, u32 *class,
					u32 *quiescing)
{
	struct vcpu *vcpu = vcpu_of(task);
	struct guest *guest = guest_of(task);
	struct observation seen = {};
	u32 index = task->vm;
	struct vm *vm;

	*class = CLASS_UNKNOWN;
	*quiescing = 0;
	if (!vcpu || !guest || !(guest->policies & ~DOES_RESCUE))
		return 0;
	vm = bpf_map_lookup_elem(&vms, &index);
	observe(vcpu, vm, p, &seen);
	*class = seen.class;
	if (guest->policies & DOES_EXTEND && critical(&seen))
		return 1;
	if (seen.class == CLASS_USER || seen.class == CLASS_IDLE ||
	    seen.class == CLASS_UNKNOWN)
		return 0;
	if (!(guest->policies & DOES_QUIESCE) &&
	    !(guest->policies & DOES_QUIESCE_TRACKED && guest->tracks_user))
		return 0;
	/* The guest switched tasks since: that was a quiescent point. */
	if (task->extension.began && task->section_task != seen.task)
		return 0;
	if (!task->extension.began)
		task->section_task = seen.task;
	*quiescing = 1;
	return 1;
}

static __always_inline enum policy_verdict extend(struct task_struct *p,
						  struct task *task, u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	u64 began = task->extension.began;
	enum policy_verdict verdict;
	struct policy_limits limit;
	struct granted *granted;
	u32 class, quiescing;
	int section;

	if (!task->slot)
		return hints_extend(p, task, now);
	if (!group || !guest)
		return POLICY_GO;
	section = in_section(p, task, &class, &quiescing);
	if (!section && !began)
		return POLICY_GO;
	limits(&limit);
	bpf_spin_lock(&group->lock);
	verdict = policy_extend(&task->extension, &group->budget, section, now,
				&limit);
	bpf_spin_unlock(&group->lock);
	if (!began) {
		task->class = class;
		task->quiescing = quiescing;
	}
	granted = task->quiescing ? &guest->quiesced : &guest->extended;
	if (verdict == POLICY_REFUSED) {
		add(&granted->refused, 1);
	} else if (verdict == POLICY_STAY) {
		if (!began)
			add(&granted->count, 1);
	} else if (began) {
		grant(granted, now - began);
		if (verdict == POLICY_EXPIRED)
			add(&granted->expired, 1);
		else if (task->class < CLASSES)
			add(&guest->avoided[task->class], 1);
	}
	return verdict;
}

/* The extension ends because the thread sleeps or a higher class takes its CPU.
 */
static __always_inline void end_extension(struct task *task, _Bool slept,
					  u64 now)
{
	struct group *group = group_of(task);
	struct guest *guest = guest_of(task);
	u64 began = task->extension.began;
	struct policy_limits limit;
	struct granted *granted;

	if (!task->slot)
		hints_end(task, slept, now);
	if (!began || !group || !guest)
		return;
	limits(&limit);
	bpf_spin_lock(&group->lock);
	policy_extend(&task->extension, &group->budget, 0, now, &limit);
	bpf_spin_unlock(&group->lock);
	granted = task->quiescing ? &guest->quiesced : &guest->extended;
	grant(granted, now - began);
	if (slept && task->class < CLASSES)
		add(&guest->avoided[task->class], 1);
}

SEC("struct_ops/guard_select_cpu")
s32 BPF_PROG(guard_select_cpu, struct task_struct *p, s32 prev_cpu,
	     u64 wake_flags)
{
	struct task *task = task_of(p);
	_Bool idle = 0;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle && task) {
		place(p, task, 1);
		kernel_insert(p, SCX_DSQ_LOCAL, settings.slice, 0);
	}
	return cpu;
}

/* Whether the CPU should drop whom it runs for the thread. */
static __always_inline void preempt(struct task *task, s32 where, u64 now)
{
	struct cpu *cpu = cpu_of(where);
	struct policy_limits limit;

	if (!cpu || !cpu->turn)
		return;
	limits(&limit);
	if (policy_preempts(&task->thread, &cpu->thread, 0, now, &limit))
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
}

SEC("struct_ops/guard_enqueue")
void BPF_PROG(guard_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);
	u64 vtime;
	s32 cpu;

	if (!task) {
		kernel_insert(p, SCX_DSQ_GLOBAL, settings.slice, enq_flags);
		return;
	}
	vtime = place(p, task, !!(enq_flags & SCX_ENQ_WAKEUP));
	task->queued = 1;
	kernel_insert_vtime(p, queue_id(task), settings.slice, vtime,
			    enq_flags);
	if (task->queue) {
		cpu = task->queue - 1;
		if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return;
		}
	} else {
		cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (cpu >= 0) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return;
		}
		cpu = scx_bpf_task_cpu(p);
	}
	hints_publish(cpu);
	if (enq_flags & SCX_ENQ_WAKEUP)
		preempt(task, cpu, bpf_ktime_get_ns());
}

/* The thread leaves its queue: since Linux 7.1 also because it gets a CPU. */
SEC("struct_ops/guard_dequeue")
void BPF_PROG(guard_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (task)
		task->queued = 0;
}

/* The thread had its CPU out of turn, and has it no longer for that reason. */
static __always_inline void end_favour(struct task *task, u64 ns)
{
	struct guest *guest = guest_of(task);

	if (guest && task->why)
		grant(task->why == WHY_RESCUED ? &guest->rescued
					       : &guest->yielded,
		      ns);
	task->why = WHY_TURN;
}

/* The thread that ran last on this CPU keeps it for ns. */
static __always_inline void keep(struct task_struct *p, struct task *task,
				 struct cpu *cpu, u64 ns, u64 now)
{
	kernel_set_slice(p, ns);
	if (task->extension.began)
		return; /* the turn goes on */
	end_favour(task, now - cpu->turn);
	cpu->turn = now;
	cpu->slice = settings.slice;
	cpu->why = WHY_TURN;
}

/* Takes the next thread of the shared queue; of those whose turn is near, one
 * that ran here last. */
static __always_inline _Bool take_shared(u32 where)
{
	struct policy_thread first = {};
	struct group *group = 0;
	struct bpf_iter_scx_dsq it;
	struct policy_limits limit;
	struct task_struct *p;
	_Bool taken = 0;
	u32 n = 0;

	if (scx_bpf_dsq_nr_queued(QUEUE_SHARED) < 2)
		return kernel_take(QUEUE_SHARED);
	limits(&limit);
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_SHARED, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it)) && n < LOOK_AHEAD) {
			struct task *task = task_of(p);

			if (!task)
				break;
			if (!n++) {
				first = task->thread;
				group = group_of(task);
			}
			if (!policy_prefers(&task->thread, &first,
					    group ? &group->group : 0, &limit))
				break;
			if (scx_bpf_task_cpu(p) == (s32)where) {
				taken = kernel_move(&it, p, SCX_DSQ_LOCAL,
						    settings.slice);
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return taken || kernel_take(QUEUE_SHARED);
}

/* Takes the thread out of its queue. */
static __always_inline _Bool take(struct task_struct *p, struct task *task,
				  u64 to, u64 ns)
{
	struct bpf_iter_scx_dsq it;
	_Bool moved = 0;

	if (!bpf_iter_scx_dsq_new(&it, queue_id(task), 0))
		moved = kernel_move(&it, p, to, ns);
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

/* Takes the thread that somebody wants to run on this CPU next, if it waits
 * still. */
static __always_inline _Bool take_wanted(struct cpu *cpu, u32 where, u64 now)
{
	u64 wanted = cpu->wanted;
	u32 tid = wanted, why = wanted >> 32;
	struct granted *granted;
	struct task_struct *p;
	_Bool taken = 0;
	struct guest *guest;
	struct task *task;

	if (!tid)
		return 0;
	cpu->wanted = 0;
	p = bpf_task_from_pid(tid);
	if (!p)
		return 0;
	task = task_of(p);
	if (!task || !task->queued || task->why ||
	    !bpf_cpumask_test_cpu(where, p->cpus_ptr) ||
	    (task->queue && task->queue != where + 1))
		goto out;
	guest = guest_of(task);
	if (!guest)
		goto out;
	task->why = why;
	granted = why == WHY_RESCUED ? &guest->rescued : &guest->yielded;
	if (take(p, task, SCX_DSQ_LOCAL,
		 why == WHY_RESCUED ? POLICY_RESCUE_NS : settings.slice)) {
		add(&granted->count, 1);
		taken = 1;
	} else {
		task->why = WHY_TURN;
	}
out:
	bpf_task_release(p);
	return taken;
}

static __always_inline void pick(struct task_struct *prev, struct cpu *cpu,
				 u32 where, u64 now)
{
	struct task *task = 0;
	_Bool yields = cpu->yields;
	u32 kind;

	cpu->yields = 0;
	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		task = task_of(prev);
	/* With core scheduling, a sibling may choose for this CPU. */
	if (task && prev == bpf_get_current_task_btf()) {
		if (yields || !waits(where)) {
			end_extension(task, 0, now);
		} else if (extend(prev, task, now) == POLICY_STAY) {
			keep(prev, task, cpu, settings.max_extend, now);
			return;
		}
	}
	/* Every second turn at most is out of turn. */
	if (!cpu->why &&
	    (take_wanted(cpu, where, now) || kernel_take(QUEUE_RESCUE)))
		return;
	kind = policy_kind(&cpu->kinds);
	if (kind && kernel_take(QUEUE_CPU + where))
		return;
	if (take_shared(where))
		return;
	if (!kind && kernel_take(QUEUE_CPU + where))
		return;
	if (kernel_take(QUEUE_RESCUE))
		return;
	if (task)
		keep(prev, task, cpu, settings.slice, now);
}

SEC("struct_ops/guard_dispatch")
void BPF_PROG(guard_dispatch, s32 where, struct task_struct *prev)
{
	u64 now = bpf_ktime_get_ns();
	struct cpu *cpu = cpu_of(where);

	if (!cpu)
		return;
	pick(prev, cpu, where, now);
	account(now);
}

/* A vCPU that spins asks KVM, and KVM asks here, to run the one that it waits
 * for. Queues may not be changed here: dispatch() follows. */
SEC("struct_ops/guard_yield")
_Bool BPF_PROG(guard_yield, struct task_struct *from, struct task_struct *to)
{
	struct cpu *cpu = cpu_of(bpf_get_smp_processor_id());
	struct task *waits = task_of(from), *task;
	struct policy_limits limit;
	struct group *group;
	struct guest *guest;

	if (!waits || !cpu)
		return 0;
	if (to) {
		task = task_of(to);
		if (!task || !task->queued || !task->slot || !waits->slot ||
		    task->vm != waits->vm)
			return 0;
		group = group_of(task);
		guest = guest_of(task);
		if (!group || !guest)
			return 0;
		limits(&limit);
		if (policy_yield(&task->thread, &group->group, queue_of(task),
				 &limit) != POLICY_YES) {
			add(&guest->yielded.refused, 1);
			return 0;
		}
		want(cpu, to->pid, WHY_YIELDED);
	}
	cpu->yields = 1;
	kernel_set_slice(from, 0);
	return 1;
}

SEC("struct_ops/guard_runnable")
void BPF_PROG(guard_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);
	u64 now;

	if (!task)
		return;
	now = bpf_ktime_get_ns();
	count_in(p, task, now);
}

SEC("struct_ops/guard_quiescent")
void BPF_PROG(guard_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	task->why = WHY_TURN;
	count_out(task, bpf_ktime_get_ns());
}

SEC("struct_ops/guard_running")
void BPF_PROG(guard_running, struct task_struct *p)
{
	u32 where = bpf_get_smp_processor_id();
	struct cpu *cpu = cpu_of(where);
	struct task *task = task_of(p);
	u64 now;

	if (!task || !cpu)
		return;
	now = bpf_ktime_get_ns();
	count_in(p, task, now);
	task->queued = 0;
	task->ticked = 0;
	begin(task, now);
	if (!task->why)
		policy_start(queue_of(task), &task->thread);
	cpu->why = task->why;
	cpu->yields = 0;
	cpu->thread = task->thread;
	cpu->thread.weight = weight(task);
	cpu->pid = p->pid;
	cpu->slot = task->slot;
	cpu->slice = settings.slice;
	cpu->turn = now;
	hints_publish(where);
}

SEC("struct_ops/guard_stopping")
void BPF_PROG(guard_stopping, struct task_struct *p, _Bool runnable)
{
	u32 where = bpf_get_smp_processor_id();
	struct cpu *cpu = cpu_of(where);
	struct task *task = task_of(p);
	struct policy_limits limit;
	struct guest *guest;
	struct group *group;
	u64 now, ran, count;
	s32 waiting;

	if (!task || !cpu)
		return;
	now = bpf_ktime_get_ns();
	ran = charge(task, now);
	limits(&limit);
	waiting = scx_bpf_dsq_nr_queued(queue_id(task));
	if (waiting < 0)
		waiting = 0;
	count = (waiting + 1) * POLICY_WEIGHT;
	if (!task->queue && settings.cpus)
		count = count / settings.cpus + 1;
	policy_served(&cpu->kinds, !!task->queue, ran, count, &limit);
	guest = guest_of(task);
	group = group_of(task);
	end_extension(task, !runnable, now);
	if (guest && group) {
		add(&guest->on_cpu_ns, ran);
		entitle(group, guest);
		if (guest->policies & DOES_RESCUE &&
		    p == bpf_get_current_task_btf())
			look(task, now);
	}
	end_favour(task, now - cpu->turn);
	if (!runnable)
		hints_publish(where);
	task->left = now;
	cpu->turn = 0;
	cpu->slot = 0;
	cpu->pid = 0;
}

SEC("struct_ops/guard_set_weight")
void BPF_PROG(guard_set_weight, struct task_struct *p, u32 weight)
{
	struct task *task = task_of(p);

	if (task)
		task->thread.weight = weight;
}

SEC("struct_ops/guard_enable")
void BPF_PROG(guard_enable, struct task_struct *p)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	task->thread.weight = p->scx.weight;
	task->thread.vtime = shared.vtime;
	task->queue = 0;
	task->generation = ~0ULL;
}

SEC("struct_ops.s/guard_init_task")
s32 BPF_PROG(guard_init_task, struct task_struct *p,
	     struct scx_init_task_args *args)
{
	if (bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE))
		return 0;
	return -12; /* ENOMEM */
}

SEC("struct_ops/guard_exit_task")
void BPF_PROG(guard_exit_task, struct task_struct *p,
	      struct scx_exit_task_args *args)
{
	struct task *task = task_of(p);

	if (task)
		count_out(task, bpf_ktime_get_ns());
}

SEC("struct_ops.s/guard_init")
s32 BPF_PROG(guard_init)
{
	s32 failed = scx_bpf_create_dsq(QUEUE_SHARED, -1);
	u32 i;

	if (failed)
		return failed;
	failed = scx_bpf_create_dsq(QUEUE_RESCUE, -1);
	if (failed)
		return failed;
	bpf_for(i, 0, MAX_CPUS)
	{
		if (i >= settings.cpus)
			break;
		failed = scx_bpf_create_dsq(QUEUE_CPU + i, -1);
		if (failed)
			return failed;
	}
	return 0;
}

SEC("struct_ops/guard_exit")
void BPF_PROG(guard_exit, struct scx_exit_info *ei)
{
	const char *reason = ei->reason;
	const char *message = ei->msg;

	active = 0;
	exit_code = ei->exit_code;
	bpf_probe_read_kernel_str(exit_reason, MESSAGE_LEN, reason);
	bpf_probe_read_kernel_str(exit_message, MESSAGE_LEN, message);
	barrier();
	exit_kind = ei->kind;
}

/* Whether the vCPU holds up its guest's grace period, by the last look. */
static __always_inline _Bool owes(const struct task *task)
{
	struct guest *guest = guest_of(task);
	struct vcpu *vcpu = vcpu_of(task);
	u32 i;

	if (!guest || !vcpu)
		return 0;
	bpf_for(i, 0, MAX_LEAVES)
	{
		u32 bit;

		if (i >= guest->leaves_used || i >= MAX_LEAVES)
			break;
		bit = vcpu->index - guest->leaves[i].first_cpu;
		if (bit < guest->leaves[i].cpus && bit < 64)
			return guest->owes[i] >> bit & 1;
	}
	return 0;
}

static __always_inline _Bool may_rescue(const struct task *task,
					struct guest *guest, u64 age, u64 now)
{
	struct group *group = group_of(task);
	struct policy_limits limit;
	enum policy_answer answer;

	if (!group)
		return 0;
	limits(&limit);
	answer = policy_rescue(&task->thread, &group->group, queue_of(task),
			       age, task->left, task->ticked, now, &limit);
	if (answer == POLICY_IN_DEBT)
		add(&guest->rescued.refused, 1);
	return answer == POLICY_YES;
}

/* Has the vCPU scheduled next if it waits and that is allowed. */
static __always_inline void rescue(u32 slot, struct guest *guest, u64 age,
				   u32 here, u64 now)
{
	struct task_struct *p;
	struct task *task;
	struct cpu *cpu;
	s32 where;
	u32 *tid;

	tid = bpf_map_lookup_elem(&tids, &slot);
	if (!tid)
		return;
	p = bpf_task_from_pid(*tid);
	if (!p)
		return;
	task = task_of(p);
	if (!task || task->slot != slot + 1 || !task->queued || task->why)
		goto out;
	if (!may_rescue(task, guest, age, now))
		goto out;
	if (task->queue) {
		where = task->queue - 1;
	} else {
		where = scx_bpf_task_cpu(p);
		cpu = cpu_of(where);
		if (cpu && cpu->why && bpf_cpumask_test_cpu(here, p->cpus_ptr))
			where = here;
	}
	task->why = WHY_RESCUED;
	if (take(p, task, QUEUE_RESCUE, POLICY_RESCUE_NS)) {
		add(&guest->rescued.count, 1);
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	} else {
		task->why = WHY_TURN;
	}
out:
	bpf_task_release(p);
}

/* KVM's timer function: a tick of the guest is due. This is the best moment for
 * a rescue, since the tick comes with the vCPU. */
SEC("fentry/apic_timer_fn")
int BPF_PROG(guard_tick, struct hrtimer *timer)
{
	struct kvm_lapic *lapic =
		(void *)timer -
		bpf_core_field_offset(struct kvm_lapic, lapic_timer);
	u32 tid = BPF_CORE_READ(lapic, vcpu, pid, numbers[0].nr);
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;
	struct guest *guest;
	struct task *task;
	struct cpu *cpu;
	s32 where;

	if (!active || !bpf_map_lookup_elem(&members, &tid))
		return 0;
	p = bpf_task_from_pid(tid);
	if (!p)
		return 0;
	task = task_of(p);
	if (!task || !task->slot || !task->queued || task->why)
		goto out;
	guest = guest_of(task);
	if (!guest || !(guest->policies & DOES_RESCUE))
		goto out;
	task->ticked = 1;
	add(&guest->ticks, 1);
	if (!guest->ready || !guest->seq ||
	    policy_after(now, guest->seq_since) <= 0 || !owes(task) ||
	    !may_rescue(task, guest, now - guest->seq_since, now))
		goto out;
	where = task->queue ? (s32)task->queue - 1 : scx_bpf_task_cpu(p);
	cpu = cpu_of(where);
	if (cpu && !cpu->wanted) {
		want(cpu, tid, WHY_RESCUED);
		scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	}
out:
	bpf_task_release(p);
	return 0;
}

static __always_inline void rescue_vm(u32 index, u32 here, u64 now)
{
	struct guest *guest = bpf_map_lookup_elem(&guests, &index);
	struct vm *vm = bpf_map_lookup_elem(&vms, &index);
	u64 age;
	u32 i, bit;

	if (!guest || !vm || !guest->ready || !vm->ready || !guest->seq ||
	    !(guest->policies & DOES_RESCUE))
		return;
	if (policy_after(now, guest->seq_since) <= 0)
		return;
	age = now - guest->seq_since;
	bpf_for(i, 0, MAX_LEAVES)
	{
		u64 mask;

		if (i >= guest->leaves_used || i >= MAX_LEAVES)
			break;
		mask = guest->owes[i];
		bpf_for(bit, 0, 64)
		{
			u32 cpu = guest->leaves[i].first_cpu + bit;
			u32 slot;

			if (!(mask >> bit))
				break;
			if (!(mask >> bit & 1) || cpu >= MAX_GUEST_CPUS)
				continue;
			slot = guest->slots[cpu];
			if (slot)
				rescue(slot - 1, guest, age, here, now);
		}
	}
}

static __noinline int rescue_pending(u32 here, u64 now)
{
	u32 word, bit;

	bpf_for(word, 0, MAX_VMS / 64)
	{
		u64 mask;

		if (word >= MAX_VMS / 64)
			break;
		mask = pending[word];
		if (!mask)
			continue;
		bpf_for(bit, 0, 64)
		{
			if (!(mask >> bit))
				break;
			if (mask >> bit & 1)
				rescue_vm(word * 64 + bit, here, now);
		}
	}
	return 0;
}

/* A vCPU runs here and is current: whether its turn should end now. */
static __always_inline _Bool over(struct cpu *cpu, struct task_struct *p,
				  struct task *task, u32 where, u64 now)
{
	u64 ran = now - cpu->turn;
	u32 class, quiescing;

	if (task->extension.began)
		return now - task->extension.began >= settings.max_extend ||
		       !in_section(p, task, &class, &quiescing);
	if (cpu->why == WHY_RESCUED)
		return ran >= POLICY_RESCUE_NS || !owes(task);
	return ran >= cpu->slice && waits(where);
}

/* Time to the next look on a CPU that others wait for: to the end of the slice
 * if that is soon. */
static __always_inline u64 until(const struct cpu *cpu, u64 now)
{
	s64 left = policy_after(cpu->turn + cpu->slice, now);

	if (left < LOOK_EXTENDED_NS)
		return LOOK_EXTENDED_NS;
	return left < LOOK_BUSY_NS ? left : LOOK_BUSY_NS;
}

static int timer_expired(void *map, u32 *key, struct timer *timer)
{
	u32 where = bpf_get_smp_processor_id();
	struct task_struct *p = bpf_get_current_task_btf();
	struct cpu *cpu = cpu_of(where);
	u64 now = bpf_ktime_get_ns();
	u64 next = LOOK_IDLE_NS;

	if (!active)
		return 0;
	if (cpu && cpu->turn) {
		_Bool ends = 0;

		next = waits(where) ? until(cpu, now) : LOOK_ALONE_NS;
		if (cpu->slot && cpu->pid == (u32)p->pid) {
			struct task *task = task_of(p);

			if (task && task->slot) {
				if (does(task, DOES_RESCUE))
					look(task, now);
				ends = over(cpu, p, task, where, now);
				/* Begun here, it is looked at in time. */
				if (ends && cpu->why != WHY_RESCUED &&
				    !task->extension.began)
					ends = extend(p, task, now) !=
					       POLICY_STAY;
				if (task->extension.began ||
				    cpu->why == WHY_RESCUED)
					next = LOOK_EXTENDED_NS;
			}
		} else {
			struct task *task = 0;

			ends = now - cpu->turn >= cpu->slice && waits(where);
			if (cpu->pid == (u32)p->pid)
				task = task_of(p);
			if (task && !task->slot) {
				ends = hints_over(p, task, ends, now);
				if (task->extension.began)
					next = LOOK_EXTENDED_NS;
			}
		}
		if (ends)
			scx_bpf_kick_cpu(where, SCX_KICK_PREEMPT);
	}
	rescue_pending(where, now);
	account(now);
	bpf_timer_start(&timer->timer, next, BPF_F_TIMER_CPU_PIN);
	return 0;
}

/* Runs once on each CPU. */
SEC("syscall")
int guard_start_timer(void *context)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct timer *timer = bpf_map_lookup_elem(&timers, &cpu);

	if (!timer)
		return -1;
	bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, timer_expired);
	return bpf_timer_start(&timer->timer, LOOK_BUSY_NS,
			       BPF_F_TIMER_CPU_PIN);
}

SEC(".struct_ops.link")
struct sched_ext_ops guard_ops = {
	.select_cpu = (void *)guard_select_cpu,
	.enqueue = (void *)guard_enqueue,
	.dequeue = (void *)guard_dequeue,
	.dispatch = (void *)guard_dispatch,
	.yield = (void *)guard_yield,
	.runnable = (void *)guard_runnable,
	.running = (void *)guard_running,
	.stopping = (void *)guard_stopping,
	.quiescent = (void *)guard_quiescent,
	.set_weight = (void *)guard_set_weight,
	.init_task = (void *)guard_init_task,
	.exit_task = (void *)guard_exit_task,
	.enable = (void *)guard_enable,
	.cgroup_set_bandwidth = (void *)guard_set_bandwidth,
	.init = (void *)guard_init,
	.exit = (void *)guard_exit,
	.timeout_ms = 20000,
	.name = "reprieve_guard",
};

char LICENSE[] SEC("license") = "GPL";
