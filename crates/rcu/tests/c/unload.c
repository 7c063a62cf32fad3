/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A shared object with a copy of the library in it (-DPLUGIN) is opened, used by a thread, and
 * closed while that thread lives.
 */
#ifdef PLUGIN
#include <reprieve/reprieve.h>

int plugin_use(void);

int plugin_use(void)
{
	reprieve_read_lock();
	return reprieve_read_ongoing();
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

static int used, closed;

static void *user(void *use)
{
	CHECK(((int (*)(void))use)());
	__atomic_store_n(&used, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&closed, __ATOMIC_ACQUIRE))
		usleep(1000);
	/* Its exit calls a function of the library. */
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	void *plugin, *use;
	int status = -1;
	pid_t child;

	CHECK(argc == 2);
	plugin = dlopen(argv[1], RTLD_NOW);
	if (!plugin)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(plugin);
	use = dlsym(plugin, "plugin_use");
	CHECK(use && !pthread_create(&thread, NULL, user, use));
	while (!__atomic_load_n(&used, __ATOMIC_ACQUIRE))
		usleep(1000);
	CHECK(!dlclose(plugin));
	/* The handlers of fork still work. */
	child = fork();
	if (!child)
		_exit(3);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	__atomic_store_n(&closed, 1, __ATOMIC_RELEASE);
	CHECK(!pthread_join(thread, NULL));
	return 0;
}
#endif
