/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Promises of pthread's locks to programs. Kept by the C library alone, and with the shim. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define THREADS 6
#define ROUNDS 3000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t turns = PTHREAD_COND_INITIALIZER;
static long count, written;
static int turn;

static struct timespec in(clockid_t clock, long ms)
{
	struct timespec time;

	clock_gettime(clock, &time);
	time.tv_nsec += ms * 1000000;
	time.tv_sec += time.tv_nsec / 1000000000;
	time.tv_nsec %= 1000000000;
	return time;
}

static int is_over(clockid_t clock, const struct timespec *end)
{
	struct timespec now = in(clock, 0);

	return now.tv_sec > end->tv_sec ||
	       (now.tv_sec == end->tv_sec && now.tv_nsec >= end->tv_nsec);
}

static void *work(void *unused)
{
	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		errno = 4711;
		CHECK(!pthread_mutex_lock(&mutex));
		count++;
		CHECK(!pthread_mutex_unlock(&mutex));
		CHECK(!pthread_rwlock_wrlock(&rw));
		written++;
		CHECK(!pthread_rwlock_unlock(&rw));
		CHECK(!pthread_rwlock_rdlock(&rw));
		CHECK(written > 0);
		CHECK(!pthread_rwlock_unlock(&rw));
		CHECK(errno == 4711);
	}
	return NULL;
}

static void exclusion(void)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, NULL));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(count == THREADS * ROUNDS && written == THREADS * ROUNDS);
}

/* Threads take turns: a signal that is lost is a program that hangs. */
static void *take_turns(void *number)
{
	int me = (int)(long)number;

	for (int i = 0; i < ROUNDS / 10; i++) {
		CHECK(!pthread_mutex_lock(&mutex));
		while (turn != me)
			CHECK(!pthread_cond_wait(&turns, &mutex));
		turn = (turn + 1) % THREADS;
		CHECK(!pthread_cond_broadcast(&turns));
		CHECK(!pthread_mutex_unlock(&mutex));
	}
	return NULL;
}

/* A queue with signals: each wakes one. */
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int items, taken;

static void *take_items(void *unused)
{
	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		pthread_mutex_lock(&mutex);
		while (!items)
			pthread_cond_wait(&filled, &mutex);
		items--;
		taken++;
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static void conditions(void)
{
	pthread_t threads[THREADS];
	struct timespec end;
	pthread_cond_t own;
	pthread_condattr_t attr;

	for (long i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, take_turns, (void *)i));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, take_items, NULL));
	for (int i = 0; i < THREADS * ROUNDS; i++) {
		pthread_mutex_lock(&mutex);
		items++;
		pthread_mutex_unlock(&mutex);
		pthread_cond_signal(&filled);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(taken == THREADS * ROUNDS && !items);

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	CHECK(!pthread_cond_init(&own, &attr));
	pthread_mutex_lock(&mutex);
	end = in(CLOCK_MONOTONIC, 20);
	while (pthread_cond_timedwait(&own, &mutex, &end) == 0)
		;
	CHECK(pthread_cond_timedwait(&own, &mutex, &end) == ETIMEDOUT);
	CHECK(is_over(CLOCK_MONOTONIC, &end));
	CHECK(pthread_mutex_trylock(&mutex) == EBUSY);
	end.tv_nsec = 1000000000;
	CHECK(pthread_cond_timedwait(&own, &mutex, &end) == EINVAL);
	pthread_mutex_unlock(&mutex);
	CHECK(!pthread_cond_destroy(&own));
}

struct element {
	pthread_cond_t ended;
	int waited, end;
};

static void *wait_for_end(void *of)
{
	struct sched_param none = {0};
	struct element *element = of;

	CHECK(!pthread_mutex_lock(&mutex));
	__atomic_store_n(&element->waited, 1, __ATOMIC_RELEASE);
	/* The other thread sleeps for the mutex by then, most likely. */
	usleep(20000);
	/* Not before: beside busy threads it takes seconds until it gets the CPU again. */
	sched_setscheduler(0, SCHED_IDLE, &none);
	while (!element->end)
		CHECK(!pthread_cond_wait(&element->ended, &mutex));
	CHECK(!pthread_mutex_unlock(&mutex));
	return NULL;
}

/*
 * POSIX's example of an element of a list: whoever has woken all waiters may destroy the condition
 * and use the memory again. The waiter loses its CPU to the thread that it wakes as it releases the
 * mutex, before it sleeps.
 */
