/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The first lookups in C or C++: cc first.c $(pkg-config --cflags --libs reprieve) && ./a.out */
#include <reprieve/restart.h>
#include <stdio.h>
#include <stdlib.h>

struct host {
	int number;
	const char *name;
	struct reprieve_head head;
};

static struct host *current;

/* Runs in the restartable section: loads and arithmetic only. */
REPRIEVE_RESTARTABLE static const void *find(const void *number)
{
	const struct host *host = reprieve_dereference(current);

	return host && host->number == *(const int *)number ? host : NULL;
}

static void host_free(struct reprieve_head *head)
{
	free(reprieve_container_of(head, struct host, head));
}

static void publish(int number, const char *name)
{
	struct host *old = current, *host = (struct host *)calloc(1, sizeof(*host));

	if (!host)
		abort();
	host->number = number;
	host->name = name;
	reprieve_assign_pointer(current, host);
	if (old)
		reprieve_retire(old, &old->head, host_free, sizeof(*old), REPRIEVE_LEAF);
}

int main(void)
{
	struct reprieve_protected held;
	int number = 1;

	publish(number, "alpha");
	if (!reprieve_protect(find, &number, &held))
		return 1;
	/*
	 * Held for any time, across blocking calls: no grace period waits for it, and the node
	 * stays.
	 */
	publish(number, "beta");
	reprieve_synchronize();
	printf("held: %s, now: %s\n", ((const struct host *)held.node)->name, current->name);
	reprieve_release(&held);
	reprieve_barrier();
	return 0;
}
