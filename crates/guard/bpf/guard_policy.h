/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The policy of guard: who runs next, for how long, and who is owed time. Plain
 * C without kernel calls, compiled into the eBPF scheduler and, for its tests,
 * into a user-space library. The includer defines u32, u64 and s64.
 *
 * Fairness. Each thread has a virtual time: run time, divided by its weight
 * (100 is normal). The one with the least runs next. A VM's weight is shared by
 * those of its vCPUs that are runnable, so a VM gets the share of its weight
 * however many vCPUs it has. How many are runnable changes while one of them
 * runs, so a vCPU is charged with the integral of that number over its run
 * (struct policy_group, "rate"): nothing is gained by sleeping at the right
 * moment.
 *
 * Run time counts however it was granted. An extended or rescued vCPU has a
 * larger virtual time afterwards and waits for longer: that is all the repaying
 * there is, and it needs no account of its own. What is bounded is how far
 * ahead of its turn a vCPU may get, and a VM (policy_rescue), and how long one
 * extension and all of a VM's together may be (policy_extend).
 *
 * What a guest says about itself only selects who is extended or rescued, and
 * which of three bounds a rescue has. It cannot lengthen either beyond its
 * bound, nor lower what is charged.
 */
#ifndef REPRIEVE_GUARD_POLICY_H
#define REPRIEVE_GUARD_POLICY_H

/* Inlined, since some are called with a lock held. */
#define POLICY_FN static inline __attribute__((always_inline, unused))

#define POLICY_WEIGHT 100ULL
/* Virtual time that a thread may be ahead of all others, at normal weight, and
 * the longest that anybody should wait for that reason. */
#define POLICY_AHEAD_NS 200000000ULL
#define POLICY_WAIT_NS 4000000000ULL
/* What a VM as a whole lacks is kept up to this many slices, for vCPUs that
 * wake up: a vCPU of two moves on by two slices in a turn. A VM that had more
 * than its share has that forgiven up to as much. */
#define POLICY_CREDIT_SLICES 4
/* A VM may use this part (1/n) of the time that passes for extensions. */
#define POLICY_EXTEND_PART 4
/* What a vCPU that owes lacks is a tick of its guest's, which comes as soon as
 * the vCPU runs if it is due. Where nobody says when it is, the vCPU is rescued
 * after it has been off its CPU for this long: most guests have 250 a second.
 */
#define POLICY_RESCUE_GAP_NS 4000000ULL
/* A vCPU that has work to do for the grace period needs no tick. It is rescued
 * after this long off its CPU, so that rescues do not follow each other at
 * once. */
#define POLICY_WORK_GAP_NS 500000ULL
/* How long a rescue lasts if the quiescent state does not come before: enough
 * for the tick and the softirq that it raises. */
#define POLICY_RESCUE_NS 300000ULL
/* The same for a vCPU where RCU's thread is ready: in the guest's run queue,
 * other threads may be before it. */
#define POLICY_WORK_NS 1000000ULL

/* All vCPUs of a VM together may be ahead of their turns by as much as so many
 * of them alone. Else a VM of many, each of which may get ahead a little, would
 * gain a lot. */
#define POLICY_BORROWERS 4

/* What the threads of CPU masks lack beside others of their queue is forgotten
 * beyond this, of all masks and no more often than that; and what those of a
 * mask lack, when none of them started for so long. */
#define POLICY_MASK_LAG_NS POLICY_WAIT_NS
#define POLICY_MASK_IDLE_NS 100000000ULL

/* Where more threads than this compete for a CPU, turns are shorter, so that a
 * round of turns takes as long as with so many: a preempted vCPU waits for a
 * round. They are not shorter than this, since each costs a switch. */
#define POLICY_ROUND 4
#define POLICY_TURN_LEAST_NS 1000000ULL
/* But where a round would then take longer than this, since the kernel ends a
 * scheduler that lets a thread wait for 20 s; and these are the shortest. */
#define POLICY_ROUND_MOST_NS 8000000000ULL
#define POLICY_TURN_ANY_NS 100000ULL

struct policy_limits {
	u64 slice;
	u64 max_extend;
	u64 max_hold;
	u64 late; /* a grace period of this age is worth debt */
	u64 late_most; /* the same, if they are short (policy_late) */
	u64 rescue_share; /* of a vCPU's run time, in hundredths, for rescues */
};

/* The runnable vCPUs of a VM. */
struct policy_group {
	u64 weight;
	u64 runnable;
	u64 rate; /* integral of runnable / weight over time */
	u64 since; /* the time up to which it is known */
	u64 vtime; /* run time of all its vCPUs, divided by its weight */
	/* vtime is as on the CPUs of this part of the host (policy_part), where
	 * virtual time is so far behind the host's. */
	u64 mask;
	u64 lag;
	u64 borrowed; /* what they ran out of turn, each since its last turn */
};

/* A thread. */
struct policy_thread {
	u64 vtime;
	u64 weight; /* not of a vCPU, which has its VM's */
	u64 began; /* when it got its CPU */
	u64 rate; /* its group's, at that time */
	u64 overrun; /* what it ran in rescues beyond their share */
};

/* A queue of threads that compete with each other: the virtual time of the one
 * that started last, and of the last that was the first of the queue then. */
struct policy_queue {
	u64 vtime;
	u64 first;
};

/* Threads that may run on the same CPUs, a part of those of their queue. They
 * compete with each other only there, where virtual time may pass more slowly:
 * the virtual time of the one that started last, and when that was. moved is by
 * how much all of them were moved on in the queue. */
struct policy_mask {
	u64 vtime;
	u64 started;
	u64 moved;
	u64 forgot; /* the domain's, when its threads were moved last */
};

/* Why a thread keeps its CPU beyond its slice. */
struct policy_extension {
	u64 began; /* 0: it does not */
};

/* What a VM has left for extensions. */
struct policy_budget {
	u64 left;
	u64 since;
};

enum policy_verdict {
	POLICY_GO, /* its slice is over */
	POLICY_STAY, /* it is in a section that should end first */
	POLICY_EXPIRED, /* it is in one still, and its time is up */
	POLICY_REFUSED, /* it is in one, and its VM has no budget */
};