static void destruction(void)
{
	struct element element = {.ended = PTHREAD_COND_INITIALIZER};
	cpu_set_t before, one;
	pthread_t thread;
	int cpu = sched_getcpu();

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(cpu >= 0 && !sched_getaffinity(0, sizeof(before), &before));
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	CHECK(!pthread_create(&thread, NULL, wait_for_end, &element));
	while (!__atomic_load_n(&element.waited, __ATOMIC_ACQUIRE))
		usleep(100);
	CHECK(!pthread_mutex_lock(&mutex));
	element.end = 1;
	CHECK(!pthread_cond_broadcast(&element.ended));
	CHECK(!pthread_mutex_unlock(&mutex));
	CHECK(!pthread_cond_destroy(&element.ended));
	memset(&element.ended, 0, sizeof(element.ended));
	pthread_join(thread, NULL);
	CHECK(!sched_setaffinity(0, sizeof(before), &before));
}

struct waiter {
	pthread_cond_t condition;
	pthread_mutex_t *mutex;
	int waits, ended;
};

static void end_waiter(void *of)
{
	struct waiter *waiter = of;

	waiter->ended = 1;
	CHECK(!pthread_mutex_unlock(waiter->mutex));
}

/* As a thread that looks for something that never comes. */
static void *wait_for_ever(void *of)
{
	struct waiter *waiter = of;

	CHECK(!pthread_mutex_lock(waiter->mutex));
	pthread_cleanup_push(end_waiter, waiter);
	waiter->waits = 1;
	for (;;)
		CHECK(!pthread_cond_wait(&waiter->condition, waiter->mutex));
	pthread_cleanup_pop(1);
	return NULL;
}

static pthread_t start_waiter(struct waiter *waiter)
{
	pthread_t thread;
	int waits = 0;

	CHECK(!pthread_create(&thread, NULL, wait_for_ever, waiter));
	while (!waits) {
		CHECK(!pthread_mutex_lock(waiter->mutex));
		waits = waiter->waits;
		CHECK(!pthread_mutex_unlock(waiter->mutex));
	}
	return thread;
}

static void join_cancelled(pthread_t thread, const struct waiter *waiter)
{
	void *result = NULL;

	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && waiter->ended);
}

/*
 * Only cancelled threads wait for a condition: it may be destroyed, and they leave its memory
 * alone, whether they come to the mutex before or after that.
 */
static void cancellation(void)
{
	unsigned char other[sizeof(pthread_cond_t)];

	memset(other, 0xa5, sizeof(other));
	for (int holds = 0; holds < 2; holds++) {
		struct waiter waiters[2];
		pthread_t threads[2];

		for (int i = 0; i < 2; i++) {
			waiters[i] = (struct waiter){.mutex = &mutex};
			CHECK(!pthread_cond_init(&waiters[i].condition, NULL));
			threads[i] = start_waiter(&waiters[i]);
		}
		if (holds)
			CHECK(!pthread_mutex_lock(&mutex));
		for (int i = 0; i < 2; i++) {
			CHECK(!pthread_cancel(threads[i]));
			CHECK(!pthread_cond_destroy(&waiters[i].condition));
			memcpy(&waiters[i].condition, other, sizeof(other));
		}
		if (holds)
			CHECK(!pthread_mutex_unlock(&mutex));
		for (int i = 0; i < 2; i++) {
			join_cancelled(threads[i], &waiters[i]);
			CHECK(!memcmp(&waiters[i].condition, other, sizeof(other)));
		}
	}
}

static int came_through;

static void *lock_cancelled(void *unused)
{
	int status;
	pid_t child;

	(void)unused;
	CHECK(!pthread_cancel(pthread_self()));
	CHECK(!pthread_mutex_lock(&mutex));
	CHECK(!pthread_mutex_unlock(&mutex));
	child = fork();
	if (!child)
		_exit(7);
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL));
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	came_through = 1;
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL));
	pthread_testcancel();
	return NULL;
}

/* A process's first lock is no cancellation point, and a fork is none. */
static void first_lock(void)
{
	pthread_t thread;
	void *result;

	CHECK(!pthread_create(&thread, NULL, lock_cancelled, NULL));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && came_through);
}

