/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A table of routes: pointers by prefix, found by longest prefix match. Readers take no lock, and
 * no grace period waits for them; writers exclude each other.
 *
 * The pointers belong to the table, as those of a map do: see <reprieve/ordered.h>. Addresses are
 * in network byte order: `struct in_addr`, `struct in6_addr`.
 *
 * Example:
 *
 *	#include <reprieve/prefixes.h>
 *	#include <stdio.h>
 *
 *	int main(void)
 *	{
 *		struct reprieve_prefixes *routes = reprieve_prefixes_new(32, NULL);
 *		const unsigned char ten[4] = {10, 0, 0, 0}, host[4] = {10, 1, 2, 3};
 *		struct reprieve_route route;
 *		char gateway[] = "gateway";
 *
 *		reprieve_prefixes_set(routes, ten, 8, gateway);
 *		if (reprieve_prefixes_lookup(routes, host, &route)) {
 *			printf("/%u: %s\n", route.length, (char *)route.value);
 *			reprieve_release(&route.held);
 *		}
 *		reprieve_prefixes_free(routes);
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_PREFIXES_H
#define REPRIEVE_PREFIXES_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/restart.h>

#ifdef __cplusplus
extern "C" {
#endif

struct reprieve_prefixes;

/* A route that this thread holds: until reprieve_release(&route.held). */
struct reprieve_route {
	struct reprieve_protected held;
	/* The prefix: its bits, in the first 4 or all 16 bytes, and how many they are. */
	unsigned char address[16];
	unsigned int length;
	void *value;
};

/* An empty table for addresses of 32 or 128 bits, else null. `free_value` may be null. */
struct reprieve_prefixes *reprieve_prefixes_new(unsigned int bits, void (*free_value)(void *value));

/* Frees a table, or does nothing if it is null. Nobody uses the table or holds a route of it. */
void reprieve_prefixes_free(struct reprieve_prefixes *table);

/*
 * Gives the first `length` bits of an address this value, in place of the one they have. 0, or
 * EINVAL if an address has fewer bits: then the value stays the caller's.
 */
int reprieve_prefixes_set(struct reprieve_prefixes *table, const void *address, unsigned int length,
			  void *value);

/* Takes the value of that very prefix out. 1 if it was there, else 0. */
int reprieve_prefixes_remove(struct reprieve_prefixes *table, const void *address,
			     unsigned int length);

/* How many prefixes have a value, at about this time. */
size_t reprieve_prefixes_count(const struct reprieve_prefixes *table);

/* 1 if a prefix of the address has a value: `route` gets the longest. Else 0. */
int reprieve_prefixes_lookup(const struct reprieve_prefixes *table, const void *address,
			     struct reprieve_route *route);

/*
 * Visits all prefixes in the order of their addresses, a shorter one before those that it contains.
 * Else as reprieve_ordered_scan.
 */
int reprieve_prefixes_scan(const struct reprieve_prefixes *table,
			   int (*visit)(const unsigned char *address, unsigned int length,
					void *value, void *argument),
			   void *argument);

#ifdef __cplusplus
}
#endif

#endif
