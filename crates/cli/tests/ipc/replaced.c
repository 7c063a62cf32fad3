// SPDX-License-Identifier: MIT OR Apache-2.0
// A library that replaces public functions of the C library, as fakeroot and
// faketime do. The function that libreprieve_ipc.so calls is named on standard
// error, and the program ends.
extern long syscall(long, ...);
extern void *dlsym(void *, const char *);
extern int dladdr(const void *, void *);
extern char *strstr(const char *, const char *);
extern unsigned long strlen(const char *);
extern void abort(void);

static void check(const char *name, const void *caller)
{
	struct {
		const char *file;
		void *rest[3];
	} found = {0};

	if (!dladdr(caller, &found) || !found.file ||
	    !strstr(found.file, "libreprieve_ipc"))
		return;
	((long (*)(int, const char *, unsigned long))dlsym(
		(void *)-1, "write"))(2, name, strlen(name));
	abort();
}

#define REPLACED(name)                                                   \
	long name(long a, long b, long c, long d, long e, long f)        \
	{                                                                \
		static long (*next)(long, long, long, long, long, long); \
		check(#name, __builtin_return_address(0));               \
		if (!next)                                               \
			next = (long (*)(long, long, long, long, long,   \
					 long))dlsym((void *)-1, #name); \
		return next(a, b, c, d, e, f);                           \
	}

// clang-format off
REPLACED(geteuid) REPLACED(getegid) REPLACED(getuid) REPLACED(getgid) REPLACED(getgroups)
REPLACED(getpid) REPLACED(getppid) REPLACED(gettid) REPLACED(kill) REPLACED(waitid) REPLACED(poll)
REPLACED(clock_gettime) REPLACED(time) REPLACED(gettimeofday) REPLACED(nanosleep)
REPLACED(clock_nanosleep) REPLACED(sched_getcpu) REPLACED(sched_yield) REPLACED(sched_getaffinity)
REPLACED(stat) REPLACED(lstat) REPLACED(fstat) REPLACED(fstatat) REPLACED(stat64) REPLACED(lstat64)
REPLACED(fstat64) REPLACED(fstatat64) REPLACED(statx) REPLACED(statvfs) REPLACED(fstatvfs)
REPLACED(open) REPLACED(open64) REPLACED(openat) REPLACED(openat64) REPLACED(close) REPLACED(read)
REPLACED(write) REPLACED(readlink) REPLACED(mkdir) REPLACED(unlink) REPLACED(rename) REPLACED(chmod)
REPLACED(fchmod) REPLACED(ftruncate) REPLACED(ftruncate64) REPLACED(fallocate) REPLACED(fallocate64)
REPLACED(opendir) REPLACED(readdir64) REPLACED(mmap) REPLACED(mmap64) REPLACED(munmap)
REPLACED(madvise) REPLACED(fcntl) REPLACED(fcntl64) REPLACED(getrlimit) REPLACED(getrlimit64)
REPLACED(ioctl) REPLACED(pthread_sigmask) REPLACED(sigprocmask) REPLACED(sysconf)
