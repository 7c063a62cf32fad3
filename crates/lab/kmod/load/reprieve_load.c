// SPDX-License-Identifier: GPL-2.0
/*
 * reprieve_load - RCU workloads and latency probes that must run in the kernel.
 *
 * Membench: on each CPU a bound thread allocates objects and frees them through
 * call_rcu(), the memory microbenchmark of "The RCU-Reader Preemption Problem
 * in VMs" (USENIX ATC 2017): 1 KiB, 2.5 K pairs per second per CPU, a call of
 * the scheduler after every ten pairs. A thread does a batch of ten pairs, then
 * sleeps until the next is due, 10 / rate seconds after this one was. A thread
 * that is late, because its vCPU was preempted, makes up for one batch at most:
 * two follow each other, and the time counts from there. So a preemption causes
 * no larger burst, and since the start there was at most one batch more than
 * the rate gives. Rate 0: no sleep, only schedule() after each batch. When
 * there is no memory the thread counts a failure and pauses for 10 ms; it never
 * calls the OOM killer.
 *
 * Probes: on each CPU a timer registers a callback, and the callback records
 * how long it had to wait. The intervals are uniform between 3/4 and 5/4 of the
 * period, so that probes do not run in step with the tick that drives RCU.
 *
 * A lazy call_rcu() would measure the laziness and not the grace periods, so
 * both uses take the prompt variant, which is what call_rcu() was in the
 * paper's kernel.
 *
 * Files in /sys/kernel/debug/reprieve_load:
 *   control  write one command:
 *              membench prepare RATE BYTES  (on all CPUs)
 *              membench start | stop | end
 *              probe start HZ RECORDS | stop
 *              drain              (rcu_barrier)
 *   stats    "name value" lines; counts since the last start
 *   probes   struct probe_record, when no probes run
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
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include "control.h"
#include "prompt.h"

/* Pairs between two calls of the scheduler. */
#define BATCH 10U
#define MAX_OBJECT_BYTES (1U << 20)
#define MAX_RATE 10000000U
#define MAX_PROBE_HZ 1000U
#define MAX_PROBE_RECORDS (1U << 20)
/* Probes of one CPU that may wait at a time. */
#define PROBES_IN_FLIGHT 64
#define BACK_OFF_MS 10
/* Below the limit of the kernel's detector of hung tasks. */
#define STOP_LIMIT (100 * HZ)

static struct dentry *directory;

/* ---- membench ---- */

struct object {
	struct rcu_head rcu;
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
	size_t bytes;
	u64 interval_ns; /* of a batch; 0: no pause */
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

