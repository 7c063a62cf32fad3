/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CPU limits of cgroups (cpu.max). Under sched_ext they are the scheduler's to
 * keep. Kernels that tell of them have them kept here; elsewhere user space
 * refuses them. The rules are guard_bandwidth.h's.
 *
 * Threads of a cgroup without budget wait in a queue of its own, from which the
 * CPUs' timers move them when there is budget again. They may be anywhere when
 * the budget ends, so it is looked at wherever a thread is chosen to run.
 */
#pragma once

/* Entries that limits may take which users set in cgroups of their own. The
 * rest is root's. */
#define MAX_USERS_LIMITS (MAX_LIMITS / 2)
/* How often the parked are looked at if no refill is due. */
#define LOOK_PARKED_NS 20000000ULL
/* How many threads of a queue are parked at once. The next one without budget
 * runs for a moment, in debt. */
#define PARK_MOST 64
/* Of the time, looks at the parked take one part in so many. */
#define UNPARK_REST 8
/* What a thread gets that has waited for too long. */
#define OVERDUE_SLICE_NS 100000ULL

/* Set before loading: whether this kernel tells of limits, and they are kept.
 */
const volatile _Bool keeps_limits;
/* How often limits were changed. */
u64 limits_changed;
/* Limits that are not kept, for lack of space, or nested too deeply. Those that
 * users set in cgroups of their own are counted apart: they may set thousands.
 */
u64 limits_lost;
u64 users_limits_lost;
/* Entries in use. */
u64 limits_used;
u64 users_limits_used;
/* When the parked are looked at again, at the latest. */
u64 refill_due;
/* And not before. */
static u64 unpark_rest;
/* Entries that were ever used are below that, and the next whose parked are
 * looked at. */
static u32 limits_end;
static u32 unpark_next;
/* When limits were changed last, and for how long some may be parked after the
 * last limit was lifted. */
static u64 limits_changed_at;
#define LIFTED_NS (4 * BANDWIDTH_OVERDUE_NS)
/* The CPU, plus 1, that has looked at the parked last, and looks again when it
 * is time. The others look that much later, in case it does not. */
static u32 unparker;
#define UNPARKER_LATE_NS 1000000
/* A CPU looks at the parked, and how many it has moved. */
u32 unparking;
static u32 unparked;

static __always_inline u32 unpark_most(void)
{
	return 2 * settings.online;
}

/* Has the layout in the program's BTF, and so in Rust. */
const struct bandwidth *bandwidth_layout;

struct budget {
	struct bpf_spin_lock lock;
	struct policy_bandwidth bandwidth;
	u64 throttled; /* since when, 0: it has budget */
	u64 until; /* when it has some again */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LIMITS);
	__type(key, u32);
	__type(value, struct budget);
} budgets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_LIMITS);
	__type(key, u32);
	__type(value, struct bandwidth);
} bandwidths SEC(".maps");

/* By ID of the cgroup, the index in both. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LIMITS);
	__type(key, u64);
	__type(value, u32);
} limited SEC(".maps");

static __always_inline void lose_limit(_Bool users)
{
	add(users ? &users_limits_lost : &limits_lost, 1);
}

static __always_inline void refilled(u32 index, u64 periods, u64 throttled_ns)
{
	struct bandwidth *of = bpf_map_lookup_elem(&bandwidths, &index);

	if (!of)
		return;
	if (periods)
		add(&of->periods, periods);
	if (throttled_ns)
		add(&of->throttled_ns, throttled_ns);
}

/* Gives an entry back that the cgroup took. Under its lock, so that no limit is
 * set in it that was meant for this cgroup. */
static __always_inline void free_entry(u32 index, u64 cgroup)
{
	struct bandwidth *of = bpf_map_lookup_elem(&bandwidths, &index);
	struct budget *budget = bpf_map_lookup_elem(&budgets, &index);
	_Bool users, had;

	if (!of || !budget)
		return;
	bpf_spin_lock(&budget->lock);
	users = of->users;
	had = of->cgroup == cgroup;
	if (had)
		of->cgroup = 0;
	bpf_spin_unlock(&budget->lock);
	if (!had)
		return;
	if (users)
		add(&users_limits_used, -1ULL);
	add(&limits_used, -1ULL);
}

