/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Scans of a list beside a writer that takes elements out, neighbours together, and poisons what it
 * frees: nobody may see poison, and elements that stay come in order.
 */
#include <reprieve/scan.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define POISON 0xdeaddeaddeaddeadull
#define STAY 8

struct item {
	uint64_t id, check;
	struct reprieve_list_head link;
	struct reprieve_head head;
};

static struct reprieve_list_head items = REPRIEVE_LIST_HEAD_INIT(items);
static int stop;
static unsigned long scans;

static void item_free(struct reprieve_head *head)
{
	struct item *i = reprieve_container_of(head, struct item, head);

	i->id = i->check = POISON;
	free(i);
}

static void add(uint64_t id)
{
	struct item *i = (struct item *)malloc(sizeof(*i));

	CHECK(i);
	i->id = id;
	i->check = ~id;
	reprieve_list_add_tail_rcu(&i->link, &items);
}

static void take_out(struct item *i)
{
	reprieve_scan_del(&i->link);
	reprieve_retire(&i->link, &i->head, item_free, sizeof(*i), REPRIEVE_LEAF);
}

/* Scans once; returns how many elements that stay it saw. */
static uint64_t scan_all(int slow)
{
	struct reprieve_scan scan = REPRIEVE_SCAN_INIT(&items);
	uint64_t stay = 0;
	struct item *i;

	while ((i = reprieve_scan_next_entry(&scan, struct item, link))) {
		if (slow && i->id % 16 == 3)
			usleep(100);
		CHECK(i->check == ~i->id);
		if (i->id < STAY) {
			CHECK(i->id == stay || scan.restarts);
			stay += i->id == stay;
		}
	}
	CHECK(!scan.newest.node && !scan.base.node);
	return stay;
}

static void *reader(void *unused)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		CHECK(scan_all(1) == STAY);
		__atomic_fetch_add(&scans, 1, __ATOMIC_RELAXED);
	}
	return unused;
}

/* A loop that takes out what it is given; one that stops in the middle. */
static void alone(void)
{
	struct reprieve_scan scan = REPRIEVE_SCAN_INIT(&items);
	uint64_t n, seen = 0;
	struct item *i;

	for (n = 0; n < 100; n++)
		add(n);
	while ((i = reprieve_scan_next_entry(&scan, struct item, link))) {
		CHECK(i->id == seen++);
		if (i->id % 3)
			take_out(i);
	}
	CHECK(seen == 100 && !scan.restarts);
	while (i = reprieve_scan_next_entry(&scan, struct item, link), i && i->id < 30)
		;
	CHECK(i && i->id == 30);
	reprieve_scan_end(&scan);
	while ((i = reprieve_scan_next_entry(&scan, struct item, link)))
		take_out(i);
	CHECK(reprieve_list_empty(&items));
	reprieve_barrier();
}

int main(void)
{
	pthread_t threads[3];
	uint64_t n, turn;
	int t;

	alone();
	for (n = 0; n < STAY; n++)
		add(n);
	for (t = 0; t < 3; t++)
		CHECK(!pthread_create(&threads[t], NULL, reader, NULL));
	for (turn = 0; turn < 300 || __atomic_load_n(&scans, __ATOMIC_RELAXED) < 30; turn++) {
		struct reprieve_list_head *at, *next;

		for (n = 0; n < 40; n++)
			add(STAY + n);
		usleep(100);
		for (at = items.next; at != &items; at = next) {
			next = at->next;
			if (reprieve_list_entry(at, struct item, link)->id >= STAY + turn % 7)
				take_out(reprieve_list_entry(at, struct item, link));
		}
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (t = 0; t < 3; t++)
		CHECK(!pthread_join(threads[t], NULL));
	CHECK(scan_all(0) == STAY);
	while (!reprieve_list_empty(&items))
		take_out(reprieve_list_first_entry(&items, struct item, link));
	reprieve_barrier();
	return 0;
}
