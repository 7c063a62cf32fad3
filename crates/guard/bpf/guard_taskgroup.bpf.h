/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's task groups: cgroups that have the controller cpu, and sessions
 * (autogroup). As under the stock scheduler, all that is runnable in a group
 * shares its weight: its threads that are no vCPUs, and the groups in it. VMs
 * have weights relative to each other, from user space; all of them together
 * weigh as much as the outermost groups that they are in.
 */
#pragma once

/* Levels of cgroups that are looked at. */
#define MAX_DEPTH 256
/* How often the weight of a group is read. */
#define WEIGH_NS 1000000000ULL
/* How many entries are looked at for a free one. */
#define TASK_GROUP_TRIES 64
/* How often a value is tried to be changed that other CPUs change too. */
#define CHANGE_TRIES 8

struct taskgroup {
	u64 key; /* 0: the entry is free */
	u64 users; /* threads, VMs and groups in it that hold the entry */
	u64 address; /* in the kernel */
	u64 weight;
	u64 weighed; /* when that was read */
	struct policy_sum active; /* of all that is runnable in it */
	u64 load; /* what it adds to that of the group above, or of the host */
	u64 vms; /* of an outermost one: runnable VMs in it or in those below */
	u64 tops; /* what it adds to vm_tops for them */
	u64 vtime; /* run time of its own threads, divided by their weight */
	u64 credit; /* by how much that may be ahead (policy_slept_in) */
	u32 above; /* index plus 1, 0: none */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TASK_GROUPS);
	__type(key, u32);
	__type(value, struct taskgroup);
} taskgroups SEC(".maps");

/* By key, the index in taskgroups. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TASK_GROUPS);
	__type(key, u64);
	__type(value, u32);
} taskgroup_of SEC(".maps");

/* Groups in each other, the outermost last. */
struct chain {
	u64 of[MAX_LEVELS];
	/* In memory: the verifier would tell each value from the others. */
	u32 depth;
	u32 whole; /* all of them are there */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct chain);
} chains SEC(".maps");

/* Where a free entry may be, and when none was found. */
static u32 next_taskgroup;
static u64 no_taskgroup;
/* How many are held. */
u64 taskgroups_used;

/* Whose directory it is. */
static __always_inline u32 owner(struct cgroup *cgroup)
{
	struct kernfs_iattrs *attributes = BPF_CORE_READ(cgroup, kn, iattr);

	return attributes ? BPF_CORE_READ(attributes, ia_uid.val) : 0;
}

/* Whether the cgroup's limit and weight are a user's. Who is given a cgroup has
 * its directory, but these stay root's; in cgroups below, the files are the
 * user's. */
static __always_inline _Bool is_users(struct cgroup *cgroup)
{
	return owner(cgroup) &&
	       owner(BPF_CORE_READ(cgroup, self.parent, cgroup));
}

static __always_inline struct taskgroup *taskgroup_at(u32 taskgroup)
{
	u32 index = taskgroup - 1;

	return bpf_map_lookup_elem(&taskgroups, &index);
}

/* Another group may get the address of one that is gone. */
static __always_inline u64 taskgroup_key(u64 address)
{
	struct task_group *of = (void *)address;

	return address +
	       BPF_CORE_READ(of, css.serial_nr) * 0x9e3779b97f4a7c15ULL;
}

static __always_inline u64 weight_of(u64 address)
{
	struct task_group *of = (void *)address;

	if (!bpf_core_field_exists(of->shares))
		return POLICY_WEIGHT;
	return policy_weight_of(BPF_CORE_READ(of, shares));
}

/* Somebody has the group no longer. The last one frees the entry: nobody holds
 * one that has no users. */
__noinline int release_taskgroup(u32 taskgroup)
{
	u32 level;

	bpf_for(level, 0, MAX_LEVELS)
	{
		struct taskgroup *of = taskgroup_at(taskgroup);
		u32 above, *known;
		u64 key;

		if (!of || __sync_fetch_and_add(&of->users, -1ULL) != 1)
			break;
		key = of->key;
		above = of->above;
		known = bpf_map_lookup_elem(&taskgroup_of, &key);
		if (known && *known == taskgroup - 1)
			bpf_map_delete_elem(&taskgroup_of, &key);
		__sync_lock_test_and_set(&of->key, 0);
		add(&taskgroups_used, -1ULL);
		taskgroup = above;
	}
	return 0;
}

