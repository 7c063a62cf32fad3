// SPDX-License-Identifier: MIT OR Apache-2.0
// The lists in the manual pages of the System V calls: each error, flag and
// command. Prints a line per case, "CALL WHAT: RESULT"; ids and other values
// that may differ are not printed. The lines of two implementations can be
// compared.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534
#define PAGE 4096
// An address that no process may use.
#define BAD ((void *)8)

enum { NEW = IPC_CREAT | 0600 };

struct message {
	long type;
	char text[64];
};

// Prints a case's result: the error, or the value.
static long told(long result, const char *format, ...)
{
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	if (result == -1)
		printf(": %s\n", strerrorname_np(error));
	else
		printf(": %ld\n", result);
	fflush(stdout);
	return result;
}

// The same where the value is an id or an address.
static void tells(long result, const char *what)
{
	told(result == -1 ? -1 : 0, "%s", what);
}

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static pid_t child(void (*run)(int), int id)
{
	pid_t pid = fork();

	must(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(id);
		_exit(0);
	}
	return pid;
}

static void ended(pid_t pid)
{
	int status;

	must(waitpid(pid, &status, 0) == pid && status == 0, "a child");
}

static void brief(void)
{
	struct timespec time = {0, 500000};

	nanosleep(&time, NULL);
}

static int op(int id, int num, int change, int flags)
{
	struct sembuf op = {num, change, flags};

	return semop(id, &op, 1);
}

static int value(int id, int num)
{
	return semctl(id, num, GETVAL);
}

static void nothing(int signal)
{
	(void)signal;
}

