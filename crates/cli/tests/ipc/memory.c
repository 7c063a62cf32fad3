// SPDX-License-Identifier: MIT OR Apache-2.0
// Memory of the program's that changes while a call waits, or is not there.
// Prints "fine".
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST = 8192, MANY = 300 };

static struct {
	long type;
	char text[LONGEST];
} message;
static struct sembuf shared;
static int set, queue;
static sigjmp_buf back;

static void fails(const char *what)
{
	perror(what);
	_exit(1);
}

static void *takes(void *unused)
{
	(void)unused;
	if (semop(set, &shared, 1) != 0)
		fails("semop");
	return NULL;
}

// The operation is the one that it was when the call began.
static void changes(void)
{
	pthread_t thread;

	shared = (struct sembuf){0, -1, 0};
	if (pthread_create(&thread, NULL, takes, NULL) != 0)
		fails("pthread_create");
	while (semctl(set, 0, GETNCNT) != 1)
		usleep(1000);
	shared.sem_op = 1;
	if (semop(set, &shared, 1) != 0)
		fails("semop");
	pthread_join(thread, NULL);
	if (semctl(set, 0, GETVAL) != 0)
		fails("the value");
}

static void jumps(int signal)
{
	siglongjmp(back, signal);
}

enum call { SENDS, RECEIVES, OPERATES, CALLS };

// A call with a pointer to memory that is not there: the kernel says so, and
// our handler leaves it.
static void faults(enum call call, char *nowhere)
{
	if (sigsetjmp(back, 1) == SIGSEGV)
		return;
	errno = 0;
	switch (call) {
	case SENDS:
		// The type is there, and the text is not.
		msgsnd(queue, nowhere - sizeof(long), 64, IPC_NOWAIT);
		break;
	case RECEIVES:
		msgrcv(queue, nowhere - sizeof(long), 64, 0, IPC_NOWAIT);
		break;
	default:
		semop(set, (struct sembuf *)nowhere, 2);
	}
	if (errno != EFAULT)
		fails("no fault");
}

// Whoever uses the same objects goes on, and so does this thread.
static void goes_on(void)
{
	struct sembuf many[MANY] = {{0}};
	int other, status;
	pid_t child = fork();

	if (child == 0) {
		// A set takes memory of the namespace's.
		other = semget(IPC_PRIVATE, 100, 0600);
		if (other < 0 || semctl(other, 0, IPC_RMID) != 0)
			_exit(1);
		memset(message.text, 7, sizeof(message.text));
		message.type = 5;
		_exit(msgsnd(queue, &message, LONGEST, IPC_NOWAIT) != 0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		fails("the other process");
	memset(&message, 0, sizeof(message));
	// More than there is room for on the way, too.
	if (msgrcv(queue, &message, 2 * LONGEST, 5, 0) != LONGEST ||
	    message.type != 5 || message.text[LONGEST - 1] != 7)
		fails("msgrcv");
	if (semop(set, many, MANY) != 0)
		fails("many operations");
}

int main(void)
{
	struct sigaction action = {.sa_handler = jumps};
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	set = semget(IPC_PRIVATE, 2, 0600);
	queue = msgget(IPC_PRIVATE, 0600);
	if (set < 0 || queue < 0 || pages == MAP_FAILED ||
	    mprotect(pages + page, page, PROT_NONE) != 0)
		fails("setting up");
	changes();
	sigaction(SIGSEGV, &action, NULL);
	*(long *)(pages + page - sizeof(long)) = 1;
	for (enum call call = SENDS; call < CALLS; call++) {
		message.type = 1;
		if (call == RECEIVES &&
		    msgsnd(queue, &message, 64, IPC_NOWAIT) != 0)
			fails("msgsnd");
		faults(call, pages + page);
		goes_on();
	}
	semctl(set, 0, IPC_RMID);
	msgctl(queue, IPC_RMID, NULL);
	puts("fine");
	return 0;
}
