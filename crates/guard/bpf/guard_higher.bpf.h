/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CPUs that a thread of a higher class takes. Whom it preempts stays in the
 * CPU's local queue, where no other CPU takes it from.
 */
#pragma once

/* How long threads that a higher class keeps from a CPU are not enqueued again,
 * after they were. */
#define ENQUEUED_NS 100000000

/* Whether the CPU runs a thread of a higher class. */
static __always_inline _Bool runs_higher(const struct cpu *cpu)
{
	return cpu && !cpu->turn && !cpu->idle;
}

/* Brings the next look near until a thread runs. */
static __always_inline void look_meanwhile(struct cpu *cpu, u32 where, u64 now)
{
	u64 look = cpu->look;

	if (!looks_after(cpu, LOOK_BUSY_NS, now))
		return;
	look_in(cpu, where, LOOK_BUSY_NS, now);
	cpu->brought = policy_after(look, now) > 0 ? look : 0;
}

/* Who ran is preempted, and no other chosen: a higher class takes the CPU,
 * perhaps for long. */
static __always_inline void look_for_higher(struct cpu *cpu, u32 where, u64 now)
{
	if (kernel_enqueues_local())
		look_meanwhile(cpu, where, now);
}

/* The CPU is idle no longer, and some wait in queues: one of them had claimed
 * it perhaps, and a higher class was before it. (In the CPU's local queue is
 * whoever has just been chosen.) */
static __always_inline void look_for_claimed(struct cpu *cpu, u32 where,
					     u64 now)
{
	if (waits_in_queues(cpu, where, now))
		look_meanwhile(cpu, where, now);
}

/* How many are looked at for one that an idle CPU can run. */
#define LOOK_FOR_IDLE 8

/* A higher class has the CPU, and some wait in its domain's queue: an idle CPU
 * where one of the first may run is told. */
__noinline int wake_another(u32 where)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	s32 idle;
	u32 n;

	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, QUEUE_SHARED + domain_of(where), 0)) {
		bpf_for(n, 0, LOOK_FOR_IDLE)
		{
			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			idle = kernel_claim_idle(p);
			if (idle < 0)
				continue;
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return 0;
}

/* A thread runs again: the look that was for the higher class would be an exit.
 */
static __always_inline void look_as_before(struct cpu *cpu, u32 where, u64 now)
{
	s64 ahead = policy_after(cpu->brought, now);

	if (cpu->brought && ahead > LOOK_BUSY_NS)
		look_in(cpu, where, ahead, now);
	cpu->brought = 0;
}

/* Threads in this CPU's local queue, where no other CPU takes them, while it
 * runs one of a higher class: whom that preempted, or who had been chosen. If
 * it lasts, they are enqueued again; rarely, since those that may run on this
 * CPU only come back, and the kernel bears that 256 times before they run. */
static __always_inline void look_at_local(struct cpu *cpu, struct timer *timer,
					  u64 now)
{
	if (!kernel_enqueues_local() || cpu->turn)
		return;
	if (cpu->idle || scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) <= 0) {
		cpu->enqueues = 0;
	} else if (!cpu->enqueues) {
		cpu->enqueues = now + LOOK_BUSY_NS;
		cpu->brought = limits_used ? 0 : now + timer->next;
		timer->next = LOOK_BUSY_NS;
	} else if (policy_after(now, cpu->enqueues) >= 0) {
		kernel_enqueue_local();
		cpu->enqueues = now + ENQUEUED_NS;
	}
}