/* Several CPUs may change the limit of one cgroup at once: who deletes it from
 * the map gives the entry back. */
static __always_inline void lift_limit(u64 cgroup)
{
	u32 *known = bpf_map_lookup_elem(&limited, &cgroup);
	u32 index = known ? *known : MAX_LIMITS;

	if (known && !bpf_map_delete_elem(&limited, &cgroup))
		free_entry(index, cgroup);
}

static __always_inline void used_up_to(u32 end)
{
	u32 try;

	bpf_for(try, 0, CHANGE_TRIES)
	{
		u32 before = *(volatile u32 *)&limits_end;

		if (before >= end ||
		    __sync_val_compare_and_swap(&limits_end, before, end) ==
			    before)
			break;
	}
}

/* An entry for the cgroup. */
__noinline u32 new_entry(u64 cgroup, _Bool users)
{
	u32 i;

	if (users &&
	    __sync_fetch_and_add(&users_limits_used, 1) >= MAX_USERS_LIMITS) {
		add(&users_limits_used, -1ULL);
		return MAX_LIMITS;
	}
	bpf_for(i, 0, MAX_LIMITS)
	{
		u32 index = i;
		struct bandwidth *of = bpf_map_lookup_elem(&bandwidths, &index);

		/* Those that waited for the former one's budget leave first. */
		if (!of || scx_bpf_dsq_nr_queued(QUEUE_PARKED + index) > 0 ||
		    __sync_val_compare_and_swap(&of->cgroup, 0, cgroup))
			continue;
		of->periods = 0;
		of->throttled = 0;
		of->throttled_ns = 0;
		of->used_ns = 0;
		of->users = users;
		add(&limits_used, 1);
		used_up_to(index + 1);
		return index;
	}
	if (users)
		add(&users_limits_used, -1ULL);
	return MAX_LIMITS;
}

__noinline int set_limit(u64 cgroup, u64 period_us, u64 quota_us, u64 burst_us,
			 _Bool users)
{
	u64 quota, period, burst, periods = 0, now = bpf_ktime_get_ns();
	u32 *known = bpf_map_lookup_elem(&limited, &cgroup);
	_Bool fresh = !known, own;
	struct bandwidth *of;
	struct budget *budget;
	u32 index;

	if (quota_us >= BANDWIDTH_MOST_NS / 1000) {
		lift_limit(cgroup);
		return 0;
	}
	index = known ? *known : new_entry(cgroup, users);
	of = bpf_map_lookup_elem(&bandwidths, &index);
	budget = bpf_map_lookup_elem(&budgets, &index);
	if (!of || !budget) {
		lose_limit(users);
		return 0;
	}
	quota = quota_us * 1000;
	period = period_us * 1000;
	burst = burst_us * 1000;
	bpf_spin_lock(&budget->lock);
	/* It is another cgroup's if the limit was lifted meanwhile. */
	own = of->cgroup == cgroup;
	if (own) {
		of->quota_ns = quota;
		of->period_ns = period;
		of->burst_ns = burst;
		if (fresh) {
			budget->bandwidth.left = 0;
			budget->bandwidth.period = 0;
			budget->throttled = 0;
		}
		periods = bandwidth_set(&budget->bandwidth, quota, period,
					burst, now);
	}
	bpf_spin_unlock(&budget->lock);
	refilled(index, periods, 0);
	if (!own) {
		lose_limit(users);
		return 0;
	}
	/* Another CPU has set it meanwhile: one of the two comes later. */
	if (fresh &&
	    bpf_map_update_elem(&limited, &cgroup, &index, BPF_NOEXIST))
		free_entry(index, cgroup);
	return 0;
}