// Signals come, the first after that many microseconds, until one has arrived
// while the process waits. SA_RESTART does not restart these calls.
static void interrupted_often(int first)
{
	struct sigaction action = {.sa_handler = nothing,
				   .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 20000}, {0, first}};

	must(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
	must(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
}

// Semaphores.

static void sem_is_interrupted(int id)
{
	interrupted_often(20000);
	told(op(id, 0, -100, 0), "semop interrupted");
	struct sembuf take = {0, -100, 0};
	struct timespec long_time = {1000, 0};
	told(semtimedop(id, &take, 1, &long_time), "semtimedop interrupted");
}

// The first signal comes before the wait, while the call is under way.
static void sem_is_interrupted_early(int id)
{
	must(op(id, 0, -100, 0) == -1 && errno == EINTR, "EINTR");
}

static void sem_is_removed(int id)
{
	told(op(id, 0, -100, 0), "semop of a set that is removed");
}

static void sem_waits_for_zero(int id)
{
	told(op(id, 0, 0, 0), "semop that waits for zero");
}

static void sem_waits(int id)
{
	told(op(id, 0, -100, 0), "semop that waits");
}

static void raises_and_exits(int id)
{
	told(op(id, 1, 7, SEM_UNDO), "semop SEM_UNDO");
}

static void raises_and_dies(int id)
{
	op(id, 1, 7, SEM_UNDO);
	raise(SIGKILL);
}

static void raises_and_executes(int id)
{
	char number[16];

	op(id, 1, 7, SEM_UNDO);
	snprintf(number, sizeof(number), "%d", id);
	execl("/proc/self/exe", "manual", "value", number, NULL);
	_exit(1);
}

static void forks_with_adjustments(int id)
{
	op(id, 1, 7, SEM_UNDO);
	if (fork() == 0)
		_exit(0);
	wait(NULL);
	told(value(id, 1), "semop SEM_UNDO, a child has ended");
	// Set values void adjustments.
	told(semctl(id, 1, SETVAL, 5), "semctl SETVAL voids adjustments");
}

static void sem_of_another(int id)
{
	unsigned short values[3] = {0, 0, 0};
	struct semid_ds ds;
	struct seminfo info;

	must(setgroups(0, NULL) == 0, "setgroups");
	must(setresgid(NOBODY, NOBODY, NOBODY) == 0, "setresgid");
	must(setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid");
	tells(semget(0x5101, 3, 0400), "semget another's, to read");
	tells(semget(0x5101, 3, 0), "semget another's, mode 0");
	told(op(id, 0, 1, 0), "semop another's");
	told(op(id, 0, 0, IPC_NOWAIT), "semop another's, for zero");
	told(semctl(id, 0, GETVAL), "semctl GETVAL another's");
	told(semctl(id, 0, GETPID), "semctl GETPID another's");
	told(semctl(id, 0, GETNCNT), "semctl GETNCNT another's");
	told(semctl(id, 0, GETZCNT), "semctl GETZCNT another's");
	told(semctl(id, 0, GETALL, values), "semctl GETALL another's");
	told(semctl(id, 0, SETVAL, 1), "semctl SETVAL another's");
	told(semctl(id, 0, SETALL, values), "semctl SETALL another's");
	told(semctl(id, 0, IPC_STAT, &ds), "semctl IPC_STAT another's");
	told(semctl(0, 0, SEM_STAT, &ds), "semctl SEM_STAT another's");
	memset(&ds, 0, sizeof(ds));
	tells(semctl(0, 0, SEM_STAT_ANY, &ds), "semctl SEM_STAT_ANY another's");
	told(ds.sem_nsems, "semctl SEM_STAT_ANY another's, semaphores");
	told(semctl(id, 0, IPC_SET, &ds), "semctl IPC_SET another's");
	told(semctl(id, 0, IPC_RMID), "semctl IPC_RMID another's");
	told(semctl(0, 0, SEM_INFO, &info), "semctl SEM_INFO another's");
}

static void semaphores(int root)
{
	struct sembuf many[501], ops[2] = {{0, 0, 0}, {0, 0, 0}};
	unsigned short values[3] = {1, 2, 3};
	struct semid_ds ds;
	struct seminfo info;
	struct timespec time = {0, 1000000}, wrong = {0, -1}, past = {-1, 0};
	int id, other, done, made[4];
	pid_t pid;

	tells(semget(0x5101, 3, 0600), "semget no such key");
	tells(semget(0x5101, -1, NEW), "semget -1 semaphores");
	tells(semget(0x5101, 0, NEW), "semget no semaphores");
	tells(semget(0x5101, 32001, NEW), "semget more than SEMMSL");
	id = semget(0x5101, 3, NEW);
	tells(id, "semget IPC_CREAT");
	told(semget(0x5101, 3, NEW) == id, "semget IPC_CREAT again");
	told(semget(0x5101, 0, 0) == id, "semget of whatever size");
	tells(semget(0x5101, 4, 0), "semget a smaller one");
	tells(semget(0x5101, 3, NEW | IPC_EXCL), "semget IPC_EXCL");
	other = semget(IPC_PRIVATE, 1, 0600);
	told(other != id && other >= 0, "semget IPC_PRIVATE");

	memset(many, 0, sizeof(many));
	told(semop(id, many, 500), "semop SEMOPM operations");
	told(semop(id, many, 501), "semop more than SEMOPM");
	told(semop(id, many, 0), "semop of nothing");
	told(semop(-1, many, 1), "semop id -1");
	told(semop(0x7ffffff0, many, 1), "semop no such id");
	told(semop(id, NULL, 1), "semop ops NULL");
	told(semop(id, BAD, 1), "semop ops at a bad address");
	told(semtimedop(id, many, 1, BAD), "semtimedop timeout at a bad place");
	told(semtimedop(id, many, 1, &wrong), "semtimedop timeout of -1 ns");
	told(semtimedop(id, many, 1, &past), "semtimedop timeout of -1 s");
	told(op(id, 3, 1, 0), "semop no such semaphore");
	told(op(id, 65535, 1, 0), "semop semaphore -1");
	told(op(id, 0, -1, IPC_NOWAIT), "semop IPC_NOWAIT");
	ops[0].sem_op = -1;
	told(semtimedop(id, ops, 1, &time), "semtimedop that times out");
	told(op(id, 0, 32767, 0), "semop to SEMVMX");
	told(op(id, 0, 1, 0), "semop above SEMVMX");
	told(op(id, 0, 0, IPC_NOWAIT), "semop for zero, IPC_NOWAIT");
	told(op(id, 0, -32767, 0), "semop down from SEMVMX");
	told(op(id, 0, 32767, SEM_UNDO), "semop SEM_UNDO, to SEMVMX");
	told(op(id, 0, -32767, 0), "semop down again");
	told(op(id, 0, 2, SEM_UNDO), "semop SEM_UNDO, adjustment too low");
	told(value(id, 0), "semop all or nothing, value");
	told(semctl(id, 0, SETVAL, 0), "semctl SETVAL 0");

	told(semctl(id, 0, SETALL, values), "semctl SETALL");
	memset(values, 9, sizeof(values));
	told(semctl(id, 0, GETALL, values), "semctl GETALL");
	told(values[0] * 100 + values[1] * 10 + values[2], "semctl GETALL is");
	told(semctl(id, 2, SETVAL, 32767), "semctl SETVAL SEMVMX");
	told(semctl(id, 2, SETVAL, 32768), "semctl SETVAL above SEMVMX");
	told(semctl(id, 2, SETVAL, -1), "semctl SETVAL -1");
	told(semctl(id, 3, SETVAL, 1), "semctl SETVAL of no semaphore");
	values[1] = 32768;
	told(semctl(id, 0, SETALL, values), "semctl SETALL above SEMVMX");
	told(value(id, 1), "semctl GETVAL after a SETALL that failed");
	told(semctl(id, 3, GETVAL), "semctl GETVAL of no semaphore");
	told(semctl(id, -1, GETVAL), "semctl GETVAL of semaphore -1");
	told(semctl(id, 0, GETPID) == getpid(), "semctl GETPID");
	told(semctl(id, 0, GETNCNT), "semctl GETNCNT nobody");
	told(semctl(id, 0, GETZCNT), "semctl GETZCNT nobody");
	told(semctl(id, 0, GETALL, NULL), "semctl GETALL to NULL");
	told(semctl(id, 0, SETALL, NULL), "semctl SETALL from NULL");
	told(semctl(id, 0, IPC_STAT, NULL), "semctl IPC_STAT to NULL");
	told(semctl(id, 0, IPC_SET, NULL), "semctl IPC_SET from NULL");
	told(semctl(0, 0, SEM_STAT, NULL), "semctl SEM_STAT to NULL");
	told(semctl(0, 0, IPC_INFO, NULL), "semctl IPC_INFO to NULL");
	told(semctl(id, 0, 77, 0), "semctl no such command");
	told(semctl(-1, 0, GETVAL), "semctl id -1");
	told(semctl(0x7ffffff0, 0, GETVAL), "semctl no such id");
	told(semctl(0x7ffffff0, 0, IPC_RMID), "semctl IPC_RMID no such id");

	memset(&ds, 9, sizeof(ds));
	told(semctl(id, 0, IPC_STAT, &ds), "semctl IPC_STAT");
	told(ds.sem_nsems, "semctl IPC_STAT semaphores");
	told(ds.sem_perm.mode, "semctl IPC_STAT mode");
	told(ds.sem_perm.__key, "semctl IPC_STAT key");
	told(ds.sem_otime != 0 && ds.sem_ctime != 0, "semctl IPC_STAT times");
	ds.sem_perm.mode = 01640;
	told(semctl(id, 0, IPC_SET, &ds), "semctl IPC_SET");
	told(semctl(0, 0, SEM_STAT, &ds) == id, "semctl SEM_STAT");
	told(ds.sem_perm.mode, "semctl SEM_STAT mode");
	told(semctl(1, 0, SEM_STAT, &ds) == other, "semctl SEM_STAT second");
	told(semctl(2, 0, SEM_STAT, &ds), "semctl SEM_STAT empty slot");
	told(semctl(-1, 0, SEM_STAT, &ds), "semctl SEM_STAT slot -1");
	told(semctl(0, 0, SEM_STAT_ANY, &ds) == id, "semctl SEM_STAT_ANY");
	told(semctl(2, 0, SEM_STAT_ANY, &ds), "semctl SEM_STAT_ANY no slot");
	memset(&info, 9, sizeof(info));
	told(semctl(0, 0, IPC_INFO, &info), "semctl IPC_INFO");
	printf("semctl IPC_INFO is: %d %d %d %d %d %d %d %d %d %d\n",
	       info.semmap, info.semmni, info.semmns, info.semmnu, info.semmsl,
	       info.semopm, info.semume, info.semusz, info.semvmx, info.semaem);
	told(semctl(0, 0, SEM_INFO, &info), "semctl SEM_INFO");
	printf("semctl SEM_INFO is: %d %d\n", info.semusz, info.semaem);

	// Callers that wait, are interrupted, are sent away.
	ended(child(sem_is_interrupted, id));
	for (int first = 5; first <= 500; first += 5) {
		pid = fork();
		must(pid >= 0, "fork");
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			interrupted_often(first);
			sem_is_interrupted_early(id);
			_exit(0);
		}
		ended(pid);
	}
	told(semctl(id, 0, GETNCNT), "semctl GETNCNT after interruptions");
	pid = child(sem_waits, id);
	while (semctl(id, 0, GETNCNT) != 1)
		brief();
	told(semctl(id, 0, GETNCNT), "semctl GETNCNT");
	told(semctl(id, 0, GETZCNT), "semctl GETZCNT of who does not");
	done = semctl(id, 0, SETVAL, 100);
	ended(pid);
	told(done, "semctl SETVAL wakes");
	told(semctl(id, 0, SETVAL, 1), "semctl SETVAL 1");
	pid = child(sem_waits_for_zero, id);
	while (semctl(id, 0, GETZCNT) != 1)
		brief();
	done = op(id, 0, -1, 0);
	ended(pid);
	told(done, "semop to zero");
	pid = child(sem_is_removed, other);
	while (semctl(other, 0, GETNCNT) != 1)
		brief();
	done = semctl(other, 0, IPC_RMID);
	ended(pid);
	told(done, "semctl IPC_RMID");
	told(value(other, 0), "semctl GETVAL of a removed set");
	told(op(other, 0, 1, 0), "semop of a removed set");

	// Adjustments.
	semctl(id, 1, SETVAL, 0);
	ended(child(raises_and_exits, id));
	told(value(id, 1), "semop SEM_UNDO, exited");
	waitpid(child(raises_and_dies, id), NULL, 0);
	told(value(id, 1), "semop SEM_UNDO, killed");
	ended(child(raises_and_executes, id));
	told(value(id, 1), "semop SEM_UNDO, executed and exited");
	ended(child(forks_with_adjustments, id));
	told(value(id, 1), "semop SEM_UNDO, voided");

	if (root) {
		semctl(id, 0, IPC_STAT, &ds);
		ds.sem_perm.mode = 0600;
		semctl(id, 0, IPC_SET, &ds);
		ended(child(sem_of_another, id));
		// The limits are those of limited().
		for (int i = 0; i < 4; i++) {
			made[i] = semget(IPC_PRIVATE, 1, 0600);
			tells(made[i], "semget SEMMNI");
		}
		semctl(made[0], 0, IPC_RMID);
		tells(semget(IPC_PRIVATE, 32000, 0600), "semget SEMMNS");
		semctl(made[1], 0, IPC_RMID);
		semctl(made[2], 0, IPC_RMID);
	}
	semctl(id, 0, IPC_RMID);
}

// Message queues.

static int send(int id, long type, size_t size, int flags)
{
	struct message message = {type, "0123456789"};

	return msgsnd(id, &message, size, flags);
}

static long receive(int id, long type, size_t size, int flags)
{
	struct message message = {-1, ""};
	long bytes = msgrcv(id, &message, size, type, flags);

	// The type, and how many bytes.
	return bytes < 0 ? -1 : message.type * 100 + bytes;
}

static void msg_is_interrupted(int id)
{
	interrupted_often(20000);
	told(receive(id, 99, 10, 0), "msgrcv interrupted");
}

static void sender_is_interrupted(int id)
{
	interrupted_often(20000);
	told(send(id, 1, 10, 0), "msgsnd interrupted");
}

static void receiver_is_removed(int id)
{
	told(receive(id, 99, 10, 0), "msgrcv of a queue that is removed");
}

static void sender_is_removed(int id)
{
	told(send(id, 1, 10, 0), "msgsnd to a queue that is removed");
}

// Until a child sleeps in the call: in the kernel's function, or in a futex.
static void until_asleep(pid_t pid)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		must(file != NULL, path);
		if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			state = 0;
		fclose(file);
		brief();
	}
}