/* Holds the entry if it is that group's still. */
__noinline int holds(u32 taskgroup, u64 key)
{
	struct taskgroup *of = taskgroup_at(taskgroup);
	u32 try, *known;

	if (!of)
		return 0;
	bpf_for(try, 0, CHANGE_TRIES)
	{
		u64 users = *(volatile u64 *)&of->users;

		if (!users)
			break;
		if (__sync_val_compare_and_swap(&of->users, users, users + 1) !=
		    users)
			continue;
		if (of->key == key)
			return 1;
		release_taskgroup(taskgroup);
		break;
	}
	/* One that could not be deleted would stand in the way for ever. */
	known = bpf_map_lookup_elem(&taskgroup_of, &key);
	if (of->key != key && known && *known == taskgroup - 1)
		bpf_map_delete_elem(&taskgroup_of, &key);
	return 0;
}

/* Holds the entry of the group at that address, and then no longer that of the
 * group above: the entry holds it. 0: there is none, perhaps later. */
__noinline u32 hold_one(u64 address, u32 above)
{
	u64 key = taskgroup_key(address);
	u32 *known = bpf_map_lookup_elem(&taskgroup_of, &key), index, try;
	u64 now = bpf_ktime_get_ns();

	if (known) {
		index = *known;
		if (!holds(index + 1, key))
			return 0;
		release_taskgroup(above);
		return index + 1;
	}
	if (no_taskgroup && policy_after(now, no_taskgroup) < (s64)WEIGH_NS)
		return 0;
	bpf_for(try, 0, TASK_GROUP_TRIES)
	{
		struct taskgroup *of;

		index = __sync_fetch_and_add(&next_taskgroup, 1) %
			MAX_TASK_GROUPS;
		of = bpf_map_lookup_elem(&taskgroups, &index);
		if (!of || __sync_val_compare_and_swap(&of->key, 0, key))
			continue;
		/* A thread is counted there still, for a moment. */
		if (of->active.all || of->load || of->vms || of->tops) {
			__sync_lock_test_and_set(&of->key, 0);
			continue;
		}
		of->address = address;
		of->above = above;
		of->weight = weight_of(address);
		of->weighed = now;
		of->vtime = virtual_now;
		of->credit = 0;
		add(&taskgroups_used, 1);
		/* From here on it may be held. */
		__sync_lock_test_and_set(&of->users, 1);
		if (!bpf_map_update_elem(&taskgroup_of, &key, &index,
					 BPF_NOEXIST))
			return index + 1;
		/* Another CPU has made one meanwhile. */
		of->above = 0;
		release_taskgroup(index + 1);
		return 0;
	}
	no_taskgroup = now;
	return 0;
}

/* All groups that are nested too deeply to be looked at, as one of the least
 * weight. */
#define NESTED_TOO_DEEPLY (~0ULL)

/* A VM in such a group counts as one in none. */
static __always_inline u32 hold_nested(struct chain *chain, _Bool top)
{
	u32 taskgroup = top ? 0 : hold_one(NESTED_TOO_DEEPLY, 0);

	chain->whole = top || taskgroup;
	return taskgroup;
}

/* Holds the entry of the group at that address, or if top, of the outermost one
 * that it is in. For lack of room it may be one above; chain->whole says. 0: it
 * is the root. */
