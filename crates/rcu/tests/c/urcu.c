/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program for liburcu 0.13, by its documented interface only: compiles against liburcu as well.
 * FLAVOR_HEADER chooses the flavor; QSBR says that it is that one.
 */
#include FLAVOR_HEADER
#include <urcu/rculist.h>
#include <urcu/rcuhlist.h>
#include <urcu/uatomic.h>
#include <urcu/compiler.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

struct node {
	long value;
	struct cds_list_head list;
	struct cds_hlist_node hash;
	struct rcu_head rcu;
};

static CDS_LIST_HEAD(list);
static struct cds_hlist_head bucket = CDS_HLIST_HEAD_INIT(bucket);
static struct node *current;
static long freed, deferred, reads;
static int stop;

static struct node *node_new(long value)
{
	struct node *n = (struct node *)calloc(1, sizeof(*n));

	CHECK(n);
	n->value = value;
	return n;
}

static void node_free(struct rcu_head *head)
{
	struct node *n = caa_container_of(head, struct node, rcu);

	n->value = -1;
	free(n);
	uatomic_inc(&freed);
}

static void note(void *argument)
{
	uatomic_add((long *)argument, 1);
}

static void rest(void)
{
#ifdef QSBR
	rcu_quiescent_state();
#endif
}

static void *reader(void *argument)
{
	struct node *n;
	struct cds_hlist_node *pos;

	(void)argument;
	rcu_register_thread();
	while (!CMM_LOAD_SHARED(stop)) {
		rcu_read_lock();
		n = rcu_dereference(current);
		CHECK(n->value >= 0);
		cds_list_for_each_entry_rcu(n, &list, list) CHECK(n->value >= 0);
		cds_hlist_for_each_entry_rcu(n, pos, &bucket, hash) CHECK(n->value >= 0);
		cds_hlist_for_each_entry_rcu_2(n, &bucket, hash) CHECK(n->value >= 0);
		rcu_read_unlock();
		rest();
		uatomic_inc(&reads);
	}
#ifdef QSBR
	rcu_thread_offline();
	rcu_thread_online();
#endif
	rcu_unregister_thread();
	return NULL;
}

static void updates(void)
{
	struct node *n, *m, *old;
	struct cds_list_head *p, *q;
	int i, count = 0;

	for (i = 0; i < 10; i++) {
		n = node_new(i);
		if (i & 1)
			cds_list_add_rcu(&n->list, &list);
		else
			cds_list_add_tail_rcu(&n->list, &list);
		n = node_new(i);
		cds_hlist_add_head_rcu(&n->hash, &bucket);
	}
	n = cds_list_entry(list.next, struct node, list);
	m = node_new(100);
	cds_list_replace_rcu(&n->list, &m->list);
	call_rcu(&n->rcu, node_free);
	cds_list_for_each(p, &list) count++;
	CHECK(count == 10);
	cds_list_for_each_safe(p, q, &list) count--;
	CHECK(count == 0);
	cds_list_for_each_entry_reverse(n, &list, list) count++;
	CHECK(count == 10 && cds_list_first_entry(&list, struct node, list)->value == 100);
	cds_list_for_each_entry_safe(n, m, &list, list)
	{
		cds_list_del_rcu(&n->list);
		call_rcu(&n->rcu, node_free);
	}
	CHECK(cds_list_empty(&list));
	cds_hlist_for_each_entry_safe_2(n, m, &bucket, hash)
	{
		cds_hlist_del_rcu(&n->hash);
		call_rcu(&n->rcu, node_free);
	}
	for (i = 0; i < 10; i++) {
		old = rcu_xchg_pointer(&current, node_new(i));
		synchronize_rcu();
		node_free(&old->rcu);
	}
	n = node_new(7);
	old = current;
	CHECK(rcu_cmpxchg_pointer(&current, old, n) == old);
	CHECK(rcu_cmpxchg_pointer(&current, old, n) == n);
	call_rcu(&old->rcu, node_free);
	rest();
}

static struct node *shared;
static long waiting, over, callbacks;

#define HELD 4711

/*
 * Callbacks are readers of every flavor: what one finds in a section is kept until it leaves it.
 * The writer unlinks and poisons the node meanwhile.
 */
