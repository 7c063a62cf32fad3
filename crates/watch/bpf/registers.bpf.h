/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Privilege level, interrupt flag and instruction pointer of a vCPU that is off
 * its CPU: from QEMU or KVM, whichever runs the guest's instructions.
 */
#ifndef REPRIEVE_REGISTERS_BPF_H
#define REPRIEVE_REGISTERS_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "maps.bpf.h"
#include "observation.bpf.h"
#include "watch.h"

#define EFLAGS_IF 0x200
#define VCPU_REGS_RIP 16
#define HAS_RIP (1UL << VCPU_REGS_RIP)

/* From eip to hflags of QEMU's CPUX86State. */
struct qemu_registers {
	u64 eip;
	u64 eflags;
	u64 cc[3];
	u32 cc_op;
	s32 df;
	u32 hflags;
	u32 hflags2;
};

static __always_inline void observe_qemu(const struct vcpu *vcpu,
					 struct observation *seen)
{
	struct qemu_registers registers;

	if (bpf_probe_read_user(&registers, sizeof(registers),
				(void *)vcpu->env))
		return;
	seen->rip = registers.eip;
	seen->privilege = registers.hflags & 3;
	seen->interrupts = !!(registers.eflags & EFLAGS_IF);
}

#ifndef REPRIEVE_GUARD /* schedulers may not call bpf_task_pt_regs */
/*
 * While a thread runs translated code its RBP points at the vCPU's CPUX86State.
 * User space checks what is gathered here.
 */
static __always_inline void gather_candidate(struct vcpu *vcpu,
					     struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 bp = BPF_CORE_READ(regs, bp);
	u32 i = vcpu->next_candidate;

	if (!bp || bp & 7 || bp >> 47)
		return;
	barrier_var(i);
	vcpu->candidates[i % CANDIDATES] = bp;
	vcpu->next_candidate = i + 1;
}
#endif

/*
 * KVM registers a preemption notifier for the thread that runs a vCPU; the
 * notifier is a part of the vCPU. A thread that is in the VMM has none; then
 * the vCPU's state is that of its last exit.
 */
static __always_inline u64 kvm_vcpu_of(struct vcpu *vcpu,
				       struct task_struct *task)
{
	struct hlist_node *node = 0;

	if (bpf_core_field_exists(task->preempt_notifiers))
		node = BPF_CORE_READ(task, preempt_notifiers.first);
	if (node)
		vcpu->kvm =
			(u64)node -
			bpf_core_field_offset(struct kvm_vcpu,
					      preempt_notifier) -
			bpf_core_field_offset(struct preempt_notifier, link);
	return vcpu->kvm;
}

static __always_inline void observe_svm(u64 kvm, struct observation *seen)
{
	struct vcpu_svm *svm =
		(void *)(kvm - bpf_core_field_offset(struct vcpu_svm, vcpu));
	struct vmcb *vmcb = BPF_CORE_READ(svm, vmcb);
	u64 rflags = 0;
	u8 cpl = 0;

	if (!vmcb || BPF_CORE_READ_INTO(&cpl, vmcb, save.cpl) ||
	    BPF_CORE_READ_INTO(&rflags, vmcb, save.rflags) ||
	    BPF_CORE_READ_INTO(&seen->rip, vmcb, save.rip))
		return;
	seen->privilege = cpl & 3;
	seen->interrupts = !!(rflags & EFLAGS_IF);
}

/*
 * On Intel the registers are in a structure that only VMX instructions read.
 * KVM keeps a copy of the instruction pointer if it needed one at this exit.
 */
static __always_inline void observe_vmx(u64 kvm, struct observation *seen)
{
	struct kvm_vcpu *vcpu = (void *)kvm;
	struct kvm_vcpu___rip *newer = (void *)kvm;

	if (bpf_core_field_exists(newer->arch.rip)) {
		if (BPF_CORE_READ(newer, arch.regs_avail[0]) & HAS_RIP)
			seen->rip = BPF_CORE_READ(newer, arch.rip);
	} else if (BPF_CORE_READ(vcpu, arch.regs_avail) & HAS_RIP) {
		seen->rip = BPF_CORE_READ(vcpu, arch.regs[VCPU_REGS_RIP]);
	}
	if (seen->rip)
		seen->privilege = (s64)seen->rip < 0 ? 0 : 3;
}

/*
 * Intel's KVM stores the privilege level only after the switch. If it was not
 * known then, it is known from then on until the vCPU comes back.
 */
static __always_inline u32 late_class(const struct vcpu *vcpu)
{
	struct kvm_vcpu *kvm = (void *)vcpu->kvm;

	if (!with_vmx || vcpu->class != CLASS_KERNEL ||
	    vcpu->registers != REGISTERS_KVM || !kvm || vcpu->rip)
		return vcpu->class;
	return BPF_CORE_READ(kvm, arch.preempted_in_kernel) ? CLASS_KERNEL
							    : CLASS_USER;
}

#endif
