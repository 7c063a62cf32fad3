/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Two flavors in one program. A thread that is online in QSBR asks for helpers and gives them back,
 * while a callback of the other flavor waits for the thread's quiescent state: each call waits for
 * callbacks of QSBR only, and with the thread offline. (Otherwise this hangs.)
 */
#include <reprieve/urcu.h>
#include <stdio.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

static long ran;

static void wait_for_qsbr(struct rcu_head *head)
{
	urcu_qsbr_synchronize_rcu();
	free(head);
	uatomic_inc(&ran);
}

static void begin(void)
{
	struct rcu_head *head = (struct rcu_head *)malloc(sizeof(*head));

	CHECK(head && urcu_qsbr_read_ongoing());
	urcu_memb_call_rcu(head, wait_for_qsbr);
}

static void end(void)
{
	CHECK(urcu_qsbr_read_ongoing());
	urcu_qsbr_thread_offline();
	urcu_memb_barrier();
	urcu_qsbr_thread_online();
}

int main(void)
{
	struct call_rcu_data *data = urcu_qsbr_create_call_rcu_data(0, -1);
	pthread_t online, other;

	CHECK(data);
	urcu_qsbr_register_thread();
	begin();
	online = urcu_qsbr_get_call_rcu_thread(data);
	end();
	CHECK(!pthread_equal(online, pthread_self()));
	urcu_qsbr_thread_offline();
	other = urcu_memb_get_call_rcu_thread(data);
	urcu_qsbr_thread_online();
	/* A worker of each flavor's own domain. */
	CHECK(!pthread_equal(online, other));

	begin();
	urcu_qsbr_call_rcu_data_free(data);
	end();

	CHECK(urcu_qsbr_create_all_cpu_call_rcu_data(0) == 0);
	begin();
	urcu_qsbr_free_all_cpu_call_rcu_data();
	end();
	CHECK(!urcu_qsbr_get_cpu_call_rcu_data(0));
	urcu_qsbr_unregister_thread();
	CHECK(uatomic_read(&ran) == 3);
	return 0;
}