static void read_shared(void)
{
	struct node *n;
	int i;

#ifdef QSBR
	CHECK(rcu_read_ongoing());
#endif
	rcu_read_lock();
	CHECK(rcu_read_ongoing());
	n = rcu_dereference(shared);
	CHECK(n->value == HELD);
	uatomic_set(&waiting, 1);
	while (uatomic_read(&waiting) != 2)
		usleep(1000);
	/* The writer waits, or is about to. Without protection it would be quick. */
	for (i = 0; i < 30; i++) {
		CHECK(uatomic_read(&over) == 0);
		CHECK(CMM_LOAD_SHARED(n->value) == HELD);
		usleep(1000);
	}
	rcu_read_unlock();
}

static void inner(struct rcu_head *head)
{
#ifdef QSBR
	CHECK(rcu_read_ongoing());
#endif
	uatomic_inc(&callbacks);
	node_free(head);
}

static void outer(struct rcu_head *head)
{
	read_shared();
#ifdef QSBR
	rcu_quiescent_state();
	rcu_thread_offline();
	CHECK(!rcu_read_ongoing());
	rcu_thread_online();
	synchronize_rcu();
	CHECK(rcu_read_ongoing());
#endif
	uatomic_inc(&callbacks);
	call_rcu(head, inner);
#ifdef QSBR
	/* A callback may leave its thread offline. */
	rcu_thread_offline();
#endif
}

#ifndef NO_DEFER
static void deferred_outer(void *head)
{
	outer((struct rcu_head *)head);
}
#endif

static void readers_in_callbacks(void)
{
	struct node *n, *old;
	int how;

	for (how = 0; how < 3; how++) {
		n = node_new(HELD);
		over = waiting = 0;
		rcu_assign_pointer(shared, n);
		n = node_new(how);
		if (how == 0)
			call_rcu(&n->rcu, outer);
		else if (how == 1)
			rcu_flavor.update_call_rcu(&n->rcu, outer);
		else
#ifndef NO_DEFER
			defer_rcu(deferred_outer, &n->rcu);
#else
			call_rcu(&n->rcu, outer);
#endif
#ifdef QSBR
		rcu_thread_offline();
#endif
		while (!uatomic_read(&waiting))
			usleep(1000);
#ifdef QSBR
		rcu_thread_online();
#endif
		old = rcu_xchg_pointer(&shared, (struct node *)NULL);
		uatomic_set(&waiting, 2);
		synchronize_rcu();
		uatomic_set(&over, 1);
		old->value = -1;
		/* The second waits for what the first one's callbacks registered. */
		rcu_barrier();
		rcu_barrier();
		CHECK(uatomic_read(&callbacks) == 2 * (how + 1));
		free(old);
	}
}

static struct call_rcu_data *asked;

static void ask_in_a_callback(struct rcu_head *head)
{
	CHECK(pthread_equal(get_call_rcu_thread(asked), pthread_self()));
	node_free(head);
}

static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER;

static void take_and_free(struct rcu_head *head)
{
	pthread_mutex_lock(&taken);
	pthread_mutex_unlock(&taken);
	node_free(head);
}

/*
 * A thread that has no helper of its own gives back null, or the default one: that waits for
 * nothing, in a section, or with a lock that a callback takes.
 */
static void no_helpers(void)
{
	struct call_rcu_data *data = get_thread_call_rcu_data();

	CHECK(!data);
	pthread_mutex_lock(&taken);
	call_rcu(&node_new(1)->rcu, take_and_free);
	set_thread_call_rcu_data(NULL);
	call_rcu_data_free(data);
	call_rcu_data_free(get_default_call_rcu_data());
	rcu_read_lock();
	call_rcu_data_free(data);
	rcu_read_unlock();
	pthread_mutex_unlock(&taken);
}

