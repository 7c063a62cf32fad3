// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Slows the clocks of the program it is preloaded into: QEMU, and with QEMU its
// guest.
//
// REPRIEVE_DILATE=N in the environment makes every clock that the program reads
// run at 1/N of its speed, and every wait with a limit N times as long. A
// deadline that the program computes from its slow clock is converted back to
// the time at which that clock will show it. So clocks and timers agree with
// each other, and nothing in the program can tell, except that the machine
// under it seems N times as fast. (The time stamp counter is not slowed: the
// guest's kernel measures it against the slow clocks, and takes it to be N
// times as fast.)
//
// Exceptions, which run at full speed: CPU-time clocks, limits in io_uring,
// which no library call passes on, and what QEMU does not wait with. A program
// that waits too short, because of such a limit, finds that its timer has not
// expired and waits again.
//
// Clocks that count from boot become t / N. CLOCK_REALTIME becomes start + (t -
// start) / N, where start is the time at which the program was started.

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

// Deadlines before this (31 years after the clock's start) are not of
// CLOCK_REALTIME: a condition variable does not tell its clock.
#define NOT_REAL (INT64_C(1000000000) * SECOND)

static int64_t factor = 1;
static int64_t started;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define REAL(name) static __typeof__(name) *real_##name
REAL(clock_gettime);
REAL(epoll_wait);
REAL(nanosleep);
REAL(ppoll);
REAL(pselect);
REAL(pthread_cond_timedwait);
REAL(syscall);

static int64_t from_timespec(const struct timespec *t)
{
	if (t->tv_sec >= INT64_MAX / SECOND)
		return INT64_MAX;
	return t->tv_sec * SECOND + t->tv_nsec;
}

static struct timespec to_timespec(int64_t ns)
{
	return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static int64_t times(int64_t ns)
{
	int64_t product;

	return __builtin_mul_overflow(ns, factor, &product) ? INT64_MAX
							    : product;
}

static void start(void)
{
	const char *text = getenv("REPRIEVE_DILATE");
	long n = text ? strtol(text, NULL, 10) : 1;
	struct timespec now;

#define LOOK_UP(name) real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
	LOOK_UP(clock_gettime);
	LOOK_UP(epoll_wait);
	LOOK_UP(nanosleep);
	LOOK_UP(ppoll);
	LOOK_UP(pselect);
	LOOK_UP(syscall);
	// Without a version one may get the form for programs from before 2003.
	real_pthread_cond_timedwait =
		(__typeof__(pthread_cond_timedwait) *)dlvsym(
			RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
	if (!real_pthread_cond_timedwait)
		LOOK_UP(pthread_cond_timedwait);
	real_clock_gettime(CLOCK_REALTIME, &now);
	started = from_timespec(&now);
	factor = n >= 1 && n <= 1000 ? n : 1;
}

// Also called by whatever comes first: constructors of other libraries may read
// clocks.
__attribute__((constructor)) static void ready(void)
{
	pthread_once(&once, start);
}

static int is_cpu_time(clockid_t clock)
{
	// Negative: CPU time of another process or thread, or a device.
	return clock == CLOCK_PROCESS_CPUTIME_ID ||
	       clock == CLOCK_THREAD_CPUTIME_ID || clock < 0;
}

static int64_t base(clockid_t clock)
{
	switch (clock) {
	case CLOCK_REALTIME:
	case CLOCK_REALTIME_COARSE:
	case CLOCK_REALTIME_ALARM:
	case CLOCK_TAI:
		return started;
	default:
		return 0;
	}
}

static int64_t slow(clockid_t clock, int64_t ns)
{
	int64_t from = base(clock);

	return from + (ns - from) / factor;
}

// The inverse: when `clock` will show `ns`.
static int64_t when(clockid_t clock, int64_t ns)
{
	int64_t from = base(clock), at;

	if (__builtin_add_overflow(from, times(ns - from), &at))
		return INT64_MAX;
	return at;
}

static clockid_t clock_of_deadline(int64_t ns)
{
	return ns < NOT_REAL ? CLOCK_MONOTONIC : CLOCK_REALTIME;
}

// Reading clocks.

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result;

	ready();
	result = real_clock_gettime(clock, now);
	if (result == 0 && !is_cpu_time(clock))
		*now = to_timespec(slow(clock, from_timespec(now)));
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	*now = (struct timeval){.tv_sec = precise.tv_sec,
				.tv_usec = precise.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *out)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}

// Waiting for descriptors.

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
	  const sigset_t *mask)
{
	struct timespec longer;

	ready();
	if (limit) {
		longer = to_timespec(times(from_timespec(limit)));
		limit = &longer;
	}
	return real_ppoll(fds, count, limit, mask);
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
	struct timespec limit = to_timespec(ms * INT64_C(1000000));

	return ppoll(fds, count, ms < 0 ? NULL : &limit, NULL);
}

