// SPDX-License-Identifier: MIT OR Apache-2.0
// Adjustments and objects of a process that leaves namespaces. Prints what
// there is, for a comparison with the kernel.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int set;

static void up(int number)
{
	struct sembuf op = {
		.sem_num = number, .sem_op = 1, .sem_flg = SEM_UNDO};

	if (semop(set, &op, 1))
		printf("errno %d\n", errno);
}

static void values(const char *what)
{
	printf("%s: %d %d\n", what, semctl(set, 0, GETVAL),
	       semctl(set, 1, GETVAL));
	fflush(stdout);
}

static void *thread(void *argument)
{
	up(1);
	pause();
	return argument;
}

// In an IPC namespace of its own.
static int child(void *argument)
{
	int own;

	(void)argument;
	printf("the parent's set: %d\n", semctl(set, 0, GETVAL));
	printf("by its key: %d\n", semget(7, 1, 0));
	own = semget(7, 1, IPC_CREAT | 0600);
	printf("one's own: %d\n", semctl(own, 0, GETVAL));
	fflush(stdout);
	return 0;
}

static void in_child(void (*function)(void))
{
	fflush(stdout);
	if (fork() == 0) {
		function();
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

static void leaves_adjustments(void)
{
	up(0);
	values("one unit");
	printf("unshare: %d\n", unshare(CLONE_SYSVSEM));
	values("given back");
	up(0);
	values("one more");
}

static void leaves_all(void)
{
	int segment = shmget(IPC_PRIVATE, 4096, 0600);
	char *at = shmat(segment, NULL, 0);

	up(1);
	*at = 'x';
	shmctl(segment, IPC_RMID, NULL);
	printf("unshare: %d\n", unshare(CLONE_NEWIPC));
	child(NULL);
	printf("what was attached: %c, detached: %d\n", *at, shmdt(at));
}

static void clones(void)
{
	static char stack[1 << 18] __attribute__((aligned(64)));
	pid_t pid = clone(child, stack + sizeof(stack), CLONE_NEWIPC | SIGCHLD,
			  NULL);

	waitpid(pid, NULL, 0);
	pid = syscall(SYS_clone, CLONE_NEWIPC | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(child(NULL));
	waitpid(pid, NULL, 0);
	values("the parent's");
}

static void with_threads(void)
{
	pthread_t other;

	pthread_create(&other, NULL, thread, NULL);
	while (semctl(set, 1, GETVAL) == 0)
		usleep(1000);
	printf("unshare: %d\n", unshare(CLONE_SYSVSEM));
	values("another thread has it still");
}

int main(void)
{
	set = semget(7, 2, IPC_CREAT | 0600);
	in_child(leaves_adjustments);
	values("after it");
	in_child(with_threads);
	values("after it");
	in_child(leaves_all);
	values("after it");
	in_child(clones);
	semctl(set, 0, IPC_RMID);
	return 0;
}
