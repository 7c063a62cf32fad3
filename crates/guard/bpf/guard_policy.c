/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The policy as a library, for its tests in user space. */
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
#include "guard_bandwidth.h"
#include "guard_policy.h"

void guard_join(struct policy_group *group, u64 now)
{
	policy_join(group, now);
}

void guard_leave(struct policy_group *group, u64 now)
{
	policy_leave(group, now);
}

void guard_begin(struct policy_thread *thread, struct policy_group *group,
		 u64 now)
{
	policy_begin(thread, group, now);
}

u64 guard_charge(struct policy_thread *thread, struct policy_group *group,
		 u64 fine, u64 now)
{
	return policy_charge(thread, group, fine, now);
}

u64 guard_weight_of(u64 shares)
{
	return policy_weight_of(shares);
}

u64 guard_above(u64 fine, u64 part, u64 all, u64 weight)
{
	return policy_above(fine, part, all, weight);
}

u64 guard_beside(u64 vms, u64 tops)
{
	return policy_beside(vms, tops);
}

u64 guard_beside_vms(u64 fine, u64 beside)
{
	return policy_beside_vms(fine, beside);
}

void guard_sum_add(struct policy_sum *sum, u64 more, u64 now)
{
	policy_sum_add(sum, more, now);
}

void guard_sum_set(struct policy_sum *sum, u64 all, u64 now)
{
	policy_sum_set(sum, all, now);
}

u64 guard_sum_integral(const struct policy_sum *sum, u64 now)
{
	return policy_sum_integral(sum, now);
}

u64 guard_mean(u64 from, u64 to, u64 ns, u64 all)
{
	return policy_mean(from, to, ns, all);
}

u64 guard_fine_scaled(u64 ns, u64 fine)
{
	return policy_fine_scaled(ns, fine);
}

void guard_stand_in(u64 *vtime, u64 credit, u64 clock)
{
	policy_stand_in(vtime, credit, clock);
}

/* For a thread of a task group; vtime, most and clock as in policy_slept_in. */
u64 guard_place_in(struct policy_thread *thread, u64 vtime, u64 most, u64 clock,
		   const struct policy_queue *queue, u64 load, int woken,
		   const struct policy_limits *limits)
{
	s64 credit =
		policy_credit(0, queue, 0, 0, 1, woken, thread->weight, limits);

	if (woken)
		credit = policy_slept_in(vtime, most, clock, credit);
	return policy_place(thread, 0, queue, load, credit, 0);
}

void guard_stand(struct policy_group *group, u64 clock, u64 mask, u64 lag,
		 const struct policy_limits *limits)
{
	policy_stand(group, clock, mask, lag, limits);
}

u64 guard_place(struct policy_thread *thread, const struct policy_group *group,
		const struct policy_queue *queue, u64 mask, u64 lag, u64 load,
		int woken, u64 inherited, const struct policy_limits *limits)
{
	s64 credit = policy_credit(group, queue, mask, lag, 1, woken,
				   thread->weight, limits);

	return policy_place(thread, group, queue, load, credit, inherited);
}

void guard_start(struct policy_queue *queue, const struct policy_thread *thread,
		 int early)
{
	policy_start(queue, thread, early);
}

void guard_repeat(struct policy_queue *queue,
		  const struct policy_thread *thread, int waits, u64 first)
{
	policy_repeat(queue, thread, waits, first);
}

void guard_stays(struct policy_thread *thread, const struct policy_group *group,
		 const struct policy_queue *queue, u64 load, u64 inherited)
{
	policy_stays(thread, group, queue, load, inherited);
}

void guard_mask_begin(struct policy_mask *mask, u64 here, u64 forgot, u64 now)
{
	policy_mask_begin(mask, here, forgot, now);
}

void guard_mask_advance(struct policy_mask *mask,
			const struct policy_queue *queue, u64 here, u64 *forgot,
			u64 now, const struct policy_limits *limits)
{
	policy_mask_advance(mask, queue, here, forgot, now, limits);
}

void guard_mask_view(const struct policy_mask *mask,
		     const struct policy_queue *queue, struct policy_queue *out)
{
	policy_mask_view(mask, queue, out);
}

void guard_mask_woken(struct policy_queue *view, u64 here)
{
	policy_mask_woken(view, here);
}

u64 guard_part(u64 mask, u32 domain)
{
	return policy_part(mask, domain);
}

void guard_mask_move(const struct policy_mask *mask,
		     struct policy_thread *thread, u64 *moved)
{
	policy_mask_move(mask, thread, moved);
}

void guard_mask_start(struct policy_mask *mask,
		      const struct policy_thread *thread, u64 now)
{
	policy_mask_start(mask, thread, now);
}

void guard_move(struct policy_thread *thread, const struct policy_queue *from,
		const struct policy_queue *to)
{
	policy_move(thread, from, to);
}

void guard_borrow(u64 *own, struct policy_group *group, u64 ran)
{
	policy_borrow(own, group, ran);
}

void guard_spend(struct policy_thread *thread, u64 ran, int rescued,
		 const struct policy_limits *limits)
{
	policy_spend(thread, ran, rescued, limits);
}

void guard_repay(u64 *own, struct policy_group *group)
{
	policy_repay(own, group);
}

u32 guard_extend(struct policy_extension *extension,
		 struct policy_budget *budget, int section, u64 now,
		 const struct policy_limits *limits)
{
	return policy_extend(extension, budget, section, now, limits);
}

u64 guard_grace_mean(u64 mean, u64 ns)
{
	return policy_grace_mean(mean, ns);
}

