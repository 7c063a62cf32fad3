// SPDX-License-Identifier: GPL-2.0
/*
 * reprieve_load - the RCU workload that must run in the kernel.
 *
 * Membench: on each CPU a bound thread allocates objects and frees them through
 * call_rcu(), the memory microbenchmark of "The RCU-Reader Preemption Problem
 * in VMs" (USENIX ATC 2017): 1 KiB, 2.5 K pairs per second per CPU, a call of
 * the scheduler after every ten pairs. A thread does a batch of ten pairs, then
 * sleeps until the next is due, 4 ms after this one was. A thread
 * that is late, because its vCPU was preempted, makes up for one batch at most:
 * two follow each other, and the time counts from there. So a preemption causes
 * no larger burst, and since the start there was at most one batch more than
 * the rate gives. When there is no memory the thread counts a failure and
 * pauses for 10 ms; it never calls the OOM killer.
 *
 * A lazy call_rcu() would measure the laziness and not the grace periods, so it
 * takes the prompt variant, which is what call_rcu() was in the paper's kernel.
 *
 * Files in /sys/kernel/debug/reprieve_load:
 *   control  write one command:
 *              membench prepare   (on all CPUs)
 *              membench start | stop | end
 *              drain              (rcu_barrier)
 *   stats    "name value" lines; counts since the last start
 */

#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "control.h"
#include "prompt.h"

/* Pairs between two calls of the scheduler. */
#define BATCH 10U
/* Of a batch, at 2500 pairs per second. */
#define INTERVAL_NS (BATCH * NSEC_PER_SEC / 2500)
#define BACK_OFF_MS 10
/* Below the limit of the kernel's detector of hung tasks. */
#define STOP_LIMIT (100 * HZ)

static struct dentry *directory;

/* ---- membench ---- */

struct object {
	struct rcu_head rcu;
	char rest[1024 - sizeof(struct rcu_head)];
};

struct counts {
	u64 registered;
	u64 freed;
	u64 failed;
};

/* Written on the current CPU; a callback may run on another than its object. */
static DEFINE_PER_CPU(struct counts, counts);

static struct {
	struct task_struct *
		*threads; /* by CPU number; NULL when not prepared */
	bool running;
	atomic_t active;
} bench;

static DECLARE_WAIT_QUEUE_HEAD(bench_start);
static DECLARE_WAIT_QUEUE_HEAD(bench_idle);

static void free_object(struct rcu_head *rcu)
{
	kfree(container_of(rcu, struct object, rcu));
	this_cpu_inc(counts.freed);
}

static bool bench_pair(void)
{
	struct object *object;

	object = kmalloc(sizeof(*object),
			 GFP_KERNEL | __GFP_NOWARN | __GFP_RETRY_MAYFAIL);
	if (!object) {
		this_cpu_inc(counts.failed);
		return false;
	}
	/* Before call_rcu(), so that the number waiting is never negative. */
	this_cpu_inc(counts.registered);
	call_rcu_promptly(&object->rcu, free_object);
	return true;
}

/* Sleeps until @due, or until the thread has to stop. */
static void bench_sleep(u64 due)
{
	ktime_t expires = ns_to_ktime(due);

	set_current_state(TASK_IDLE);
	if (READ_ONCE(bench.running) && !kthread_should_stop())
		schedule_hrtimeout_range(&expires, 0, HRTIMER_MODE_ABS);
	__set_current_state(TASK_RUNNING);
}

static void bench_run(void)
{
	u64 due = ktime_get_ns();
	unsigned int i;

	while (READ_ONCE(bench.running) && !kthread_should_stop()) {
		for (i = 0; i < BATCH; i++) {
			if (!bench_pair()) {
				bench_sleep(ktime_get_ns() +
					    BACK_OFF_MS * NSEC_PER_MSEC);
				break;
			}
		}
		due = max(due + INTERVAL_NS, ktime_get_ns());
		bench_sleep(due);
	}
}

static int bench_thread(void *unused)
{
	while (!kthread_should_stop()) {
		wait_event_idle(bench_start, READ_ONCE(bench.running) ||
						     kthread_should_stop());
		atomic_inc(&bench.active);
		bench_run();
		if (atomic_dec_and_test(&bench.active))
			wake_up_all(&bench_idle);
	}
	return 0;
}

