// SPDX-License-Identifier: MIT OR Apache-2.0
// deep: calls semget from a library that finds the C library first, and by the
// C library's own symbol. With -DLIBRARY: that library. With -DWAITS: a program
// that calls semget if it has an argument, prints its number and waits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <unistd.h>

#if defined(LIBRARY)
int deep(void)
{
	return semget(IPC_PRIVATE, 1, 0600);
}
#elif defined(WAITS)
int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return semget(1, 0, 0) != -1;
	printf("%d\n", getpid());
	fflush(stdout);
	pause();
	return 0;
}
#else
int main(int argc, char **argv)
{
	void *library =
		argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	int (*deep)(void) =
		library ? (int (*)(void))dlsym(library, "deep") : NULL;
	int (*own)(key_t, int, int) =
		libc ? (int (*)(key_t, int, int))dlsym(libc, "semget") : NULL;

	return !deep || deep() < 0 || !own || own(IPC_PRIVATE, 1, 0600) < 0;
}
#endif