static __always_inline void limit_changed(void)
{
	refill_due = 0;
	limits_changed_at = bpf_ktime_get_ns();
	add(&limits_changed, 1);
}

SEC("struct_ops/guard_cgroup_init")
s32 BPF_PROG(guard_cgroup_init, struct cgroup *cgroup,
	     struct scx_cgroup_init_args *args)
{
	set_limit(BPF_CORE_READ(cgroup, kn, id), args->bw_period_us,
		  args->bw_quota_us, args->bw_burst_us, is_users(cgroup));
	limit_changed();
	return 0;
}

SEC("struct_ops/guard_cgroup_exit")
void BPF_PROG(guard_cgroup_exit, struct cgroup *cgroup)
{
	lift_limit(BPF_CORE_READ(cgroup, kn, id));
	limit_changed();
}

SEC("struct_ops/guard_set_bandwidth")
void BPF_PROG(guard_set_bandwidth, struct cgroup *cgroup, u64 period_us,
	      u64 quota_us, u64 burst_us)
{
	if (keeps_limits)
		set_limit(BPF_CORE_READ(cgroup, kn, id), period_us, quota_us,
			  burst_us, is_users(cgroup));
	limit_changed();
}

/* Finds the limits that the thread is under, the outermost first: these are
 * root's. Several CPUs may do so at once: they write the same, and who sees the
 * generation sees the rest. */
static __noinline int find_limits(struct task_struct *p, struct task *task)
{
	struct task_struct___grouped *grouped = (void *)p;
	struct task_group *own = BPF_CORE_READ(grouped, sched_task_group);
	u64 changed = limits_changed, ancestors;
	struct cgroup *cgroup;
	u32 i, n = 0;
	s32 level;

	if (task->task_group == (u64)own && task->limits_generation == changed)
		return 0;
	/* The group of a session that is in no cgroup but the root has none. */
	cgroup = BPF_CORE_READ(own, css.cgroup);
	level = cgroup ? BPF_CORE_READ(cgroup, level) : -1;
	if (level >= MAX_DEPTH)
		lose_limit(is_users(cgroup));
	ancestors = (u64)cgroup + bpf_core_field_offset(cgroup->ancestors);
	bpf_for(i, 0, MAX_DEPTH)
	{
		struct cgroup *above = NULL;
		u32 *index;
		u64 id;

		if ((s32)i > level ||
		    bpf_probe_read_kernel(&above, sizeof(above),
					  (void *)(ancestors + i * 8ULL)))
			break;
		id = BPF_CORE_READ(above, kn, id);
		index = bpf_map_lookup_elem(&limited, &id);
		if (!index)
			continue;
		if (n >= MAX_NESTED_LIMITS) {
			lose_limit(is_users(above));
			continue;
		}
		task->limits[n] = *index;
		n++;
	}
	task->limited = n;
	barrier();
	task->task_group = (u64)own;
	task->limits_generation = changed;
	return 0;
}

/* Whether the thread is under a limit. */
static __always_inline _Bool is_limited(struct task_struct *p,
					struct task *task)
{
	if (!keeps_limits || !limits_used)
		return 0;
	find_limits(p, task);
	return task->limited > 0;
}

/* Whether there is budget for a thread that wants to run. */
__noinline int has_budget(u32 index, u64 now)
{
	struct budget *budget = bpf_map_lookup_elem(&budgets, &index);
	struct bandwidth *of = bpf_map_lookup_elem(&bandwidths, &index);
	u64 periods, wait, waited = 0;
	_Bool first = 0;

	/* It may have been lifted. */
	if (!budget || !of || !of->cgroup)
		return 1;
	bpf_spin_lock(&budget->lock);
	periods = bandwidth_refill(&budget->bandwidth, now);
	wait = bandwidth_wait(&budget->bandwidth, now);
	if (wait) {
		first = !budget->throttled;
		if (first)
			budget->throttled = now;
		budget->until = now + wait;
	} else if (budget->throttled) {
		/* Who waited may have left, and nobody asked at that time. */
		u64 end = policy_after(budget->until, now) < 0 ? budget->until
							       : now;

		if (policy_after(end, budget->throttled) > 0)
			waited = end - budget->throttled;
		budget->throttled = 0;
	}
	bpf_spin_unlock(&budget->lock);
	refilled(index, periods, waited);
	if (first)
		add(&of->throttled, 1);
	if (wait && policy_after(now + wait, refill_due) < 0)
		refill_due = now + wait;
	return !wait;
}

