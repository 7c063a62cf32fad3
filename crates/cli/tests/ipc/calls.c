// SPDX-License-Identifier: MIT OR Apache-2.0
// All calls once: with waits, time limits, forks and handlers. Prints "fine".
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int set, queue, segment;

static void fails(const char *what)
{
	perror(what);
	_exit(1);
}

static void handler(int signal)
{
	(void)signal;
	semctl(set, 0, GETVAL);
}

static void operate(int by, int flags, const struct timespec *limit,
		    int expected)
{
	struct sembuf op = {.sem_op = by, .sem_flg = flags};

	errno = 0;
	if (semtimedop(set, &op, 1, limit) != (expected ? -1 : 0) ||
	    errno != expected)
		fails("semtimedop");
}

int main(void)
{
	struct timespec limit = {.tv_nsec = 50000000};
	struct {
		long type;
		char text[64];
	} message = {.type = 1, .text = "text"};
	struct shmid_ds about;
	char *at;
	int status;
	pid_t child;

	signal(SIGALRM, handler);
	set = semget(IPC_PRIVATE, 2, 0600);
	queue = msgget(IPC_PRIVATE, 0600);
	segment = shmget(IPC_PRIVATE, 100000, 0600);
	if (set < 0 || queue < 0 || segment < 0)
		fails("get");
	at = shmat(segment, NULL, 0);
	if (at == (char *)-1)
		fails("shmat");
	operate(-1, 0, &limit, EAGAIN);
	alarm(1);
	operate(-1, 0, NULL, EINTR);
	child = fork();
	if (child == 0) {
		at[5] = 5;
		usleep(100000);
		operate(1, 0, NULL, 0);
		operate(7, SEM_UNDO, NULL, 0);
		if (msgsnd(queue, &message, 5, 0) != 0)
			fails("msgsnd");
		_exit(0);
	}
	operate(-1, 0, NULL, 0);
	if (waitpid(child, &status, 0) != child || status != 0 || at[5] != 5)
		fails("child");
	if (semctl(set, 0, GETVAL) != 0 ||
	    msgrcv(queue, &message, sizeof(message.text), 0, 0) != 5)
		fails("what is left");
	if (shmctl(segment, IPC_STAT, &about) != 0 || about.shm_nattch != 1)
		fails("attached");
	if (shmdt(at) != 0 || shmctl(segment, IPC_RMID, NULL) != 0)
		fails("shmdt");
	if (semctl(set, 0, IPC_RMID) != 0 || msgctl(queue, IPC_RMID, NULL) != 0)
		fails("remove");
	puts("fine");
	return 0;
}
