/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Level of privilege, interrupt flag and instruction pointer of a vCPU that is
 * off its CPU: from whoever runs the guest's instructions.
 */
#ifndef REPRIEVE_REGISTERS_BPF_H
#define REPRIEVE_REGISTERS_BPF_H

#define EFLAGS_IF 0x200
#define VCPU_REGS_RIP 16
#define HAS_RIP (1UL << VCPU_REGS_RIP)

/* A vCPU at the moment at which it lost its CPU. */
struct sight {
	u64 task;
	u64 task_host;
	u64 rip;
	u32 class;
	u32 reader;
	s32 pid;
	/* What is known of the processor's state: -1 where it is not. */
	s32 privilege;
	s32 interrupts;
};

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

static __always_inline void see_qemu(const struct vcpu *vcpu,
				     struct sight *sight)
{
	struct qemu_registers registers;

	if (bpf_probe_read_user(&registers, sizeof(registers),
				(void *)vcpu->env))
		return;
	sight->rip = registers.eip;
	sight->privilege = registers.hflags & 3;
	sight->interrupts = !!(registers.eflags & EFLAGS_IF);
}

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

/*
 * KVM has itself told when its vCPU's thread is scheduled; that is where the
 * vCPU is found. A thread that is in the VMM is not in that list; its vCPU's
 * state is what it was at its last exit.
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

static __always_inline void see_svm(u64 kvm, struct sight *sight)
{
	struct vcpu_svm *svm =
		(void *)(kvm - bpf_core_field_offset(struct vcpu_svm, vcpu));
	struct vmcb *vmcb = BPF_CORE_READ(svm, vmcb);
	u64 rflags = 0;
	u8 cpl = 0;

	if (!vmcb || BPF_CORE_READ_INTO(&cpl, vmcb, save.cpl) ||
	    BPF_CORE_READ_INTO(&rflags, vmcb, save.rflags) ||
	    BPF_CORE_READ_INTO(&sight->rip, vmcb, save.rip))
		return;
	sight->privilege = cpl & 3;
	sight->interrupts = !!(rflags & EFLAGS_IF);
}

/*
 * On Intel the registers are in a structure that only VMX instructions read.
 * KVM keeps a copy of the instruction pointer if it needed one at this exit.
 */
static __always_inline void see_vmx(u64 kvm, struct sight *sight)
{
	struct kvm_vcpu *vcpu = (void *)kvm;
	struct kvm_vcpu___rip *newer = (void *)kvm;

	if (bpf_core_field_exists(newer->arch.rip)) {
		if (BPF_CORE_READ(newer, arch.regs_avail[0]) & HAS_RIP)
			sight->rip = BPF_CORE_READ(newer, arch.rip);
	} else if (BPF_CORE_READ(vcpu, arch.regs_avail) & HAS_RIP) {
		sight->rip = BPF_CORE_READ(vcpu, arch.regs[VCPU_REGS_RIP]);
	}
	if (sight->rip)
		sight->privilege = (s64)sight->rip < 0 ? 0 : 3;
}

/*
 * Intel's KVM notes the level of privilege only after the switch: what was not
 * known then is known when the vCPU comes back.
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