static int bench_stop(void)
{
	unsigned int cpu;

	WRITE_ONCE(bench.running, false);
	if (!bench.threads)
		return 0;
	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		if (bench.threads[cpu])
			wake_up_process(bench.threads[cpu]);
	if (!wait_event_timeout(bench_idle, !atomic_read(&bench.active),
				STOP_LIMIT))
		return -ETIMEDOUT;
	return 0;
}

/* Clears the counts, after all callbacks have run. */
static void bench_clear(void)
{
	unsigned int cpu;

	rcu_barrier();
	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(&counts, cpu), 0, sizeof(struct counts));
}

static void bench_end(void)
{
	unsigned int cpu;

	WRITE_ONCE(bench.running, false);
	if (!bench.threads)
		return;
	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		if (bench.threads[cpu])
			kthread_stop(bench.threads[cpu]);
	kfree(bench.threads);
	bench.threads = NULL;
	bench_clear();
}

static int bench_prepare(void)
{
	struct task_struct *thread;
	unsigned int cpu;
	int err = 0;

	bench_end();
	cpus_read_lock();
	bench.threads = kcalloc(nr_cpu_ids, sizeof(*bench.threads), GFP_KERNEL);
	if (!bench.threads) {
		err = -ENOMEM;
		goto out;
	}
	for_each_online_cpu(cpu) {
		thread = kthread_create_on_node(bench_thread, NULL,
						cpu_to_node(cpu), "membench/%u",
						cpu);
		if (IS_ERR(thread)) {
			err = PTR_ERR(thread);
			break;
		}
		kthread_bind(thread, cpu);
		bench.threads[cpu] = thread;
		wake_up_process(thread);
	}
out:
	cpus_read_unlock();
	if (err)
		bench_end();
	return err;
}

static int bench_begin(void)
{
	if (!bench.threads)
		return -ENOENT;
	if (bench.running)
		return -EBUSY;
	bench_clear();
	WRITE_ONCE(bench.running, true);
	wake_up_all(&bench_start);
	return 0;
}

/* ---- files ---- */

static int command(char *text)
{
	if (strcmp(text, "membench prepare") == 0)
		return bench_prepare();
	if (strcmp(text, "membench start") == 0)
		return bench_begin();
	if (strcmp(text, "membench stop") == 0)
		return bench_stop();
	if (strcmp(text, "membench end") == 0)
		bench_end();
	else if (strcmp(text, "drain") == 0)
		rcu_barrier();
	else
		return -EINVAL;
	return 0;
}

static int stats_show(struct seq_file *file, void *unused)
{
	u64 registered = 0, freed = 0, failed = 0, waiting;
	unsigned int cpu;

	/* Frees first: objects registered in between only add. */
	for_each_possible_cpu(cpu)
		freed += READ_ONCE(per_cpu_ptr(&counts, cpu)->freed);
	for_each_possible_cpu(cpu) {
		registered += READ_ONCE(per_cpu_ptr(&counts, cpu)->registered);
		failed += READ_ONCE(per_cpu_ptr(&counts, cpu)->failed);
	}
	waiting = registered > freed ? registered - freed : 0;
	seq_printf(file, "pairs %llu\nfailed %llu\nwaiting %llu\n", registered,
		   failed, waiting);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int __init reprieve_load_init(void)
{
	directory = debugfs_create_dir("reprieve_load", NULL);
	if (IS_ERR(directory))
		return PTR_ERR(directory);
	debugfs_create_file("control", 0200, directory, NULL,
			    &control_operations);
	debugfs_create_file("stats", 0400, directory, NULL, &stats_fops);
	return 0;
}

static void __exit reprieve_load_exit(void)
{
	debugfs_remove(directory);
	bench_end();
	rcu_barrier();
}

module_init(reprieve_load_init);
module_exit(reprieve_load_exit);
MODULE_DESCRIPTION("Load of RCU for Reprieve's lab");
MODULE_LICENSE("GPL");