static void *wait_for_mutex(void *of)
{
	struct timespec end = in(CLOCK_REALTIME, 5);
	pthread_mutex_t *mutex = of;
	int result = pthread_mutex_timedlock(mutex, &end);

	CHECK(result == ETIMEDOUT && is_over(CLOCK_REALTIME, &end));
	end = in(CLOCK_REALTIME, 5);
	CHECK(pthread_rwlock_timedwrlock(&rw, &end) == ETIMEDOUT);
	CHECK(is_over(CLOCK_REALTIME, &end));
	end = in(CLOCK_MONOTONIC, 5);
	CHECK(pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &end) == ETIMEDOUT);
	CHECK(is_over(CLOCK_MONOTONIC, &end));
	/* Long over, by the clock of the time of day. */
	CHECK(pthread_mutex_timedlock(mutex, &end) == ETIMEDOUT);
	CHECK(pthread_rwlock_clockwrlock(&rw, CLOCK_REALTIME, &end) == ETIMEDOUT);
	CHECK(pthread_mutex_clocklock(mutex, CLOCK_PROCESS_CPUTIME_ID, &end) == EINVAL);
	CHECK(pthread_mutex_trylock(mutex) == EBUSY);
	CHECK(pthread_rwlock_trywrlock(&rw) == EBUSY);
	CHECK(!pthread_rwlock_tryrdlock(&rw));
	CHECK(!pthread_rwlock_unlock(&rw));
	return NULL;
}

static void times(void)
{
	pthread_t thread;

	pthread_mutex_lock(&mutex);
	pthread_rwlock_rdlock(&rw);
	pthread_create(&thread, NULL, wait_for_mutex, &mutex);
	pthread_join(thread, NULL);
	pthread_rwlock_unlock(&rw);
	pthread_mutex_unlock(&mutex);
}

static int started;

static void *write_once(void *unused)
{
	(void)unused;
	__atomic_store_n(&started, 1, __ATOMIC_RELEASE);
	CHECK(!pthread_rwlock_wrlock(&rw));
	CHECK(!pthread_rwlock_unlock(&rw));
	return NULL;
}

static int all_written;

static void prefer_writers(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attributes;

	CHECK(!pthread_rwlockattr_init(&attributes));
	CHECK(!pthread_rwlockattr_setkind_np(&attributes,
					     PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP));
	CHECK(!pthread_rwlock_init(lock, &attributes));
}

static void *read_again_and_again(void *lock)
{
	while (!__atomic_load_n(&all_written, __ATOMIC_ACQUIRE)) {
		CHECK(!pthread_rwlock_rdlock(lock));
		usleep(2000);
		CHECK(!pthread_rwlock_unlock(lock));
	}
	return NULL;
}

/* Where writers go first, a reader that comes again and again does not keep them out. */
static void writers_first(void)
{
	pthread_rwlock_t lock;
	pthread_t thread;

	prefer_writers(&lock);
	CHECK(!pthread_create(&thread, NULL, read_again_and_again, &lock));
	for (int i = 0; i < 20; i++) {
		CHECK(!pthread_rwlock_wrlock(&lock));
		CHECK(!pthread_rwlock_unlock(&lock));
		usleep(500);
	}
	__atomic_store_n(&all_written, 1, __ATOMIC_RELEASE);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!pthread_rwlock_destroy(&lock));
}

static void *give_up(void *lock)
{
	struct timespec end = in(CLOCK_REALTIME, 50);

	CHECK(pthread_rwlock_timedwrlock(lock, &end) == ETIMEDOUT);
	return NULL;
}

static void *read_lock(void *lock)
{
	CHECK(!pthread_rwlock_rdlock(lock));
	CHECK(!pthread_rwlock_unlock(lock));
	return NULL;
}

/* A writer that has given up does not keep readers out, for whom the lock's holder may wait. */
static void impatient_writer(void)
{
	pthread_rwlock_t lock;
	pthread_t thread;

	prefer_writers(&lock);
	CHECK(!pthread_rwlock_rdlock(&lock));
	CHECK(!pthread_create(&thread, NULL, give_up, &lock));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!pthread_create(&thread, NULL, read_lock, &lock));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!pthread_rwlock_unlock(&lock));
	CHECK(!pthread_rwlock_destroy(&lock));
}

