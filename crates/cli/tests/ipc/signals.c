// SPDX-License-Identifier: MIT OR Apache-2.0
// Ways to install handlers, and to leave them, by name. Prints "fine".
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

int __sigaction(int, const struct sigaction *, struct sigaction *);

static int set;
static volatile sig_atomic_t handled;
/* Longer than a thread looks before it queues up. */
static const struct itimerval once = {{0, 0}, {0, 2000}};

static void fails(const char *what)
{
	perror(what);
	_exit(1);
}

static int operate(unsigned short num, short n)
{
	struct sembuf op = {num, n, 0};

	return semop(set, &op, 1);
}

static void adds(int signal)
{
	(void)signal;
	// The call is over, so nobody waits.
	if (operate(1, 1) != 0 || semctl(set, 0, GETNCNT) != 0)
		fails("calls in a handler");
	handled++;
	setitimer(ITIMER_REAL, &once, NULL);
}

static void restarts(int whether)
{
	struct sigaction action;

	if (sigaction(SIGALRM, NULL, &action) != 0 ||
	    action.sa_handler != adds ||
	    (action.sa_flags & SA_RESTART ? 1 : 0) != whether)
		fails("SA_RESTART");
}

static void install(const char *how)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = adds;
	if (strcmp(how, "sigset") == 0) {
		if (sigset(SIGALRM, SIG_HOLD) != SIG_DFL ||
		    sigset(SIGALRM, adds) != SIG_HOLD ||
		    sigset(SIGALRM, adds) != adds)
			fails("sigset");
	} else if (strcmp(how, "ssignal") == 0) {
		ssignal(SIGALRM, adds);
	} else if (strcmp(how, "siginterrupt") == 0) {
		signal(SIGALRM, adds);
		restarts(1);
		siginterrupt(SIGALRM, 1);
		restarts(0);
		signal(SIGALRM, adds);
		restarts(0);
		siginterrupt(SIGALRM, 0);
		restarts(1);
		ssignal(SIGALRM, adds);
		restarts(1);
		errno = 0;
		if (signal(SIGALRM, SIG_ERR) != SIG_ERR || errno != EINVAL ||
		    siginterrupt(65, 1) != -1)
			fails("what is no handler");
	} else if (__sigaction(SIGALRM, &action, NULL) != 0) {
		fails("__sigaction");
	}
}

/* The signal ends a wait for what never comes, and its handler operates on the
 * set that was waited for. */
static void interrupted(const char *how)
{
	install(how);
	setitimer(ITIMER_REAL, &once, NULL);
	for (int i = 0; i < 20; i++)
		if (operate(0, -1) == 0 || errno != EINTR)
			fails("a wait that a signal interrupts");
	// A signal between the two looks is too much, and comes late.
	signal(SIGALRM, SIG_IGN);
	if (handled < 20 || semctl(set, 1, GETVAL) != handled)
		fails("count");
}

static sigjmp_buf back;
static volatile sig_atomic_t seen;

static void jumps(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static void sees(int signal)
{
	(void)signal;
	seen = 1;
}

/* Two signals arrive in one call, and the handler of one leaves it. */
static void jump(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		signal(SIGUSR1, jumps);
		signal(SIGUSR2, sees);
		if (sigsetjmp(back, 1) == 0) {
			operate(0, -1);
			_exit(2);
		}
		_exit(seen ? 0 : 3);
	}
	while (semctl(set, 0, GETNCNT) != 1)
		usleep(1000);
	kill(child, SIGSTOP);
	if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
		fails("stop");
	kill(child, SIGUSR1);
	kill(child, SIGUSR2);
	kill(child, SIGCONT);
	if (waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "the child's status is %#x\n", status);
		_exit(1);
	}
}

static void makes(int signal)
{
	(void)signal;
	set = semget(IPC_PRIVATE, 2, 0600);
}

