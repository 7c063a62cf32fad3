/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The policy of guard: which vCPU runs next, for how long, and which VM is owed
 * time. Plain C without kernel calls. The includer defines u32, u64, s64, and
 * the times of guard.h.
 *
 * Fairness. Each vCPU has a virtual time: run time, divided by its weight (100
 * is normal). The vCPU with the least runs next. The runnable vCPUs of a VM
 * share the VM's weight. Their number changes while one of them runs, so a vCPU
 * is charged with the integral of that number over its run (struct
 * policy_group, "rate"): nothing is gained by sleeping at the right moment.
 *
 * Run time counts however it was granted. An extended or rescued vCPU has a
 * larger virtual time afterwards and waits for longer: there is no other
 * repaying. Two things are bounded: how far ahead of its turn a vCPU and its VM
 * may get (policy_rescue), and how long one extension and all of a VM's
 * together may be (policy_extend).
 *
 * Invariant: what a guest says only selects which vCPU is extended or rescued,
 * and one of three bounds of a rescue. No word of a guest lengthens either
 * beyond its bound, or lowers what is charged.
 */
#ifndef REPRIEVE_GUARD_POLICY_H
#define REPRIEVE_GUARD_POLICY_H

/* Inlined, since some are called with a lock held. */
#define POLICY_FN static inline __attribute__((always_inline, unused))

#define POLICY_WEIGHT 100ULL
/* Virtual time that a vCPU may be ahead of all others, at normal weight, and
 * the longest that a vCPU should wait for that reason. */
#define POLICY_AHEAD_NS 200000000ULL
#define POLICY_WAIT_NS 4000000000ULL
/* The time that a VM as a whole lacks is kept up to this many slices, for vCPUs
 * that wake up: a vCPU of two moves on by two slices in a turn. A VM that had
 * more than its share has that forgiven up to as much. */
#define POLICY_CREDIT_SLICES 4
/* A VM may use this part (1/n) of the time that passes for extensions. */
#define POLICY_EXTEND_PART 4
/* A vCPU that owes lacks a tick of its guest's, which comes as soon as the vCPU
 * runs if the tick is due. Where the due time is not known, the vCPU is rescued
 * after it has been off its CPU for this long: most guests have 250 a second.
 */
#define POLICY_RESCUE_GAP_NS 4000000ULL
/* A vCPU that has work to do for the grace period needs no tick. The vCPU is
 * rescued after this long off its CPU, so that rescues do not follow each other
 * at once. */
#define POLICY_WORK_GAP_NS 500000ULL
/* How long a rescue lasts if the quiescent state does not come before: enough
 * for the tick and the softirq that the tick raises. */
#define POLICY_RESCUE_NS 300000ULL
/* The same for a vCPU where RCU's thread is ready: in the guest's run queue,
 * other threads may be before it. */
#define POLICY_WORK_NS 1000000ULL

/* All vCPUs of a VM together may be ahead of their turns by as much as so many
 * of them alone. Else a VM of many, each of which may get ahead a little, would
 * gain a lot. */
#define POLICY_BORROWERS 4

/* Where more threads than this compete for a CPU, turns are shorter, so that a
 * round of turns takes as long as with so many: a preempted vCPU waits for a
 * round. Turns are not shorter than this, since each costs a switch. */
#define POLICY_ROUND 4
#define POLICY_TURN_LEAST_NS 1000000ULL
/* But where a round would then take longer than this, since the kernel ends a
 * scheduler that lets a thread wait for 20 s; and these are the shortest. */
#define POLICY_ROUND_MOST_NS 8000000000ULL
#define POLICY_TURN_ANY_NS 100000ULL

/* The runnable vCPUs of a VM. */
struct policy_group {
	u64 weight;
	u64 runnable;
	u64 rate; /* integral of runnable / weight over time */
	u64 since; /* the time up to which rate is known */
	u64 vtime; /* run time of all its vCPUs, divided by its weight */
	/* vtime is as in the queue of this CPU, whose virtual time is so far
	 * behind the host's. */
	u64 cpu;
	u64 lag;
	u64 borrowed; /* what vCPUs ran out of turn, each since its last turn */
};