/* A limit of the thread whose budget is used up: its index plus 1, 0: none. One
 * that exits is not parked: it cannot be found by its ID any more, and what it
 * holds is given back. */
static __noinline u32 lacks_budget(struct task_struct *p, struct task *task,
				   u64 now)
{
	u32 i;

	/* Only timers move the parked back. */
	if (!timers_run || !active || !is_limited(p, task) || task->overdue ||
	    p->flags & PF_EXITING)
		return 0;
	bpf_for(i, 0, MAX_NESTED_LIMITS)
	{
		if (i >= task->limited || i >= MAX_NESTED_LIMITS)
			break;
		if (!has_budget(task->limits[i], now))
			return task->limits[i] % MAX_LIMITS + 1;
	}
	return 0;
}

static __always_inline _Bool may_run(struct task_struct *p, struct task *task,
				     u64 now)
{
	return !lacks_budget(p, task, now);
}

/* The thread runs from now on: it takes the budget for up to ns. Returns how
 * long it may run. */
static __noinline u64 take_budget(struct task_struct *p, struct task *task,
				  u64 ns, u64 now)
{
	u32 i;

	task->took = 0;
	if (!is_limited(p, task))
		return ns;
	task->took = now;
	bpf_for(i, 0, MAX_NESTED_LIMITS)
	{
		struct budget *budget;
		u64 taken = 0, periods;
		u32 index;

		if (i >= MAX_NESTED_LIMITS)
			break;
		task->taken[i].budget = 0;
		if (i >= task->limited)
			continue;
		index = task->limits[i];
		budget = bpf_map_lookup_elem(&budgets, &index);
		if (!budget)
			continue;
		bpf_spin_lock(&budget->lock);
		periods = bandwidth_refill(&budget->bandwidth, now);
		taken = bandwidth_take(&budget->bandwidth, ns);
		bpf_spin_unlock(&budget->lock);
		refilled(index, periods, 0);
		task->taken[i].ns = taken;
		task->taken[i].budget = index + 1;
		ns = taken;
	}
	return ns;
}

/* What the thread used since is paid. */
static __noinline int settle(struct task *task, u64 now)
{
	u64 used = policy_after(now, task->took) > 0 ? now - task->took : 0;
	u32 i;

	if (!task->took)
		return 0;
	task->took = 0;
	bpf_for(i, 0, MAX_NESTED_LIMITS)
	{
		struct budget *budget;
		struct bandwidth *of;
		_Bool wanted;
		u32 index;
		u64 taken;

		if (i >= MAX_NESTED_LIMITS)
			break;
		if (!task->taken[i].budget)
			continue;
		index = task->taken[i].budget - 1;
		taken = task->taken[i].ns;
		budget = bpf_map_lookup_elem(&budgets, &index);
		of = bpf_map_lookup_elem(&bandwidths, &index);
		if (!budget || !of || !of->cgroup)
			continue;
		bpf_spin_lock(&budget->lock);
		bandwidth_settle(&budget->bandwidth, taken, used);
		wanted = budget->throttled && budget->bandwidth.left > 0;
		bpf_spin_unlock(&budget->lock);
		add(&of->used_ns, used);
		/* Others may run on what it did not use. */
		if (wanted)
			refill_due = now;
	}
	return 0;
}

/* The thread, which wants to run, waits for budget. How long it waits counts
 * until it runs: a refill may be used up by others before its turn comes.
 * Returns whether it did not yet do so. */