__noinline u32 hold_taskgroup(u64 address, _Bool top)
{
	u32 zero = 0, taskgroup = 0, i;
	struct task_group *of = (void *)address;
	struct chain *chain = bpf_map_lookup_elem(&chains, &zero);

	if (!chain)
		return 0;
	chain->depth = 0;
	chain->whole = 0;
	/* A user divides an own part. */
	bpf_for(i, 0, MAX_DEPTH)
	{
		struct cgroup *cgroup = BPF_CORE_READ(of, css.cgroup);

		if (!cgroup || !is_users(cgroup)) {
			chain->whole = 1;
			break;
		}
		of = BPF_CORE_READ(of, parent);
	}
	if (!chain->whole)
		return hold_nested(chain, top);
	chain->whole = 0;
	bpf_for(i, 0, MAX_DEPTH)
	{
		struct task_group *above = BPF_CORE_READ(of, parent);

		if (!above) {
			chain->whole = 1;
			break;
		}
		chain->of[chain->depth % MAX_LEVELS] = (u64)of;
		chain->depth++;
		of = above;
	}
	if (!chain->whole)
		return hold_nested(chain, top);
	bpf_for(i, 0, MAX_LEVELS)
	{
		u32 last = chain->depth - 1, next;

		if (i > last || !chain->depth || (top && i > 0))
			break;
		next = hold_one(chain->of[(last - i) % MAX_LEVELS], taskgroup);
		if (!next) {
			chain->whole = 0;
			break;
		}
		taskgroup = next;
	}
	return taskgroup;
}

/* The weight of all that is runnable has changed. Other CPUs may change it,
 * too: the last one sees what the others have done. */
__noinline int load_changed(void)
{
	u32 try;

	bpf_for(try, 0, CHANGE_TRIES)
	{
		u64 vms = *(volatile u64 *)&vm_load;
		u64 beside = policy_beside(vms, *(volatile u64 *)&vm_tops);
		u64 rest = policy_beside_vms(
			policy_fine(*(volatile u64 *)&rest_load), beside);
		u64 now = (policy_most(vms) + policy_coarse(rest)) /
			  (settings.online ? settings.online : 1);

		if (*(volatile u64 *)&load_per_cpu == now &&
		    *(volatile u64 *)&vm_beside.all == beside)
			break;
		__sync_lock_test_and_set(&load_per_cpu, now);
		policy_sum_set(&vm_beside, beside, bpf_ktime_get_ns());
	}
	return 0;
}

/* What the group adds above changes by so much. Other CPUs may do so, too: the
 * last one sees what the others have done. */
static __always_inline u64 rebalance(struct taskgroup *of)
{
	u64 change = 0;
	u32 try;

	bpf_for(try, 0, CHANGE_TRIES)
	{
		u64 wanted = *(volatile u64 *)&of->active.all ? of->weight : 0;

		if (*(volatile u64 *)&of->load == wanted)
			break;
		change += wanted - __sync_lock_test_and_set(&of->load, wanted);
	}
	return change;
}

/* So much more is runnable in the group, or less; 0: in none. */
__noinline int weigh_in(u32 taskgroup, u64 more)
{
	u64 now = bpf_ktime_get_ns();
	u32 level;

	bpf_for(level, 0, MAX_LEVELS + 1)
	{
		struct taskgroup *of = taskgroup_at(taskgroup);
		u32 above;

		if (!of) {
			add(&rest_load, more);
			load_changed();
			break;
		}
		above = of->above;
		policy_sum_add(&of->active, more, now);
		more = rebalance(of);
		if (!more)
			break;
		taskgroup = above;
	}
	return 0;
}

/* What the outermost group adds for the VMs that are in it. */
__noinline int rebalance_vms(u32 taskgroup)
{
	struct taskgroup *of = taskgroup_at(taskgroup);
	u32 try;

	if (!of)
		return 0;
	bpf_for(try, 0, CHANGE_TRIES)
	{
		u64 wanted = *(volatile u64 *)&of->vms ? of->weight : 0;

		if (*(volatile u64 *)&of->tops == wanted)
			break;
		add(&vm_tops,
		    wanted - __sync_lock_test_and_set(&of->tops, wanted));
	}
	return 0;
}

/* One more VM of the outermost group is runnable, or one less. */
__noinline int count_vm(u32 taskgroup, _Bool more)
{
	struct taskgroup *of = taskgroup_at(taskgroup);

	if (!of)
		return 0;
	add(&of->vms, more ? 1 : -1ULL);
	rebalance_vms(taskgroup);
	return 0;
}