/* A vCPU. */
struct policy_thread {
	u64 vtime;
	u64 began; /* when it got its CPU */
	u64 rate; /* its group's, at that time */
	u64 placed; /* vtime is absolute, not its lead before its queue */
};

/* The time that a VM has left for extensions. */
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

/* By how much virtual time in a queue is less than the host's, clock. What CPUs
 * take from each other's queues is not counted: a VM would gain what a queue
 * catches up while its vCPUs run there. More lacks where vCPUs cannot leave. */
POLICY_FN u64 policy_lag(u64 clock, u64 queue)
{
	s64 lag = policy_after(clock, queue + POLICY_AHEAD_NS);

	return lag > 0 ? (u64)lag : 0;
}

/* The VM's virtual time as it is in the queue of the CPU, where virtual time is
 * less by lag than the host's. vCPUs are in different queues: the VM keeps its
 * distance. */
POLICY_FN u64 policy_group_vtime(const struct policy_group *group, u64 cpu,
				 u64 lag)
{
	return group->cpu == cpu ? group->vtime
				 : group->vtime + group->lag - lag;
}

/* Where the VM as a whole stands in the queue of the CPU; clock is the host's
 * virtual time. What the VM could not use is kept for a few turns only. */
POLICY_FN void policy_stand(struct policy_group *group, u64 clock, u64 cpu,
			    u64 lag)
{
	u64 least = clock - lag - POLICY_CREDIT_SLICES * SLICE_NS;
	u64 most = clock - lag + POLICY_AHEAD_NS;

	group->vtime = policy_group_vtime(group, cpu, lag);
	group->cpu = cpu;
	group->lag = lag;
	if (policy_after(group->vtime, least) < 0)
		group->vtime = least;
	if (policy_after(group->vtime, most) > 0)
		group->vtime = most;
}

/* The vCPU gets its CPU. */
POLICY_FN void policy_begin(struct policy_thread *thread,
			    struct policy_group *group, u64 now)
{
	thread->began = now;
	policy_group_advance(group, now);
	thread->rate = group->rate;
}

/* The time that the vCPU ran since policy_begin, or since it was last charged,
 * is charged. Returns that time. */
POLICY_FN u64 policy_charge(struct policy_thread *thread,
			    struct policy_group *group, u64 now)
{
	u64 ran;

	if (policy_after(now, thread->began) <= 0)
		return 0;
	ran = now - thread->began;
	thread->began = now;
	policy_group_advance(group, now);
	thread->vtime += group->rate - thread->rate;
	thread->rate = group->rate;
	group->vtime += policy_scaled(ran, group->weight);
	return ran;
}

/* The weight that a vCPU of the VM has now. */
POLICY_FN u64 policy_weight(const struct policy_group *group)
{
	u64 weight = group->weight / (group->runnable ? group->runnable : 1);

	return weight ? weight : 1;
}

/* How far behind the virtual time of its queue a vCPU may come back that slept:
 * as far as its VM as a whole lacks. While the vCPU slept, its VM's share was
 * for the other vCPUs, which may not have been able to use it. Where the VM had
 * too much, that is negative: else vCPUs that run one after the other would
 * have a whole share each. clock, cpu and lag: as in policy_stand. */
POLICY_FN s64 policy_credit(const struct policy_group *group, u64 clock,
			    u64 cpu, u64 lag)
{
	s64 most = POLICY_CREDIT_SLICES * SLICE_NS;
	/* Another CPU may write it. */
	s64 leads =
		policy_after(policy_group_vtime(group, cpu, lag), clock - lag);

	if (leads > (s64)POLICY_AHEAD_NS)
		leads = POLICY_AHEAD_NS;
	if (leads > most)
		return most - leads;
	return -leads > most ? most : leads < 0 ? -leads : 0;
}

/* A vCPU that did not sleep keeps what it is owed. */
#define POLICY_KEPT_NS POLICY_AHEAD_NS

