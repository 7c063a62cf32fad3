/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The ordered map and the prefix table beside writers, which poison what they free: nobody may see
 * poison, and what stays is found, in order.
 */
#include <reprieve/ordered.h>
#include <reprieve/prefixes.h>
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define POISON 0xdeaddeaddeaddeadull
#define KEYS 64

/* Every fourth key stays, and so does each prefix of 8 bits. */
static struct reprieve_ordered *map;
static struct reprieve_prefixes *routes;
static int stop;
static unsigned long scans, made, freed;

static void *make(uint64_t id)
{
	uint64_t *value = (uint64_t *)malloc(sizeof(*value));

	CHECK(value);
	*value = id;
	__atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
	return value;
}

static void unmake(void *value)
{
	*(uint64_t *)value = POISON;
	free(value);
	__atomic_fetch_add(&freed, 1, __ATOMIC_RELAXED);
}

struct seen {
	uint64_t last, stay;
};

static int see(uint64_t key, void *value, void *argument)
{
	struct seen *seen = (struct seen *)argument;

	CHECK(*(uint64_t *)value == key);
	CHECK(seen->last == UINT64_MAX || key > seen->last);
	seen->last = key;
	seen->stay += key % 4 == 0;
	if (key % 16 == 3)
		usleep(50);
	CHECK(*(uint64_t *)value == key);
	return key == 2 * KEYS ? 7 : 0;
}

static uint64_t network(const unsigned char *address, unsigned int length)
{
	return (uint64_t)address[0] << 16 | address[1] << 8 | length;
}

static int see_route(const unsigned char *address, unsigned int length, void *value, void *argument)
{
	CHECK(*(uint64_t *)value == network(address, length));
	*(uint64_t *)argument += length == 8;
	return 0;
}

static void read_once(unsigned int n)
{
	unsigned char address[4] = {(unsigned char)(n % 4), (unsigned char)(n % 7), 1, 1};
	struct seen seen = {UINT64_MAX, 0};
	struct reprieve_entry entry;
	struct reprieve_route route;
	uint64_t eights = 0;

	CHECK(!reprieve_ordered_scan(map, 0, KEYS - 1, see, &seen) && seen.stay == KEYS / 4);
	CHECK(reprieve_ordered_get(map, n % KEYS / 4 * 4, &entry));
	CHECK(entry.key == n % KEYS / 4 * 4 && *(uint64_t *)entry.value == entry.key);
	reprieve_release(&entry.held);
	CHECK(reprieve_ordered_at_most(map, n % KEYS, &entry));
	CHECK(entry.key <= n % KEYS && n % KEYS - entry.key < 4);
	usleep(n % 3 ? 0 : 50);
	CHECK(*(uint64_t *)entry.value == entry.key);
	reprieve_release(&entry.held);
	CHECK(reprieve_prefixes_lookup(routes, address, &route));
	CHECK(route.length == 8 || (route.length == 16 && route.address[1] == address[1]));
	CHECK(route.address[0] == address[0]);
	CHECK(*(uint64_t *)route.value == network(route.address, route.length));
	reprieve_release(&route.held);
	CHECK(!reprieve_prefixes_scan(routes, see_route, &eights) && eights == 4);
}

static void *reader(void *unused)
{
	unsigned int n;

	for (n = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); n++) {
		read_once(n);
		__atomic_fetch_add(&scans, 1, __ATOMIC_RELAXED);
	}
	return unused;
}

static void write_once(uint64_t n)
{
	uint64_t key = n % KEYS;
	unsigned char address[4] = {(unsigned char)(n % 4), (unsigned char)(n % 7), 0, 0};
	void *value = make(key);

	if (key % 4 == 0 || n % 3) {
		reprieve_ordered_set(map, key, value);
	} else {
		if (!reprieve_ordered_add(map, key, value))
			unmake(value);
		CHECK(reprieve_ordered_remove(map, key));
	}
	if (n % 2)
		CHECK(!reprieve_prefixes_set(routes, address, 16, make(network(address, 16))));
	else
		reprieve_prefixes_remove(routes, address, 16);
	address[1] = 0;
	CHECK(!reprieve_prefixes_set(routes, address, 8, make(network(address, 8))));
}

static void alone(void)
{
	struct reprieve_prefixes *six = reprieve_prefixes_new(128, NULL);
	struct reprieve_entry entry;
	struct reprieve_route route;
	struct in6_addr address;
	struct seen seen = {UINT64_MAX, 0};
	char value;

	CHECK(reprieve_ordered_count(map) == 0 && !reprieve_ordered_at_least(map, 0, &entry));
	reprieve_ordered_set(map, 2 * KEYS, make(2 * KEYS));
	CHECK(reprieve_ordered_scan(map, 0, UINT64_MAX, see, &seen) == 7);
	CHECK(reprieve_ordered_at_least(map, KEYS, &entry) && entry.key == 2 * KEYS);
	CHECK(reprieve_ordered_remove(map, 2 * KEYS) && !reprieve_ordered_remove(map, 2 * KEYS));
	CHECK(*(uint64_t *)entry.value == 2 * KEYS);
	reprieve_release(&entry.held);

	CHECK(!reprieve_prefixes_new(64, NULL) && six);
	CHECK(inet_pton(AF_INET6, "2001:db8::1", &address) == 1);
	CHECK(reprieve_prefixes_set(six, &address, 129, &value) == EINVAL);
	CHECK(!reprieve_prefixes_set(six, &address, 32, &value));
	CHECK(inet_pton(AF_INET6, "2001:db8:1::2", &address) == 1);
	CHECK(reprieve_prefixes_lookup(six, &address, &route));
	CHECK(route.length == 32 && route.value == &value && route.address[4] == 0);
	reprieve_release(&route.held);
	CHECK(reprieve_prefixes_remove(six, &address, 32) && !reprieve_prefixes_count(six));
	CHECK(!reprieve_prefixes_remove(six, &address, 200));
	CHECK(!reprieve_prefixes_lookup(six, &address, &route));
	reprieve_prefixes_free(six);
	reprieve_prefixes_free(NULL);
	reprieve_ordered_free(NULL);
}

int main(void)
{
	pthread_t threads[3];
	uint64_t n;
	int t;

	map = reprieve_ordered_new(unmake);
	routes = reprieve_prefixes_new(32, unmake);
	CHECK(map && routes);
	alone();
	for (n = 0; n < KEYS; n++)
		write_once(n);
	for (t = 0; t < 3; t++)
		CHECK(!pthread_create(&threads[t], NULL, reader, NULL));
	for (n = 0; n < 20000 || __atomic_load_n(&scans, __ATOMIC_RELAXED) < 30; n++) {
		write_once(n);
		if (n % 64 == 0)
			usleep(100);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (t = 0; t < 3; t++)
		CHECK(!pthread_join(threads[t], NULL));
	reprieve_ordered_free(map);
	reprieve_prefixes_free(routes);
	reprieve_barrier();
	CHECK(made == freed);
	return 0;
}