	object = kmalloc(bench.bytes,
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
		if (bench.interval_ns) {
			due = max(due + bench.interval_ns, ktime_get_ns());
			bench_sleep(due);
		} else {
			schedule();
		}
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

static int bench_prepare(unsigned int rate, unsigned int bytes)
{
	struct task_struct *thread;
	unsigned int cpu;
	int err = 0;

	if (bytes > MAX_OBJECT_BYTES || rate > MAX_RATE)
		return -EINVAL;
	bench_end();
	cpus_read_lock();
	bench.bytes = max_t(size_t, bytes, sizeof(struct object));
	bench.interval_ns = rate ? div_u64((u64)BATCH * NSEC_PER_SEC, rate) : 0;
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

/* ---- probes ---- */

/* A record of the file "probes". */
struct probe_record {
	u64 registered_ns; /* CLOCK_MONOTONIC */
	u64 latency_ns;
	u32 cpu;
	u32 reserved;
};

struct probe {
	struct rcu_head rcu;
	u64 registered_ns;
	u32 cpu;
	/* Set by the timer of the probe's CPU, cleared by the callback. */
	bool waiting;
};

struct prober {
	struct hrtimer timer;
	u64 random;
	unsigned int next;
	struct probe probes[PROBES_IN_FLIGHT];
};

static struct {
	struct prober **by_cpu; /* NULL when none run */
	struct probe_record *records;
	unsigned int capacity;
	u64 period_ns;
	atomic_t used;
	atomic64_t lost;
} probing;

static void probe_callback(struct rcu_head *rcu)
{
	struct probe *probe = container_of(rcu, struct probe, rcu);
	unsigned int i = atomic_fetch_add_unless(&probing.used, 1,
						 (int)probing.capacity);

	if (i < probing.capacity) {
		probing.records[i] = (struct probe_record){
			.registered_ns = probe->registered_ns,
			.latency_ns = ktime_get_ns() - probe->registered_ns,
			.cpu = probe->cpu,
		};
	} else {
		atomic64_inc(&probing.lost);
	}
	/* Pairs with the acquire in probe_timer: the fields have been read. */
	smp_store_release(&probe->waiting, false);
}

static enum hrtimer_restart probe_timer(struct hrtimer *timer)
{
	struct prober *prober = container_of(timer, struct prober, timer);
	struct probe *probe = &prober->probes[prober->next];
	u64 x = prober->random;

	/* The oldest: if it still waits, all do. */
	if (smp_load_acquire(&probe->waiting)) {
		atomic64_inc(&probing.lost);
	} else {
		prober->next = (prober->next + 1) % PROBES_IN_FLIGHT;
		probe->waiting = true;
		probe->cpu = smp_processor_id();
		probe->registered_ns = ktime_get_ns();
		call_rcu_promptly(&probe->rcu, probe_callback);
	}
	/* xorshift64; the top 9 bits pick one of 512 intervals. */
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	prober->random = x;
	hrtimer_forward_now(timer,
			    ns_to_ktime(probing.period_ns / 4 * 3 +
					(probing.period_ns >> 10) * (x >> 55)));
	return HRTIMER_RESTART;
}

static void probe_begin_here(void *unused)
{
	struct prober *prober = probing.by_cpu[smp_processor_id()];

	if (prober)
		hrtimer_start(&prober->timer, ns_to_ktime(probing.period_ns),
			      HRTIMER_MODE_REL_PINNED);
}

static void probe_stop(void)
{
	unsigned int cpu;

	if (!probing.by_cpu)
		return;
	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		if (probing.by_cpu[cpu])
			hrtimer_cancel(&probing.by_cpu[cpu]->timer);
	/* Waiting callbacks still use the memory that is freed below. */
	rcu_barrier();
	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		kfree(probing.by_cpu[cpu]);
	kfree(probing.by_cpu);
	probing.by_cpu = NULL;
}

static void probe_setup(struct prober *prober, unsigned int cpu)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&prober->timer, probe_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED);
#else
	hrtimer_init(&prober->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED);
	prober->timer.function = probe_timer;
#endif
	prober->random = 0x9e3779b97f4a7c15ULL * (cpu + 1);
}

static int probe_start(unsigned int hz, unsigned int records)
{
	unsigned int cpu;
	int err = 0;

	if (!hz || hz > MAX_PROBE_HZ || !records || records > MAX_PROBE_RECORDS)
		return -EINVAL;
	if (probing.by_cpu)
		return -EBUSY;
	vfree(probing.records);
	probing.records =
		vzalloc(array_size(records, sizeof(*probing.records)));
	probing.capacity = probing.records ? records : 0;
	atomic_set(&probing.used, 0);
	atomic64_set(&probing.lost, 0);
	probing.period_ns = NSEC_PER_SEC / hz;
	probing.by_cpu =
		kcalloc(nr_cpu_ids, sizeof(*probing.by_cpu), GFP_KERNEL);
	if (!probing.records || !probing.by_cpu) {
		kfree(probing.by_cpu);
		probing.by_cpu = NULL;
		return -ENOMEM;
	}
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct prober *prober = kzalloc_node(
			sizeof(*prober), GFP_KERNEL, cpu_to_node(cpu));
		if (!prober) {
			err = -ENOMEM;
			break;
		}
		probe_setup(prober, cpu);
		probing.by_cpu[cpu] = prober;
	}
	if (!err)
		on_each_cpu(probe_begin_here, NULL, 1);
	cpus_read_unlock();
	if (err)
		probe_stop();
	return err;
}

/* ---- files ---- */

static int command(char *text)
{
	unsigned int a, b;

	if (sscanf(text, "membench prepare %u %u", &a, &b) == 2)
		return bench_prepare(a, b);
	if (sscanf(text, "probe start %u %u", &a, &b) == 2)
		return probe_start(a, b);
	if (strcmp(text, "membench start") == 0)
		return bench_begin();
	if (strcmp(text, "membench stop") == 0)
		return bench_stop();
	if (strcmp(text, "membench end") == 0)
		bench_end();
	else if (strcmp(text, "probe stop") == 0)
		probe_stop();
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
	seq_printf(file, "waiting_bytes %llu\n", waiting * bench.bytes);
	seq_printf(file, "probes %d\nprobes_lost %lld\n",
		   atomic_read(&probing.used),
		   (long long)atomic64_read(&probing.lost));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static ssize_t probes_read(struct file *file, char __user *to, size_t size,
			   loff_t *pos)
{
	ssize_t n;
	int err;

	/* Keeps commands out. */
	err = mutex_lock_interruptible(&control_lock);
	if (err)
		return err;
	if (probing.by_cpu)
		n = -EBUSY;
	else
		n = simple_read_from_buffer(to, size, pos, probing.records,
					    (size_t)atomic_read(&probing.used) *
						    sizeof(*probing.records));
	mutex_unlock(&control_lock);
	return n;
}

static const struct file_operations probes_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = probes_read,
	.llseek = default_llseek,
};

static int __init reprieve_load_init(void)
{
	directory = debugfs_create_dir("reprieve_load", NULL);
	if (IS_ERR(directory))
		return PTR_ERR(directory);
	debugfs_create_file("control", 0200, directory, NULL,
			    &control_operations);
	debugfs_create_file("stats", 0400, directory, NULL, &stats_fops);
	debugfs_create_file("probes", 0400, directory, NULL,
			    &probes_operations);
	return 0;
}

static void __exit reprieve_load_exit(void)
{
	debugfs_remove(directory);
	bench_end();
	probe_stop();
	vfree(probing.records);
	rcu_barrier();
}

module_init(reprieve_load_init);
module_exit(reprieve_load_exit);
MODULE_DESCRIPTION("Loads and probes of RCU for Reprieve's lab");
MODULE_LICENSE("GPL");