u64 guard_late(u64 mean, u64 tick, const struct policy_limits *limits)
{
	return policy_late(mean, tick, limits);
}

int guard_kthread_helps(int awaited, int wanted, u64 age,
			const struct policy_limits *limits)
{
	return policy_kthread_helps(awaited, wanted, age, limits);
}

void guard_ticked(struct policy_ticks *ticks, u64 tick, u64 due, u64 now)
{
	policy_ticked(ticks, tick, due, now);
}

u64 guard_tick_in(const struct policy_ticks *ticks, u64 tick, u64 now)
{
	return policy_tick_in(ticks, tick, now);
}

int guard_tick_due(const struct policy_ticks *ticks, u64 tick, u64 left,
		   u64 now)
{
	return policy_tick_due(ticks, tick, left, now);
}

int guard_two_ticks(u64 in)
{
	return policy_two_ticks(in);
}

u64 guard_two_ticks_in(u64 in, u64 tick)
{
	return policy_two_ticks_in(in, tick);
}

int guard_noticed_only(u64 in, u64 tick, u64 ran)
{
	return policy_noticed_only(in, tick, ran);
}

u64 guard_rescue_to_tick(enum policy_need need, u64 in, u64 tick,
			 const struct policy_limits *limits)
{
	return policy_rescue_to_tick(need, in, tick, limits);
}

u32 guard_rescue(const struct policy_thread *thread,
		 const struct policy_group *group,
		 const struct policy_queue *queue, u64 load, u64 age, u64 left,
		 enum policy_need need, u64 now,
		 const struct policy_limits *limits)
{
	return policy_rescue(thread, group, queue, load, age, left, need, now,
			     limits);
}

u64 guard_rescue_ns(enum policy_need need, const struct policy_limits *limits)
{
	return policy_rescue_ns(need, limits);
}

u32 guard_yield(const struct policy_thread *thread,
		const struct policy_group *group,
		const struct policy_queue *queue, u64 load,
		const struct policy_limits *limits)
{
	return policy_yield(thread, group, queue, load, limits);
}

int guard_prefers(const struct policy_thread *thread,
		  const struct policy_group *group,
		  const struct policy_thread *first,
		  const struct policy_group *first_group, u64 load,
		  const struct policy_limits *limits)
{
	return policy_prefers(thread, policy_weight(thread, group), first,
			      policy_weight(first, first_group), load, limits);
}

int guard_behind(const struct policy_thread *there, u64 there_weight,
		 const struct policy_thread *here, u64 here_weight, u64 load,
		 const struct policy_limits *limits)
{
	return policy_behind(there, there_weight, here, here_weight, load,
			     limits);
}

u64 guard_preempts_in(const struct policy_thread *woken,
		      const struct policy_thread *running,
		      const struct policy_group *group, u64 now,
		      const struct policy_limits *limits)
{
	return policy_preempts_in(woken, running, group, now, limits);
}

u64 guard_born(const struct policy_thread *parent,
	       const struct policy_group *group,
	       const struct policy_queue *queue, u64 now, u64 owed,
	       const struct policy_limits *limits)
{
	return policy_born(parent, group, queue, now, owed, limits);
}

u64 guard_owed(u64 inherited, const struct policy_limits *limits)
{
	return policy_owed(inherited, limits);
}

u64 guard_bequeath(const struct policy_thread *thread,
		   const struct policy_queue *queue,
		   const struct policy_limits *limits)
{
	return policy_bequeath(thread, queue, limits);
}

int guard_again(const struct policy_thread *running, int waits, u64 first,
		const struct policy_kinds *kinds, u32 kind, int other_waits)
{
	return policy_again(running, waits, first, kinds, kind, other_waits);
}

u32 guard_kind(const struct policy_kinds *kinds)
{
	return policy_kind(kinds);
}

u64 guard_kind_preempts_in(const struct policy_kinds *kinds, u32 kind, u64 ran,
			   u64 turn, const struct policy_limits *limits)
{
	return policy_kind_preempts_in(kinds, kind, ran, turn, limits);
}

int guard_may_lead(const struct policy_thread *woken,
		   const struct policy_thread *first,
		   const struct policy_kinds *kinds, u32 kind, int other_waits,
		   const struct policy_limits *limits)
{
	return policy_may_lead(woken, first, kinds, kind, other_waits, limits);
}

void guard_settles(struct policy_kinds *kinds, u32 kind)
{
	policy_settles(kinds, kind);
}

u64 guard_turn(u64 count, const struct policy_limits *limits)
{
	return policy_turn(count, limits);
}

u64 guard_left(u64 length, u64 used, u64 grace)
{
	return policy_left(length, used, grace);
}

void guard_served(struct policy_kinds *kinds, u32 kind, u64 ran, u64 count,
		  const struct policy_limits *limits)
{
	policy_served(kinds, kind, ran, count, limits);
}

void guard_bandwidth_set(struct policy_bandwidth *of, u64 quota, u64 period,
			 u64 burst, u64 now)
{
	bandwidth_set(of, quota, period, burst, now);
}

u64 guard_bandwidth_refill(struct policy_bandwidth *of, u64 now)
{
	return bandwidth_refill(of, now);
}

u64 guard_bandwidth_take(struct policy_bandwidth *of, u64 ns)
{
	return bandwidth_take(of, ns);
}

void guard_bandwidth_settle(struct policy_bandwidth *of, u64 taken, u64 used)
{
	bandwidth_settle(of, taken, used);
}

u64 guard_bandwidth_wait(const struct policy_bandwidth *of, u64 now)
{
	return bandwidth_wait(of, now);
}