POLICY_FN s64 policy_after(u64 a, u64 b)
{
	return (s64)(a - b);
}

POLICY_FN u64 policy_scaled(u64 ns, u64 weight)
{
	return ns * POLICY_WEIGHT / (weight ? weight : 1);
}

/* The same, but what is lighter than normal has no more than what is not. */
POLICY_FN u64 policy_scaled_most(u64 ns, u64 weight)
{
	return policy_scaled(ns,
			     weight > POLICY_WEIGHT ? weight : POLICY_WEIGHT);
}

/* Brings the group's integral up to now. */
POLICY_FN void policy_group_advance(struct policy_group *group, u64 now)
{
	if (policy_after(now, group->since) <= 0)
		return; /* another CPU's clock was ahead */
	group->rate += policy_scaled((now - group->since) * group->runnable,
				     group->weight);
	group->since = now;
}

POLICY_FN void policy_join(struct policy_group *group, u64 now)
{
	policy_group_advance(group, now);
	group->runnable++;
}

POLICY_FN void policy_leave(struct policy_group *group, u64 now)
{
	policy_group_advance(group, now);
	if (group->runnable)
		group->runnable--;
}

/* The CPUs on which a vCPU competes, as a number: those of a mask, which is
 * odd, or all of a domain. */
POLICY_FN u64 policy_part(u64 mask, u32 domain)
{
	return mask ? mask : 2 * (u64)domain + 2;
}

/* The VM's virtual time as it is on the CPUs of the mask, where it is less by
 * lag than the host's. vCPUs may have different masks: the VM keeps its
 * distance. */
POLICY_FN u64 policy_group_vtime(const struct policy_group *group, u64 mask,
				 u64 lag)
{
	return group->mask == mask ? group->vtime
				   : group->vtime + group->lag - lag;
}

/* Where the VM as a whole stands on the CPUs of the mask; clock is the host's
 * virtual time. What it could not use is kept for a few turns only. */
POLICY_FN void policy_stand(struct policy_group *group, u64 clock, u64 mask,
			    u64 lag, const struct policy_limits *limits)
{
	u64 least = clock - lag - POLICY_CREDIT_SLICES * limits->slice;
	u64 most = clock - lag + POLICY_AHEAD_NS;

	group->vtime = policy_group_vtime(group, mask, lag);
	group->mask = mask;
	group->lag = lag;
	if (policy_after(group->vtime, least) < 0)
		group->vtime = least;
	if (policy_after(group->vtime, most) > 0)
		group->vtime = most;
}

/* Weights in task groups (cgroups, sessions) may be small on the host: they are
 * in parts of a weight. */
#define POLICY_FINE 10
#define POLICY_FINE_MOST (1ULL << 34)
#define POLICY_WEIGHT_MOST 10000ULL

/* The weight of a task group whose shares are so many. */
POLICY_FN u64 policy_weight_of(u64 shares)
{
	u64 weight;

	if (shares > POLICY_WEIGHT_MOST << 20)
		shares = POLICY_WEIGHT_MOST << 20;
	weight = (shares * POLICY_WEIGHT + (1 << 19)) >> 20;
	if (weight > POLICY_WEIGHT_MOST)
		weight = POLICY_WEIGHT_MOST;
	return weight ? weight : 1;
}

/* A sum of weights that CPUs change without a lock, and what its integral over
 * time lacks: the changes, each times when it was. */
struct policy_sum {
	u64 all;
	u64 moment;
};

/* Times in moments are since long before the host was started, so that a sum
 * that was read between the two parts of a change gives no possible mean. */
#define POLICY_SUM_NS (1ULL << 46)
#define POLICY_MEAN_NS 1000000000ULL
#define POLICY_MEAN_MOST (1ULL << 16)

POLICY_FN void policy_sum_add(struct policy_sum *sum, u64 more, u64 now)
{
	__sync_fetch_and_add(&sum->all, more);
	__sync_fetch_and_add(&sum->moment, more * (now + POLICY_SUM_NS));
}

POLICY_FN void policy_sum_set(struct policy_sum *sum, u64 all, u64 now)
{
	u64 before = __sync_lock_test_and_set(&sum->all, all);

	__sync_fetch_and_add(&sum->moment,
			     (all - before) * (now + POLICY_SUM_NS));
}

/* Its integral up to now. Only differences mean anything. */
POLICY_FN u64 policy_sum_integral(const struct policy_sum *sum, u64 now)
{
	u64 moment = sum->moment;

	return sum->all * (now + POLICY_SUM_NS) - moment;
}

/* The mean over the last ns, in which the integral went from `from` to `to`;
 * what the sum is now where that is not known. */
POLICY_FN u64 policy_mean(u64 from, u64 to, u64 ns, u64 all)
{
	if (!ns || ns > POLICY_MEAN_NS || to - from > ns * POLICY_MEAN_MOST)
		return all;
	return (to - from) / ns;
}

/* What weighs fine in a group weighs so much in the group above: it is a part,
 * or in a part that is one, of all that is runnable in the group, whose own
 * weight is weight. */
POLICY_FN u64 policy_above(u64 fine, u64 part, u64 all, u64 weight)
{
	/* Another CPU may count a moment later, also below 0. */
	if ((s64)all < (s64)part)
		all = part;
	fine = fine * weight / (all ? all : 1);
	return fine ? fine : 1;
}

/* A sum of weights. Other CPUs may have brought it below 0 for a moment. */
POLICY_FN u64 policy_most(u64 sum)
{
	u64 most = POLICY_FINE_MOST >> POLICY_FINE;

	if ((s64)sum < 0)
		return 0;
	return sum < most ? sum : most;
}

/* Runnable VMs weigh vms relative to each other, and all of them together no
 * more than the outermost groups that they are in, tops. So all else weighs
 * more, and not they less: what is bounded in virtual time fits VMs of the
 * normal weight. Run time of all else counts less by the part of POLICY_BESIDE
 * that this returns. */
#define POLICY_BESIDE (1ULL << 16)

