/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _LGPL_SOURCE
#define URCU_API_MAP
#include <urcu/urcu-bp.h>

#define NAME(x) reprieve_bench_bp_##x
#define EMPTY() (rcu_read_lock(), rcu_read_unlock())
#define AFTER() ((void)0)
#define ONLINE() ((void)0)
#define OFFLINE() ((void)0)
#include "flavor.h"
#include "lists.h"
#include "lfht.h"
#include "functions.h"
