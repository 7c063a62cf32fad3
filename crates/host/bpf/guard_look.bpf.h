/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Each CPU has a timer, which looks whether the turn of who runs is over, and
 * who owes its guest's grace period something.
 */
#pragma once

/* How often a CPU's timer looks: in an extension, while others wait, else. */
#define LOOK_EXTENDED_NS 100000
#define LOOK_BUSY_NS 500000
#define LOOK_ALONE_NS 2000000
#define LOOK_IDLE_NS 20000000

#define CLOCK_MONOTONIC 1
#define BPF_F_TIMER_CPU_PIN 2

struct bpf_timer {
	u64 __opaque[2];
} __attribute__((aligned(8)));

struct timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

/* The next look on this CPU is in ns, not when it was to be. */
static __always_inline void look_in(u32 where, u64 ns)
{
	struct timer *timer = bpf_map_lookup_elem(&timers, &where);

	if (timer)
		bpf_timer_start(&timer->timer, ns, BPF_F_TIMER_CPU_PIN);
}