POLICY_FN u64 policy_beside(u64 vms, u64 tops)
{
	u64 part;

	vms = policy_most(vms);
	tops = policy_most(tops);
	if (!tops || vms <= tops)
		return 0;
	part = POLICY_BESIDE * tops / vms;
	return POLICY_BESIDE - (part ? part : 1);
}

/* What weighs fine weighs so much beside the VMs. */
POLICY_FN u64 policy_beside_vms(u64 fine, u64 beside)
{
	if (beside >= POLICY_BESIDE)
		beside = POLICY_BESIDE - 1;
	if (fine > POLICY_FINE_MOST)
		fine = POLICY_FINE_MOST;
	fine = fine * POLICY_BESIDE / (POLICY_BESIDE - beside);
	return fine < POLICY_FINE_MOST ? fine : POLICY_FINE_MOST;
}

POLICY_FN u64 policy_fine(u64 sum)
{
	return policy_most(sum) << POLICY_FINE;
}

POLICY_FN u64 policy_coarse(u64 fine)
{
	u64 weight = fine >> POLICY_FINE;

	return weight ? weight : 1;
}

POLICY_FN u64 policy_fine_scaled(u64 ns, u64 fine)
{
	return ns * (POLICY_WEIGHT << POLICY_FINE) / (fine ? fine : 1);
}

/* The virtual time of a task group's own threads together: what they did not
 * use, and what they had too much, is forgotten as for VMs (policy_stand).
 * Other CPUs may write it. */
POLICY_FN void policy_stand_in(u64 *vtime, u64 credit, u64 clock)
{
	u64 before = *vtime, most = clock + 2 * credit + POLICY_AHEAD_NS;

	if (policy_after(before, clock - credit) < 0)
		__sync_val_compare_and_swap(vtime, before, clock - credit);
	else if (policy_after(before, most) > 0)
		__sync_val_compare_and_swap(vtime, before, most);
}

/* The credit of a thread that slept or was started, whose group's threads have
 * had too much: else threads that run one after the other would have the
 * group's share each. All of it is repaid, up to the bounds of policy_stand_in
 * and policy_place: of many threads that are awake for a turn each, every one
 * would have the rest for nothing. */
POLICY_FN s64 policy_slept_in(u64 vtime, u64 most, u64 clock, s64 credit)
{
	s64 leads = policy_after(vtime, clock);

	return leads > (s64)most ? (s64)most - leads : credit;
}

/* The thread gets its CPU. */
POLICY_FN void policy_begin(struct policy_thread *thread,
			    struct policy_group *group, u64 now)
{
	thread->began = now;
	if (group) {
		policy_group_advance(group, now);
		thread->rate = group->rate;
	}
}

/* The time that the thread ran since policy_begin, or since it was last
 * charged, is charged. Returns it. One that is no vCPU weighs fine. */
POLICY_FN u64 policy_charge(struct policy_thread *thread,
			    struct policy_group *group, u64 fine, u64 now)
{
	u64 ran;

	if (policy_after(now, thread->began) <= 0)
		return 0;
	ran = now - thread->began;
	thread->began = now;
	if (group) {
		policy_group_advance(group, now);
		thread->vtime += group->rate - thread->rate;
		thread->rate = group->rate;
		group->vtime += policy_scaled(ran, group->weight);
	} else {
		thread->vtime += policy_fine_scaled(ran, fine);
	}
	return ran;
}

/* The vCPU ran for ran, rescued or in its turn. Where rescues take more than
 * their share of its time, the next ones come later (policy_rescue): its turns
 * would become too short for what its guest has to do beside grace periods. */
POLICY_FN void policy_spend(struct policy_thread *thread, u64 ran, int rescued,
			    const struct policy_limits *limits)
{
	u64 share = ran / POLICY_WEIGHT * limits->rescue_share;

	if (rescued)
		thread->overrun += ran > share ? ran - share : 0;
	else
		thread->overrun -=
			share < thread->overrun ? share : thread->overrun;
	/* Beyond that it would say no more. */
	if (thread->overrun > limits->max_hold)
		thread->overrun = limits->max_hold;
}

/* The vCPU ran for ran out of its turn; own is what it had borrowed before. */
POLICY_FN void policy_borrow(u64 *own, struct policy_group *group, u64 ran)
{
	*own += ran;
	group->borrowed += ran;
}

/* The vCPU has its turn: until it came, it has repaid all of that. */
POLICY_FN void policy_repay(u64 *own, struct policy_group *group)
{
	group->borrowed -= *own < group->borrowed ? *own : group->borrowed;
	*own = 0;
}

/* The weight that the thread has now. */
POLICY_FN u64 policy_weight(const struct policy_thread *thread,
			    const struct policy_group *group)
{
	u64 weight;

	if (!group)
		return thread->weight ? thread->weight : 1;
	weight = group->weight / (group->runnable ? group->runnable : 1);
	return weight ? weight : 1;
}

/* How far behind its queue a thread may stay that did not sleep: of its run
 * time if it weighs more than others, since it may have been left behind when
 * it weighed less. A vCPU's own weight is the normal one. */
POLICY_FN u64 policy_kept(u64 weight)
{
	return policy_scaled_most(POLICY_AHEAD_NS, weight);
}

/* How far behind the virtual time of the queue a thread may come back. An
 * ordinary thread that slept has a slice of credit at most (of its run time, if
 * it weighs more than others), before the first of the queue: others may have
 * been preferred to that (policy_prefers). A vCPU
 * has what its VM as a whole lacks: while it slept, its VM's share was for the
 * others of its VM, which may not have been able to use it. Where the VM had
 * too much, that is negative: else vCPUs that run one after the other would
 * have a whole share each. Both are not known for a CPU's own queue (for_all).
 * mask and lag: as in policy_stand. Who did not sleep keeps what it is owed. */
