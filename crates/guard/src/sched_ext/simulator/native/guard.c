// SPDX-License-Identifier: GPL-2.0
/*
 * The scheduler, unchanged, as a part of the simulator's process. All its
 * variables are in one section, and none is constant: libbpf writes constants
 * before it loads a program.
 */
#pragma clang section bss = "guard_state"
#define const
#include "guard.bpf.c"
#pragma clang section bss = ""

extern char __start_guard_state[], __stop_guard_state[];

void *calloc(unsigned long count, unsigned long bytes);
void free(void *);
void *memset(void *, int, unsigned long);

#define MAPS 32
/* Threads are numbered from 1 on, and have their storage from the beginning. */
#define THREADS 16384

static void *allocated[MAPS];

/* The entry of a map. A hash is an array by key here: 0 is no entry. */
void *native_entry(void **entries, int type, unsigned long count,
		   unsigned long bytes, u32 key)
{
	void *entry;
	int i;

	if (type == BPF_MAP_TYPE_PERCPU_ARRAY) {
		key = bpf_get_smp_processor_id();
		count = MAX_CPUS;
	} else if (type != BPF_MAP_TYPE_ARRAY) {
		count = THREADS;
	}
	for (i = 0; !*entries && i < MAPS; i++)
		if (!allocated[i])
			*entries = allocated[i] = calloc(count, bytes);
	entry = key < count ? *(char **)entries + key * bytes : 0;
	if (type == BPF_MAP_TYPE_HASH && entry && !*(u32 *)entry)
		return 0;
	return type == BPF_MAP_TYPE_TASK_STORAGE && !key ? 0 : entry;
}

/* A scheduler that was just loaded, and its maps. */
void native_load(struct settings *with)
{
	int i;

	for (i = 0; i < MAPS; i++) {
		free(allocated[i]);
		allocated[i] = 0;
	}
	memset(__start_guard_state, 0,
	       __stop_guard_state - __start_guard_state);
	settings = *with;
}

/* As user space tells of a vCPU (program.rs). */
void native_add_vcpu(u32 tid, u32 slot)
{
	bpf_map_lookup_elem(&vcpus, &slot)->tid = tid;
	bpf_map_lookup_elem(&threads, &tid);
	threads.value[tid] = slot;
	generation++;
}

#define NATIVE_ENTRY(kind)                                    \
	struct kind *native_##kind(u32 index)                 \
	{                                                     \
		return bpf_map_lookup_elem(&kind##s, &index); \
	}
NATIVE_ENTRY(vcpu)
NATIVE_ENTRY(vm)
NATIVE_ENTRY(guest)
NATIVE_ENTRY(group)

/* The timer of the CPU expires on it. */
void native_timer(u32 cpu)
{
	timer_expired(&timers, &cpu, bpf_map_lookup_elem(&timers, &cpu));
}

/* KVM's timer for a guest's tick expires. */
void native_tick(u32 tid)
{
	struct pid pid = {.numbers = {{tid}}};
	struct kvm_vcpu vcpu = {.pid = &pid};
	struct kvm_lapic lapic = {.vcpu = &vcpu};

	guard_guest_timer(&lapic.lapic_timer);
}

u64 native_turn(u64 count)
{
	return policy_turn(count);
}

/* The debt of one of a VM's vCPUs, which ran for so long. */
u64 native_debt(u64 weight, u64 runnable, u64 ran)
{
	struct policy_group group = {.weight = weight, .runnable = runnable};
	struct policy_thread thread = {};

	policy_charge(&thread, &group, ran);
	return policy_debt(&thread, &group, 0);
}
