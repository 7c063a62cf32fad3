// SPDX-License-Identifier: GPL-2.0
/*
 * watch - what a vCPU was doing when it lost its CPU, and when its guest's
 * grace periods begin and end.
 *
 * At a context switch away from a vCPU's thread that thread is still current,
 * so the guest's memory is the program's user memory: preempt_count and the
 * current task are two words of the vCPU's per-CPU area, the task's nesting of
 * read-side sections is a third. User space found out their addresses.
 * Privilege level, interrupt flag and instruction pointer come from KVM's
 * memory in the kernel, or from QEMU's own where QEMU emulates the processor.
 *
 * A guest's gp_seq changes only while one of its vCPUs runs, so it is looked at
 * when one stops, and whenever a timer of the host interrupts one: at least
 * once per tick. A clock of our own would look more often, at ten times the
 * cost of all this: each context switch would have to program it.
 *
 * Whatever is read from a guest may be a lie. It is a number that is counted or
 * an address that is read with a helper that can fail, never more.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "watch.h"
#include "maps.bpf.h"
#include "count.bpf.h"
#include "event.bpf.h"
#include "grace.bpf.h"
#include "late.bpf.h"
#include "observation.bpf.h"
#include "registers.bpf.h"
#include "taken.bpf.h"
#include "classify.bpf.h"

/* User space sees the changes between begin_change and end_change as a whole or
 * not at all: x86 keeps the order of stores, barrier() makes the compiler do.
 */
static __always_inline void begin_change(struct vcpu *vcpu)
{
	vcpu->version++;
	barrier();
}

static __always_inline void end_change(struct vcpu *vcpu)
{
	barrier();
	vcpu->version++;
}

/* The vCPU has a CPU again, which it had given up. It wanted one since it was
 * woken. */
static __always_inline void count_blocked(struct vcpu *vcpu, u64 now)
{
	u64 woken = vcpu->woken;

	if ((s64)(woken - vcpu->since) > 0) {
		if ((s64)(now - woken) < 0)
			woken = now;
		count(&vcpu->wakes, now - woken);
	} else {
		/* The vCPU was woken before it was off its CPU. */
		woken = now;
	}
	count(&vcpu->blocks, woken - vcpu->since);
}

static __always_inline void enter(struct vcpu *vcpu, u32 cpu, u64 now)
{
	u64 away = now - vcpu->since;
	enum doing doing = vcpu->doing;
	u32 class = CLASSES;
	struct event *event;

	begin_change(vcpu);
	if (doing == DOING_PREEMPTED) {
		class = late_class(vcpu);
		barrier_var(class);
		if (class < CLASSES) {
			struct class_times *times = &vcpu->classes[class];

			count(&times->off_cpu, away);
			if (vcpu->reader) {
				times->readers++;
				times->readers_off_cpu_ns += away;
			}
		}
		if (vcpu->announced) {
			vcpu->announced_count++;
			vcpu->announced_off_cpu_ns += away;
		}
		count_held(vcpu, class, now);
		count_taken(vcpu, away);
	} else if (doing == DOING_BLOCKED) {
		count_blocked(vcpu, now);
	} else if (doing == DOING_RUNNING) {
		/* The vCPU left its CPU unseen, at an unknown time. */
		__sync_fetch_and_add(&missed, 1);
	}
	vcpu->since = now;
	vcpu->doing = DOING_RUNNING;
	vcpu->cpu = cpu;
	end_change(vcpu);

	event = new_event(EVENT_ON, now, vcpu->tgid);
	if (event) {
		event->vcpu = vcpu->index;
		event->cpu = cpu;
		event->class = class;
		submit(event);
	}
}

/* Time at which the thread got its CPU, by the scheduler's clock; 0 where the
 * kernel does not keep it. */
static __always_inline u64 arrival(struct task_struct *thread)
{
	if (!bpf_core_field_exists(thread->sched_info.last_arrival))
		return 0;
	return BPF_CORE_READ(thread, sched_info.last_arrival);
}

/*
 * The vCPU runs, but was not seen to get its CPU: some kernels do not run the
 * program when certain threads leave their CPU, and such a thread ran before.
 * The scheduler keeps the time of arrival by a clock of its own. The distance
 * between that clock and ours was measured when the vCPU last came and left. If
 * it was not, the whole time counts as spent off the CPU.
 */
static __always_inline void catch_up(struct vcpu *vcpu,
				     struct task_struct *thread, u64 now)
{
	u64 arrived, came = now;

