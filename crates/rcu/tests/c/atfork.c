/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Fork handlers that a program registers in a constructor, and that use the library. Theirs run
 * outside of the library's own: before those in the order of preparation, after them otherwise.
 */
#include <reprieve/reprieve.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

struct node {
	struct reprieve_head head;
};

static int prepared, after_parent, after_child, freed;

static void node_free(struct reprieve_head *head)
{
	free(reprieve_container_of(head, struct node, head));
	__atomic_fetch_add(&freed, 1, __ATOMIC_RELEASE);
}

static void use(int *count)
{
	struct node *n = (struct node *)calloc(1, sizeof(*n));
	sigset_t blocked;

	/* The library's handlers block all signals: within them this would wait for itself. */
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &blocked) && !sigismember(&blocked, SIGUSR1));
	CHECK(n);
	reprieve_read_lock();
	reprieve_read_unlock();
	reprieve_call(&n->head, node_free, sizeof(*n));
	reprieve_synchronize();
	CHECK(!reprieve_barrier());
	++*count;
}

static void prepare(void)
{
	use(&prepared);
}

static void in_parent(void)
{
	use(&after_parent);
}

static void in_child(void)
{
	use(&after_child);
}

static void __attribute__((constructor)) register_handlers(void)
{
	CHECK(!pthread_atfork(prepare, in_parent, in_child));
}

int main(void)
{
	int i, status = -1;
	pid_t child;

	for (i = 1; i <= 3; i++) {
		child = fork();
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			CHECK(after_child == 1 && !reprieve_barrier());
			CHECK(__atomic_load_n(&freed, __ATOMIC_ACQUIRE) == 2 * i);
			_exit(3);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
		CHECK(prepared == i && after_parent == i && after_child == 0);
		CHECK(__atomic_load_n(&freed, __ATOMIC_ACQUIRE) == 2 * i);
	}
	return 0;
}
