/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CPUs that a thread of another class takes: the kernel runs every ordinary
 * thread before a vCPU, but for the time that is reserved. If such a thread
 * preempts a vCPU, the kernel puts that into the CPU's local queue. No other
 * CPU takes it from there.
 *
 * Invariant: a vCPU is in a local queue for some ms at most while its CPU is
 * taken.
 */
#pragma once

/* How long after guard has them enqueued again, it leaves threads in a local
 * queue. */
#define ENQUEUED_NS 100000000

/* Whether the CPU runs a thread of another class. */
static __always_inline _Bool is_taken(const struct cpu *cpu)
{
	return cpu && !cpu->since && !cpu->idle;
}

/* Another class has the CPU, and threads wait in its local queue: the one that
 * it preempted, or that had been chosen. If that lasts, the kernel enqueues
 * them again. Rarely, since a thread that may run on this CPU only comes back:
 * the kernel bears that 256 times in a row. */
static __always_inline void look_at_local(struct cpu *cpu, struct timer *timer,
					  u64 now)
{
	if (cpu->since)
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