static __always_inline int parks(struct task *task, u64 now)
{
	task->queued = 0;
	if (!task->waits)
		task->waits = now;
	if (__sync_lock_test_and_set(&task->parked, 1))
		return 0;
	count_out(task, now);
	return 1;
}

/* Parks those at the head of the queue that have no budget. */
__noinline int park_spent(u64 queue, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u32 n;

	if (!keeps_limits || !limits_used)
		return 0;
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		bpf_for(n, 0, PARK_MOST)
		{
			struct task *task;
			u32 lacks;

			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			task = task_of(p);
			lacks = task ? lacks_budget(p, task, now) : 0;
			if (!lacks)
				break;
			/* Once there, another CPU may move it back. */
			if (!parks(task, now))
				break;
			if (kernel_move_vtime(&it, p, QUEUE_PARKED + lacks - 1,
					      SLICE_FOR_KERNEL, task->waits))
				continue;
			task->queued = 1;
			__sync_lock_test_and_set(&task->parked, 0);
			count_remotely(task, now);
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* The thread, which was parked, is in the queue of its domain again: the CPU
 * where it ran last looks there, even if it could run nobody from it before. */
static __always_inline void comes_back(struct task_struct *p)
{
	s32 where = scx_bpf_task_cpu(p);
	struct cpu *cpu = cpu_of(where);

	if (cpu && cpu->apart && kernel_admits(p, where))
		cpu->apart = 0;
}

/* Moves those back that wait for budget of this limit, if there is some, and
 * those that have waited for too long: they are ordered by that. */
__noinline int unpark_of(u32 index, u64 now)
{
	_Bool budget = has_budget(index, now);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_PARKED + index, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *task = task_of(p);
			u32 lacks;
			u64 vtime;
			s32 cpu;

			if (!task)
				continue;
			if (task->waits && policy_after(now, task->waits) >
						   (s64)BANDWIDTH_OVERDUE_NS)
				task->overdue = 1;
			else if (!budget)
				break;
			lacks = lacks_budget(p, task, now);
			if (lacks == index + 1)
				break;
			if (++unparked >= unpark_most())
				break;
			if (lacks) {
				kernel_move_vtime(
					&it, p, QUEUE_PARKED + lacks - 1,
					SLICE_FOR_KERNEL, task->waits);
				continue;
			}
			vtime = place_thread(p->pid, 1, now);
			task->queued = 1;
			__sync_lock_test_and_set(&task->parked, 0);
			if (!kernel_move_vtime(&it, p, queue_id(task),
					       SLICE_FOR_KERNEL, vtime))
				continue;
			count_remotely(task, now);
			cpu = task->queue ? (s32)task->queue - 1
					  : kernel_claim_idle(p);
			if (cpu >= 0)
				scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			else
				comes_back(p);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return 0;
}

/* Moves the parked back that have budget again: a few at once, since nobody
 * knows how long they will run, and the first may use all of it. A cgroup of
 * thousands of threads keeps no other from its turn. */
__noinline int unpark(u64 now)
{
	u64 began = bpf_ktime_get_ns(), end;
	u32 n, index;

	if (!limits_end || policy_after(refill_due, now) > 0 ||
	    policy_after(unpark_rest, now) > 0 ||
	    __sync_val_compare_and_swap(&unparking, 0, 1))
		return 0;
	refill_due = now + LOOK_PARKED_NS;
	unparker = bpf_get_smp_processor_id() + 1;
	unparked = 0;
	bpf_for(n, 0, MAX_LIMITS)
	{
		if (n >= limits_end)
			break;
		index = unpark_next % MAX_LIMITS;
		unpark_next = index + 1 < limits_end ? index + 1 : 0;
		if (scx_bpf_dsq_nr_queued(QUEUE_PARKED + index) > 0)
			unpark_of(index, now);
		if (unparked >= unpark_most()) {
			refill_due = now;
			break;
		}
	}
	end = bpf_ktime_get_ns();
	unpark_rest = end + UNPARK_REST * (end - began);
	barrier();
	unparking = 0;
	return 0;
}