/* How far ahead of its queue a vCPU of that weight may stand: its debt is
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

/* Where the vCPU stands in its queue, whose virtual time is queue. A vCPU that
 * is far ahead waits for a bounded time. */
POLICY_FN u64 policy_place(struct policy_thread *thread,
			   const struct policy_group *group, u64 queue,
			   u64 load, s64 credit)
{
	u64 ahead = policy_ahead(policy_weight(group), load);

	if (policy_after(thread->vtime, queue - credit) < 0)
		thread->vtime = queue - credit;
	if (policy_after(thread->vtime, queue + ahead) > 0)
		thread->vtime = queue + ahead;
	return thread->vtime;
}

/* The vCPU that runs may have another turn, for which it is not placed in its
 * queue. What it ran while it was alone is forgiven only when it waits. */
POLICY_FN void policy_stays(struct policy_thread *thread,
			    const struct policy_group *group, u64 queue,
			    u64 load)
{
	u64 vtime = thread->vtime;

	policy_place(thread, group, queue, load, POLICY_KEPT_NS);
	if (policy_after(vtime, thread->vtime) > 0)
		thread->vtime = vtime;
}

/* The vCPU starts in its turn (not rescued: that is ahead of its turn). */
POLICY_FN void policy_start(u64 *queue, const struct policy_thread *thread)
{
	if (policy_after(thread->vtime, *queue) > 0)
		*queue = thread->vtime;
}

/* Whether the first vCPU of another CPU's queue, at there, should run here,
 * where the vCPU at here would: it is further behind than what the caches hold
 * is worth, two turns of the heavier one, but no more than half of what a vCPU
 * may be ahead. So no queue's vCPUs get more than those of others for long. */
POLICY_FN int policy_behind(u64 there, u64 there_weight, u64 here,
			    u64 here_weight, u64 load)
{
	u64 most = policy_ahead(here_weight, load) / 2;
	u64 turns = policy_scaled(2 * SLICE_NS, here_weight > there_weight
							? here_weight
							: there_weight);

	return policy_after(here, there) > (s64)(turns < most ? turns : most);
}

/* How far ahead of its turn the vCPU is, in run time. */
POLICY_FN u64 policy_debt(const struct policy_thread *thread,
			  const struct policy_group *group, u64 queue)
{
	s64 ahead = policy_after(thread->vtime, queue);
	u64 debt = ahead > 0 ? (u64)ahead : 0;

	/* The integral of a small weight may be long. */
	return debt / POLICY_WEIGHT * policy_weight(group);
}

POLICY_FN void policy_refill(struct policy_budget *budget, u64 now)
{
	u64 most = 16 * MAX_EXTEND_NS;

	if (policy_after(now, budget->since) <= 0)
		return;
	budget->left += (now - budget->since) / POLICY_EXTEND_PART;
	budget->since = now;
	if (budget->left > most)
		budget->left = most;
}

/* The slice of a thread is over, or somebody wants its CPU; began: since when
 * its slice is extended, or 0; section: whether it is in a section that should
 * end first. After each POLICY_STAY it is asked again soon. */
POLICY_FN enum policy_verdict
policy_extend(u64 *began, struct policy_budget *budget, int section, u64 now)
{
	enum policy_verdict verdict;
	u64 used;

	if (!*began) {
		if (!section)
			return POLICY_GO;
		policy_refill(budget, now);
		if (budget->left < MAX_EXTEND_NS)
			return POLICY_REFUSED;
		/* Others of its VM may begin before this one ends. */
		budget->left -= MAX_EXTEND_NS;
		*began = now;
		return POLICY_STAY;
	}
	used = policy_after(now, *began) > 0 ? now - *began : 0;
	if (section && used < MAX_EXTEND_NS)
		return POLICY_STAY;
	verdict = section ? POLICY_EXPIRED : POLICY_GO;
	budget->left += MAX_EXTEND_NS;
	budget->left -= used < budget->left ? used : budget->left;
	*began = 0;
	return verdict;
}

