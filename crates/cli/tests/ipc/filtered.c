// SPDX-License-Identifier: MIT OR Apache-2.0
// A child that is killed for any system call but a few makes its first calls;
// so does one that may have no descriptor, or has no number left for one.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const int SETS[] = {SYS_semop,  SYS_semtimedop,	   SYS_semctl,
			   SYS_msgsnd, SYS_msgrcv,	   SYS_msgctl,
			   SYS_futex,  SYS_rt_sigprocmask, SYS_mremap,
			   SYS_munmap, SYS_exit_group,	   SYS_brk,
			   SYS_mmap,   SYS_rt_sigreturn};
// Without those that fork's own caller needs.
static const int FORKS[] = {SYS_openat,	    SYS_newfstatat, SYS_fstat,
			    SYS_fcntl,	    SYS_membarrier, SYS_read,
			    SYS_readlinkat, SYS_fallocate,  SYS_mmap};

// Kills for all but these calls, or for these.
static void filter(const int *calls, unsigned count, int kills)
{
	struct sock_filter steps[64] = {BPF_STMT(
		BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
	struct sock_fprog program = {.filter = steps};
	unsigned length = 1;

	for (unsigned i = 0; i < count; i++)
		steps[length++] = (struct sock_filter)BPF_JUMP(
			BPF_JMP | BPF_JEQ | BPF_K, calls[i], count - i, 0);
	steps[length++] = (struct sock_filter)BPF_STMT(
		BPF_RET | BPF_K,
		kills ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS);
	steps[length++] = (struct sock_filter)BPF_STMT(
		BPF_RET | BPF_K,
		kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW);
	program.len = length;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (kills ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
		  : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(9);
}

// Waits for its parent, and has its parent wait.
static int talks(int set, int queue)
{
	struct sembuf ops[] = {
		{.sem_num = 0, .sem_op = -1},
		{.sem_num = 1, .sem_op = 1, .sem_flg = SEM_UNDO}};
	struct sembuf taken = {.sem_num = 1};
	struct {
		long type;
		char text[1000];
	} message = {.type = 1};

	for (int i = 0; i < 100; i++)
		if (semop(set, ops, 1) || msgsnd(queue, &message, 1000, 0) ||
		    semop(set, ops + 1, 1))
			return 1;
	// Its end takes back what its parent has not taken.
	return semop(set, &taken, 1) || semctl(set, 1, GETVAL) < 0;
}

static void by_filter(void)
{
	filter(SETS, sizeof(SETS) / sizeof(*SETS), 0);
}

static void by_limit(void)
{
	struct rlimit none = {0};

	if (setrlimit(RLIMIT_NOFILE, &none) || open("/dev/null", O_RDONLY) >= 0)
		_exit(9);
}

static int sandboxed(void (*begin)(void))
{
	int set = semget(IPC_PRIVATE, 2, 0600),
	    queue = msgget(IPC_PRIVATE, 0600), status;
	struct sembuf ops[] = {{.sem_num = 0, .sem_op = 1},
			       {.sem_num = 1, .sem_op = -1}};
	char message[1008];
	pid_t child = fork();

	if (child == 0) {
		begin();
		_exit(talks(set, queue));
	}
	for (int i = 0; i < 100; i++) {
		usleep(i % 10 ? 0 : 3000);
		semop(set, ops, 1);
		// Not for ever, if the child was killed.
		while (semtimedop(set, ops + 1, 1,
				  &(struct timespec){.tv_nsec = 50000000}))
			if (waitpid(child, &status, WNOHANG) == child)
				return status;
		if (msgrcv(queue, message, 1000, 0, IPC_NOWAIT) != 1000)
			return -1;
	}
	waitpid(child, &status, 0);
	semctl(set, 0, IPC_RMID);
	msgctl(queue, IPC_RMID, NULL);
	return status;
}

static int filtered(void)
{
	return sandboxed(by_filter);
}

// New objects, too.
static int limited(void)
{
	int status = sandboxed(by_limit), set;

	by_limit();
	set = semget(IPC_PRIVATE, 1, 0600);
	return status || set < 0 || semctl(set, 0, IPC_RMID);
}

static int without_files(void)
{
	struct rlimit limit = {.rlim_cur = 20, .rlim_max = 20};
	struct sembuf up = {.sem_op = 1};
	char byte[sizeof(long) + 1] = {1}, *at;
	int set, queue, segment;
	struct shmid_ds about;

	setrlimit(RLIMIT_NOFILE, &limit);
	while (open("/dev/null", O_RDONLY) >= 0)
		;
	set = semget(IPC_PRIVATE, 1, 0600), queue = msgget(IPC_PRIVATE, 0600);
	segment = shmget(IPC_PRIVATE, 4096, 0600);
	at = shmat(segment, NULL, 0);
	if (at == (void *)-1)
		return errno;
	*at = 1;
	if (semop(set, &up, 1) || msgsnd(queue, byte, 1, 0) ||
	    semctl(set, 0, GETVAL) != 1 || shmctl(segment, IPC_STAT, &about) ||
	    about.shm_nattch != 1 || open("/dev/null", O_RDONLY) >= 0)
		return errno;
	shmctl(segment, IPC_RMID, NULL);
	shmdt(at);
	semctl(set, 0, IPC_RMID);
	return msgctl(queue, IPC_RMID, NULL);
}

// The child of a fork opens nothing, asks nothing.
static int forks(void)
{
	int segment = shmget(IPC_PRIVATE, 4096, 0600), status = 0;

	shmat(segment, NULL, 0);
	shmctl(segment, IPC_RMID, NULL);
	for (int i = 0; i < 3 && status == 0; i++) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		waitpid(child, &status, 0);
		// The parent has names left for the next child.
		if (i == 1)
			filter(FORKS, sizeof(FORKS) / sizeof(*FORKS), 1);
	}
	return status;
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";
	int (*function)(void) = !strcmp(what, "files")	 ? without_files
				: !strcmp(what, "forks") ? forks
				: !strcmp(what, "limit") ? limited
							 : filtered;
	int status = function();

	if (status)
		dprintf(1, "%s: %#x, %s\n", what, status, strerror(errno));
	else
		status = write(1, "fine\n", 5) != 5;
	_exit(status != 0);
}
