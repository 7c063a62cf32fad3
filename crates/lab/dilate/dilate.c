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
// Exceptions, which run at full speed: CPU-time clocks, and limits in io_uring,
// which no library call passes on. A program that waits too short, because of
// such a limit, finds that its timer has not expired and waits again.
//
// Clocks that count from boot become t / N. CLOCK_REALTIME becomes start + (t -
// start) / N, where start is the time at which the program was started.

#define _GNU_SOURCE
// The checked forms below (__poll_chk) are defined here, not used.
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
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
REAL(clock_nanosleep);
REAL(epoll_pwait);
REAL(pthread_cond_clockwait);
REAL(pthread_cond_timedwait);
REAL(ppoll);
REAL(pselect);
REAL(sem_clockwait);
REAL(sigtimedwait);
REAL(syscall);
REAL(timerfd_gettime);
REAL(timerfd_settime);

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
	LOOK_UP(clock_nanosleep);
	LOOK_UP(epoll_pwait);
	LOOK_UP(pthread_cond_clockwait);
	LOOK_UP(ppoll);
	LOOK_UP(pselect);
	LOOK_UP(sem_clockwait);
	LOOK_UP(sigtimedwait);
	LOOK_UP(syscall);
	LOOK_UP(timerfd_gettime);
	LOOK_UP(timerfd_settime);
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

int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t size);
int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t size)
{
	if (size / sizeof(*fds) < count)
		abort();
	return poll(fds, count, ms);
}

int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *limit,
		const sigset_t *mask, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *limit,
		const sigset_t *mask, size_t size)
{
	if (size / sizeof(*fds) < count)
		abort();
	return ppoll(fds, count, limit, mask);
}

int pselect(int count, fd_set *restrict in, fd_set *restrict out,
	    fd_set *restrict other, const struct timespec *restrict limit,
	    const sigset_t *restrict mask)
{
	struct timespec longer;

	ready();
	if (limit) {
		longer = to_timespec(times(from_timespec(limit)));
		limit = &longer;
	}
	return real_pselect(count, in, out, other, limit, mask);
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
	return pselect(count, in, out, other, limit ? &precise : NULL, NULL);
}

int epoll_pwait(int fd, struct epoll_event *events, int count, int ms,
		const sigset_t *mask)
{
	ready();
	if (ms > 0)
		ms = ms > INT_MAX / factor ? INT_MAX : (int)(ms * factor);
	return real_epoll_pwait(fd, events, count, ms, mask);
}

int epoll_wait(int fd, struct epoll_event *events, int count, int ms)
{
	return epoll_pwait(fd, events, count, ms, NULL);
}

// Timers.

static int64_t scaled_setting(int fd_absolute, clockid_t clock,
			      const struct timespec *t)
{
	int64_t ns = from_timespec(t);

	// 0 means: no timer.
	if (ns == 0)
		return 0;
	return fd_absolute ? when(clock, ns) : times(ns);
}

int timerfd_settime(int fd, int flags, const struct itimerspec *new,
		    struct itimerspec *old)
{
	struct itimerspec longer;
	int result;

	ready();
	longer.it_interval =
		to_timespec(times(from_timespec(&new->it_interval)));
	longer.it_value = to_timespec(
		scaled_setting(flags & TFD_TIMER_ABSTIME,
			       clock_of_deadline(from_timespec(&new->it_value)),
			       &new->it_value));
	result = real_timerfd_settime(fd, flags, &longer, old);
	if (result == 0 && old) {
		old->it_interval =
			to_timespec(from_timespec(&old->it_interval) / factor);
		old->it_value =
			to_timespec(from_timespec(&old->it_value) / factor);
	}
	return result;
}

int timerfd_gettime(int fd, struct itimerspec *now)
{
	int result;

	ready();
	result = real_timerfd_gettime(fd, now);
	if (result == 0) {
		now->it_interval =
			to_timespec(from_timespec(&now->it_interval) / factor);
		now->it_value =
			to_timespec(from_timespec(&now->it_value) / factor);
	}
	return result;
}

// Sleeping.

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t,
		    struct timespec *left)
{
	struct timespec longer;
	int result;

	ready();
	if (is_cpu_time(clock))
		return real_clock_nanosleep(clock, flags, t, left);
	if (flags & TIMER_ABSTIME)
		longer = to_timespec(when(clock, from_timespec(t)));
	else
		longer = to_timespec(times(from_timespec(t)));
	// The kernel refuses what is no time at all; scaled, that could look
	// valid.
	if (t->tv_nsec < 0 || t->tv_nsec >= SECOND || t->tv_sec < 0)
		return EINVAL;
	result = real_clock_nanosleep(clock, flags, &longer, left);
	if (result == EINTR && left && !(flags & TIMER_ABSTIME))
		*left = to_timespec(from_timespec(left) / factor);
	return result;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
	int error = clock_nanosleep(CLOCK_MONOTONIC, 0, t, left);

	if (error == 0)
		return 0;
	errno = error;
	return -1;
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

int sigtimedwait(const sigset_t *restrict set, siginfo_t *restrict info,
		 const struct timespec *restrict limit)
{
	struct timespec longer;

	ready();
	if (limit) {
		longer = to_timespec(times(from_timespec(limit)));
		limit = &longer;
	}
	return real_sigtimedwait(set, info, limit);
}

// Waiting for threads, with a deadline.

int pthread_cond_clockwait(pthread_cond_t *restrict cond,
			   pthread_mutex_t *restrict mutex, clockid_t clock,
			   const struct timespec *restrict deadline)
{
	struct timespec at;

	ready();
	at = to_timespec(when(clock, from_timespec(deadline)));
	return real_pthread_cond_clockwait(cond, mutex, clock, &at);
}

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

int sem_clockwait(sem_t *restrict sem, clockid_t clock,
		  const struct timespec *restrict deadline)
{
	struct timespec at;

	ready();
	at = to_timespec(when(clock, from_timespec(deadline)));
	return real_sem_clockwait(sem, clock, &at);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict deadline)
{
	return sem_clockwait(sem, CLOCK_REALTIME, deadline);
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
