/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A map from numbers of 64 bits to pointers, in the order of the numbers. Readers take no lock, and
 * no grace period waits for them; writers exclude each other.
 *
 * The pointers belong to the map. It calls `free_value` with each that it no longer has, when no
 * thread holds the entry any more, mostly from a thread of the runtime.
 *
 * Example:
 *
 *	#include <reprieve/ordered.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *	#include <string.h>
 *
 *	static int print(uint64_t key, void *value, void *prefix)
 *	{
 *		printf("%s%llu: %s\n", (char *)prefix, (unsigned long long)key, (char *)value);
 *		return 0;
 *	}
 *
 *	int main(void)
 *	{
 *		struct reprieve_ordered *map = reprieve_ordered_new(free);
 *		struct reprieve_entry entry;
 *		char prefix[] = "  ";
 *
 *		reprieve_ordered_set(map, 7, strdup("seven"));
 *		reprieve_ordered_set(map, 3, strdup("three"));
 *		reprieve_ordered_scan(map, 0, UINT64_MAX, print, prefix);
 *		if (reprieve_ordered_at_least(map, 5, &entry)) {
 *			reprieve_ordered_remove(map, 7);
 *			puts((char *)entry.value);	// it stays until it is released
 *			reprieve_release(&entry.held);
 *		}
 *		reprieve_ordered_free(map);
 *		return 0;
 *	}
 */
#ifndef REPRIEVE_ORDERED_H
#define REPRIEVE_ORDERED_H

#ifdef __cplusplus
/* C's casts; no warnings of a program's own strictness. */
#pragma GCC system_header
#endif

#include <reprieve/restart.h>

#ifdef __cplusplus
extern "C" {
#endif

struct reprieve_ordered;

/* An entry that this thread holds: until reprieve_release(&entry.held). */
struct reprieve_entry {
	struct reprieve_protected held;
	uint64_t key;
	void *value;
};

/* An empty map. `free_value` may be null. */
struct reprieve_ordered *reprieve_ordered_new(void (*free_value)(void *value));

/*
 * Frees a map, or does nothing if it is null. Nobody uses the map or holds an entry of it.
 * `free_value` may still be called for values that the map no longer had: reprieve_barrier waits
 * for that.
 */
void reprieve_ordered_free(struct reprieve_ordered *map);

/* Gives the key this value, in place of the one it has. */
void reprieve_ordered_set(struct reprieve_ordered *map, uint64_t key, void *value);

/* The same if the key has no value: 1. Else 0, and `value` stays the caller's. */
int reprieve_ordered_add(struct reprieve_ordered *map, uint64_t key, void *value);

/* Takes the key out. 1 if it was there, else 0. */
int reprieve_ordered_remove(struct reprieve_ordered *map, uint64_t key);

/* How many keys there are, at about this time. */
size_t reprieve_ordered_count(const struct reprieve_ordered *map);

/*
 * 1 if there is such a key, which `entry` gets: this very one, the smallest that is at least `key`,
 * the largest that is at most `key`. Else 0.
 */
int reprieve_ordered_get(const struct reprieve_ordered *map, uint64_t key,
			 struct reprieve_entry *entry);
int reprieve_ordered_at_least(const struct reprieve_ordered *map, uint64_t key,
			      struct reprieve_entry *entry);
int reprieve_ordered_at_most(const struct reprieve_ordered *map, uint64_t key,
			     struct reprieve_entry *entry);

/*
 * Visits the keys from `first` to `last`, both included, in order. Each key that is there all the
 * while is visited once; others may be. No grace period waits for the scan. `visit` may block, and
 * change the map; its value stays until it returns. If it returns another number than 0, the scan
 * ends and returns that.
 */
int reprieve_ordered_scan(const struct reprieve_ordered *map, uint64_t first, uint64_t last,
			  int (*visit)(uint64_t key, void *value, void *argument), void *argument);

#ifdef __cplusplus
}
#endif

#endif
