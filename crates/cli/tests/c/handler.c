// SPDX-License-Identifier: MIT OR Apache-2.0
// A handler operates on the set that the program is busy with. Prints the
// handler's count and the second semaphore's value, which must be equal.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/time.h>

static int set;
static volatile sig_atomic_t handled, over;
/* Not again and again: on a slow machine the next would be due whenever a
 * handler returns. */
static const struct itimerval once = {{0, 0}, {0, 200}};

static void add(unsigned short num, short n)
{
	struct sembuf op = {num, n, SEM_UNDO};

	if (semop(set, &op, 1) != 0) {
		perror("semop");
		exit(1);
	}
}

static void handler(int signal)
{
	(void)signal;
	add(1, 1);
	handled++;
	if (!over)
		setitimer(ITIMER_REAL, &once, NULL);
}

int main(void)
{
	struct sigaction action;
	struct itimerval never = {{0, 0}, {0, 0}};

	set = semget(IPC_PRIVATE, 2, 0600);
	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	if (set < 0 || sigaction(SIGALRM, &action, NULL) != 0)
		return 1;
	setitimer(ITIMER_REAL, &once, NULL);
	while (handled < 300) {
		add(0, 1);
		add(0, -1);
	}
	// Also while the program waits for what never comes: it ends the wait.
	for (int i = 0; i < 20; i++) {
		struct sembuf take = {0, -1, 0};

		if (semop(set, &take, 1) == 0 || errno != EINTR) {
			perror("a wait that a signal interrupts");
			return 1;
		}
	}
	over = 1;
	setitimer(ITIMER_REAL, &never, NULL);
	if (sigaction(SIGALRM, NULL, &action) != 0 ||
	    action.sa_handler != handler) {
		fprintf(stderr, "sigaction does not give the handler back\n");
		return 1;
	}
	printf("%d %d\n", (int)handled, semctl(set, 1, GETVAL));
	return semctl(set, 0, IPC_RMID) != 0;
}
