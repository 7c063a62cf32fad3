/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * liburcu-cds's hash table, as it is installed, on this runtime's flavor objects. FLAVOR_HEADER
 * chooses the flavor; QSBR says that it is that one. Compiles against liburcu as well.
 */
#define URCU_API_MAP
#include FLAVOR_HEADER
#include <urcu/rculfhash.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

enum { KEYS = 2000, READERS = 2 };

struct entry {
	long key;
	long alive;
	struct cds_lfht_node node;
	struct rcu_head rcu;
};

static struct cds_lfht *table;
static int stop;
static long found, called;

static unsigned long hash(long key)
{
	return (unsigned long)key * 0x9e3779b97f4a7c15ul;
}

static int match(struct cds_lfht_node *node, const void *key)
{
	return caa_container_of(node, struct entry, node)->key == *(const long *)key;
}

static void entry_free(struct rcu_head *head)
{
	struct entry *e = caa_container_of(head, struct entry, rcu);

	e->alive = 0;
	free(e);
}

static struct entry *entry_new(long key)
{
	struct entry *e = (struct entry *)calloc(1, sizeof(*e));

	CHECK(e);
	e->key = key;
	e->alive = 1;
	cds_lfht_node_init(&e->node);
	return e;
}

static struct entry *lookup(long key)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;

	cds_lfht_lookup(table, hash(key), match, &key, &iter);
	node = cds_lfht_iter_get_node(&iter);
	return node ? caa_container_of(node, struct entry, node) : NULL;
}

static void *reader(void *argument)
{
	long key = 0;

	(void)argument;
	rcu_register_thread();
	while (!CMM_LOAD_SHARED(stop)) {
		struct entry *e;

		rcu_read_lock();
		e = lookup(key);
		CHECK(!e || (e->alive == 1 && e->key == key));
		rcu_read_unlock();
		rcu_quiescent_state();
		if (e)
			uatomic_inc(&found);
		key = (key + 1) % KEYS;
	}
	rcu_unregister_thread();
	return NULL;
}

/* A callback by way of the flavor object, with a head of liburcu's own size. */
struct small {
	void *head[2];
	long canary;
};

static void note(struct rcu_head *head)
{
	CHECK(((struct small *)(void *)head)->canary == 42);
	uatomic_inc(&called);
}

static void by_the_object(void)
{
	static struct small one = {{NULL, NULL}, 42};
	const struct rcu_flavor_struct *flavor = &rcu_flavor;

	flavor->update_call_rcu((struct rcu_head *)(void *)&one, note);
	flavor->barrier();
	CHECK(uatomic_read(&called) == 1 && one.canary == 42);
	flavor->update_synchronize_rcu();
	flavor->read_lock();
	flavor->read_quiescent_state();
	CHECK(flavor->read_ongoing());
	flavor->read_unlock();
	flavor->thread_offline();
	flavor->thread_online();
}

static void resize_and_destroy(void)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;

	cds_lfht_resize(table, 4096);
	cds_lfht_resize(table, 16);
	rcu_read_lock();
	cds_lfht_for_each(table, &iter, node)
	{
		CHECK(!cds_lfht_del(table, node));
		call_rcu(&caa_container_of(node, struct entry, node)->rcu, entry_free);
	}
	rcu_read_unlock();
	rcu_barrier();
#ifdef QSBR
	rcu_thread_offline();
#endif
	CHECK(!cds_lfht_destroy(table, NULL));
#ifdef QSBR
	rcu_thread_online();
#endif
}

int main(void)
{
	pthread_t threads[READERS];
	long key;
	pid_t child;
	int i, status;

	rcu_register_thread();
	table = cds_lfht_new_flavor(1, 1, 0, CDS_LFHT_AUTO_RESIZE | CDS_LFHT_ACCOUNTING,
				    &rcu_flavor, NULL);
	CHECK(table);
	for (i = 0; i < READERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, reader, NULL));
	for (i = 0; i < 3 || uatomic_read(&found) == 0; i++) {
		for (key = 0; key < KEYS; key++) {
			struct entry *e = entry_new(key);
			struct cds_lfht_node *old;

			rcu_read_lock();
			old = cds_lfht_add_replace(table, hash(key), match, &key, &e->node);
			rcu_read_unlock();
			if (old)
				call_rcu(&caa_container_of(old, struct entry, node)->rcu,
					 entry_free);
			rcu_quiescent_state();
		}
		for (key = 0; key < KEYS; key += 2) {
			struct entry *e;

			rcu_read_lock();
			e = lookup(key);
			CHECK(e && !cds_lfht_del(table, &e->node));
			rcu_read_unlock();
			call_rcu(&e->rcu, entry_free);
			rcu_quiescent_state();
		}
		rcu_read_lock();
		CHECK(!lookup(0) && lookup(1));
		rcu_read_unlock();
	}
	CMM_STORE_SHARED(stop, 1);
#ifdef QSBR
	rcu_thread_offline();
#endif
	for (i = 0; i < READERS; i++)
		pthread_join(threads[i], NULL);
#ifdef QSBR
	rcu_thread_online();
#endif
	by_the_object();
	/* The table's worker thread is stopped around the fork, and goes on in both processes. */
	call_rcu_before_fork();
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		call_rcu_after_fork_child();
		resize_and_destroy();
		_exit(0);
	}
	call_rcu_after_fork_parent();
#ifdef QSBR
	rcu_thread_offline();
#endif
	CHECK(waitpid(child, &status, 0) == child && status == 0);
#ifdef QSBR
	rcu_thread_online();
#endif
	resize_and_destroy();
	rcu_unregister_thread();
	printf("%ld found\n", found);
	return 0;
}