/* A handler arrives while the namespace is opened, and needs it. */
static void first(void)
{
	for (int us = 1; us < 600; us += 3) {
		const struct itimerval soon = {{0, 0}, {0, us}};
		int id, status;
		pid_t child = fork();

		if (child == 0) {
			set = -1;
			signal(SIGALRM, makes);
			setitimer(ITIMER_REAL, &soon, NULL);
			id = semget(IPC_PRIVATE, 2, 0600);
			while (set < 0)
				usleep(100);
			_exit(semctl(id, 0, IPC_RMID) ||
			      semctl(set, 0, IPC_RMID));
		}
		if (waitpid(child, &status, 0) != child || status != 0)
			fails("the first call");
	}
}

/* Its parent ends at once. */
static void becomes_daemon(void)
{
	struct shmid_ds segment;
	int id = shmget(IPC_PRIVATE, 4096, 0600);

	if (id < 0 || shmat(id, NULL, 0) == (void *)-1)
		fails("shmat");
	fflush(NULL);
	if (daemon(0, 1) != 0)
		fails("daemon");
	do {
		if (shmctl(id, IPC_STAT, &segment) != 0)
			fails("shmctl");
	} while (segment.shm_nattch > 1);
	if (segment.shm_nattch != 1 || getpgrp() != getpid())
		fails("attached");
	if (shmctl(id, IPC_RMID, NULL) != 0)
		fails("remove");
}

/* Handlers for forks that were registered before the first call may attach. */
static void attaches(void)
{
	int id = shmget(IPC_PRIVATE, 4096, 0600);
	void *at = shmat(id, NULL, 0);

	if (at == (void *)-1 || shmdt(at) != 0 ||
	    shmctl(id, IPC_RMID, NULL) != 0)
		fails("attaching around a fork");
}

static void waits_for_child(void)
{
	int status;
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		fails("fork");
}

static void forks(int signal)
{
	(void)signal;
	handled++;
	waits_for_child();
}

/* A signal in the middle of a fork, whose handler forks as well. */
static void raises(void)
{
	if (handled)
		return;
	raise(SIGUSR1);
	if (!handled)
		fails("the handler in the middle of a fork");
}

static void around_forks(void)
{
	struct shmid_ds segment;
	int id = shmget(IPC_PRIVATE, 4096, 0600);

	pthread_atfork(attaches, attaches, attaches);
	pthread_atfork(NULL, raises, NULL);
	if (id < 0 || shmat(id, NULL, 0) == (void *)-1)
		fails("shmat");
	signal(SIGUSR1, forks);
	waits_for_child();
	if (handled != 1)
		fails("the signal's handler");
	if (shmctl(id, IPC_STAT, &segment) != 0 || segment.shm_nattch != 1 ||
	    shmctl(id, IPC_RMID, NULL) != 0)
		fails("attached");
}

/* The handler jumps out at the end of a call that disables cancellation. */
static void cancel(void)
{
	const key_t key = 77;

	signal(SIGALRM, jumps);
	for (volatile int i = 0; i < 500; i++) {
		const struct itimerval soon = {{0, 0}, {0, 20 + i % 50}};
		int id, state;

		if (sigsetjmp(back, 1) == 0) {
			setitimer(ITIMER_REAL, &soon, NULL);
			for (;;) {
				id = shmget(key, 4096, IPC_CREAT | 0600);
				shmctl(id, IPC_RMID, NULL);
			}
		}
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
		if (state != PTHREAD_CANCEL_ENABLE)
			fails("cancellation is disabled");
	}
	shmctl(shmget(key, 0, 0), IPC_RMID, NULL);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	if (strcmp(how, "first") == 0)
		first();
	set = semget(IPC_PRIVATE, 2, 0600);
	if (set < 0)
		fails("semget");
	if (strcmp(how, "first") == 0)
		;
	else if (strcmp(how, "forks") == 0)
		around_forks();
	else if (strcmp(how, "cancel") == 0)
		cancel();
	else if (strcmp(how, "jump") == 0)
		jump();
	else if (strcmp(how, "daemon") == 0)
		becomes_daemon();
	else
		interrupted(how);
	printf("fine\n");
	return semctl(set, 0, IPC_RMID) != 0;
}
