/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Mistakes of a program: the argument says which. The library ends it with one line. */
#include <reprieve/reprieve.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	struct reprieve_domain *domain = reprieve_domain_new(REPRIEVE_ENGINE_POLL, 0);
	int other = !strncmp(what, "domain-", 7);

	/* Sections before: the thread is registered. */
	reprieve_read_lock();
	reprieve_read_lock();
	reprieve_read_unlock();
	reprieve_read_unlock();
	reprieve_domain_read_lock(domain);
	if (!other)
		reprieve_domain_read_unlock(domain);
	if (!strcmp(what, "unlock"))
		reprieve_read_unlock();
	if (!strcmp(what, "domain-unlock")) {
		reprieve_domain_read_unlock(domain);
		reprieve_domain_read_unlock(domain);
	}
	if (!strcmp(what, "domain-synchronize"))
		reprieve_domain_synchronize(domain);
	if (!strcmp(what, "domain-barrier"))
		reprieve_domain_barrier(domain);
	if (!strcmp(what, "domain-free"))
		reprieve_domain_free(domain);
	reprieve_read_lock();
	if (!strcmp(what, "synchronize"))
		reprieve_synchronize();
	if (!strcmp(what, "expedited"))
		reprieve_synchronize_expedited();
	if (!strcmp(what, "cond"))
		reprieve_cond_synchronize(reprieve_cookie());
	if (!strcmp(what, "barrier"))
		reprieve_barrier();
	puts("went on");
	return 0;
}
