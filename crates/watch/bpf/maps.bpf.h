/* SPDX-License-Identifier: GPL-2.0 */
/* The program's settings and maps, and the look-up of a thread's vCPU. */
#ifndef REPRIEVE_MAPS_BPF_H
#define REPRIEVE_MAPS_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "watch.h"

/* Set before loading: which KVM the host has, and whether events are wanted. */
const volatile _Bool with_svm = 0;
const volatile _Bool with_vmx = 0;
const volatile _Bool with_events = 0;

/* A bit per thread of a vCPU, by the low bits of its ID. Nearly all other
 * threads are told apart by it. */
u64 filter[FILTER_BITS / 64];
/* Events for which the buffer had no room; when the first was lost since user
 * space last took note (0: none), and when the last. */
u64 lost;
u64 lost_first;
u64 lost_last;
/* Context switches at which the kernel did not run the program, and whose time
 * could not be found out later. */
u64 missed;
/* Has the layout of events in the programs' BTF, and so in Rust. */
const struct event *event_layout;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VCPUS);
	__type(key, u32); /* thread */
	__type(value, u32); /* index in vcpus */
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_VCPUS);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm);
} vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cost);
} costs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

static __always_inline struct vcpu *find(u32 tid, u32 tgid)
{
	u32 bit = tid % FILTER_BITS;
	struct vcpu *vcpu;
	u32 *found;

	if (!(filter[bit / 64] & (1ULL << (bit % 64))))
		return 0;
	found = bpf_map_lookup_elem(&threads, &tid);
	if (!found)
		return 0;
	vcpu = bpf_map_lookup_elem(&vcpus, found);
	/* Another process may have got the ID of a thread that ended. */
	if (!vcpu || vcpu->tgid != tgid)
		return 0;
	return vcpu;
}

static __always_inline struct vm *vm_of(const struct vcpu *vcpu)
{
	u32 index = vcpu->vm;

	return bpf_map_lookup_elem(&vms, &index);
}

#endif
