/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/call-rcu.h> */
#ifndef REPRIEVE_COMPAT_URCU_CALL_RCU_H
#define REPRIEVE_COMPAT_URCU_CALL_RCU_H

#include <reprieve/compat/flavorless.h>

#endif
