/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/debug.h> */
#ifndef REPRIEVE_COMPAT_URCU_DEBUG_H
#define REPRIEVE_COMPAT_URCU_DEBUG_H

#include <assert.h>
#include <reprieve/uatomic.h>

#if defined(DEBUG_RCU) || defined(CONFIG_RCU_DEBUG)
#define urcu_assert(...) assert(__VA_ARGS__)
#else
#define urcu_assert(...)
#endif

#endif