static void helpers(void)
{
	struct call_rcu_data *data = create_call_rcu_data(0, -1);
	pthread_t thread;

	CHECK(data);
	CHECK(!get_thread_call_rcu_data());
	set_thread_call_rcu_data(data);
	CHECK(get_thread_call_rcu_data() == data && get_call_rcu_data() == data);
	call_rcu(&node_new(1)->rcu, node_free);
	thread = get_call_rcu_thread(data);
	CHECK(!pthread_equal(thread, pthread_self()));
	set_thread_call_rcu_data(NULL);
	CHECK(!get_cpu_call_rcu_data(0));
	CHECK(set_cpu_call_rcu_data(0, data) == 0);
	CHECK(get_cpu_call_rcu_data(0) == data);
	CHECK(set_cpu_call_rcu_data(0, NULL) == 0);
	asked = create_call_rcu_data(0, -1);
	call_rcu(&node_new(1)->rcu, ask_in_a_callback);
	rcu_barrier();
	call_rcu_data_free(asked);
	call_rcu_data_free(data);
	CHECK(get_default_call_rcu_data());
	CHECK(create_all_cpu_call_rcu_data(0) == 0);
	CHECK(get_cpu_call_rcu_data(0));
	free_all_cpu_call_rcu_data();
}

static void atomics(void)
{
	static unsigned int u = 0xf0;
	static unsigned char byte = 1;
	static long l = 5;

	uatomic_or(&u, 0x0f);
	uatomic_and(&u, 0x3c);
	CHECK(uatomic_read(&u) == 0x3c);
	CHECK(uatomic_add_return(&l, 3) == 8 && uatomic_sub_return(&l, 10) == -2);
	uatomic_sub(&l, 1);
	uatomic_dec(&l);
	CHECK(uatomic_xchg(&l, 9) == -4 && uatomic_cmpxchg(&l, 9, 1) == 9 &&
	      uatomic_cmpxchg(&l, 9, 2) == 1);
	uatomic_set(&byte, 200);
	CHECK(uatomic_read(&byte) == 200 && CMM_STORE_SHARED(l, 4) == 4 && CMM_ACCESS_ONCE(l) == 4);
	cmm_smp_mb__before_uatomic_inc();
	cmm_smp_mb();
	cmm_smp_rmb();
	cmm_smp_wmb();
	cmm_barrier();
	caa_cpu_relax();
}

int main(void)
{
	pthread_t threads[3];
	pid_t child;
	int i, status;

	rcu_register_thread();
	current = node_new(0);
	for (i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, reader, NULL));
	for (i = 0; i < 5 || uatomic_read(&reads) < 10; i++)
		updates();
	atomics();
#ifndef QSBR
	rcu_read_lock();
	CHECK(rcu_read_ongoing());
	rcu_read_unlock();
	CHECK(!rcu_read_ongoing());
#endif
#if !defined(NO_DEFER)
	CHECK(rcu_defer_register_thread() == 0);
	defer_rcu(note, &deferred);
	defer_rcu(note, &deferred);
	rcu_defer_barrier_thread();
	CHECK(uatomic_read(&deferred) == 2);
	defer_rcu(note, &deferred);
	rcu_defer_barrier();
	rcu_defer_unregister_thread();
	CHECK(uatomic_read(&deferred) == 3);
#endif
#if !defined(NO_POLL)
	{
		struct urcu_gp_poll_state state = start_poll_synchronize_rcu();

		while (!poll_state_synchronize_rcu(state)) {
			rest();
			usleep(1000);
		}
	}
#endif
	no_helpers();
	helpers();
	readers_in_callbacks();
	CMM_STORE_SHARED(stop, 1);
#ifdef QSBR
	rcu_thread_offline();
#endif
	for (i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
#ifdef QSBR
	rcu_thread_online();
#endif
	CHECK(create_all_cpu_call_rcu_data(0) == 0);
	call_rcu_before_fork();
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		call_rcu_after_fork_child();
		CHECK(!get_cpu_call_rcu_data(0));
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		call_rcu(&node_new(3)->rcu, node_free);
		rcu_barrier();
		_exit(0);
	}
	call_rcu_after_fork_parent();
	free_all_cpu_call_rcu_data();
#ifdef QSBR
	rcu_thread_offline();
#endif
	CHECK(waitpid(child, &status, 0) == child && status == 0);
#ifdef QSBR
	rcu_thread_online();
#endif
	rcu_barrier();
	CHECK(uatomic_read(&freed) > 0);
	free(current);
	rcu_unregister_thread();
	printf("%ld reads, %ld freed\n", reads, freed);
	return 0;
}
