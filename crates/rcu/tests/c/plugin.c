/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A lookup in the program and one in a shared object that is opened at run time (-DPLUGIN),
 * restarted by the same grace periods.
 */
#include <reprieve/restart.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

REPRIEVE_RESTARTABLE static uintptr_t spin(const void *argument, void *result)
{
	const uint64_t *const *cell = (const uint64_t *const *)argument;
	uint64_t sum = 0;
	int i;

	/* Long enough to be interrupted. */
	for (i = 0; i < 2000; i++)
		sum += *reprieve_dereference(*cell);
	*(uint64_t *)result = sum;
	return 1;
}

#ifdef PLUGIN
int plugin_look(const void *cell, uint64_t *sum);

int plugin_look(const void *cell, uint64_t *sum)
{
	return (int)reprieve_lookup(spin, cell, sum);
}
#else
static uint64_t *cell;
static int stop;

static void *reader(void *argument)
{
	int (*look)(const void *, uint64_t *) = (int (*)(const void *, uint64_t *))argument;
	uint64_t sum;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		CHECK(look(&cell, &sum) && sum == 2000);
		CHECK(reprieve_lookup(spin, &cell, &sum) && sum == 2000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct reprieve_stats stats;
	void *plugin, *look;
	pthread_t thread;
	uint64_t *old;
	int i;

	CHECK(argc == 2);
	plugin = dlopen(argv[1], RTLD_NOW);
	if (!plugin)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(plugin);
	look = dlsym(plugin, "plugin_look");
	CHECK(look);
	cell = (uint64_t *)malloc(sizeof(*cell));
	*cell = 1;
	CHECK(!pthread_create(&thread, NULL, reader, look));
	/* Until a lookup was restarted: the reader needs a CPU for that. */
	reprieve_get_stats(&stats);
	for (i = 0; i < 2000 || (reprieve_restartable(NULL) && !stats.restarts); i++) {
		old = cell;
		uint64_t *fresh = (uint64_t *)malloc(sizeof(*fresh));
		*fresh = 1;
		reprieve_assign_pointer(cell, fresh);
		reprieve_synchronize();
		*old = 1000000;
		free(old);
		reprieve_get_stats(&stats);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	free(cell);
	return 0;
}
#endif