static void *lock_again_and_again(void *lock)
{
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(!pthread_rwlock_wrlock(lock));
		CHECK(!pthread_rwlock_unlock(lock));
		CHECK(!pthread_rwlock_rdlock(lock));
		CHECK(!pthread_rwlock_unlock(lock));
	}
	return NULL;
}

/* A thread that holds a lock for writing would wait for itself, and is told so. */
static void deadlock(void)
{
	const int kinds[] = {PTHREAD_RWLOCK_PREFER_READER_NP,
			     PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP};
	struct timespec end = in(CLOCK_REALTIME, 50);
	pthread_rwlockattr_t attributes;
	pthread_rwlock_t lock;
	pthread_t thread;

	CHECK(!pthread_rwlockattr_init(&attributes));
	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_rwlockattr_setkind_np(&attributes, kinds[i]));
		CHECK(!pthread_rwlock_init(&lock, &attributes));
		CHECK(!pthread_rwlock_wrlock(&lock));
		CHECK(pthread_rwlock_rdlock(&lock) == EDEADLK);
		CHECK(pthread_rwlock_wrlock(&lock) == EDEADLK);
		CHECK(pthread_rwlock_timedrdlock(&lock, &end) == EDEADLK);
		CHECK(pthread_rwlock_timedwrlock(&lock, &end) == EDEADLK);
		CHECK(pthread_rwlock_tryrdlock(&lock) == EBUSY);
		CHECK(pthread_rwlock_trywrlock(&lock) == EBUSY);
		CHECK(!pthread_rwlock_unlock(&lock));

		/* A thread that held the lock before gets no EDEADLK. */
		CHECK(!pthread_create(&thread, NULL, lock_again_and_again, &lock));
		lock_again_and_again(&lock);
		CHECK(!pthread_join(thread, NULL));
		CHECK(!pthread_rwlock_destroy(&lock));
	}
}

static unsigned first_word(const void *object)
{
	unsigned word;

	memcpy(&word, object, sizeof(word));
	return word;
}

/* The object that is locked or signalled is the shim's, if there is one: its first word differs. */
static void replaced(int preloaded)
{
	pthread_rwlock_t own_rw = PTHREAD_RWLOCK_INITIALIZER;
	pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t condition;
	pthread_condattr_t attr;

	CHECK(!pthread_mutex_lock(&own));
	CHECK(first_word(&own) >> 31 == (unsigned)preloaded);
	CHECK(!pthread_mutex_unlock(&own));
	CHECK(!pthread_rwlock_wrlock(&own_rw));
	CHECK((first_word(&own_rw) == 0x3fffffff) == preloaded);
	CHECK(!pthread_rwlock_unlock(&own_rw));

	/* Ours names the clock where the C library's counts. */
	CHECK(!pthread_condattr_init(&attr));
	CHECK(!pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
	for (int shared = 0; shared < 2; shared++) {
		CHECK(!pthread_cond_init(&condition, &attr));
		CHECK(first_word((char *)&condition + 4) == (unsigned)(preloaded && !shared));
		CHECK(!pthread_cond_destroy(&condition));
		CHECK(!pthread_condattr_setpshared(&attr, PTHREAD_PROCESS_SHARED));
	}
}

/* A reader may read again while a writer waits. */
static void recursion(void)
{
	pthread_t thread;

	pthread_rwlock_rdlock(&rw);
	pthread_create(&thread, NULL, write_once, NULL);
	while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE))
		usleep(100);
	usleep(20000);
	CHECK(!pthread_rwlock_rdlock(&rw));
	pthread_rwlock_unlock(&rw);
	pthread_rwlock_unlock(&rw);
	pthread_join(thread, NULL);
}

static void *read_once(void *unused)
{
	(void)unused;
	CHECK(!pthread_rwlock_rdlock(&rw));
	CHECK(!pthread_rwlock_unlock(&rw));
	return NULL;
}

/* A reader and a writer wait. Whoever reads may wait for that reader. */
static void readers(void)
{
	pthread_t reader, writer;

	for (int i = 0; i < 3; i++) {
		CHECK(!pthread_rwlock_wrlock(&rw));
		pthread_create(&reader, NULL, read_once, NULL);
		pthread_create(&writer, NULL, write_once, NULL);
		/* Both threads sleep by then, most likely. */
		usleep(50000);
		CHECK(!pthread_rwlock_unlock(&rw));
		CHECK(!pthread_rwlock_rdlock(&rw));
		pthread_join(reader, NULL);
		CHECK(!pthread_rwlock_unlock(&rw));
		pthread_join(writer, NULL);
	}
}