POLICY_FN s64 policy_credit(const struct policy_group *group,
			    const struct policy_queue *queue, u64 mask, u64 lag,
			    int for_all, int woken, u64 weight,
			    const struct policy_limits *limits)
{
	s64 most = POLICY_CREDIT_SLICES * limits->slice;
	s64 lacks, leads;
	u64 vtime;

	if (!woken)
		return policy_kept(weight);
	if (!group) {
		lacks = policy_after(queue->vtime, queue->first);
		if (lacks < 0)
			lacks = 0;
		if (lacks > most)
			lacks = most;
		return (s64)policy_scaled_most(limits->slice, weight) + lacks;
	}
	if (!for_all)
		return 0;
	/* Another CPU may write it. */
	vtime = policy_group_vtime(group, mask, lag);
	leads = policy_after(vtime, queue->vtime);
	if (leads > (s64)POLICY_AHEAD_NS)
		leads = POLICY_AHEAD_NS;
	if (leads > most)
		return most - leads;
	lacks = policy_after(queue->vtime, vtime);
	return lacks > most ? most : lacks > 0 ? lacks : 0;
}

/* How far ahead of its queue a thread of that weight may stand: its debt is
 * forgiven beyond it. load is the weight of all that compete for one CPU, by
 * which virtual time passes more slowly than time. */
POLICY_FN u64 policy_ahead(u64 weight, u64 load)
{
	u64 ahead = policy_scaled(POLICY_AHEAD_NS, weight);
	u64 most;

	/* More may come while it waits. */
	if (load < POLICY_WEIGHT)
		load = POLICY_WEIGHT;
	most = policy_scaled(POLICY_WAIT_NS, load);
	return ahead < most ? ahead : most;
}

/* Where the thread stands in the queue. inherited is run time of threads that
 * it started and that ended (policy_bequeath). Who is far ahead waits for a
 * bounded time. */
POLICY_FN u64 policy_place(struct policy_thread *thread,
			   const struct policy_group *group,
			   const struct policy_queue *queue, u64 load,
			   s64 credit, u64 inherited)
{
	u64 weight = policy_weight(thread, group);
	u64 ahead = policy_ahead(weight, load);

	if (policy_after(thread->vtime, queue->vtime - credit) < 0)
		thread->vtime = queue->vtime - credit;
	thread->vtime += policy_scaled(inherited, weight);
	if (policy_after(thread->vtime, queue->vtime + ahead) > 0)
		thread->vtime = queue->vtime + ahead;
	return thread->vtime;
}

/* The thread changes from one queue to another. */
POLICY_FN void policy_move(struct policy_thread *thread,
			   const struct policy_queue *from,
			   const struct policy_queue *to)
{
	thread->vtime += to->vtime - from->vtime;
}

/* The thread starts in its turn (not rescued: that is ahead of its turn); early
 * says that it was not the first of the queue. */
POLICY_FN void policy_start(struct policy_queue *queue,
			    const struct policy_thread *thread, int early)
{
	if (policy_after(thread->vtime, queue->vtime) > 0)
		queue->vtime = thread->vtime;
	if (!early && policy_after(thread->vtime, queue->first) > 0)
		queue->first = thread->vtime;
}

/* The thread that runs has another turn, before the first of those that wait.
 */
POLICY_FN void policy_repeat(struct policy_queue *queue,
			     const struct policy_thread *thread, int waits,
			     u64 first)
{
	policy_start(queue, thread, 1);
	if (waits && policy_after(first, queue->first) > 0)
		queue->first = first;
}

/* The first thread of a mask comes to the queue. here is the virtual time of
 * the CPUs of the mask: others that may run there may lack a lot as well. */
POLICY_FN void policy_mask_begin(struct policy_mask *mask, u64 here, u64 forgot,
				 u64 now)
{
	mask->vtime = here;
	mask->started = now;
	mask->moved = 0;
	mask->forgot = forgot;
}

/* Whether none of the mask's threads started for long. */
POLICY_FN int policy_mask_idle(const struct policy_mask *mask, u64 now)
{
	return policy_after(now, mask->started) >= (s64)POLICY_MASK_IDLE_NS;
}

/* Forgets what the threads of the mask lack, if it is too much, or if none of
 * them could use it: then no more than others on their CPUs (here, as above,
 * where the mask is idle). They are moved on together, rarely and then far:
 * those that wait are moved only when they come to the queue again, and until
 * then have the start. All masks of a domain forget at the same time, which is
 * forgot: where they overlap, their threads compete. CPUs may do this at the
 * same time. */
POLICY_FN void policy_mask_advance(struct policy_mask *mask,
				   const struct policy_queue *queue, u64 here,
				   u64 *forgot, u64 now,
				   const struct policy_limits *limits)
{
	u64 vtime = mask->vtime, to = queue->vtime - limits->slice, on;
	s64 lacks = policy_after(queue->vtime, vtime);
	u64 since = *forgot;

	if (lacks > (s64)POLICY_MASK_LAG_NS &&
	    policy_after(now, since) >= (s64)POLICY_MASK_LAG_NS)
		*forgot = since = now;
	if (mask->forgot == since) {
		if (!policy_mask_idle(mask, now))
			return;
		if (policy_after(here, to) < 0)
			to = here;
	}
	mask->forgot = since;
	if (lacks <= (s64)limits->slice || policy_after(to, vtime) <= 0)
		return;
	on = to - vtime;
	if (__sync_val_compare_and_swap(&mask->vtime, vtime, vtime + on) ==
	    vtime)
		__sync_fetch_and_add(&mask->moved, on);
}

/* The queue as it is for threads of the mask. */
POLICY_FN void policy_mask_view(const struct policy_mask *mask,
				const struct policy_queue *queue,
				struct policy_queue *out)
{
	s64 lacks = policy_after(queue->vtime, mask->vtime);

	*out = *queue;
	if (lacks > 0) {
		out->vtime -= lacks;
		out->first -= lacks;
	}
}

/* The same for a thread of the mask that slept: others of the mask may have
 * slept as well, while virtual time passed on their CPUs, where it is here. */
POLICY_FN void policy_mask_woken(struct policy_queue *view, u64 here)
{
	s64 on = policy_after(here, view->vtime);

	if (on > 0) {
		view->vtime += on;
		view->first += on;
	}
}

/* The thread is moved on as those of its mask were since. */
POLICY_FN void policy_mask_move(const struct policy_mask *mask,
				struct policy_thread *thread, u64 *moved)
{
	thread->vtime += mask->moved - *moved;
	*moved = mask->moved;
}

