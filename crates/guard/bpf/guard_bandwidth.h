/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The budget of a cgroup with a CPU limit (cpu.max), as plain C like
 * guard_policy.h. Each period adds the quota; what is left over is kept up to
 * the burst, as the stock scheduler does.
 *
 * A thread takes a part of the budget before it runs and settles afterwards.
 * So CPUs that run threads of one cgroup at once cannot spend the same time
 * twice. Who runs for longer than it took (a section that was extended, a tick
 * that came late) leaves the cgroup in debt, and the next periods repay it.
 */
#ifndef REPRIEVE_GUARD_BANDWIDTH_H
#define REPRIEVE_GUARD_BANDWIDTH_H

#include "guard_policy.h"

/* Who was not limited, by the kernel, has all of this. */
#define BANDWIDTH_NONE (~0ULL)
/* 13 days, and so short that sums do not overflow. */
#define BANDWIDTH_MOST_NS (1ULL << 50)
/* Repaying a debt takes no longer than this. */
#define BANDWIDTH_REPAY_NS 5000000000ULL
/* A thread whose cgroup has no budget runs nevertheless once it has waited for
 * this long: the kernel ends a scheduler that lets a thread wait for 20 s. */
#define BANDWIDTH_OVERDUE_NS 8000000000ULL

struct policy_bandwidth {
	u64 quota; /* per period */
	u64 period;
	u64 burst;
	u64 since; /* start of the period */
	s64 left; /* below 0: debt */
};

POLICY_FN u64 bandwidth_bounded(u64 ns)
{
	return ns < BANDWIDTH_MOST_NS ? ns : BANDWIDTH_MOST_NS;
}

POLICY_FN void bandwidth_clamp(struct policy_bandwidth *of)
{
	s64 most = of->quota + of->burst;
	u64 periods = BANDWIDTH_REPAY_NS / of->period;
	u64 debt = of->quota;

	if (periods > 1)
		debt = debt < BANDWIDTH_MOST_NS / periods ? debt * periods
							  : BANDWIDTH_MOST_NS;
	if (of->left > most)
		of->left = most;
	if (of->left < -(s64)debt)
		of->left = -(s64)debt;
}

/* Adds the quota of the periods that have begun. Returns their number. */
POLICY_FN u64 bandwidth_refill(struct policy_bandwidth *of, u64 now)
{
	s64 most = of->quota + of->burst;
	u64 periods;

	/* Another CPU's clock may be behind. */
	if (policy_after(now, of->since) < (s64)of->period)
		return 0;
	periods = (now - of->since) / of->period;
	of->since += periods * of->period;
	if (of->quota && periods > (u64)(most - of->left) / of->quota)
		of->left = most;
	else
		of->left += periods * of->quota;
	return periods;
}

/* The limit is set, or another than before. Debts remain, and a period goes on:
 * else none would end where the limit is changed again and again. Returns the
 * number of periods that have begun. */
POLICY_FN u64 bandwidth_set(struct policy_bandwidth *of, u64 quota, u64 period,
			    u64 burst, u64 now)
{
	u64 periods = of->period ? bandwidth_refill(of, now) : 0;

	if (!of->period)
		of->since = now;
	of->quota = bandwidth_bounded(quota);
	of->period = period ? bandwidth_bounded(period) : 1;
	of->burst = bandwidth_bounded(burst);
	/* Of a shorter one, no more than one has passed. */
	if (policy_after(now, of->since) > (s64)of->period)
		of->since = now - of->period;
	if (of->left >= 0)
		of->left = of->quota;
	bandwidth_clamp(of);
	return periods;
}

/* Takes up to that much of the budget. Returns how much, 0 if none is left. */
POLICY_FN u64 bandwidth_take(struct policy_bandwidth *of, u64 ns)
{
	u64 taken;

	if (of->left <= 0)
		return 0;
	taken = ns < (u64)of->left ? ns : (u64)of->left;
	of->left -= taken;
	return taken;
}

/* Who took that much has used so much. */
POLICY_FN void bandwidth_settle(struct policy_bandwidth *of, u64 taken,
				u64 used)
{
	of->left += (s64)(bandwidth_bounded(taken) - bandwidth_bounded(used));
	bandwidth_clamp(of);
}

/* Time until there is budget again, 0 if there is some. */
POLICY_FN u64 bandwidth_wait(const struct policy_bandwidth *of, u64 now)
{
	s64 next = policy_after(of->since + of->period, now);
	u64 periods;

	if (of->left > 0)
		return 0;
	periods = of->quota ? (u64)-of->left / of->quota : 0;
	return (next > 0 ? (u64)next : 0) + periods * of->period;
}

#endif
