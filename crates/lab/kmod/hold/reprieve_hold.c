// SPDX-License-Identifier: GPL-2.0
/*
 * reprieve_hold - keeps CPUs in a known context, to compare it with what a
 * program that watches the guest from outside reports.
 *
 * On each chosen CPU a bound thread enters the context, spins there for a
 * time, leaves it, and does so again:
 *
 *   kernel    preemptible kernel code
 *   reader    an RCU read-side section
 *   spinlock  a spinlock held: preemption disabled
 *   bh        bottom halves disabled
 *   softirq   a tasklet
 *   hardirq   the handler of an interrupt that the CPU sends to itself
 *   irqs-off  interrupts disabled, and nothing else
 *
 * Each context has a function named after it (reprieve_hold_reader, ...), which
 * does all the spinning, so that a symbolized instruction pointer can be
 * checked as well. Its callers enter and leave the context: a CPU in the
 * function is in the context, from the first instruction to the last. It reads
 * the clock only now and then, and one whose reading disables nothing. Between
 * two holds the thread calls the scheduler: no hold may be so long that the
 * guest's own watchdogs report it (20 s).
 *
 * Files in /sys/kernel/debug/reprieve_hold:
 *   control  write one command:
 *              start CPU CONTEXT HOLD_US
 *              stop               (all CPUs; waits until they have left)
 *   holds    "CPU CONTEXT COUNT" lines: holds completed
 */

#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/topology.h>
#include <linux/uaccess.h>

#include "control.h"

/* Half of the soft-lockup watchdog's and RCU's stall detector's limit. */
#define MAX_HOLD_US (10U * USEC_PER_SEC)
/* For contexts in which the CPU serves no interrupts or no softirqs. */
#define MAX_ATOMIC_HOLD_US (1U * USEC_PER_SEC)
/* Between two readings of the clock: about 10 us, emulated ten times that. */
#define SPINS 500

struct hold;

struct context {
	const char *name;
	void (*hold)(struct hold *hold);
	unsigned int max_us;
};

struct hold {
	struct task_struct *thread; /* NULL when there is none */
	const struct context *context;
	u64 hold_ns;
	bool stop;
	u64 count;
	/* Taken by this CPU's thread only. */
	spinlock_t lock;
	struct tasklet_struct tasklet;
	struct irq_work work;
	struct completion left;
};

static DEFINE_PER_CPU(struct hold, holds);
static struct dentry *directory;

/* Inlined: the CPU must be in the function named after the context. */
static __always_inline void spin(struct hold *hold)
{
	u64 end = ktime_get_mono_fast_ns() + hold->hold_ns;
	unsigned int i;

	while (!READ_ONCE(hold->stop) && ktime_get_mono_fast_ns() < end)
		for (i = 0; i < SPINS; i++)
			cpu_relax();
}

/*
 * The text differs, so that the compiler does not fold the functions into one.
 */
#define HOLD_FUNCTION(context)                                                 \
	static noinline __noclone void reprieve_hold_##context(                \
		struct hold *hold)                                             \
	{                                                                      \
		asm volatile("# " #context);                                   \
		spin(hold);                                                    \
	}

HOLD_FUNCTION(kernel)
HOLD_FUNCTION(reader)
HOLD_FUNCTION(spinlock)
HOLD_FUNCTION(bh)
HOLD_FUNCTION(irqs_off)

static noinline __noclone void reprieve_hold_softirq(struct tasklet_struct *t)
{
	struct hold *hold = container_of(t, struct hold, tasklet);

	spin(hold);
	complete(&hold->left);
}

static noinline __noclone void reprieve_hold_hardirq(struct irq_work *work)
{
	struct hold *hold = container_of(work, struct hold, work);

	spin(hold);
	complete(&hold->left);
}

static void hold_reader(struct hold *hold)
{
	rcu_read_lock();
	reprieve_hold_reader(hold);
	rcu_read_unlock();
}

static void hold_spinlock(struct hold *hold)
{
	spin_lock(&hold->lock);
	reprieve_hold_spinlock(hold);
	spin_unlock(&hold->lock);
}

static void hold_bh(struct hold *hold)
{
	local_bh_disable();
	reprieve_hold_bh(hold);
	local_bh_enable();
}

static void hold_irqs_off(struct hold *hold)
{
	unsigned long flags;

	local_irq_save(flags);
	reprieve_hold_irqs_off(hold);
	local_irq_restore(flags);
}

static void hold_softirq(struct hold *hold)
{
	/* Enabling runs the tasklet at once, or leaves it to ksoftirqd. */
	local_bh_disable();
	tasklet_schedule(&hold->tasklet);
	local_bh_enable();
	wait_for_completion(&hold->left);
}

static void hold_hardirq(struct hold *hold)
{
	irq_work_queue(&hold->work);
	wait_for_completion(&hold->left);
}

static const struct context contexts[] = {
	{"kernel", reprieve_hold_kernel, MAX_HOLD_US},
	{"reader", hold_reader, MAX_HOLD_US},
	{"spinlock", hold_spinlock, MAX_HOLD_US},
	{"bh", hold_bh, MAX_ATOMIC_HOLD_US},
	{"softirq", hold_softirq, MAX_ATOMIC_HOLD_US},
	{"hardirq", hold_hardirq, MAX_ATOMIC_HOLD_US},
	{"irqs-off", hold_irqs_off, MAX_ATOMIC_HOLD_US},
};

static int hold_thread(void *data)
{
	struct hold *hold = data;

	while (!kthread_should_stop()) {
		if (!READ_ONCE(hold->stop)) {
			hold->context->hold(hold);
			WRITE_ONCE(hold->count, hold->count + 1);
		}
		schedule();
	}
	return 0;
}

static void stop_all(void)
{
	unsigned int cpu;

	/* All at once: else each would wait for the pause before it. */
	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu_ptr(&holds, cpu)->stop, true);
	for_each_possible_cpu(cpu) {
		struct hold *hold = per_cpu_ptr(&holds, cpu);

		if (!hold->thread)
			continue;
		kthread_stop(hold->thread);
		hold->thread = NULL;
		tasklet_kill(&hold->tasklet);
		irq_work_sync(&hold->work);
	}
}