/* A thread of the mask starts in its turn. */
POLICY_FN void policy_mask_start(struct policy_mask *mask,
				 const struct policy_thread *thread, u64 now)
{
	u64 vtime = mask->vtime;

	/* Another CPU may be moving all of them on. */
	if (policy_after(thread->vtime, vtime) > 0)
		__sync_val_compare_and_swap(&mask->vtime, vtime, thread->vtime);
	mask->started = now;
}

/* The thread that runs may have another turn, for which it is not placed in the
 * queue. It keeps what it lacks as there, and pays what it inherited. */
POLICY_FN void policy_stays(struct policy_thread *thread,
			    const struct policy_group *group,
			    const struct policy_queue *queue, u64 load,
			    u64 inherited)
{
	u64 vtime = thread->vtime;

	policy_place(thread, group, queue, load, policy_kept(thread->weight),
		     inherited);
	/* What it ran while it was alone is forgiven only when it waits. */
	if (policy_after(vtime, thread->vtime) > 0)
		thread->vtime = vtime;
}

/* Whether a CPU may take the thread, which ran there last, before the first of
 * the queue, which ran elsewhere: what its caches hold is worth two turns of
 * the heavier one, but no more than half of what the thread may be ahead: else
 * it could be taken for ever. */
POLICY_FN int policy_prefers(const struct policy_thread *thread, u64 weight,
			     const struct policy_thread *first,
			     u64 first_weight, u64 load,
			     const struct policy_limits *limits)
{
	u64 most = policy_ahead(weight, load) / 2;
	u64 turns =
		policy_scaled(2 * limits->slice,
			      weight > first_weight ? weight : first_weight);

	if (turns > most)
		turns = most;
	return policy_after(thread->vtime, first->vtime) <= (s64)turns;
}

/* Whether the threads of a domain (CPUs with a queue of their own) are so far
 * behind that one of them should run here, where another would: there is the
 * first of them, and here the first of this domain, or who runs. So no domain's
 * threads get more than others' for longer than what caches hold is worth. */
POLICY_FN int policy_behind(const struct policy_thread *there, u64 there_weight,
			    const struct policy_thread *here, u64 here_weight,
			    u64 load, const struct policy_limits *limits)
{
	return !policy_prefers(here, here_weight, there, there_weight, load,
			       limits);
}

/* How far ahead of its turn the thread is, in run time. */
POLICY_FN u64 policy_debt(const struct policy_thread *thread,
			  const struct policy_group *group,
			  const struct policy_queue *queue)
{
	s64 ahead = policy_after(thread->vtime, queue->vtime);
	u64 debt = ahead > 0 ? (u64)ahead : 0;

	/* The integral of a small weight may be long. */
	return debt / POLICY_WEIGHT * policy_weight(thread, group);
}

/* How far ahead of its queue a thread is that another one, its parent, starts:
 * as far as its parent, which runs, but no more than a slice, and not behind.
 * It also pays a part of owed (policy_owed). */
POLICY_FN u64 policy_born(const struct policy_thread *parent,
			  const struct policy_group *group,
			  const struct policy_queue *queue, u64 now, u64 owed,
			  const struct policy_limits *limits)
{
	u64 weight = policy_weight(parent, group);
	s64 most = policy_scaled(limits->slice, weight);
	s64 ahead = policy_after(parent->vtime, queue->vtime);

	if (policy_after(now, parent->began) > 0)
		ahead += policy_scaled(now - parent->began, weight);
	if (ahead > most)
		ahead = most;
	return (ahead < 0 ? 0 : (u64)ahead) + policy_scaled(owed, weight);
}

/* How much of what its line owes, run time of threads that have ended, a new
 * thread pays: who started them may sleep for ever. */
POLICY_FN u64 policy_owed(u64 inherited, const struct policy_limits *limits)
{
	return inherited < limits->slice ? inherited : limits->slice;
}

/* The run time by which a thread that ends is ahead of its queue. Its parent
 * owes it from then on: else a chain of threads, each of which ends before its
 * turn is over, would have a CPU for nothing. */
POLICY_FN u64 policy_bequeath(const struct policy_thread *thread,
			      const struct policy_queue *queue,
			      const struct policy_limits *limits)
{
	u64 debt = policy_debt(thread, 0, queue);

	return debt < limits->slice ? debt : limits->slice;
}

/* How long the thread that runs may go on until the other, woken now, should
 * run instead: that has had its time then, as far as both are fairly treated.
 * 0: at once. */
POLICY_FN u64 policy_preempts_in(const struct policy_thread *woken,
				 const struct policy_thread *running,
				 const struct policy_group *group, u64 now,
				 const struct policy_limits *limits)
{
	u64 weight = policy_weight(running, group);
	u64 ran = policy_after(now, running->began) > 0 ? now - running->began
							: 0;
	/* As its credit: of its run time, if it weighs more than others. */
	u64 margin = policy_scaled_most(limits->slice / 2, woken->weight);
	s64 lacks = policy_after(woken->vtime + margin,
				 running->vtime + policy_scaled(ran, weight));

	return lacks < 0 ? 0 : ((u64)lacks + 1) * weight / POLICY_WEIGHT + 1;
}

POLICY_FN void policy_refill(struct policy_budget *budget, u64 now,
			     const struct policy_limits *limits)
{
	u64 most = 16 * limits->max_extend;

	if (policy_after(now, budget->since) <= 0)
		return;
	budget->left += (now - budget->since) / POLICY_EXTEND_PART;
	budget->since = now;
	if (budget->left > most)
		budget->left = most;
}

/* The slice of a thread is over, or somebody wants its CPU; section says
 * whether it is in a section that should end first. After each POLICY_STAY it
 * is asked again soon. */
POLICY_FN enum policy_verdict policy_extend(struct policy_extension *extension,
					    struct policy_budget *budget,
					    int section, u64 now,
					    const struct policy_limits *limits)
{
	enum policy_verdict verdict;
	u64 used;

	if (!extension->began) {
		if (!section)
			return POLICY_GO;
		policy_refill(budget, now, limits);
		if (budget->left < limits->max_extend)
			return POLICY_REFUSED;
		/* Others of its VM may begin before this one ends. */
		budget->left -= limits->max_extend;
		extension->began = now;
		return POLICY_STAY;
	}
	used = policy_after(now, extension->began) > 0 ? now - extension->began
						       : 0;
	if (section && used < limits->max_extend)
		return POLICY_STAY;
	verdict = section ? POLICY_EXPIRED : POLICY_GO;
	budget->left += limits->max_extend;
	budget->left -= used < budget->left ? used : budget->left;
	extension->began = 0;
	return verdict;
}