static int enough, asleep;

static void *work_on(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&enough, __ATOMIC_ACQUIRE)) {
		CHECK(!pthread_mutex_lock(&mutex));
		CHECK(!pthread_mutex_unlock(&mutex));
		CHECK(!pthread_rwlock_wrlock(&rw));
		CHECK(!pthread_rwlock_unlock(&rw));
		/* The C library's locks would starve the thread that forks. */
		usleep(100);
	}
	return NULL;
}

static void *wait_until_enough(void *unused)
{
	(void)unused;
	CHECK(!pthread_mutex_lock(&mutex));
	while (!enough) {
		__atomic_store_n(&asleep, 1, __ATOMIC_RELEASE);
		CHECK(!pthread_cond_wait(&filled, &mutex));
	}
	CHECK(!pthread_mutex_unlock(&mutex));
	return NULL;
}

/* In the child of a fork nobody waits for a condition: it may be used, and destroyed. */
static void end_condition(int use)
{
	struct timespec end = in(CLOCK_REALTIME, 5);

	if (use) {
		CHECK(!pthread_mutex_lock(&mutex));
		while (!pthread_cond_timedwait(&filled, &mutex, &end))
			;
		CHECK(!pthread_mutex_unlock(&mutex));
	}
	CHECK(!pthread_cond_destroy(&filled));
}

