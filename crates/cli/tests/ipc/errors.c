// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls whose results the manual pages leave open. Prints them, for a
// comparison with the kernel.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define TELL(call)                                     \
	do {                                           \
		errno = 0;                             \
		printf(#call ": %d", (int)(call) < 0); \
		printf(", errno %d\n", errno);         \
	} while (0)

static void handler(int signal, siginfo_t *information, void *context)
{
	(void)signal, (void)information, (void)context;
}

// How a child ends that handles a signal in a call, on a stack that it may only
// read or on its own.
static int handled(int flags, int of_segment)
{
	size_t size = 1 << 16;
	struct sigaction action = {.sa_sigaction = handler,
				   .sa_flags = SA_SIGINFO | flags};
	struct sembuf down = {.sem_op = -1};
	int set = semget(IPC_PRIVATE, 1, 0600), status, segment;
	pid_t child = fork();

	if (child == 0) {
		stack_t stack = {.ss_size = size};

		segment = shmget(IPC_PRIVATE, size, 0600);
		stack.ss_sp =
			of_segment ? shmat(segment, NULL, SHM_RDONLY)
				   : mmap(NULL, size, PROT_READ,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		shmctl(segment, IPC_RMID, NULL);
		sigaltstack(&stack, NULL);
		sigaction(SIGALRM, &action, NULL);
		ualarm(1000, 1000);
		_exit(semop(set, &down, 1) == -1 && errno == EINTR ? 7 : 3);
	}
	waitpid(child, &status, 0);
	semctl(set, 0, IPC_RMID);
	return status & ~0x80;
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = handler,
				   .sa_flags = SA_SIGINFO | SA_RESETHAND};
	struct {
		long type;
		char text[8];
	} message = {.type = 1};
	struct shmid_ds about;
	struct semid_ds status;
	struct timespec bad = {.tv_nsec = -1};
	struct sembuf up = {.sem_op = 1};
	int set = semget(IPC_PRIVATE, 1, 0600),
	    queue = msgget(IPC_PRIVATE, 0600);
	int segment = shmget(IPC_PRIVATE, 4096, 0600), second;
	void *at = shmat(segment, NULL, 0);
	pid_t child;

	TELL(semop(-1, NULL, 1));
	TELL(semop(-1, &up, 1));
	TELL(semop(set, &up, 0));
	TELL(semop(set, NULL, 1));
	TELL(semop(set, NULL, 100000));
	TELL(semtimedop(-1, &up, 1, &bad));
	TELL(semtimedop(set, NULL, 1, &bad));
	TELL(semtimedop(set, &up, 1, (void *)8));
	TELL(msgrcv(queue, NULL, 8, 0, IPC_NOWAIT));
	TELL(msgsnd(queue, &message, 4, 0));
	TELL(msgrcv(queue, NULL, 8, 0, IPC_NOWAIT));
	TELL(msgrcv(queue, &message, 8, 0, IPC_NOWAIT));
	TELL(shmget(IPC_PRIVATE, (size_t)1 << 62, 0600));
	// An id with more than 15 bits: what is in its slot.
	semctl(set, 0, IPC_RMID);
	second = semget(IPC_PRIVATE, 1, 0600);
	for (int i = 0; i < 1000 && second <= 32767; i++) {
		semctl(second, 0, IPC_RMID);
		second = semget(IPC_PRIVATE, 1, 0600);
	}
	printf("the slot: %d\n", second > 32767 && semctl(second, 0, SEM_STAT,
							  &status) == second);
	child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	shmctl(segment, IPC_STAT, &about);
	printf("the child was last: %d, attached %d\n", about.shm_lpid == child,
	       (int)about.shm_nattch);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	sigaction(SIGUSR1, NULL, &action);
	printf("flags: %#x, default %d\n",
	       action.sa_flags & (SA_SIGINFO | SA_RESETHAND),
	       action.sa_handler == SIG_DFL);
	fflush(stdout);
	printf("on a stack of its own %#x %#x, that it may not write %#x %#x\n",
	       handled(0, 0), handled(0, 1), handled(SA_ONSTACK, 0),
	       handled(SA_ONSTACK, 1));
	shmdt(at);
	shmctl(segment, IPC_RMID, NULL);
	semctl(second, 0, IPC_RMID);
	msgctl(queue, IPC_RMID, NULL);
	return 0;
}