/* One that took longer says no more: its guest may have been paused. */
#define POLICY_GRACE_MOST_NS 100000000ULL

/* The mean length of a guest's last few grace periods, of which one more took
 * ns. */
POLICY_FN u64 policy_grace_mean(u64 mean, u64 ns)
{
	if (ns > POLICY_GRACE_MOST_NS)
		ns = POLICY_GRACE_MOST_NS;
	return mean ? mean - mean / 16 + ns / 16 : ns;
}

/*
 * From which age on grace periods of a guest are late whose grace periods take
 * mean, and whose ticks take tick (0: not known). With CPUs of its own a guest
 * needs one or two ticks for a grace period: one at which a CPU notices it, and
 * one at which it reports. Where grace periods take one in the mean, the host
 * holds up none, and rescues would only break up turns. They begin later then,
 * and the sooner, the longer grace periods are.
 */
POLICY_FN u64 policy_late(u64 mean, u64 tick,
			  const struct policy_limits *limits)
{
	u64 most = limits->late_most, quarter = tick / 4;

	if (most > 7 * quarter)
		most = 7 * quarter;
	if (most > limits->max_hold)
		most = limits->max_hold;
	if (!mean || most <= limits->late || mean >= 5 * quarter)
		return limits->late;
	if (mean <= 4 * quarter)
		return most;
	return limits->late +
	       (most - limits->late) * (5 * quarter - mean) / quarter;
}

/* From that age of a grace period on RCU's kthread may ask CPUs to report. */
#define POLICY_ASKS_NS 50000000ULL

/* Whether RCU's kthread can do something for a grace period of that age, while
 * CPUs are awaited: it reports for those that were idle meanwhile, and may be
 * wanted for something else. The other CPUs report by themselves. */
POLICY_FN int policy_kthread_helps(int awaited, int wanted, u64 age,
				   const struct policy_limits *limits)
{
	return !awaited || wanted || age >= limits->max_hold ||
	       age >= POLICY_ASKS_NS;
}

/* When a vCPU's ticks are due: its guest's timer expires for each of them, and
 * for whatever else its guest waits for. */
struct policy_ticks {
	u64 at; /* when one was due */
	u64 seen; /* when the timer's function ran for the last one */
	/* POLICY_TICKS_HIT times how many expiries fell in with it lately, less
	 * the others. */
	u64 sure;
	/* The first of the others since the last that fell in, or the last one
	 * a whole number of ticks after it, and how many there were. */
	u64 rival;
	u64 rivals;
};

/* An expiry falls in by chance once in twenty times. So a wrong guess is soon
 * given up, and a right one stays where seven others expire per tick. */
#define POLICY_TICKS_HIT 8
#define POLICY_TICKS_SURE 32 /* from so much on */
#define POLICY_TICKS_MOST 64
#define POLICY_TICK_OFF_NS 100000ULL
#define POLICY_TICK_OFF_PART 40
/* After so many without one that was seen, clocks may have drifted apart. */
#define POLICY_TICKS_OLD 64

/* How much more than a whole number of ticks has passed, or less: the nearest.
 */
POLICY_FN s64 policy_tick_off(u64 since, u64 tick)
{
	u64 more = since % tick;

	return more <= tick - more ? (s64)more : -(s64)(tick - more);
}

/* Whether an expiry that is off by so much is one of the ticks. */
POLICY_FN int policy_falls_in(s64 off, u64 tick)
{
	u64 size = off < 0 ? -off : off;

	return size <= POLICY_TICK_OFF_NS &&
	       size <= tick / POLICY_TICK_OFF_PART;
}

POLICY_FN void policy_ticks_guess(struct policy_ticks *ticks, u64 due, u64 now)
{
	ticks->at = due;
	ticks->seen = now;
	ticks->sure = POLICY_TICKS_HIT;
	ticks->rivals = 0;
}

/* An expiry did not fall in. A timer that expires every few ticks would keep a
 * wrong guess alive: what comes more often takes its place. */
POLICY_FN void policy_ticks_missed(struct policy_ticks *ticks, u64 tick,
				   u64 due, u64 now)
{
	u64 since = due - ticks->rival;

	ticks->sure--;
	if (!ticks->rivals) {
		ticks->rival = due;
		ticks->rivals = 1;
	} else if (since > tick / 2 &&
		   policy_falls_in(policy_tick_off(since, tick), tick)) {
		ticks->rival = due;
		if (++ticks->rivals > 2)
			policy_ticks_guess(ticks, due, now);
	}
}

/* The guest's timer expires, which was due then; now its function runs. */
POLICY_FN void policy_ticked(struct policy_ticks *ticks, u64 tick, u64 due,
			     u64 now)
{
	u64 since = due - ticks->at;
	s64 off;

	if (!tick || (ticks->sure && policy_after(due, ticks->at) < 0))
		return;
	if (!ticks->sure || since / tick > POLICY_TICKS_OLD) {
		policy_ticks_guess(ticks, due, now);
		return;
	}
	off = policy_tick_off(since, tick);
	if (!policy_falls_in(off, tick)) {
		policy_ticks_missed(ticks, tick, due, now);
		return;
	}
	/* By a quarter of the way: some fall in by chance. (BPF has no signed
	 * division.) */
	ticks->at = due - off + (off >> 2);
	ticks->seen = now;
	ticks->rivals = 0;
	ticks->sure += POLICY_TICKS_HIT;
	if (ticks->sure > POLICY_TICKS_MOST)
		ticks->sure = POLICY_TICKS_MOST;
}

