/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Classifies what a vCPU was doing when it lost its CPU, by its registers and
 * the guest's memory.
 */
#ifndef REPRIEVE_CLASSIFY_BPF_H
#define REPRIEVE_CLASSIFY_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "observation.bpf.h"
#include "registers.bpf.h"
#include "watch.h"
#include "../../hint/include/reprieve/hint_region.h"

/* Address in the VMM's process of a kernel address of the guest; 0 if it is not
 * in RAM. */
static __always_inline u64 host_address(const struct vm *vm, u64 address,
					u32 bytes)
{
	u64 physical;
	u32 i;

	if (address >= vm->image) {
		physical = address - vm->image;
		if (physical >= vm->image_bytes)
			return 0;
		physical += vm->image_physical;
	} else if (address >= vm->direct_map) {
		physical = address - vm->direct_map;
	} else {
		return 0;
	}
	for (i = 0; i < MAX_SEGMENTS; i++) {
		const struct segment *segment = &vm->segments[i];
		u64 offset = physical - segment->physical;

		if (i >= vm->segments_used)
			break;
		if (offset < segment->bytes && segment->bytes - offset >= bytes)
			return segment->host + offset;
	}
	return 0;
}

/*
 * How deep the guest's thread is in sections that it announced as
 * non-preemptable. The guest's own word: what was found at the address is a
 * number, whatever it says.
 */
static __noinline u32 announced(const struct vm *vm, s32 pid)
{
	u64 slots =
		vm->region + __builtin_offsetof(struct reprieve_region, slots);
	u32 i;

	for (i = 0; i < REPRIEVE_REGION_PROBES; i++) {
		struct reprieve_region_slot *slot = (void *)slots;
		u32 words[2]; /* thread, non_preemptable */

		slot += ((u32)pid + i) % REPRIEVE_REGION_SLOTS;
		if (bpf_probe_read_user(words, sizeof(words), slot) ||
		    !words[0])
			return 0;
		if (words[0] == (u32)pid)
			return words[1];
	}
	return 0;
}

/* The guest's word: a table that lies changes the class, and no more. */
static __noinline enum spins_for spins_in(const struct vm *vm, u64 rip)
{
	u32 i;

	for (i = 0; i < MAX_SPINS; i++) {
		const struct spin *spin = &vm->spins.code[i];

		if (i >= vm->spins.used)
			break;
		if (rip - spin->start < spin->bytes)
			return spin->why;
	}
	return SPINS_NOT;
}

static __always_inline _Bool spins(const struct observation *seen)
{
	return seen->spins == SPINS_FOR_ANSWER ||
	       seen->spins == SPINS_FOR_OWNER;
}

static __always_inline u32 classify(const struct vm *vm,
				    struct observation *seen, u32 count)
{
	if (seen->privilege == 3)
		return CLASS_USER;
	if (count & (vm->hardirq | vm->softirq_serving | vm->no_preempt))
		seen->spins = spins_in(vm, seen->rip);
	if (count & vm->hardirq)
		return CLASS_HARDIRQ;
	if (count & vm->softirq_serving)
		return CLASS_SOFTIRQ;
	if (!seen->pid)
		return CLASS_IDLE;
	if (count & vm->no_preempt)
		return spins(seen) ? CLASS_SPINNING : CLASS_NO_PREEMPT;
	if (!seen->interrupts || count & vm->irqs_off)
		return CLASS_IRQS_OFF;
	if (seen->reader)
		return CLASS_READER;
	return CLASS_KERNEL;
}

/* The guest's current task on the vCPU, and where that lies in this process, or
 * 0. A task lies in one piece. The offsets of its fields are the guest's word:
 * behind its RAM is the VMM's own memory. */
static __always_inline u64 guest_task(const struct vm *vm,
				      const struct vcpu *vcpu, u64 *task)
{
	if (!vcpu->current_task ||
	    bpf_probe_read_user(task, sizeof(*task),
				(void *)vcpu->current_task))
		return 0;
	return host_address(vm, *task, vm->task_bytes);
}

static __always_inline void observe(struct vcpu *vcpu, struct vm *vm,
				    struct task_struct *thread,
				    struct observation *seen)
{
	enum registers registers = vcpu->registers;
	s32 nesting = 0;
	u32 count;

	seen->class = CLASS_UNKNOWN;
	seen->pid = NO_PID;
	seen->privilege = -1;
	seen->interrupts = -1;

	if (registers == REGISTERS_QEMU)
		observe_qemu(vcpu, seen);
#ifndef REPRIEVE_GUARD
	else if (registers == REGISTERS_QEMU_SEARCH)
		gather_candidate(vcpu, thread);
#endif
	else if (registers == REGISTERS_KVM && (with_svm || with_vmx)) {
		u64 kvm = kvm_vcpu_of(vcpu, thread);

		if (kvm && with_svm)
			observe_svm(kvm, seen);
		else if (kvm)
			observe_vmx(kvm, seen);
	}

	if (!vm || !vm->ready || !vcpu->preempt_count ||
	    bpf_probe_read_user(&count, sizeof(count),
				(void *)vcpu->preempt_count))
		return;
	seen->task_host = guest_task(vm, vcpu, &seen->task);
	if (!seen->task_host)
		return;
	if (bpf_probe_read_user(&seen->pid, sizeof(seen->pid),
				(void *)(seen->task_host + vm->task_pid))) {
		seen->pid = NO_PID;
		return;
	}
	if (vm->region && seen->pid > 0)
		seen->announced = !!announced(vm, seen->pid);
	if (vm->task_nesting &&
	    bpf_probe_read_user(&nesting, sizeof(nesting),
				(void *)(seen->task_host + vm->task_nesting)))
		return;
	/* The count belongs to the kernel; in user mode there is no reader. */
	seen->reader = nesting > 0 && seen->privilege != 3;
	seen->class = classify(vm, seen, count);
}

#endif