	if (vcpu->doing != DOING_PREEMPTED && vcpu->doing != DOING_BLOCKED)
		return;
	arrived = arrival(thread);
	if (arrived && vcpu->clock_offset)
		came = arrived + vcpu->clock_offset;
	else
		__sync_fetch_and_add(&missed, 1);
	if ((s64)(came - vcpu->since) < 0)
		came = vcpu->since;
	if ((s64)(now - came) < 0)
		came = now;
	enter(vcpu, bpf_get_smp_processor_id(), came);
}

static __always_inline void leave(struct vcpu *vcpu, struct task_struct *thread,
				  struct task_struct *next, _Bool preempted,
				  u64 now)
{
	struct observation seen = {};
	struct vm *vm = vm_of(vcpu);
	struct event *event;

	catch_up(vcpu, thread, now);
	if (preempted)
		observe(vcpu, vm, thread, &seen);

	begin_change(vcpu);
	if (vcpu->doing == DOING_RUNNING)
		vcpu->on_cpu_ns += now - vcpu->since;
	if (vcpu->seen_coming)
		vcpu->clock_offset = vcpu->since - arrival(thread);
	vcpu->seen_coming = 0;
	vcpu->since = now;
	vcpu->doing = preempted ? DOING_PREEMPTED : DOING_BLOCKED;
	vcpu->successor = next->pid;
	vcpu->throttled = preempted && is_throttled(thread);
	vcpu->class = seen.class;
	vcpu->reader = seen.reader;
	vcpu->announced = seen.announced;
	vcpu->task = seen.task;
	vcpu->rip = seen.rip;
	if (preempted)
		note_taker(vcpu, next);
	end_change(vcpu);

	event = new_event(preempted ? EVENT_PREEMPTED : EVENT_BLOCKED, now,
			  vcpu->tgid);
	if (event) {
		event->vcpu = vcpu->index;
		event->class = seen.class;
		event->reader = seen.reader;
		/* An address in user mode has no symbol. */
		event->rip = seen.class == CLASS_USER ? 0 : seen.rip;
		event->pid = seen.pid;
		if (seen.task_host && vm)
			bpf_probe_read_user(
				event->comm, COMM_LEN,
				(void *)(seen.task_host + vm->task_comm));
		submit(event);
	}
	if (vm) {
		watch_grace(vm, vcpu->tgid);
		if (preempted)
			note_owed(vcpu, vm);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next, unsigned int prev_state)
{
	struct vcpu *from = find(prev->pid, prev->tgid);
	struct vcpu *to = find(next->pid, next->tgid);
	u64 now;

	if (!from && !to)
		return 0;
	now = bpf_ktime_get_ns();
	/* A thread that is preempted on its way to sleep is still runnable. */
	if (from)
		leave(from, prev, next, preempt || !prev_state, now);
	if (to) {
		enter(to, bpf_get_smp_processor_id(), now);
		to->seen_coming = 1;
	}
	account(now);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(woke, struct task_struct *thread)
{
	struct vcpu *vcpu = find(thread->pid, thread->tgid);

	if (vcpu && vcpu->doing == DOING_BLOCKED)
		vcpu->woken = bpf_ktime_get_ns();
	return 0;
}

/* A timer's interrupt, perhaps of a vCPU. */
SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(ticked)
{
	u64 id = bpf_get_current_pid_tgid();
	struct vcpu *vcpu = find((u32)id, id >> 32);
	struct task_struct *thread;
	struct vm *vm;
	u64 now;

	if (!vcpu)
		return 0;
	now = bpf_ktime_get_ns();
	/* The vCPU ran before it was watched and has not stopped since. */
	if (vcpu->doing == DOING_UNSEEN) {
		begin_change(vcpu);
		vcpu->since = now;
		vcpu->cpu = bpf_get_smp_processor_id();
		vcpu->doing = DOING_RUNNING;
		end_change(vcpu);
	}
	thread = bpf_get_current_task_btf();
	catch_up(vcpu, thread, now);
	if (vcpu->registers == REGISTERS_QEMU_SEARCH)
		gather_candidate(vcpu, thread);
	vm = vm_of(vcpu);
	if (vm)
		watch_grace(vm, vcpu->tgid);
	return 0;
}

/*
 * User space runs this for a vCPU that is preempted now, by its index. Two may
 * not write to an entry, so the answer is not kept.
 */
SEC("raw_tp")
int class_now(u64 *arguments)
{
	u32 index = arguments[0];
	struct vcpu *vcpu = bpf_map_lookup_elem(&vcpus, &index);

	return vcpu ? late_class(vcpu) : CLASS_UNKNOWN;
}

char LICENSE[] SEC("license") = "GPL";