/* How long it is to the vCPU's next tick; 0 if that is not known. */
POLICY_FN u64 policy_tick_in(const struct policy_ticks *ticks, u64 tick,
			     u64 now)
{
	u64 since = policy_after(now, ticks->at) > 0 ? now - ticks->at : 0;

	if (!tick || ticks->sure < POLICY_TICKS_SURE ||
	    since / tick > POLICY_TICKS_OLD)
		return 0;
	return tick - since % tick;
}

/* Whether the vCPU, which has been off its CPU since left, has a tick due. One
 * whose timer expired for something else has its next tick all the same. */
POLICY_FN int policy_tick_due(const struct policy_ticks *ticks, u64 tick,
			      u64 left, u64 now)
{
	u64 before = policy_after(left, ticks->at) > 0 ? left - ticks->at : 0;

	if (!tick || policy_after(now, left) <= 0)
		return 0;
	return policy_after(ticks->seen, left) >= 0 ||
	       now - left >= tick - before % tick;
}

/* How long before a tick that is to come the one that is due has to be there,
 * so that the first, at which the guest's CPU notices the grace period, is over
 * when the second comes, at which it reports. */
#define POLICY_LEAD_NS 250000ULL
#define POLICY_LEAD_LEAST_NS 60000ULL

/* Whether rescues may be long enough for two ticks. */
POLICY_FN int policy_holds_two(u64 longest)
{
	return longest >= POLICY_LEAD_NS + POLICY_LEAD_NS;
}

/* Whether a vCPU with a tick due that runs now has two, soon after each other;
 * the next one comes in so long. */
POLICY_FN int policy_two_ticks(u64 in)
{
	return in >= POLICY_LEAD_LEAST_NS && in <= POLICY_LEAD_NS;
}

/* In how long that is so. */
POLICY_FN u64 policy_two_ticks_in(u64 in, u64 tick)
{
	return in > POLICY_LEAD_NS	    ? in - POLICY_LEAD_NS
	       : in + tick > POLICY_LEAD_NS ? in + tick - POLICY_LEAD_NS
					    : in;
}

/* How far ahead of its turn, in run time, a vCPU may get when the grace period
 * that it holds up is that old. A young one will end by itself; an old one is
 * worth debt. Nothing is worth more than twice max_hold. */
POLICY_FN u64 policy_debt_allowed(u64 age, const struct policy_limits *limits)
{
	if (age < limits->late)
		return 0;
	if (age >= limits->max_hold)
		return 2 * limits->max_hold;
	return limits->slice + age;
}

/* Whether a part of its debt would be forgiven if the thread ran for ns more
 * out of its turn, and so be a gain. load is as in policy_ahead. */
POLICY_FN int policy_forgiven(const struct policy_thread *thread,
			      const struct policy_group *group,
			      const struct policy_queue *queue, u64 load,
			      u64 ns)
{
	u64 weight = policy_weight(thread, group);
	s64 ahead = policy_after(thread->vtime, queue->vtime);

	return ahead + (s64)policy_scaled(ns, weight) >
	       (s64)policy_ahead(weight, load);
}

/* Whether its VM as a whole would be too far ahead then, where a vCPU may be so
 * by allowed. */
POLICY_FN int policy_overdrawn(const struct policy_group *group, u64 ns,
			       u64 allowed)
{
	return group && group->borrowed + ns > POLICY_BORROWERS * allowed;
}

/* What a vCPU that holds up a grace period needs to do for it. */
enum policy_need {
	POLICY_TICK, /* a tick, of which nobody says whether it is due */
	POLICY_DUE_TICK,
	POLICY_WORK, /* RCU's own thread has to run there */
};

enum policy_answer {
	POLICY_YES,
	POLICY_NOT_YET, /* it would not help */
	POLICY_IN_DEBT,
};

/* How long a rescue lasts at most. Where turns are short, that for RCU's thread
 * is no longer. */
POLICY_FN u64 policy_rescue_ns(enum policy_need need,
			       const struct policy_limits *limits)
{
	u64 ns = POLICY_WORK_NS;

	if (ns > limits->slice)
		ns = limits->slice;
	return need == POLICY_WORK && ns > POLICY_RESCUE_NS ? ns
							    : POLICY_RESCUE_NS;
}

/* Whether a rescue that has lasted for ran, and in which the guest's CPU
 * noticed the grace period, is over: the tick at which it reports comes in so
 * long (0: not known), or came during the rescue, just now. */
POLICY_FN int policy_noticed_only(u64 in, u64 tick, u64 ran)
{
	u64 ago = tick - in;

	return !in ||
	       (in > POLICY_LEAD_NS && (ago > POLICY_LEAD_NS || ago >= ran));
}

/* How long a rescue lasts at most where the next tick comes in so long (0: not
 * known): it waits for that, and for the softirq after it. */
POLICY_FN u64 policy_rescue_to_tick(enum policy_need need, u64 in, u64 tick,
				    const struct policy_limits *limits)
{
	u64 ns = policy_rescue_ns(need, limits);
	u64 most = policy_rescue_ns(POLICY_WORK, limits);

	if (in && (in <= POLICY_LEAD_NS || tick - in <= POLICY_LEAD_NS))
		ns += 2 * POLICY_LEAD_NS;
	return ns < most ? ns : most;
}

/* Whether a vCPU that waits for its turn, and has been off its CPU since left,
 * is scheduled next because it holds up a grace period of that age: not if it
 * gets too far ahead, nor if a part of its debt would be forgiven, nor before
 * max_hold as long as it ran in rescues for more than their share. */
POLICY_FN enum policy_answer policy_rescue(const struct policy_thread *thread,
					   const struct policy_group *group,
					   const struct policy_queue *queue,
					   u64 load, u64 age, u64 left,
					   enum policy_need need, u64 now,
					   const struct policy_limits *limits)
{
	u64 allowed = policy_debt_allowed(age, limits);
	/* Whatever it begins as: the thread may become ready meanwhile. */
	u64 ns = policy_rescue_ns(POLICY_WORK, limits);
	u64 gap = need == POLICY_DUE_TICK ? 0
		  : need == POLICY_WORK	  ? POLICY_WORK_GAP_NS
					  : POLICY_RESCUE_GAP_NS;

	if (!allowed ||
	    (age < limits->late + thread->overrun && age < limits->max_hold))
		return POLICY_NOT_YET;
	if (policy_after(now, left) < (s64)gap)
		return POLICY_NOT_YET;
	if (policy_debt(thread, group, queue) + ns > allowed ||
	    policy_overdrawn(group, ns, allowed) ||
	    policy_forgiven(thread, group, queue, load, ns))
		return POLICY_IN_DEBT;
	return POLICY_YES;
}