// Does not write the time that is left to `limit`, as POSIX allows.
int select(int count, fd_set *restrict in, fd_set *restrict out,
	   fd_set *restrict other, struct timeval *restrict limit)
{
	struct timespec precise;

	if (limit)
		precise = (struct timespec){
			.tv_sec = limit->tv_sec + limit->tv_usec / 1000000,
			.tv_nsec = limit->tv_usec % 1000000 * 1000,
		};
	ready();
	if (limit)
		precise = to_timespec(times(from_timespec(&precise)));
	return real_pselect(count, in, out, other, limit ? &precise : NULL,
			    NULL);
}

int epoll_wait(int fd, struct epoll_event *events, int count, int ms)
{
	ready();
	if (ms > 0)
		ms = ms > INT_MAX / factor ? INT_MAX : (int)(ms * factor);
	return real_epoll_wait(fd, events, count, ms);
}

// Sleeping.

int nanosleep(const struct timespec *t, struct timespec *left)
{
	struct timespec longer;
	int result;

	ready();
	// The kernel refuses what is no time at all; scaled, that could look
	// valid.
	if (t->tv_nsec < 0 || t->tv_nsec >= SECOND || t->tv_sec < 0) {
		errno = EINVAL;
		return -1;
	}
	longer = to_timespec(times(from_timespec(t)));
	result = real_nanosleep(&longer, left);
	if (result != 0 && left)
		*left = to_timespec(from_timespec(left) / factor);
	return result;
}

int usleep(useconds_t us)
{
	struct timespec t = to_timespec(us * INT64_C(1000));

	return nanosleep(&t, NULL);
}

unsigned int sleep(unsigned int seconds)
{
	struct timespec t = {.tv_sec = seconds}, left = {0};

	return nanosleep(&t, &left) == 0
		       ? 0
		       : (unsigned int)(left.tv_sec + (left.tv_nsec > 0));
}

// Waiting for threads, with a deadline.

int pthread_cond_timedwait(pthread_cond_t *restrict cond,
			   pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict deadline)
{
	int64_t ns = from_timespec(deadline);
	struct timespec at;

	ready();
	at = to_timespec(when(clock_of_deadline(ns), ns));
	return real_pthread_cond_timedwait(cond, mutex, &at);
}

// GLib waits in futexes of its own. Everything else passes unchanged; a system
// call has at most six arguments, and reading more than were passed reads
// registers or stack without effect.
long syscall(long number, ...)
{
	long a[6];
	struct timespec longer;
	va_list arguments;

	ready();
	va_start(arguments, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(arguments, long);
	va_end(arguments);
	if (number == SYS_futex && a[3]) {
		// The argument of other operations is no time, and nothing if
		// it was not passed.
		const struct timespec *limit = (const struct timespec *)a[3];

		switch (a[1] & FUTEX_CMD_MASK) {
		case FUTEX_WAIT:
			longer = to_timespec(times(from_timespec(limit)));
			a[3] = (long)&longer;
			break;
		case FUTEX_WAIT_BITSET:
			longer = to_timespec(when(a[1] & FUTEX_CLOCK_REALTIME
							  ? CLOCK_REALTIME
							  : CLOCK_MONOTONIC,
						  from_timespec(limit)));
			a[3] = (long)&longer;
			break;
		}
	}
	return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