/* Children of a process whose threads wait for locks, each forked by the locks' holder. */
static void forks(void)
{
	pthread_t threads[THREADS], waiter;
	int status;

	CHECK(!pthread_create(&waiter, NULL, wait_until_enough, NULL));
	while (!__atomic_load_n(&asleep, __ATOMIC_ACQUIRE))
		usleep(100);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, work_on, NULL));
	for (int i = 0; i < 4; i++) {
		pid_t child;

		CHECK(!pthread_rwlock_wrlock(&rw));
		CHECK(!pthread_mutex_lock(&mutex));
		usleep(i * 200);
		child = fork();
		CHECK(child >= 0);
		CHECK(!pthread_mutex_unlock(&mutex));
		CHECK(!pthread_rwlock_unlock(&rw));
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			count = written = 0;
			exclusion();
			end_condition(i % 2);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && !status);
	}
	CHECK(!pthread_mutex_lock(&mutex));
	__atomic_store_n(&enough, 1, __ATOMIC_RELEASE);
	CHECK(!pthread_cond_broadcast(&filled));
	CHECK(!pthread_mutex_unlock(&mutex));
	pthread_join(waiter, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

struct shared {
	pthread_cond_t condition;
	pthread_mutex_t mutex;
	int waits, end;
};

static void *wait_shared(void *of)
{
	struct shared *shared = of;

	CHECK(!pthread_mutex_lock(&shared->mutex));
	shared->waits = 1;
	while (!shared->end)
		CHECK(!pthread_cond_wait(&shared->condition, &shared->mutex));
	CHECK(!pthread_mutex_unlock(&shared->mutex));
	return NULL;
}

/* A condition that is process-shared, with a mutex that is not. */
static void shared_condition(void)
{
	struct shared shared = {.mutex = PTHREAD_MUTEX_INITIALIZER};
	pthread_condattr_t attr;
	struct timespec end;
	pthread_t thread;
	int waits = 0;

	pthread_condattr_init(&attr);
	pthread_condattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	CHECK(!pthread_cond_init(&shared.condition, &attr));
	CHECK(!pthread_mutex_lock(&shared.mutex));
	end = in(CLOCK_MONOTONIC, 20);
	while (pthread_cond_timedwait(&shared.condition, &shared.mutex, &end) == 0)
		;
	CHECK(pthread_cond_timedwait(&shared.condition, &shared.mutex, &end) == ETIMEDOUT);
	CHECK(pthread_mutex_trylock(&shared.mutex) == EBUSY);
	CHECK(!pthread_mutex_unlock(&shared.mutex));

	CHECK(!pthread_create(&thread, NULL, wait_shared, &shared));
	while (!waits) {
		CHECK(!pthread_mutex_lock(&shared.mutex));
		waits = shared.waits;
		CHECK(!pthread_mutex_unlock(&shared.mutex));
	}
	CHECK(!pthread_mutex_lock(&shared.mutex));
	shared.end = 1;
	CHECK(!pthread_cond_signal(&shared.condition));
	CHECK(!pthread_mutex_unlock(&shared.mutex));
	pthread_join(thread, NULL);
	CHECK(!pthread_cond_destroy(&shared.condition));
	CHECK(!pthread_mutex_destroy(&shared.mutex));
}

/* Cancelled while it waits for a condition that is process-shared, with either kind of mutex. */
static void shared_cancellation(void)
{
	pthread_mutexattr_t mutex_attr;
	pthread_mutex_t mutexes[2];
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_init(&mutex_attr);
	for (int i = 0; i < 2; i++) {
		struct waiter waiter = {.mutex = &mutexes[i]};
		pthread_t thread;

		CHECK(!pthread_mutex_init(&mutexes[i], &mutex_attr));
		pthread_mutexattr_setpshared(&mutex_attr, PTHREAD_PROCESS_SHARED);
		CHECK(!pthread_cond_init(&waiter.condition, &attr));
		thread = start_waiter(&waiter);
		CHECK(!pthread_cancel(thread));
		join_cancelled(thread, &waiter);
		CHECK(!pthread_cond_destroy(&waiter.condition));
		CHECK(!pthread_mutex_destroy(&mutexes[i]));
	}
}

static void *die_with(void *of)
{
	CHECK(!pthread_mutex_lock(of));
	return NULL;
}

/* The kinds that the C library keeps. */
static void kinds(void)
{
	pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	struct timespec end = in(CLOCK_REALTIME, 5);
	pthread_mutexattr_t attr;
	pthread_mutex_t other;
	pthread_t thread;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	CHECK(!pthread_mutex_init(&other, &attr));
	CHECK(!pthread_mutex_lock(&other) && !pthread_mutex_lock(&other));
	CHECK(!pthread_mutex_unlock(&other));
	CHECK(pthread_cond_timedwait(&condition, &other, &end) == ETIMEDOUT);
	CHECK(!pthread_mutex_unlock(&other) && pthread_mutex_unlock(&other) == EPERM);
	CHECK(!pthread_mutex_destroy(&other));

	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
	CHECK(!pthread_mutex_init(&other, &attr));
	CHECK(!pthread_mutex_lock(&other) && pthread_mutex_lock(&other) == EDEADLK);
	CHECK(pthread_cond_timedwait(&condition, &other, &end) == ETIMEDOUT);
	CHECK(!pthread_mutex_unlock(&other));
	CHECK(pthread_cond_timedwait(&condition, &other, &end) == EPERM);
	CHECK(!pthread_mutex_destroy(&other));

	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_NORMAL);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	CHECK(!pthread_mutex_init(&other, &attr));
	pthread_create(&thread, NULL, die_with, &other);
	pthread_join(thread, NULL);
	CHECK(pthread_mutex_lock(&other) == EOWNERDEAD);
	CHECK(!pthread_mutex_consistent(&other));
	CHECK(pthread_cond_timedwait(&condition, &other, &end) == ETIMEDOUT);
	CHECK(!pthread_mutex_unlock(&other));
	CHECK(pthread_cond_timedwait(&condition, &other, &end) == EPERM);
	CHECK(!pthread_mutex_destroy(&other));
	CHECK(!pthread_mutex_destroy(&mutex) && !pthread_rwlock_destroy(&rw));
}

int main(int count, char **arguments)
{
	int preloaded = getenv("LD_PRELOAD") != NULL;

	/* Only to be asked, or to be loaded. */
	if (count > 1) {
		if (!strcmp(arguments[1], "replaced")) {
			void *ask = dlsym(RTLD_DEFAULT, "reprieve_locks_replaced");

			CHECK(ask);
			preloaded = ((_Bool(*)(void))ask)();
			replaced(preloaded);
			puts(preloaded ? "yes" : "no");
		}
		return 0;
	}
	/* Ends with the test that runs it, and its children with it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	first_lock();
	replaced(preloaded);
	exclusion();
	conditions();
	destruction();
	cancellation();
	times();
	recursion();
	readers();
	writers_first();
	impatient_writer();
	deadlock();
	/* After a fork, glibc's own reader-writer locks wait for threads that are not there. */
	if (preloaded)
		forks();
	shared_condition();
	shared_cancellation();
	kinds();
	puts(preloaded ? "preloaded" : "alone");
	return 0;
}
