/* SPDX-License-Identifier: GPL-2.0 */
/*
 * In place of libbpf's header: the scheduler as a part of the simulator's
 * process. Functions without a body here are the simulated kernel's, in
 * kernel.rs. Its CPUs take turns, so locks and barriers do nothing.
 */
#pragma once

#define SEC(name)
#define __ksym
#define __weak
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define barrier()
#define barrier_var(var)
#define bpf_ksym_exists(symbol) 1
#define bpf_spin_lock(lock)
#define bpf_spin_unlock(lock)
#define bpf_for(i, first, end) for (i = first; i < (end); i++)

struct bpf_timer;
struct task_struct;

unsigned long long bpf_ktime_get_ns(void);
unsigned int bpf_get_prandom_u32(void);
unsigned int bpf_get_smp_processor_id(void);
struct task_struct *bpf_get_current_task_btf(void);
long bpf_probe_read_user(void *to, unsigned int bytes, void *from);
long bpf_timer_init(struct bpf_timer *timer, void *map, unsigned long long);
long bpf_timer_start(struct bpf_timer *timer, unsigned long long ns,
		     unsigned long long flags);

/* Nothing ends the simulated scheduler, and timers have one callback. */
#define bpf_probe_read_kernel_str(to, bytes, from) ((void)(from))
#define bpf_timer_set_callback(timer, function)

/*
 * Maps. A definition names its type, sizes and types of entries; `value`, a
 * null pointer in a BPF object, points to the entries here.
 */
#define __uint(name, number) int(*name)[number]
#define __type(name, kind) typeof(kind) *name
#define NATIVE_NUMBER(member) (sizeof(*(member)) / sizeof(int))

void *native_entry(void **entries, int type, unsigned long count,
		   unsigned long bytes, unsigned int key);

#define bpf_map_lookup_elem(map, key)                                          \
	((typeof((map)->value))native_entry((void **)&(map)->value,            \
					    NATIVE_NUMBER((map)->type),        \
					    NATIVE_NUMBER((map)->max_entries), \
					    sizeof(*(map)->value), *(key)))
#define bpf_task_storage_get(map, p, init, flags)                      \
	((typeof((map)->value))native_entry(                           \
		(void **)&(map)->value, NATIVE_NUMBER((map)->type), 0, \
		sizeof(*(map)->value), (p) ? (p)->pid : 0))
