/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sections cost nothing in this flavor; quiescent states do. A reader announces
 * one per call of a loop, and one per operation of the empty loop. A writer is
 * offline, so that nobody waits for it, except while it registers callbacks.
 */
#define _LGPL_SOURCE
#define URCU_API_MAP
#include <urcu/urcu-qsbr.h>

#define NAME(x) reprieve_bench_qsbr_##x
#define EMPTY() rcu_quiescent_state()
#define AFTER() rcu_quiescent_state()
#define ONLINE() rcu_thread_online()
#define OFFLINE() rcu_thread_offline()
#include "flavor.h"
