/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CPUs that a thread of another class takes: the kernel runs every ordinary
 * thread before a vCPU, but for the time that is reserved. A vCPU that such a
 * thread preempts stays in the CPU's local queue, where no other CPU takes it
 * from.
 *
 * Invariant: a vCPU is in a local queue for some ms at most while its CPU is
 * taken.
 */
#pragma once

/* How long threads that another class keeps from a CPU are not enqueued again,
 * after they were. */
#define ENQUEUED_NS 100000000

/* Whether the CPU runs a thread of another class. */
static __always_inline _Bool is_taken(const struct cpu *cpu)
{
	return cpu && !cpu->turn && !cpu->idle;
}

/* A CPU is taken, and some wait in its queue: an idle CPU where the first may
 * run is told. */
__noinline int wake_another(u32 where)
{
	struct task_struct *p;
	s32 idle = -1;

	bpf_rcu_read_lock();
	p = scx_bpf_dsq_peek(QUEUE_CPU + where);
	if (p)
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	bpf_rcu_read_unlock();
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	return 0;
}

/* Threads in this CPU's local queue, where no other CPU takes them, while it
 * runs one of another class: the one that was preempted, or that had been
 * chosen. If it lasts, they are enqueued again; rarely, since those that may
 * run on this CPU only come back, and the kernel bears that 256 times before
 * they run. */
static __always_inline void look_at_local(struct cpu *cpu, struct timer *timer,
					  u64 now)
{
	if (cpu->turn)
		return;
	if (cpu->idle || scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) <= 0) {
		cpu->looks.local = 0;
	} else if (!cpu->looks.local) {
		cpu->looks.local = now + LOOK_BUSY_NS;
		timer->next = LOOK_BUSY_NS;
	} else if (policy_after(now, cpu->looks.local) >= 0) {
		scx_bpf_dsq_reenq(SCX_DSQ_LOCAL, 0);
		cpu->looks.local = now + ENQUEUED_NS;
	}
}
