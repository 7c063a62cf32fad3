/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a vCPU was doing when it lost its CPU: from its registers and the
 * guest's memory.
 */
#ifndef REPRIEVE_SIGHT_BPF_H
#define REPRIEVE_SIGHT_BPF_H

/* Where the guest's kernel address is in the VMM's process; 0: nowhere. */
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

static __always_inline u32 classify(const struct vm *vm,
				    const struct sight *sight, u32 count)
{
	if (sight->privilege == 3)
		return CLASS_USER;
	if (count & vm->hardirq)
		return CLASS_HARDIRQ;
	if (count & vm->softirq_serving)
		return CLASS_SOFTIRQ;
	if (!sight->pid)
		return CLASS_IDLE;
	if (count & vm->no_preempt)
		return CLASS_NO_PREEMPT;
	if (!sight->interrupts || count & vm->irqs_off)
		return CLASS_IRQS_OFF;
	if (sight->reader)
		return CLASS_READER;
	return CLASS_KERNEL;
}

static __always_inline void see(struct vcpu *vcpu, struct vm *vm,
				struct task_struct *thread, struct sight *sight)
{
	u32 registers = vcpu->registers;
	s32 nesting = 0;
	u32 count;

	sight->class = CLASS_UNKNOWN;
	sight->pid = NO_PID;
	sight->privilege = -1;
	sight->interrupts = -1;

	if (registers == REGISTERS_QEMU)
		see_qemu(vcpu, sight);
	else if (registers == REGISTERS_QEMU_SEARCH)
		gather_candidate(vcpu, thread);
	else if (registers == REGISTERS_KVM && (with_svm || with_vmx)) {
		u64 kvm = kvm_vcpu_of(vcpu, thread);

		if (kvm && with_svm)
			see_svm(kvm, sight);
		else if (kvm)
			see_vmx(kvm, sight);
	}

	if (!vm || !vm->ready || !vcpu->preempt_count || !vcpu->current_task)
		return;
	if (bpf_probe_read_user(&count, sizeof(count),
				(void *)vcpu->preempt_count) ||
	    bpf_probe_read_user(&sight->task, sizeof(sight->task),
				(void *)vcpu->current_task))
		return;
	/* One page is more than the fields need, and tasks lie in one piece. */
	sight->task_host = host_address(vm, sight->task, 4096);
	if (!sight->task_host)
		return;
	if (bpf_probe_read_user(&sight->pid, sizeof(sight->pid),
				(void *)(sight->task_host + vm->task_pid))) {
		sight->pid = NO_PID;
		return;
	}
	if (vm->task_nesting &&
	    bpf_probe_read_user(&nesting, sizeof(nesting),
				(void *)(sight->task_host + vm->task_nesting)))
		return;
	/* In user mode there is no reader; the count is of the kernel. */
	sight->reader = nesting > 0 && sight->privilege != 3;
	sight->class = classify(vm, sight, count);
}

#endif
