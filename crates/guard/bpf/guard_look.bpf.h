/* SPDX-License-Identifier: GPL-2.0 */
/*
 * When a CPU's timer looks (timer_expired): whether the turn of the thread that
 * runs is over, and which vCPUs of any VM are to be rescued. While no thread
 * waits, the next look is far away: an interrupt that is not needed costs a
 * vCPU an exit. The scheduler's tick, which comes anyhow, and each change of
 * threads bring it near.
 *
 * Invariant: a CPU's timer is started on that CPU only. It always runs after a
 * vCPU was seen there (look_soon).
 */
#pragma once

/* How often a CPU's timer looks: in an extension or rescue; while a thread
 * waits; while the CPU is idle; else, since the tick looks for changes. */
#define LOOK_EXTENDED_NS 100000
#define LOOK_BUSY_NS 1000000
#define LOOK_IDLE_NS 20000000
#define LOOK_ALONE_NS 100000000

#define CLOCK_MONOTONIC 1
#define BPF_F_TIMER_CPU_PIN 2

struct bpf_timer {
	u64 __opaque[2];
} __attribute__((aligned(8)));

struct timer {
	struct bpf_timer timer;
	u64 next; /* how long until it looks again */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

/* This CPU, where, looks next in ns, in place of the look that was planned. */
static __always_inline void look_in(struct cpu *cpu, u32 where, u64 ns, u64 now)
{
	struct timer *timer = bpf_map_lookup_elem(&timers, &where);

	/* With core scheduling, a sibling may choose for that CPU; a timer is
	 * pinned where it is started. */
	if (!timer || where != bpf_get_smp_processor_id())
		return;
	if (!bpf_timer_start(&timer->timer, ns, BPF_F_TIMER_CPU_PIN))
		cpu->looks.next = now + ns;
}

/* How long until the next look on a CPU that others wait for: to the end of the
 * slice, but LOOK_BUSY_NS at most, or LOOK_EXTENDED_NS in a rescue. */
static __always_inline u64 until(const struct cpu *cpu, u64 now)
{
	s64 left = policy_after(cpu->since + cpu->slice, now);

	if (cpu->why == WHY_RESCUED || left < LOOK_EXTENDED_NS)
		return LOOK_EXTENDED_NS;
	return left < LOOK_BUSY_NS ? left : LOOK_BUSY_NS;
}

/* Brings the next look as near as ns if it is further away, or is long past: it
 * was lost, or never planned. */
static __always_inline void look_within(struct cpu *cpu, u32 where, u64 ns,
					u64 now)
{
	s64 ahead = policy_after(cpu->looks.next, now);

	if (ahead > (s64)ns || ahead < -LOOK_BUSY_NS)
		look_in(cpu, where, ns, now);
}

/* Brings the next look near, if a thread waits or runs as a rescue. */
static __always_inline void look_soon(struct cpu *cpu, u32 where, u64 now)
{
	_Bool near = cpu->why == WHY_RESCUED || waits(where);

	look_within(cpu, where, near ? until(cpu, now) : LOOK_ALONE_NS, now);
}
