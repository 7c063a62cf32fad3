// SPDX-License-Identifier: MIT OR Apache-2.0
// What becomes of attachments that are unmapped, moved, cut or replaced. Prints
// it, for a comparison with the kernel.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t PAGE = 4096;
static int segment;

static int attached(void)
{
	struct shmid_ds about;

	return shmctl(segment, IPC_STAT, &about) ? -errno
						 : (int)about.shm_nattch;
}

static char *attach(void)
{
	char *at;

	segment = shmget(IPC_PRIVATE, 4 * PAGE, 0600);
	at = shmat(segment, NULL, 0);
	for (int i = 0; i < 4; i++)
		at[i * PAGE] = 'a' + i;
	return at;
}

static void tell(const char *what, int result)
{
	printf("%s: %d, errno %d, attached %d\n", what, result,
	       result ? errno : 0, attached());
}

static void leave(const char *what, void *at)
{
	tell(what, shmdt(at));
	tell("again", shmdt(at));
	shmctl(segment, IPC_RMID, NULL);
	tell("removed", 0);
}

int main(void)
{
	char *at, *to, *third;

	at = attach();
	tell("munmap", munmap(at, 4 * PAGE));
	leave("shmdt", at);

	at = attach();
	tell("munmap of the end", munmap(at + 2 * PAGE, 2 * PAGE));
	tell("of the beginning", munmap(at, PAGE));
	tell("shmdt of the rest", shmdt(at + PAGE));
	leave("shmdt", at);

	at = attach();
	tell("munmap of the middle", munmap(at + PAGE, 2 * PAGE));
	tell("shmdt of the end", shmdt(at + 3 * PAGE));
	leave("shmdt", at);

	at = attach();
	to = mremap(at, 4 * PAGE, 2 * PAGE, 0);
	tell("mremap to less", to != at);
	leave("shmdt", at);

	at = attach();
	to = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		  0);
	tell("moved", mremap(at, 4 * PAGE, 4 * PAGE,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to) != to);
	printf("%c%c\n", to[0], to[3 * PAGE]);
	tell("shmdt of the old place", shmdt(at));
	leave("of the new", to);

	at = attach();
	tell("a part moved", mremap(at + PAGE, PAGE, PAGE,
				    MREMAP_MAYMOVE | MREMAP_FIXED, to) != to);
	printf("%c\n", to[0]);
	tell("shmdt of the part", shmdt(to));
	tell("of its beginning", shmdt(to - PAGE));
	leave("of the rest", at);

	at = attach();
	third = mremap(at, 0, 4 * PAGE, MREMAP_MAYMOVE);
	tell("doubled", third == MAP_FAILED);
	tell("shmdt of the first", shmdt(at));
	leave("of the second", third);

	at = attach();
	to = mmap(at + PAGE, PAGE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	tell("mmap over a page", to != at + PAGE);
	leave("shmdt", at);
	printf("%d\n", to[0]);

	at = attach();
	{
		int first = segment;

		segment = shmget(IPC_PRIVATE, PAGE, 0600);
		third = shmat(segment, at + PAGE, SHM_REMAP);
		tell("attached over a page", third != at + PAGE);
		shmctl(segment, IPC_RMID, NULL);
		segment = first;
		tell("the one below", 0);
		tell("shmdt of the upper", shmdt(third));
	}
	leave("shmdt", at);

	at = attach();
	tell("protected", mprotect(at, PAGE, PROT_READ));
	leave("shmdt", at);

	at = attach();
	shmctl(segment, IPC_RMID, NULL);
	tell("file pages", remap_file_pages(at, PAGE, 0, 2, 0));
	printf("%c\n", at[0]);
	tell("munmap", munmap(at, 4 * PAGE));
	tell("file pages", remap_file_pages(at, PAGE, 0, 2, 0));

	at = attach();
	shmctl(segment, IPC_RMID, NULL);
	tell("the end", munmap(at + PAGE, 3 * PAGE));
	tell("and the beginning", munmap(at, PAGE));

	at = attach();
	fflush(stdout);
	if (fork() == 0) {
		munmap(at, 4 * PAGE);
		tell("in the child", 0);
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	tell("after it", 0);
	leave("shmdt", at);
	return 0;
}