/* Whether a vCPU to which another of its VM yields is scheduled next: not if it
 * gets too far ahead, nor if a part of its debt would be forgiven. Where a
 * slice is longer than a hold, it is the bound: else there would be none. */
POLICY_FN enum policy_answer policy_yield(const struct policy_thread *thread,
					  const struct policy_group *group,
					  const struct policy_queue *queue,
					  u64 load,
					  const struct policy_limits *limits)
{
	u64 most = limits->max_hold > limits->slice ? limits->max_hold
						    : limits->slice;

	if (policy_debt(thread, group, queue) + limits->slice > most ||
	    policy_overdrawn(group, limits->slice, most) ||
	    policy_forgiven(thread, group, queue, load, limits->slice))
		return POLICY_IN_DEBT;
	return POLICY_YES;
}

/* The two kinds of threads that a CPU chooses from: those that may run
 * elsewhere as well, and its own. Each kind has its share by the number of
 * threads in it. */
struct policy_kinds {
	u64 served[2];
};

/* The kind whose turn it is, if both wait. */
POLICY_FN u32 policy_kind(const struct policy_kinds *kinds)
{
	return policy_after(kinds->served[0], kinds->served[1]) > 0;
}

/* Whether the thread that runs, and was charged, has another turn: it is before
 * the first of its queue still, if one waits there, and it is not the turn of
 * the other kind, if one of that waits. It is no part of its queue: the kernel
 * puts it there only after the choice. */
POLICY_FN int policy_again(const struct policy_thread *running, int waits,
			   u64 first, const struct policy_kinds *kinds,
			   u32 kind, int other_waits)
{
	if (other_waits && policy_kind(kinds) != kind)
		return 0;
	return !waits || policy_after(running->vtime, first) < 0;
}

/* How far the kind is behind the other one, of which a thread has run for ran
 * since that was last counted. */
POLICY_FN s64 policy_kind_lacks(const struct policy_kinds *kinds, u32 kind,
				u64 ran)
{
	return policy_after(kinds->served[!kind] + ran,
			    kinds->served[kind & 1]);
}

/* Not before its turn. */
#define POLICY_NEVER (~0ULL)

/* As policy_preempts_in, for a thread of the kind and one of the other kind,
 * which has run for ran since that was last counted: their virtual times are of
 * different queues. At once if the kind is behind. Else the running thread has
 * half a slice of its turn, which began turn ago: most of those that are woken
 * run for a moment, and should not wait for a whole slice. */
POLICY_FN u64 policy_kind_preempts_in(const struct policy_kinds *kinds,
				      u32 kind, u64 ran, u64 turn,
				      const struct policy_limits *limits)
{
	s64 lacks = policy_kind_lacks(kinds, kind, ran);
	s64 half = (s64)(limits->slice / 2);
	s64 left = half - (s64)turn;

	if (lacks > half)
		return 0;
	if (left < 0)
		left = 0;
	return lacks + left < -half ? POLICY_NEVER : (u64)left;
}

/* Whether a thread of the kind, which was woken, may run out of its turn:
 * before the first of its queue, and before the other kind, if a thread of that
 * waits. Only who has had no more than the first, and whose kind has had no
 * more than the other: else threads that wake each other would keep a CPU for
 * ever. */
POLICY_FN int policy_may_lead(const struct policy_thread *woken,
			      const struct policy_thread *first,
			      const struct policy_kinds *kinds, u32 kind,
			      int other_waits,
			      const struct policy_limits *limits)
{
	s64 half = (s64)(limits->slice / 2);

	if (policy_after(woken->vtime, first->vtime) > half)
		return 0;
	return !other_waits || policy_kind_lacks(kinds, kind, 0) >= -half;
}

/* The only thread of its kind comes, which was bound to this CPU and had its
 * first turn. Its kind had nobody, and has no credit for that: one that is
 * bound to another CPU again and again would have it everywhere. */
POLICY_FN void policy_settles(struct policy_kinds *kinds, u32 kind)
{
	u64 *mine = &kinds->served[kind & 1], *other = &kinds->served[!kind];

	if (policy_after(*other, *mine) > 0)
		*mine = *other;
}

/* How long a turn is on a CPU for which so many threads compete, who runs there
 * included, in hundredths. */
POLICY_FN u64 policy_turn(u64 count, const struct policy_limits *limits)
{
	u64 most = POLICY_ROUND * POLICY_WEIGHT, turn;
	u64 least = limits->slice < POLICY_TURN_LEAST_NS ? limits->slice
							 : POLICY_TURN_LEAST_NS;

	if (count <= most)
		return limits->slice;
	turn = POLICY_ROUND_MOST_NS * POLICY_WEIGHT / count;
	if (turn < least)
		least = turn > POLICY_TURN_ANY_NS ? turn : POLICY_TURN_ANY_NS;
	turn = limits->slice * most / count;
	return turn > least ? turn : least;
}

/* What is left of a turn that was to be so long, for a thread that has used so
 * much of it and was off its CPU. If nothing is, it has what is left of grace:
 * it may be changed again and again, and has no more for that. */
POLICY_FN u64 policy_left(u64 length, u64 used, u64 grace)
{
	if (used < length)
		return length - used;
	return used - length < grace ? length + grace - used : 1;
}

/* A thread of the kind ran; count is how many of its kind this CPU has, in
 * hundredths. */
POLICY_FN void policy_served(struct policy_kinds *kinds, u32 kind, u64 ran,
			     u64 count, const struct policy_limits *limits)
{
	u64 *mine = &kinds->served[kind & 1], *other = &kinds->served[!kind];

	*mine += policy_scaled(ran, count);
	/* The other may have had nothing to run: no credit for that. */
	if (policy_after(*mine, *other) > (s64)limits->slice)
		*other = *mine - limits->slice;
}

#endif