/* How far ahead of its turn, in run time, a vCPU may get when the grace period
 * that it holds up is that old. A young one will end by itself; an old one is
 * worth debt. Nothing is worth more than twice max_hold. */
POLICY_FN u64 policy_debt_allowed(u64 age, u64 hold)
{
	if (age < LATE_NS)
		return 0;
	if (age >= hold)
		return 2 * hold;
	return SLICE_NS + age;
}

/* Whether the vCPU, or its VM as a whole, would be too far ahead if it ran for
 * ns out of its turn, where it may be ahead by allowed; or a part of its debt
 * would be forgiven then, and so be a gain. load is as in policy_ahead. */
POLICY_FN int policy_too_far(const struct policy_thread *thread,
			     const struct policy_group *group, u64 queue,
			     u64 load, u64 ns, u64 allowed)
{
	u64 weight = policy_weight(group);
	s64 ahead = policy_after(thread->vtime, queue);

	return policy_debt(thread, group, queue) + ns > allowed ||
	       group->borrowed + ns > POLICY_BORROWERS * allowed ||
	       ahead + (s64)policy_scaled(ns, weight) >
		       (s64)policy_ahead(weight, load);
}

/* The work that a vCPU that holds up a grace period has to do for it. */
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

/* Whether a vCPU that waits for its turn, and has been off its CPU since left,
 * is scheduled next because it holds up a grace period of that age: not if it
 * gets too far ahead, nor if a part of its debt would be forgiven. */
POLICY_FN enum policy_answer policy_rescue(const struct policy_thread *thread,
					   const struct policy_group *group,
					   u64 queue, u64 load, u64 age,
					   u64 hold, u64 left,
					   enum policy_need need, u64 now)
{
	u64 allowed = policy_debt_allowed(age, hold);
	/* Whatever it begins as: the thread may become ready meanwhile. */
	u64 ns = POLICY_WORK_NS;
	u64 gap = need == POLICY_DUE_TICK ? 0
		  : need == POLICY_WORK	  ? POLICY_WORK_GAP_NS
					  : POLICY_RESCUE_GAP_NS;

	if (!allowed || policy_after(now, left) < (s64)gap)
		return POLICY_NOT_YET;
	return policy_too_far(thread, group, queue, load, ns, allowed)
		       ? POLICY_IN_DEBT
		       : POLICY_YES;
}

/* Whether a vCPU to which another of its VM yields is scheduled next: not if it
 * gets too far ahead. Where a slice is longer than a hold, it is the bound:
 * else there would be none. */
POLICY_FN int policy_yield(const struct policy_thread *thread,
			   const struct policy_group *group, u64 queue,
			   u64 load, u64 hold)
{
	return !policy_too_far(thread, group, queue, load, SLICE_NS,
			       hold > SLICE_NS ? hold : SLICE_NS);
}

/* Whether the vCPU that runs, and was charged, has another turn: it is before
 * the first that waits in its queue, if one does. */
POLICY_FN int policy_again(const struct policy_thread *running, int waits,
			   u64 first)
{
	return !waits || policy_after(running->vtime, first) < 0;
}

/* How long a turn is on a CPU for which so many threads compete, who runs there
 * included. */
POLICY_FN u64 policy_turn(u64 count)
{
	u64 turn;
	u64 least = POLICY_TURN_LEAST_NS;

	if (count <= POLICY_ROUND)
		return SLICE_NS;
	turn = POLICY_ROUND_MOST_NS / count;
	if (turn < least)
		least = turn > POLICY_TURN_ANY_NS ? turn : POLICY_TURN_ANY_NS;
	turn = SLICE_NS * POLICY_ROUND / count;
	return turn > least ? turn : least;
}

/* The rest of a turn that was to be so long, for a thread that has used so
 * much of it and was off its CPU. If nothing is, it has what is left of grace:
 * it may be changed again and again, and has no more for that. */
POLICY_FN u64 policy_left(u64 length, u64 used, u64 grace)
{
	if (used < length)
		return length - used;
	return used - length < grace ? length + grace - used : 1;
}

#endif
