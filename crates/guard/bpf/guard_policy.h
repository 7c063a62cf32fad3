/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The policy of guard: which vCPU runs next, for how long, and which VM is owed
 * time. Plain C without kernel calls. The includer defines u32, u64, s64, and
 * the times of guard.h.
 *
 * Fairness. Each vCPU has a virtual time (the kernel's vruntime): run time,
 * divided by its weight (100 is normal). The vCPU with the least runs next. The
 * runnable vCPUs of a VM share the VM's weight. Their number changes while one
 * of them runs. So policy_charge charges a vCPU with the integral of that
 * number over its run (`rate`): a vCPU that sleeps at the right moment gains
 * nothing.
 *
 * Words:
 *   queue: of a CPU; its virtual time is the largest that began a turn there
 *   clock: the largest virtual time of all queues
 *   turn: a run of the vCPU with the least; slice: how long a turn may last
 *   out of turn: a run for a rescue, or because another vCPU yields
 *   ahead: by how much a vCPU's virtual time is larger than its queue's
 *   debt: the same in run time; borrowed: what a VM ran out of turn
 *
 * policy_charge counts each run alike. An extended or rescued vCPU has a larger
 * virtual time afterwards and waits for longer: it repays in no other way. The
 * policy bounds how far ahead a vCPU and its VM may get (policy_too_far), how
 * long one extension lasts, and how long all of a VM's last (policy_extend).
 *
 * Invariant: a guest's word selects which vCPU is extended or rescued, how soon
 * and how long it is rescued, and how much debt its VM may have for that. Each
 * of these has a bound that no word raises. No word lowers what is charged.
 */
#pragma once

/* Inlined, since some are called with a lock held. */
#define POLICY_FN static inline __attribute__((always_inline, unused))

#define POLICY_WEIGHT 100ULL
/* How far ahead a vCPU of normal weight may be, and how long one that is ahead
 * should wait at most (policy_ahead). */
#define POLICY_AHEAD_NS 200000000ULL
#define POLICY_WAIT_NS 4000000000ULL
/* A VM that had less than its share is owed up to this many slices, for vCPUs
 * that wake up: the virtual time of a vCPU of two moves on by two slices in a
 * turn. A VM that had more than its share is forgiven as many. */
#define POLICY_CREDIT_SLICES 4
/* A VM may use this part (1/n) of the time that passes for extensions. */
#define POLICY_EXTEND_PART 4
/* A vCPU that owes a quiescent state lacks a tick of its guest. A tick that is
 * due comes as soon as the vCPU runs. If guard does not know, it rescues the
 * vCPU after so long off its CPU: most guests have 250 ticks a second. */
#define POLICY_RESCUE_GAP_NS 4000000ULL
/* A vCPU where RCU's kthread is ready needs no tick. It is rescued after so
 * long off its CPU, so that rescues do not follow each other at once. */
#define POLICY_WORK_GAP_NS 500000ULL
/* How long a rescue lasts if the vCPU does not report before: enough for the
 * tick and the softirq that the tick raises. */
#define POLICY_RESCUE_NS 300000ULL
/* The same where RCU's kthread is ready: in the guest's runqueue, other threads
 * may be before it. */
#define POLICY_WORK_NS 1000000ULL

/* All vCPUs of a VM may borrow as much as so many of them alone. Else a VM of
 * many vCPUs, each of which may get ahead a little, would gain a lot. */
#define POLICY_BORROWERS 4

/* If more threads than this compete for a CPU, slices are shorter: a round of
 * turns takes as long as with so many. A preempted vCPU waits for a round. */
#define POLICY_ROUND 4
/* Slices are no shorter than this, since each turn costs a switch... */
#define POLICY_TURN_LEAST_NS 1000000ULL
/* ...unless a round would take longer than this: the kernel ends a scheduler
 * under which a thread waits for 20 s. POLICY_TURN_ANY_NS is the shortest. */
#define POLICY_ROUND_MOST_NS 8000000000ULL
#define POLICY_TURN_ANY_NS 100000ULL

/* A VM's vCPUs, or all threads that are no vCPUs. */
struct policy_group {
	u64 weight;
	u64 runnable; /* how many of them are */
	u64 rate; /* integral of runnable / weight over time */
	u64 since; /* the time up to which rate is known */
	u64 vtime; /* run time of all its vCPUs, divided by its weight */
	/* vtime compares with the queue of this CPU, which is behind clock by
	 * lag (policy_lag). */
	u64 cpu;
	u64 lag;
	u64 borrowed; /* what vCPUs ran out of turn, each since its last turn */
};

/* A vCPU. */
struct policy_thread {
	u64 vtime;
	u64 began; /* when it got its CPU, or was last charged */
	u64 rate; /* its group's, at that time */
	u64 placed; /* 0: vtime is only how far ahead it is */
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

/* How far the queue is behind clock, beyond POLICY_AHEAD_NS. Less does not
 * count: CPUs take from queues that are behind, and a VM would gain what the
 * queue catches up. More comes where vCPUs may not run elsewhere. */
POLICY_FN u64 policy_lag(u64 clock, u64 queue)
{
	s64 lag = policy_after(clock, queue + POLICY_AHEAD_NS);

	return lag > 0 ? (u64)lag : 0;
}

/* The VM's virtual time to compare with the queue of the CPU, which is behind
 * clock by lag. A VM's vCPUs are in several queues: the VM keeps its distance
 * from each. */
POLICY_FN u64 policy_group_vtime(const struct policy_group *group, u64 cpu,
				 u64 lag)
{
	return group->cpu == cpu ? group->vtime
				 : group->vtime + group->lag - lag;
}

/* Moves the VM's virtual time to the queue of the CPU. The VM keeps what it
 * could not use for a few turns only. */
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

/* Charges the vCPU and its VM for the time since policy_begin, or since the
 * last charge. */
POLICY_FN void policy_charge(struct policy_thread *thread,
			     struct policy_group *group, u64 now)
{
	if (policy_after(now, thread->began) <= 0)
		return;
	group->vtime += policy_scaled(now - thread->began, group->weight);
	thread->began = now;
	policy_group_advance(group, now);
	thread->vtime += group->rate - thread->rate;
	thread->rate = group->rate;
}

/* The weight that a vCPU of the VM has now. */
POLICY_FN u64 policy_weight(const struct policy_group *group)
{
	u64 weight = group->weight / (group->runnable ? group->runnable : 1);

	return weight ? weight : 1;
}

/* How far behind its queue a vCPU that wakes up may be: as far as its VM lacks
 * time. While the vCPU slept, the other vCPUs had the VM's share, but may not
 * have been able to use it. If the VM had too much, the credit is negative:
 * else vCPUs that run one after the other would have a whole share each. clock,
 * cpu and lag: as in policy_stand. */
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

/* The credit of a vCPU that did not sleep: it keeps what it is owed. */
#define POLICY_KEPT_NS POLICY_AHEAD_NS

/* How far ahead a vCPU of that weight may be: policy_place forgives what is
 * beyond. load is the weight of all that compete for one CPU: the more, the
 * longer a vCPU waits until virtual time has passed. */
POLICY_FN u64 policy_ahead(u64 weight, u64 load)
{
	u64 ahead = policy_scaled(POLICY_AHEAD_NS, weight);
	u64 most;

	/* More vCPUs may come while it waits. */
	if (load < POLICY_WEIGHT)
		load = POLICY_WEIGHT;
	most = policy_scaled(POLICY_WAIT_NS, load);
	return ahead < most ? ahead : most;
}

/* The vCPU joins its queue: it is at most credit behind, and at most
 * policy_ahead ahead, so that it waits for a bounded time. Returns its virtual
 * time, by which the queue is ordered. */
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

/* The vCPU that runs may have another turn, without joining its queue. It is at
 * most POLICY_KEPT_NS behind. How far it is ahead stays: policy_place forgives
 * that only when the vCPU waits. */
POLICY_FN void policy_stays(struct policy_thread *thread,
			    const struct policy_group *group, u64 queue,
			    u64 load)
{
	u64 vtime = thread->vtime;

	policy_place(thread, group, queue, load, POLICY_KEPT_NS);
	if (policy_after(vtime, thread->vtime) > 0)
		thread->vtime = vtime;
}

/* The vCPU begins a turn: the queue moves on with it, but never back. A run out
 * of turn moves no queue. */
POLICY_FN void policy_start(u64 *queue, const struct policy_thread *thread)
{
	if (policy_after(thread->vtime, *queue) > 0)
		*queue = thread->vtime;
}

/* Whether the first vCPU of another CPU's queue should run here, before the
 * vCPU that would. there and here are their virtual times. A move loses what
 * the caches hold. So the other one has to be behind by two turns of the
 * heavier one, or by half of what a vCPU may be ahead if that is less. */
POLICY_FN int policy_behind(u64 there, u64 there_weight, u64 here,
			    u64 here_weight, u64 load)
{
	u64 most = policy_ahead(here_weight, load) / 2;
	u64 turns = policy_scaled(2 * SLICE_NS, here_weight > there_weight
							? here_weight
							: there_weight);

	return policy_after(here, there) > (s64)(turns < most ? turns : most);
}

/* How far ahead the vCPU is, in run time. */
POLICY_FN u64 policy_debt(const struct policy_thread *thread,
			  const struct policy_group *group, u64 queue)
{
	s64 ahead = policy_after(thread->vtime, queue);
	u64 debt = ahead > 0 ? (u64)ahead : 0;

	/* The integral of a small weight may be long. policy_weight would round
	 * a weight just below 2 down to 1, and hide half of the debt. */
	return debt / POLICY_WEIGHT * group->weight /
	       (group->runnable ? group->runnable : 1);
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

/* Whether a thread keeps its CPU, whose slice is over or whose CPU another
 * thread is to have. began: since when its slice is extended, or 0; section:
 * whether it is in a section that should end first. The first POLICY_STAY takes
 * MAX_EXTEND_NS of the budget, and the end gives back what was not used. After
 * POLICY_STAY the caller asks again soon. */
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

/* How much debt a vCPU may have if the grace period that it holds up is that
 * old. A young grace period will end by itself; an old one is worth debt. Twice
 * hold (settings.max_hold) is the most. */
POLICY_FN u64 policy_debt_allowed(u64 age, u64 hold)
{
	if (age < LATE_NS)
		return 0;
	if (age >= hold)
		return 2 * hold;
	return SLICE_NS + age;
}

/* Whether the vCPU must not run for ns out of turn:
 *   its debt would be more than allowed;
 *   its VM would borrow more than POLICY_BORROWERS times that; or
 *   policy_place would forgive a part of its debt, which would be a gain.
 * load is as in policy_ahead. */
POLICY_FN int policy_too_far(const struct policy_thread *thread,
			     const struct policy_group *group, u64 queue,
			     u64 load, u64 ns, u64 allowed)
{
	/* An extension may follow, and looks are late. */
	u64 most = (ns + 2 * MAX_EXTEND_NS) *
		   (group->runnable ? group->runnable : 1);
	s64 ahead = policy_after(thread->vtime, queue);

	return policy_debt(thread, group, queue) + ns > allowed ||
	       group->borrowed + ns > POLICY_BORROWERS * allowed ||
	       ahead + (s64)policy_scaled(most, group->weight) >
		       (s64)policy_ahead(policy_weight(group), load);
}

/* Why a vCPU that holds up a grace period has to run. */
enum policy_need {
	POLICY_TICK, /* a tick; guard does not know whether one is due */
	POLICY_DUE_TICK,
	POLICY_WORK, /* RCU's kthread, which is ready there */
};

enum policy_answer {
	POLICY_YES,
	POLICY_NOT_YET, /* too early for a rescue to help */
	POLICY_IN_DEBT, /* policy_too_far */
};

/* Whether a vCPU that waits is rescued: it holds up a grace period of that age,
 * and has been off its CPU since left. */
POLICY_FN enum policy_answer policy_rescue(const struct policy_thread *thread,
					   const struct policy_group *group,
					   u64 queue, u64 load, u64 age,
					   u64 hold, u64 left,
					   enum policy_need need, u64 now)
{
	u64 allowed = policy_debt_allowed(age, hold);
	/* Also for a tick: the kthread may become ready during the rescue. */
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

/* Whether a vCPU to which another of its VM yields runs next. If a slice is
 * longer than hold, a slice is the debt allowed: else none would ever run. */
POLICY_FN int policy_yield(const struct policy_thread *thread,
			   const struct policy_group *group, u64 queue,
			   u64 load, u64 hold)
{
	return !policy_too_far(thread, group, queue, load, SLICE_NS,
			       hold > SLICE_NS ? hold : SLICE_NS);
}

/* Whether the vCPU that runs, and was charged, has another turn: no vCPU waits
 * in its queue, or the first one there has a larger virtual time. */
POLICY_FN int policy_again(const struct policy_thread *running, int waits,
			   u64 first)
{
	return !waits || policy_after(running->vtime, first) < 0;
}

/* The slice on a CPU for which count threads compete, the current one too. */
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

/* The rest of a turn of that length, for a thread that used so much of it
 * before it lost its CPU. After the length is used, the thread has grace once,
 * however often it loses its CPU. */
POLICY_FN u64 policy_left(u64 length, u64 used, u64 grace)
{
	if (used < length)
		return length - used;
	return used - length < grace ? length + grace - used : 1;
}
