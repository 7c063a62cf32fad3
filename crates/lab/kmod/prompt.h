/* SPDX-License-Identifier: GPL-2.0 */
/*
 * call_rcu() that does not wait.
 *
 * Kernels with CONFIG_RCU_LAZY hold back call_rcu() for up to ten seconds on
 * CPUs whose callbacks are offloaded (rcu_nocbs=, nohz_full=). The prompt
 * variant is what call_rcu() was before.
 */
#ifndef REPRIEVE_PROMPT_H
#define REPRIEVE_PROMPT_H

#include <linux/rcupdate.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define call_rcu_promptly call_rcu_hurry
#else
#define call_rcu_promptly call_rcu
#endif

#endif
