/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/assert.h> */
#ifndef REPRIEVE_COMPAT_URCU_ASSERT_H
#define REPRIEVE_COMPAT_URCU_ASSERT_H

#include <assert.h>
#include <reprieve/uatomic.h>

#define _urcu_use_expression(expression) ((void)sizeof((void)(expression), 0))
#ifdef NDEBUG
#define urcu_posix_assert(condition) _urcu_use_expression(condition)
#else
#define urcu_posix_assert(condition) assert(condition)
#endif
#if defined(DEBUG_RCU) || defined(CONFIG_RCU_DEBUG)
#define urcu_assert_debug(condition) urcu_posix_assert(condition)
#else
#define urcu_assert_debug(condition) _urcu_use_expression(condition)
#endif

#endif