/* Reads the group's weight now and then. */
__noinline int reweigh(u32 taskgroup, u64 now)
{
	struct taskgroup *of = taskgroup_at(taskgroup);
	u64 weighed;

	if (!of)
		return 0;
	weighed = of->weighed;
	if (policy_after(now, weighed) <= (s64)WEIGH_NS ||
	    __sync_val_compare_and_swap(&of->weighed, weighed, now) != weighed)
		return 0;
	of->weight = weight_of(of->address);
	weigh_in(taskgroup, 0);
	rebalance_vms(taskgroup);
	return load_changed();
}

/* The functions below are not inlined, and have the verifier look at them once:
 * they are called from many places. */

/* The thread is counted with that weight among those that are runnable; 0: not.
 * Several CPUs may do so at once: what was counted says where. Returns whether
 * that is a change. */
__noinline int count_thread(struct task *task, u32 own)
{
	int changed = 0;
	u64 to, from;
	u32 try;

	if (!task)
		return 0;
	bpf_for(try, 0, CHANGE_TRIES)
	{
		to = own ? (u64)task->taskgroup << 32 | own : 0;
		if (task->counts == to)
			break;
		from = __sync_lock_test_and_set(&task->counts, to);
		changed = 1;
		if (to)
			weigh_in(to >> 32, (u32)to);
		if (from)
			weigh_in(from >> 32, -(u64)(u32)from);
		/* It may have got another group meanwhile. */
	}
	return changed;
}

/* What the thread weighs beside all others, in parts of POLICY_FINE: now, or if
 * it ran for ran, in the mean over that. Who starts others at the end of a turn
 * was alone until then. */
__noinline u64 weigh(struct task *task, u64 now, u64 ran)
{
	u64 part, fine, mean, whole = 0, all, sum;
	u32 level, taskgroup;

	if (!task)
		return 0;
	part = task->own;
	fine = mean = part << POLICY_FINE;
	taskgroup = task->taskgroup;
	bpf_for(level, 0, MAX_LEVELS)
	{
		struct taskgroup *of = taskgroup_at(taskgroup);
		u64 *before = &task->sums[level & (MAX_LEVELS - 1)];

		if (!of)
			break;
		reweigh(taskgroup, now);
		sum = policy_sum_integral(&of->active, now);
		all = of->active.all;
		fine = policy_above(fine, part, all, of->weight);
		all = policy_mean(*before, sum, ran, all);
		mean = policy_above(mean, part, all, of->weight);
		whole = level ? policy_above(whole, part, all, of->weight)
			      : of->weight << POLICY_FINE;
		*before = sum;
		part = of->weight;
		taskgroup = of->above;
	}
	all = vm_beside.all;
	sum = policy_sum_integral(&vm_beside, now);
	fine = policy_beside_vms(fine, all);
	all = policy_mean(task->beside_sum, sum, ran, all);
	task->thread.weight = policy_coarse(fine);
	task->beside_sum = sum;
	task->whole = policy_beside_vms(whole, all);
	return policy_beside_vms(mean, all);
}

/* The thread is no vCPU, and is charged for what it ran. */
__noinline u64 charge_thread(struct task *task, u64 now)
{
	struct policy_limits limit;
	struct taskgroup *of;
	u64 fine, ran;

	if (!task || policy_after(now, task->thread.began) <= 0)
		return 0;
	ran = now - task->thread.began;
	fine = weigh(task, now, ran);
	policy_charge(&task->thread, 0, fine, now);
	of = taskgroup_at(task->taskgroup);
	/* A CPU's own queue says nothing of the host's virtual time. */
	if (!of || task->queue)
		return ran;
	limits(&limit);
	add(&of->vtime, policy_fine_scaled(ran, task->whole));
	/* A round of its threads may pass between two looks. */
	of->credit = policy_fine_scaled(
		(POLICY_CREDIT_SLICES +
		 policy_most(of->active.all) / POLICY_WEIGHT) *
			limit.slice,
		task->whole);
	policy_stand_in(&of->vtime, of->credit, virtual_now);
	return ran;
}

/* The thread's credit, which is no vCPU and slept, in the queue of all CPUs. */
static __always_inline s64 credit_in(const struct task *task, s64 credit)
{
	struct taskgroup *of = taskgroup_at(task->taskgroup);

	return of ? policy_slept_in(of->vtime, of->credit, virtual_now, credit)
		  : credit;
}