static void msg_of_another(int id)
{
	struct msqid_ds ds;

	must(setgroups(0, NULL) == 0, "setgroups");
	must(setresgid(NOBODY, NOBODY, NOBODY) == 0, "setresgid");
	must(setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid");
	tells(msgget(0x5102, 0400), "msgget another's, to read");
	tells(msgget(0x5102, 0), "msgget another's, mode 0");
	told(send(id, 1, 1, IPC_NOWAIT), "msgsnd another's");
	told(receive(id, 0, 1, IPC_NOWAIT), "msgrcv another's");
	told(msgctl(id, IPC_STAT, &ds), "msgctl IPC_STAT another's");
	told(msgctl(0, MSG_STAT, &ds), "msgctl MSG_STAT another's");
	memset(&ds, 0, sizeof(ds));
	tells(msgctl(0, MSG_STAT_ANY, &ds), "msgctl MSG_STAT_ANY another's");
	told(ds.msg_qbytes, "msgctl MSG_STAT_ANY another's, room");
	told(msgctl(id, IPC_SET, &ds), "msgctl IPC_SET another's");
	told(msgctl(id, IPC_RMID, NULL), "msgctl IPC_RMID another's");
}

static void msg_unprivileged(int id)
{
	struct msqid_ds ds;

	msgctl(id, IPC_STAT, &ds);
	ds.msg_perm.uid = NOBODY;
	must(msgctl(id, IPC_SET, &ds) == 0, "IPC_SET");
	must(setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid");
	ds.msg_qbytes = 16385;
	told(msgctl(id, IPC_SET, &ds), "msgctl IPC_SET more than MSGMNB");
	ds.msg_qbytes = 16384;
	told(msgctl(id, IPC_SET, &ds), "msgctl IPC_SET MSGMNB");
}

static void queues(int root)
{
	struct message message = {1, "x"};
	struct msqid_ds ds;
	struct msginfo info;
	char large[9000] = {1};
	int id, other, done, made[4];
	pid_t pid;

	tells(msgget(0x5102, 0600), "msgget no such key");
	id = msgget(0x5102, NEW);
	tells(id, "msgget IPC_CREAT");
	told(msgget(0x5102, NEW) == id, "msgget IPC_CREAT again");
	tells(msgget(0x5102, NEW | IPC_EXCL), "msgget IPC_EXCL");
	other = msgget(IPC_PRIVATE, 0600);
	told(other != id && other >= 0, "msgget IPC_PRIVATE");

	told(send(-1, 1, 1, 0), "msgsnd id -1");
	told(send(0x7ffffff0, 1, 1, 0), "msgsnd no such id");
	told(send(id, 0, 1, 0), "msgsnd type 0");
	told(send(id, -1, 1, 0), "msgsnd type -1");
	told(msgsnd(id, &message, -1, 0), "msgsnd size -1");
	told(msgsnd(id, large, 8193, 0), "msgsnd more than MSGMAX");
	told(msgsnd(id, NULL, 1, 0), "msgsnd NULL");
	told(msgsnd(id, BAD, 1, 0), "msgsnd at a bad address");
	told(msgsnd(id, large, 8192, 0), "msgsnd MSGMAX");
	told(msgsnd(id, large, 8192, 0), "msgsnd MSGMAX again");
	told(send(id, 1, 1, IPC_NOWAIT), "msgsnd IPC_NOWAIT");
	ended(child(sender_is_interrupted, id));
	told(receive(id, 0, 64, 0), "msgrcv too long");
	told(receive(id, 0, 64, MSG_NOERROR) % 100, "msgrcv MSG_NOERROR");
	told(receive(id, 0, 64, MSG_NOERROR) % 100, "msgrcv MSG_NOERROR again");

	for (int type = 1; type <= 4; type++)
		told(send(id, type, type, 0), "msgsnd");
	told(receive(-1, 0, 10, 0), "msgrcv id -1");
	told(receive(0x7ffffff0, 0, 10, 0), "msgrcv no such id");
	told(msgrcv(id, &message, -1, 0, 0), "msgrcv size -1");
	told(receive(id, 2, 10, MSG_COPY), "msgrcv MSG_COPY that would wait");
	told(receive(id, 2, 10, MSG_COPY | MSG_EXCEPT | IPC_NOWAIT),
	     "msgrcv MSG_COPY and MSG_EXCEPT");
	told(receive(id, 2, 10, MSG_COPY | IPC_NOWAIT), "msgrcv MSG_COPY");
	told(receive(id, 4, 10, MSG_COPY | IPC_NOWAIT),
	     "msgrcv MSG_COPY beyond the last");
	told(receive(id, 2, 1, MSG_COPY | IPC_NOWAIT),
	     "msgrcv MSG_COPY too long");
	told(receive(id, 2, 1, MSG_COPY | IPC_NOWAIT | MSG_NOERROR),
	     "msgrcv MSG_COPY MSG_NOERROR");
	told(receive(id, 9, 10, IPC_NOWAIT), "msgrcv IPC_NOWAIT");
	told(receive(id, 1, 10, MSG_EXCEPT), "msgrcv MSG_EXCEPT");
	told(receive(id, -3, 10, 0), "msgrcv the lowest type");
	told(receive(id, 4, 10, 0), "msgrcv a type");
	told(receive(id, -2, 10, IPC_NOWAIT), "msgrcv no low type");
	told(receive(id, 0, 10, 0), "msgrcv the first");
	told(receive(id, 0, 10, IPC_NOWAIT), "msgrcv of nothing");
	told(send(id, 5, 0, 0), "msgsnd of no bytes");
	told(receive(id, 0, 0, 0), "msgrcv of no bytes");
	send(id, 1, 5, 0);
	told(msgrcv(id, NULL, 10, 0, 0), "msgrcv to NULL");
	send(id, 1, 5, 0);
	told(msgrcv(id, BAD, 10, 0, 0), "msgrcv to a bad address");
	while (receive(id, 0, 10, IPC_NOWAIT) >= 0)
		;
	ended(child(msg_is_interrupted, id));

	memset(&ds, 9, sizeof(ds));
	told(msgctl(id, IPC_STAT, &ds), "msgctl IPC_STAT");
	told(ds.msg_qbytes, "msgctl IPC_STAT room");
	told(ds.msg_qnum, "msgctl IPC_STAT messages");
	told(ds.msg_perm.mode, "msgctl IPC_STAT mode");
	told(ds.msg_stime != 0 && ds.msg_rtime != 0 && ds.msg_ctime != 0,
	     "msgctl IPC_STAT times");
	ds.msg_perm.mode = 01640;
	ds.msg_qbytes = 100;
	told(msgctl(id, IPC_SET, &ds), "msgctl IPC_SET");
	told(msgctl(0, MSG_STAT, &ds) == id, "msgctl MSG_STAT");
	told(ds.msg_perm.mode, "msgctl MSG_STAT mode");
	told(msgctl(2, MSG_STAT, &ds), "msgctl MSG_STAT empty slot");
	told(msgctl(-1, MSG_STAT, &ds), "msgctl MSG_STAT slot -1");
	told(msgctl(1, MSG_STAT_ANY, &ds) == other, "msgctl MSG_STAT_ANY");
	told(msgctl(2, MSG_STAT_ANY, &ds), "msgctl MSG_STAT_ANY no slot");
	memset(&info, 9, sizeof(info));
	told(msgctl(0, IPC_INFO, (void *)&info), "msgctl IPC_INFO");
	printf("msgctl IPC_INFO is: %d %d %d %d %d %d %d %d\n", info.msgpool,
	       info.msgmap, info.msgmax, info.msgmnb, info.msgmni, info.msgssz,
	       info.msgtql, info.msgseg);
	send(id, 1, 10, 0);
	told(msgctl(0, MSG_INFO, (void *)&info), "msgctl MSG_INFO");
	printf("msgctl MSG_INFO is: %d %d %d\n", info.msgpool, info.msgmap,
	       info.msgtql);
	told(msgctl(id, IPC_STAT, NULL), "msgctl IPC_STAT to NULL");
	told(msgctl(id, IPC_SET, NULL), "msgctl IPC_SET from NULL");
	told(msgctl(0, MSG_STAT, NULL), "msgctl MSG_STAT to NULL");
	told(msgctl(0, IPC_INFO, NULL), "msgctl IPC_INFO to NULL");
	told(msgctl(id, 77, NULL), "msgctl no such command");
	told(msgctl(-1, IPC_STAT, &ds), "msgctl id -1");
	told(msgctl(0x7ffffff0, IPC_RMID, NULL), "msgctl IPC_RMID no such id");

	pid = child(receiver_is_removed, other);
	until_asleep(pid);
	done = msgctl(other, IPC_RMID, NULL);
	ended(pid);
	told(done, "msgctl IPC_RMID");
	told(send(other, 1, 1, 0), "msgsnd to a removed queue");
	told(receive(other, 0, 1, 0), "msgrcv of a removed queue");
	other = msgget(IPC_PRIVATE, 0600);
	while (msgsnd(other, large, 8192, IPC_NOWAIT) == 0)
		;
	pid = child(sender_is_removed, other);
	until_asleep(pid);
	msgctl(other, IPC_RMID, NULL);
	ended(pid);

	if (root) {
		msgctl(id, IPC_STAT, &ds);
		ds.msg_perm.mode = 0600;
		ds.msg_qbytes = 16384;
		msgctl(id, IPC_SET, &ds);
		ended(child(msg_of_another, id));
		ended(child(msg_unprivileged, id));
		for (int i = 0; i < 4; i++) {
			made[i] = msgget(IPC_PRIVATE, 0600);
			tells(made[i], "msgget MSGMNI");
		}
		for (int i = 0; i < 3; i++)
			msgctl(made[i], IPC_RMID, NULL);
	}
	msgctl(id, IPC_RMID, NULL);
}

// Shared memory.

static void *const failed = (void *)-1;

static long attach(int id, const void *at, int flags, const char *what)
{
	void *segment = shmat(id, at, flags);

	if (segment == failed)
		return told(-1, "%s", what);
	told(0, "%s", what);
	return shmdt(segment);
}

static long attached(int id)
{
	struct shmid_ds ds;

	return shmctl(id, IPC_STAT, &ds) == 0 ? (long)ds.shm_nattch : -1;
}

static int writes(char *at)
{
	int ends[2], done;

	// The kernel writes there, so a refusal is an error and no signal.
	must(pipe(ends) == 0 && write(ends[1], "x", 1) == 1, "pipe");
	done = read(ends[0], at, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return done;
}

static void shm_of_another(int id)
{
	struct shmid_ds ds;
	struct rlimit none = {0, PAGE}, little = {PAGE, PAGE};
	int own, error;

	must(setgroups(0, NULL) == 0, "setgroups");
	must(setresgid(NOBODY, NOBODY, NOBODY) == 0, "setresgid");
	must(setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid");
	tells(shmget(0x5103, 1, 0400), "shmget another's, to read");
	tells(shmget(0x5103, 1, 0), "shmget another's, mode 0");
	attach(id, NULL, 0, "shmat another's");
	attach(id, NULL, SHM_RDONLY, "shmat SHM_RDONLY another's");
	told(shmctl(id, IPC_STAT, &ds), "shmctl IPC_STAT another's");
	told(shmctl(0, SHM_STAT, &ds), "shmctl SHM_STAT another's");
	memset(&ds, 0, sizeof(ds));
	tells(shmctl(0, SHM_STAT_ANY, &ds), "shmctl SHM_STAT_ANY another's");
	told(ds.shm_segsz, "shmctl SHM_STAT_ANY another's, size");
	told(shmctl(id, IPC_SET, &ds), "shmctl IPC_SET another's");
	told(shmctl(id, IPC_RMID, NULL), "shmctl IPC_RMID another's");
	told(shmctl(id, SHM_LOCK, NULL), "shmctl SHM_LOCK another's");
	told(shmctl(id, SHM_UNLOCK, NULL), "shmctl SHM_UNLOCK another's");
	setrlimit(RLIMIT_MEMLOCK, &none);
	own = shmget(IPC_PRIVATE, 3 * PAGE, SHM_HUGETLB | 0600);
	error = errno;
	if (own >= 0)
		shmctl(own, IPC_RMID, NULL);
	errno = error;
	tells(own, "shmget SHM_HUGETLB unprivileged");
	own = shmget(IPC_PRIVATE, 3 * PAGE, 0600);
	must(own >= 0, "shmget of nobody");
	setrlimit(RLIMIT_MEMLOCK, &little);
	told(shmctl(own, SHM_LOCK, NULL), "shmctl SHM_LOCK more than allowed");
	setrlimit(RLIMIT_MEMLOCK, &none);
	told(shmctl(own, SHM_LOCK, NULL), "shmctl SHM_LOCK nothing allowed");
	told(shmctl(own, IPC_RMID, NULL), "shmctl IPC_RMID own");
}

static void shm_without_room(int id)
{
	struct rlimit little = {PAGE, PAGE};

	must(setrlimit(RLIMIT_AS, &little) == 0, "RLIMIT_AS");
	attach(id, NULL, 0, "shmat no room");
}

static void inherits_and_executes(int id)
{
	char number[16];

	told(attached(id), "shmat inherited");
	snprintf(number, sizeof(number), "%d", id);
	execl("/proc/self/exe", "manual", "attached", number, NULL);
	_exit(1);
}

static void segments(int root)
{
	struct shmid_ds ds;
	struct shminfo limits;
	struct shm_info info;
	int id, other, text, made[4];
	char *at, *again, *area;

	tells(shmget(0x5103, PAGE, 0600), "shmget no such key");
	tells(shmget(0x5103, 0, NEW), "shmget less than SHMMIN");
	tells(shmget(0x5103, -1, NEW), "shmget more than SHMMAX");
	id = shmget(0x5103, 3 * PAGE, NEW);
	tells(id, "shmget IPC_CREAT");
	told(shmget(0x5103, 3 * PAGE, NEW) == id, "shmget IPC_CREAT again");
	told(shmget(0x5103, 0, 0) == id, "shmget of whatever size");
	tells(shmget(0x5103, 4 * PAGE, 0), "shmget a smaller one");
	tells(shmget(0x5103, 3 * PAGE, NEW | IPC_EXCL), "shmget IPC_EXCL");
	other = shmget(IPC_PRIVATE, 100, SHM_NORESERVE | 0600);
	tells(other, "shmget SHM_NORESERVE, IPC_PRIVATE");
	text = shmget(IPC_PRIVATE, PAGE, SHM_HUGETLB | 0600);
	tells(text, "shmget SHM_HUGETLB");
	if (text >= 0)
		shmctl(text, IPC_RMID, NULL);

	area = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(area != MAP_FAILED, "mmap");
	attach(-1, NULL, 0, "shmat id -1");
	attach(0x7ffffff0, NULL, 0, "shmat no such id");
	attach(id, area + 1, 0, "shmat unaligned");
	attach(id, area, 0, "shmat where something is");
	attach(id, area + 1, SHM_RND, "shmat SHM_RND where something is");
	attach(id, NULL, SHM_REMAP, "shmat SHM_REMAP without a place");
	attach(id, (void *)1, SHM_REMAP | SHM_RND, "shmat SHM_REMAP at 0");
	attach(id, area + 1, SHM_REMAP, "shmat SHM_REMAP unaligned");
	at = shmat(id, area + 5, SHM_REMAP | SHM_RND);
	told(at == area, "shmat SHM_REMAP and SHM_RND");
	told(writes(at + 2 * PAGE), "shmat to write");
	told(shmdt(at), "shmdt after SHM_REMAP");
	munmap(area + 3 * PAGE, 5 * PAGE);
	at = shmat(id, area + 5, SHM_RND);
	told(at == area, "shmat SHM_RND");
	again = shmat(id, NULL, SHM_RDONLY);
	told(again != failed && *again == *at, "shmat SHM_RDONLY");
	told(writes(again), "shmat SHM_RDONLY writes");
	told(attached(id), "shmat twice");
	attach(id, NULL, SHM_EXEC, "shmat SHM_EXEC");
	attach(id, NULL, SHM_EXEC | SHM_RDONLY, "shmat SHM_EXEC SHM_RDONLY");
	told(shmdt(again + PAGE), "shmdt inside");
	told(shmdt(again + 1), "shmdt unaligned");
	told(shmdt(NULL), "shmdt NULL");
	told(shmdt(again), "shmdt");
	told(shmdt(again), "shmdt twice");
	ended(child(shm_without_room, id));
	told(attached(id), "shmat that failed");

	memset(&ds, 9, sizeof(ds));
	told(shmctl(id, IPC_STAT, &ds), "shmctl IPC_STAT");
	told(ds.shm_segsz, "shmctl IPC_STAT size");
	told(ds.shm_perm.mode, "shmctl IPC_STAT mode");
	told(ds.shm_cpid == getpid(), "shmctl IPC_STAT creator");
	told(ds.shm_atime != 0 && ds.shm_dtime != 0 && ds.shm_ctime != 0,
	     "shmctl IPC_STAT times");
	ds.shm_perm.mode = 01600;
	told(shmctl(id, IPC_SET, &ds), "shmctl IPC_SET");
	told(shmctl(0, SHM_STAT, &ds) == id, "shmctl SHM_STAT");
	told(ds.shm_perm.mode, "shmctl SHM_STAT mode");
	told(shmctl(7, SHM_STAT, &ds), "shmctl SHM_STAT empty slot");
	told(shmctl(-1, SHM_STAT, &ds), "shmctl SHM_STAT slot -1");
	told(shmctl(1, SHM_STAT_ANY, &ds) == other, "shmctl SHM_STAT_ANY");
	told(shmctl(7, SHM_STAT_ANY, &ds), "shmctl SHM_STAT_ANY no slot");
	told(shmctl(id, SHM_LOCK, NULL), "shmctl SHM_LOCK");
	shmctl(id, IPC_STAT, &ds);
	told(ds.shm_perm.mode, "shmctl SHM_LOCK mode");
	told(shmctl(id, SHM_UNLOCK, NULL), "shmctl SHM_UNLOCK");
	shmctl(id, IPC_STAT, &ds);
	told(ds.shm_perm.mode, "shmctl SHM_UNLOCK mode");
	memset(&limits, 9, sizeof(limits));
	told(shmctl(0, IPC_INFO, (void *)&limits), "shmctl IPC_INFO");
	printf("shmctl IPC_INFO is: %lu %lu %lu %lu %lu\n", limits.shmmax,
	       limits.shmmin, limits.shmmni, limits.shmseg, limits.shmall);
	told(shmctl(0, SHM_INFO, (void *)&info), "shmctl SHM_INFO");
	printf("shmctl SHM_INFO is: %d %lu\n", info.used_ids, info.shm_tot);
	told(shmctl(id, IPC_STAT, NULL), "shmctl IPC_STAT to NULL");
	told(shmctl(id, IPC_SET, NULL), "shmctl IPC_SET from NULL");
	told(shmctl(0, SHM_STAT, NULL), "shmctl SHM_STAT to NULL");
	told(shmctl(0, IPC_INFO, NULL), "shmctl IPC_INFO to NULL");
	told(shmctl(0, SHM_INFO, NULL), "shmctl SHM_INFO to NULL");
	told(shmctl(id, 77, NULL), "shmctl no such command");
	told(shmctl(-1, IPC_STAT, &ds), "shmctl id -1");
	told(shmctl(0x7ffffff0, IPC_RMID, NULL), "shmctl IPC_RMID no such id");

	ended(child(inherits_and_executes, id));
	told(attached(id), "shmat after exec and exit");
	if (root)
		ended(child(shm_of_another, id));

	told(shmctl(id, IPC_RMID, NULL), "shmctl IPC_RMID attached");
	tells(shmget(0x5103, 0, 0), "shmget a removed one");
	shmctl(id, IPC_STAT, &ds);
	told(ds.shm_perm.mode & SHM_DEST, "shmctl IPC_RMID SHM_DEST");
	attach(id, NULL, 0, "shmat a removed one");
	told(shmdt(at), "shmdt the last");
	attach(id, NULL, 0, "shmat one that is gone");
	told(shmctl(id, IPC_STAT, &ds), "shmctl IPC_STAT one that is gone");
	if (root) {
		tells(shmget(IPC_PRIVATE, 200 * PAGE, 0600), "shmget SHMALL");
		for (int i = 0; i < 4; i++) {
			made[i] = shmget(IPC_PRIVATE, 1, 0600);
			tells(made[i], "shmget SHMMNI");
		}
		for (int i = 0; i < 3; i++)
			shmctl(made[i], IPC_RMID, NULL);
	}
	shmctl(other, IPC_RMID, NULL);
}

static void keys(void)
{
	key_t one = ftok("/", 1);

	told(one != -1 && one == ftok("/", 1), "ftok the same");
	told(one != ftok("/", 2), "ftok another number");
	tells(ftok("/nonexistent", 1), "ftok no such file");
	tells(ftok(NULL, 1), "ftok NULL");
}

static void limit(const char *name, const char *value)
{
	char path[64];
	int file;

	snprintf(path, sizeof(path), "/proc/sys/kernel/%s", name);
	file = open(path, O_WRONLY | O_CLOEXEC);
	must(file >= 0 && write(file, value, strlen(value)) > 0, path);
	close(file);
}

// An IPC namespace of its own, with low limits; takes root.
static int limited(void)
{
	if (geteuid() != 0 || unshare(CLONE_NEWIPC) != 0)
		return 0;
	limit("sem", "32000 32003 500 4");
	limit("msgmax", "8192");
	limit("msgmnb", "16384");
	limit("msgmni", "4");
	limit("shmmni", "4");
	limit("shmall", "100");
	return 1;
}

int main(int count, char **words)
{
	int root;

	// Ends with the test that runs it.
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (count == 3 && strcmp(words[1], "value") == 0) {
		told(value(atoi(words[2]), 1), "semop SEM_UNDO, executed");
		return 0;
	}
	if (count == 3 && strcmp(words[1], "attached") == 0) {
		told(attached(atoi(words[2])), "shmat executed");
		return 0;
	}
	root = limited();
	keys();
	semaphores(root);
	queues(root);
	segments(root);
	printf("done: %s\n", root ? "all" : "without other users and limits");
	return 0;
}