static const struct context *context_named(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(contexts); i++)
		if (strcmp(contexts[i].name, name) == 0)
			return &contexts[i];
	return NULL;
}

static int start(unsigned int cpu, const char *name, unsigned int hold_us)
{
	const struct context *context = context_named(name);
	struct task_struct *thread;
	struct hold *hold;
	int err = 0;

	if (!context || !hold_us || hold_us > context->max_us)
		return -EINVAL;
	cpus_read_lock();
	if (cpu >= nr_cpu_ids || !cpu_online(cpu)) {
		err = -ENXIO;
		goto out;
	}
	hold = per_cpu_ptr(&holds, cpu);
	if (hold->thread) {
		err = -EBUSY;
		goto out;
	}
	hold->context = context;
	hold->hold_ns = (u64)hold_us * NSEC_PER_USEC;
	hold->stop = false;
	hold->count = 0;
	thread = kthread_create_on_node(hold_thread, hold, cpu_to_node(cpu),
					"hold/%u", cpu);
	if (IS_ERR(thread)) {
		err = PTR_ERR(thread);
		goto out;
	}
	kthread_bind(thread, cpu);
	hold->thread = thread;
	wake_up_process(thread);
out:
	cpus_read_unlock();
	return err;
}

static int command(char *text)
{
	unsigned int cpu, hold_us;
	char name[16];

	if (sscanf(text, "start %u %15s %u", &cpu, name, &hold_us) == 3)
		return start(cpu, name, hold_us);
	if (strcmp(text, "stop") != 0)
		return -EINVAL;
	stop_all();
	return 0;
}

static int holds_show(struct seq_file *file, void *unused)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct hold *hold = per_cpu_ptr(&holds, cpu);
		const struct context *context = READ_ONCE(hold->context);

		if (context)
			seq_printf(file, "%u %s %llu\n", cpu, context->name,
				   READ_ONCE(hold->count));
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(holds);

static int __init reprieve_hold_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct hold *hold = per_cpu_ptr(&holds, cpu);

		spin_lock_init(&hold->lock);
		tasklet_setup(&hold->tasklet, reprieve_hold_softirq);
		init_irq_work(&hold->work, reprieve_hold_hardirq);
		init_completion(&hold->left);
	}
	directory = debugfs_create_dir("reprieve_hold", NULL);
	if (IS_ERR(directory))
		return PTR_ERR(directory);
	debugfs_create_file("control", 0200, directory, NULL,
			    &control_operations);
	debugfs_create_file("holds", 0400, directory, NULL, &holds_fops);
	return 0;
}

static void __exit reprieve_hold_exit(void)
{
	debugfs_remove(directory);
	stop_all();
}

module_init(reprieve_hold_init);
module_exit(reprieve_hold_exit);
MODULE_DESCRIPTION("Keeps CPUs in a chosen context, for Reprieve's tests");
MODULE_LICENSE("GPL");
